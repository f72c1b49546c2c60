//! A batch for benchmarks to encode; not part of the API.

use std::sync::Arc;

use tollgate_core::{Cost, Limit, UnitRequest};

use super::wire::{Arguments, ServerCharge, StoreRequest};
use tollgate_limiter::store::Demand;
use tollgate_limiter::store::{self, Name};

/// Requests that go to a server in one call.
#[derive(Debug)]
pub struct CheckBatch {
    requests: Vec<StoreRequest>,
}

impl CheckBatch {
    /// Returns checks of one unit under one limit, each of another key.
    pub fn of_checks(limit: Limit, keys: usize) -> CheckBatch {
        let demand = Demand::of(UnitRequest::new(Cost::ONE));
        let name = Arc::new(Name::new("api", []));
        let check = |key: usize| StoreRequest::Check {
            charge: ServerCharge {
                original: store::Charge::new(Arc::clone(&name), &[], limit, demand),
                key: format!("tollgate:{{user:{key}}}:api").into_bytes().into(),
            },
            at_us: None,
        };
        CheckBatch { requests: (0..keys).map(check).collect() }
    }

    /// Encodes the batch as the bytes that are sent.
    pub fn encode(&self) -> Vec<u8> {
        let arguments = Arguments::of(&self.requests);
        arguments.command("EVALSHA", &arguments.abilities.script().hash).get_packed_command()
    }
}
