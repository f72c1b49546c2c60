//! A batch of requests as the script's keys and arguments.

use redis::Cmd;
use tollgate_core::{ChargePlace, Intent, Limit, Role};

use super::number::put_number;
use super::{ServerCharge, StoreRequest, limit};
use crate::script::Abilities;
use tollgate_limiter::store::Demand;

/// The script's number for "the server's time" and for "any wait": larger than every time and wait.
const NONE: u64 = 1 << 53;

/// The script's keys and arguments for a batch.
#[derive(Debug, Default)]
pub(crate) struct Arguments<'a> {
    pub(crate) abilities: Abilities,
    keys: Vec<&'a [u8]>,
    interned: Vec<Limit>,
    limits: Vec<u8>,
    requests: Vec<u8>,
}

impl<'a> Arguments<'a> {
    pub(crate) fn of(batch: impl IntoIterator<Item = &'a StoreRequest>) -> Arguments<'a> {
        let mut arguments = Arguments::default();
        batch.into_iter().for_each(|request| arguments.add(request));
        arguments
    }

    /// Returns the arguments for the script that carries over what was spent under another limit.
    pub(crate) fn carrying_over(self) -> Arguments<'a> {
        Arguments { abilities: Abilities::ALL, ..self }
    }

    fn add(&mut self, request: &'a StoreRequest) {
        let charges = request.charges();
        self.requests.push(request.kind_number());
        if !request.is_plain() {
            self.abilities.add_beyond_checks();
            // OK because a request has at most MAX_CHARGES.
            self.requests.extend_from_slice(&(charges.len() as u16).to_le_bytes());
        }
        for charge in charges {
            self.add_charge(request, charge);
        }
    }

    fn add_charge(&mut self, request: &StoreRequest, charge: &'a ServerCharge) {
        let limit = self.intern(charge.limit());
        self.requests.extend_from_slice(&limit.to_le_bytes());
        put_number(&mut self.requests, charge.demand().request.cost.units());
        if !request.is_plain() {
            self.requests.push(request.role(charge));
            let (a, b) = request.numbers(charge);
            for number in [request.at_us().unwrap_or(NONE), a, b] {
                put_number(&mut self.requests, number);
            }
        }
        self.keys.push(&charge.key);
    }

    /// Returns the number of a limit in this batch, from 1.
    fn intern(&mut self, limit: &Limit) -> u16 {
        let known = self.interned.iter().position(|other| other == limit);
        let at = known.unwrap_or_else(|| {
            self.interned.push(*limit);
            self.abilities.add(limit);
            limit::put(&mut self.limits, limit);
            self.interned.len() - 1
        });
        // OK because there are no more limits than charges.
        at as u16 + 1
    }

    /// Returns the command `name` (`EVAL` or `EVALSHA`) that runs a script, given by its text or its hash.
    pub(crate) fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = redis::cmd(name);
        command.arg(script).arg(self.keys.len());
        for key in &self.keys {
            command.arg(*key);
        }
        command.arg(&self.limits[..]).arg(&self.requests[..]);
        command
    }
}

impl StoreRequest {
    /// Whether it is a check that needs no more than its limit and its cost.
    fn is_plain(&self) -> bool {
        match self {
            StoreRequest::Check { charge, at_us } => {
                at_us.is_none() && charge.demand().request.max_wait_us.is_none()
            }
            _ => false,
        }
    }

    /// Returns the script's number for the kind of request.
    fn kind_number(&self) -> u8 {
        match self {
            plain if plain.is_plain() => 0,
            StoreRequest::Check { .. } => 1,
            StoreRequest::CheckAll { .. } => 2,
            StoreRequest::Peek { .. } => 3,
            StoreRequest::Refund { .. } => 4,
            StoreRequest::Reset { .. } => 5,
            StoreRequest::State { .. } => 6,
        }
    }

    /// Returns the kind of place that a refund names. For all other requests, returns a bit for shadow mode and a bit for a
    /// peek.
    fn role(&self, charge: &ServerCharge) -> u8 {
        match self {
            StoreRequest::Refund { place: ChargePlace::Window { .. }, .. } => 0,
            StoreRequest::Refund { place: ChargePlace::Entry { .. }, .. } => 1,
            StoreRequest::Refund { place: ChargePlace::Bucket { .. }, .. } => 2,
            // A peek request does not charge, whatever the intent of its charge is.
            StoreRequest::Peek { .. } => u8::from(charge.demand().role == Role::Shadow),
            _ => {
                let Demand { role, intent, .. } = *charge.demand();
                u8::from(role == Role::Shadow) | u8::from(intent == Intent::Peek) << 1
            }
        }
    }

    /// Returns the two numbers whose meaning depends on the kind of request.
    fn numbers(&self, charge: &ServerCharge) -> (u64, u64) {
        match self {
            StoreRequest::Refund { place, .. } => match *place {
                ChargePlace::Window { start_us, window_us } => (start_us, window_us),
                ChargePlace::Entry { at_us } => (at_us, 0),
                ChargePlace::Bucket { charged, over_us } => (charged, over_us),
            },
            _ => (charge.demand().request.max_wait_us.map_or(NONE, |us| us.min(NONE - 1)), 0),
        }
    }
}
