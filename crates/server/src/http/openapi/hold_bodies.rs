//! Schemas of requests about holds, and of their batches.

use utoipa::openapi::schema::{AdditionalProperties, Schema, Type};
use utoipa::openapi::{ObjectBuilder, OneOfBuilder, Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use super::bodies::{array, integer, request_schemas};
use crate::http::decision::RulingJson;
use crate::http::hold_answers::ReservationJson;

request_schemas! {
    /// A reservation of units of a limit, or of the rules of a domain.
    #[schema(as = ReserveRequest)]
    ReserveRequestSchema;
    /// A reservation of units of a limit.
    ReserveLimit: "partner",
    /// The key whose units are set aside: any text, also an empty one, of at most about 3,000 bytes.
    key: "team:7";
    /// A reservation by the rules of a domain, with at most 64 attributes in all.
    ReserveRules;
    /// A reservation by the rules of the only domain, with at most 64 attributes in all.
    ReserveOnlyDomain;
    #[schema(schema_with = cost)]
    cost: Option<u64>;
    #[schema(schema_with = hold_for, required = false)]
    r#for: ();
}

/// The decision of a limit or of rules on a reservation.
#[derive(ToSchema)]
#[serde(untagged)]
#[schema(as = ReserveAnswer)]
#[expect(dead_code, reason = "for the document alone")]
pub(in crate::http) enum ReserveAnswerSchema {
    Limit(ReservationJson),
    Rules(RulingJson<'static>),
}

/// A settlement of a hold: `cost`, `costs`, or both; neither if only places of concurrency limits are held.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SettleRequest)]
#[expect(dead_code, reason = "for the document alone")]
pub(in crate::http) struct SettleRequestSchema {
    /// The token of the hold.
    #[schema(max_length = 4096)]
    hold: String,
    #[schema(schema_with = used)]
    cost: Option<u64>,
    #[schema(schema_with = used_by_rule, required = false)]
    costs: (),
    /// Whether the units that are not used yet stay held, until the same expiry. By default the hold ends.
    #[schema(required = false)]
    keep: bool,
}

/// An extension of a hold.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ExtendRequest)]
#[expect(dead_code, reason = "for the document alone")]
pub(in crate::http) struct ExtendRequestSchema {
    /// The token of the hold.
    #[schema(max_length = 4096)]
    hold: String,
    #[schema(schema_with = more)]
    cost: Option<u64>,
    #[schema(schema_with = extend_for)]
    r#for: (),
}

/// Implements the schema of a batch, and of its answers.
macro_rules! batches {
    ($($(#[$about:meta])* $name:ident: [$($item:literal),+];)*) => {
        $(
            $(#[$about])*
            pub(in crate::http) struct $name;

            impl PartialSchema for $name {
                fn schema() -> RefOr<Schema> {
                    array(one_of(&[$($item),+]))
                }
            }

            impl ToSchema for $name {}
        )*
    };
}

batches! {
    /// Reservations, each decided by itself.
    ReserveRequests: ["ReserveRequest"];
    /// Settlements, each by itself.
    SettleRequests: ["SettleRequest"];
    /// Extensions, each decided by itself.
    ExtendRequests: ["ExtendRequest"];
    /// The answers to reservations, in their order.
    ReserveAnswers: ["ReserveAnswer", "Problem"];
    /// The answers to settlements, in their order.
    SettleAnswers: ["SettleAnswer", "Problem"];
    /// The answers to extensions, in their order.
    ExtendAnswers: ["ExtendAnswer", "Problem"];
}

fn one_of(names: &[&str]) -> RefOr<Schema> {
    match names {
        [name] => Ref::from_schema_name(*name).into(),
        names => {
            let each = names.iter().map(|name| Ref::from_schema_name(*name));
            each.fold(OneOfBuilder::new(), OneOfBuilder::item).into()
        }
    }
}

fn cost() -> Schema {
    integer(1, "The units to set aside. By default 1, or the units that the rules give.").into()
}

fn used() -> Schema {
    let about = "The units that were used since the reservation, also the units of earlier settlements of the hold. \
                 Optional if only places of concurrency limits are held.";
    integer(0, about).into()
}

fn used_by_rule() -> Schema {
    let about = "The units that were used under single rules, by their names, where they differ from `cost`.";
    let units = integer(0, "Units").build();
    ObjectBuilder::new()
        .schema_type(Type::Object)
        .description(Some(about))
        .additional_properties(Some(AdditionalProperties::RefOr(RefOr::T(units.into()))))
        .into()
}

fn more() -> Schema {
    integer(0, "The units to add. By default 0: only the expiry moves.").into()
}

fn hold_for() -> Schema {
    duration(
        "How long the units are held, unless the hold is settled or extended: up to 366 days. By default the time in the rules, the time of a concurrency limit, or 60 s.",
    )
}

fn extend_for() -> Schema {
    duration("How long the units are held from now on: up to 366 days.")
}

/// Returns the schema of a duration.
fn duration(about: &str) -> Schema {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some(r"^([1-9][0-9]?d|[1-9][0-9]{0,2}h|[1-9][0-9]{0,4}m|[1-9][0-9]{0,6}s|[1-9][0-9]{0,9}ms|[1-9][0-9]{0,12}us)$"))
        .description(Some(about))
        .examples([serde_json::json!("30s")])
        .into()
}
