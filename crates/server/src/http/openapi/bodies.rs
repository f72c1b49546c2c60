//! Schemas of bodies that are read and written by hand.

use utoipa::openapi::schema::{AdditionalProperties, AnyOfBuilder, Schema, SchemaFormat, Type};
use utoipa::openapi::{ArrayBuilder, ObjectBuilder, OneOfBuilder, Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use crate::http::check_body::MAX_REQUESTS;
use crate::http::decision::{DecisionJson, RulingJson};
use crate::trust::MAX_ATTRIBUTES;

/// The decision of a limit or of rules.
#[derive(ToSchema)]
#[serde(untagged)]
#[expect(dead_code, reason = "for the document alone")]
pub(in crate::http) enum CheckAnswer {
    Limit(DecisionJson),
    Rules(RulingJson<'static>),
}

/// The answers of a batch, in the order of its requests.
pub(in crate::http) struct BatchAnswer;

impl PartialSchema for BatchAnswer {
    fn schema() -> RefOr<Schema> {
        let [answer, problem] = ["CheckAnswer", "Problem"].map(Ref::from_schema_name);
        array(OneOfBuilder::new().item(answer).item(problem).into())
    }
}

impl ToSchema for BatchAnswer {}

/// Why a proxy's request is refused.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[expect(dead_code, reason = "for the document alone")]
pub(in crate::http) struct RefusalProblem {
    /// The problem type of the IETF for a spent quota, or `about:blank`.
    r#type: String,
    /// The meaning of the status.
    #[schema(example = "Too Many Requests")]
    title: String,
    /// The status of the answer.
    #[schema(minimum = 400, maximum = 599, example = 429)]
    status: u16,
    /// The description of the refusal: what happened, and what to do.
    #[schema(example = "`per-client` is spent (limit `free`); come back in 1 s")]
    detail: String,
    /// The rule that refuses the request; if several do, the one with the longest wait.
    #[schema(nullable = false, example = "per-client")]
    rule: Option<String>,
    /// The limit that this rule spends, which depends on the client's tier. Absent if the rule blocks the request.
    #[schema(nullable = false, example = "free")]
    limit_name: Option<String>,
    /// The rules that refuse the request; absent if none does.
    #[serde(rename = "violated-policies")]
    #[schema(nullable = false)]
    violated_policies: Option<Vec<String>>,
    /// How long to wait; null or absent if waiting does not help, or the time is not known.
    retry_after_us: Option<u64>,
}

/// Implements the schemas of a request to a limit, to the rules of a domain, and to the rules of the only domain. All have
/// the same further fields.
macro_rules! request_schemas {
    (
        $(#[$about:meta])* $request:ident;
        $(#[$about_limit:meta])* $limit:ident: $limit_example:tt, $(#[$about_key:meta])* key: $key_example:tt;
        $(#[$about_rules:meta])* $rules:ident;
        $(#[$about_domain:meta])* $only_domain:ident;
        $($(#[$about_field:meta])* $field:ident: $type:ty;)*
    ) => {
        #[derive(utoipa::ToSchema)]
        #[serde(untagged)]
        $(#[$about])*
        #[expect(dead_code, reason = "for the document alone")]
        pub(in crate::http) enum $request {
            Limit($limit),
            Rules($rules),
            OnlyDomain($only_domain),
        }

        $(#[$about_limit])*
        #[derive(utoipa::ToSchema)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "for the document alone")]
        pub(in crate::http) struct $limit {
            /// The limit's name.
            #[schema(example = $limit_example)]
            limit: String,
            $(#[$about_key])*
            #[schema(example = $key_example)]
            key: String,
            $($(#[$about_field])* $field: $type,)*
        }

        $(#[$about_rules])*
        #[derive(utoipa::ToSchema)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "for the document alone")]
        pub(in crate::http) struct $rules {
            /// The domain whose rules decide.
            #[schema(example = "api")]
            domain: String,
            #[schema(schema_with = crate::http::openapi::bodies::attributes, required = false)]
            attributes: (),
            #[schema(schema_with = crate::http::openapi::bodies::verified, required = false)]
            verified: (),
            #[schema(schema_with = crate::http::openapi::bodies::said, required = false)]
            said: (),
            $($(#[$about_field])* $field: $type,)*
        }

        $(#[$about_domain])*
        #[derive(utoipa::ToSchema)]
        #[serde(deny_unknown_fields)]
        #[expect(dead_code, reason = "for the document alone")]
        pub(in crate::http) struct $only_domain {
            #[schema(schema_with = crate::http::openapi::bodies::attributes)]
            attributes: (),
            #[schema(schema_with = crate::http::openapi::bodies::verified, required = false)]
            verified: (),
            #[schema(schema_with = crate::http::openapi::bodies::said, required = false)]
            said: (),
            $($(#[$about_field])* $field: $type,)*
        }
    };
}
pub(super) use request_schemas;

request_schemas! {
    /// A request to a limit, or to the rules of a domain.
    #[schema(as = CheckRequest)]
    CheckRequestSchema;
    /// A request to a limit.
    CheckLimit: "free",
    /// The key that is limited: any text, also an empty one.
    key: "user:42";
    /// A request to the rules of a domain, with at most 64 attributes in all.
    CheckRules;
    /// A request to the rules of the only domain, with at most 64 attributes in all.
    CheckOnlyDomain;
    #[schema(schema_with = cost)]
    cost: Option<u64>;
    #[schema(schema_with = max_wait_us)]
    max_wait_us: Option<u64>;
}

/// The requests of a batch, each decided by itself.
pub(in crate::http) struct BatchRequest;

impl PartialSchema for BatchRequest {
    fn schema() -> RefOr<Schema> {
        array(Ref::from_schema_name("CheckRequest").into())
    }
}

impl ToSchema for BatchRequest {}

pub(super) fn array(items: RefOr<Schema>) -> RefOr<Schema> {
    let array = ArrayBuilder::new().items(items);
    array.min_items(Some(1)).max_items(Some(MAX_REQUESTS)).into()
}

fn cost() -> Schema {
    let about = "The units that the request spends. By default 1, or the cost in the rules.";
    integer(1, about).into()
}

fn max_wait_us() -> Schema {
    integer(0, "The longest delay to accept from a shaping limit. A request that would be delayed longer is refused.")
        .into()
}

/// Returns the schema of a whole number.
pub(super) fn integer(least: u64, about: &str) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::Integer)
        .minimum(Some(least))
        .maximum(Some(tollgate_core::MAX_UNITS))
        .description(Some(about))
}

pub(super) fn attributes() -> Schema {
    let about = "What the caller knows about the request: `method`, `path`, `ip`, `header.x-…`. An `api_key`, or a \
                 claim of a token (`jwt.…`), is not verified: rules ignore it, unless it is an API key in the table of \
                 the rules file.";
    text_map(about).property("ip", address()).into()
}

pub(super) fn verified() -> Schema {
    let about =
        "What the caller itself has verified about the client: `api_key`, `jwt.sub`, `tier`.";
    text_map(about).property("ip", address()).into()
}

pub(super) fn said() -> Schema {
    let about =
        "What the client says about the request, such as a header. Rules do not use it in keys.";
    text_map(about).into()
}

/// Returns the schema of a map from names to texts.
fn text_map(about: &str) -> ObjectBuilder {
    let text = ObjectBuilder::new().schema_type(Type::String).build();
    ObjectBuilder::new()
        .schema_type(Type::Object)
        .description(Some(about))
        .max_properties(Some(MAX_ATTRIBUTES))
        .additional_properties(Some(AdditionalProperties::RefOr(RefOr::T(text.into()))))
}

/// Returns the schema of an IP address, which has no port.
fn address() -> Schema {
    let of = |format: &str| {
        let format = SchemaFormat::Custom(format.to_owned());
        ObjectBuilder::new().schema_type(Type::String).format(Some(format))
    };
    AnyOfBuilder::new().item(of("ipv4")).item(of("ipv6")).into()
}
