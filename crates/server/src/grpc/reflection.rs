//! gRPC reflection, which describes the services to clients, in the versions `v1` and `v1alpha`.
//!
//! `rate_limit.bin` describes Envoy's service; `make reflection` makes it.

use tonic::service::Routes;
use tonic_reflection::server::{Builder, Error};

use super::MAX_TONIC_REQUEST_BYTES;

/// The files that declare Envoy's service, and all files that they import.
const RATE_LIMIT: &[u8] = include_bytes!("rate_limit.bin");

/// Adds both versions of reflection. If the descriptions cannot be read, which a test rules out, none is added.
pub(super) fn add_to(routes: Routes) -> Routes {
    match add_both(routes.clone()) {
        Ok(routes) => routes,
        Err(error) => {
            tracing::error!(%error, "gRPC reflection is off: its descriptions cannot be read");
            routes
        }
    }
}

fn add_both(routes: Routes) -> Result<Routes, Error> {
    let v1 = builder().build_v1()?.max_decoding_message_size(MAX_TONIC_REQUEST_BYTES);
    let v1alpha = builder().build_v1alpha()?.max_decoding_message_size(MAX_TONIC_REQUEST_BYTES);
    Ok(routes.add_service(v1).add_service(v1alpha))
}

fn builder() -> Builder<'static> {
    Builder::configure()
        .register_encoded_file_descriptor_set(RATE_LIMIT)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::core::v3::HeaderValue;
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
    use envoy_types::pb::google::protobuf::{FileDescriptorProto, FileDescriptorSet};
    use prost::{Message, Name};

    use super::*;

    fn files() -> Vec<FileDescriptorProto> {
        FileDescriptorSet::decode(RATE_LIMIT).unwrap().file
    }

    #[test]
    fn descriptions_can_be_read() {
        assert!(add_both(Routes::default()).is_ok());
    }

    #[test]
    fn every_import_comes_before_its_file() {
        let mut before = Vec::new();
        for file in files() {
            for needed in &file.dependency {
                assert!(before.contains(needed), "{needed} of {:?}", file.name);
            }
            before.extend(file.name);
        }
        assert_eq!(before.last().unwrap(), "envoy/service/ratelimit/v3/rls.proto");
    }

    /// Returns the fields of a message that is not nested in another.
    fn fields<M: Name>() -> Vec<(String, i32)> {
        let files = files();
        let file = files.iter().find(|file| {
            file.package() == M::PACKAGE
                && file.message_type.iter().any(|own| own.name() == M::NAME)
        });
        let message = file.unwrap().message_type.iter().find(|own| own.name() == M::NAME).unwrap();
        message.field.iter().map(|field| (field.name().to_owned(), field.number())).collect()
    }

    #[test]
    fn described_messages_have_the_fields_of_the_implemented_messages() {
        let want = |fields: &[(&str, i32)]| {
            fields.iter().map(|&(name, number)| (name.to_owned(), number)).collect::<Vec<_>>()
        };
        assert_eq!(
            fields::<RateLimitRequest>(),
            want(&[("domain", 1), ("descriptors", 2), ("hits_addend", 3)])
        );
        let descriptor =
            [("entries", 1), ("limit", 2), ("hits_addend", 3), ("is_negative_hits", 4)];
        assert_eq!(fields::<RateLimitDescriptor>(), want(&descriptor));
        assert_eq!(
            fields::<RateLimitResponse>(),
            want(&[
                ("overall_code", 1),
                ("statuses", 2),
                ("response_headers_to_add", 3),
                ("request_headers_to_add", 4),
                ("raw_body", 5),
                ("dynamic_metadata", 6),
                ("quota", 7),
            ])
        );
        assert_eq!(fields::<HeaderValue>(), want(&[("key", 1), ("value", 2), ("raw_value", 3)]));
    }
}
