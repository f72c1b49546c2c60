//! What clients can learn of the services here: gRPC reflection, as it is now and as it was.
//!
//! What is known of Envoy's service is `rate_limit.bin`, which `make reflection` makes.

use tonic::service::Routes;
use tonic_reflection::server::{Builder, Error};

use super::MAX_QUESTION_BYTES;

/// The files that Envoy's service is declared in, and all they need.
const RATE_LIMIT: &[u8] = include_bytes!("rate_limit.bin");

/// Adds both versions. If what is known cannot be read, which a test rules out, there is no reflection.
pub(super) fn add_to(routes: Routes) -> Routes {
    match with_both(routes.clone()) {
        Ok(routes) => routes,
        Err(error) => {
            tracing::error!(%error, "no gRPC reflection");
            routes
        }
    }
}

fn with_both(routes: Routes) -> Result<Routes, Error> {
    let v1 = known().build_v1()?.max_decoding_message_size(MAX_QUESTION_BYTES);
    let v1alpha = known().build_v1alpha()?.max_decoding_message_size(MAX_QUESTION_BYTES);
    Ok(routes.add_service(v1).add_service(v1alpha))
}

fn known() -> Builder<'static> {
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
    fn what_is_known_can_be_read() {
        assert!(with_both(Routes::default()).is_ok());
    }

    #[test]
    fn every_file_that_is_needed_is_there_before_it_is() {
        let mut before = Vec::new();
        for file in files() {
            for needed in &file.dependency {
                assert!(before.contains(needed), "{needed} of {:?}", file.name);
            }
            before.extend(file.name);
        }
        assert_eq!(before.last().unwrap(), "envoy/service/ratelimit/v3/rls.proto");
    }

    /// The fields of a message that is not in another.
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
    fn messages_are_those_that_are_answered() {
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
