//! A batch of requests as the script's keys and arguments.

use redis::Cmd;
use tollgate_core::{ChargePlace, Cost, GrantedExtension, HoldId, Intent, Limit, MAX_UNITS, Role};

use super::number::put_number;
use super::{ServerCharge, StoreRequest, limit};
use crate::script::Abilities;
use tollgate_limiter::store::{Demand, HoldTerms};

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

    /// Returns the arguments for the script that also reads keys with holds.
    pub(crate) fn beside_holds(mut self) -> Arguments<'a> {
        self.abilities.add_holds();
        self
    }

    /// Returns the arguments for the script that carries over what was spent under another limit.
    pub(crate) fn carrying_over(self) -> Arguments<'a> {
        Arguments { abilities: Abilities::ALL, ..self }
    }

    fn add(&mut self, request: &'a StoreRequest) {
        let charges = request.charges();
        let is_plain = request.is_plain();
        self.requests.push(if is_plain { 0 } else { request.kind_number() });
        if !is_plain {
            self.abilities.add_beyond_checks();
            if request.has_holds() {
                self.abilities.add_holds();
            }
            // OK because a request has at most MAX_CHARGES.
            self.requests.extend_from_slice(&(charges.len() as u16).to_le_bytes());
        }
        for (index, charge) in charges.iter().enumerate() {
            let limit = self.intern(charge.limit());
            self.requests.extend_from_slice(&limit.to_le_bytes());
            if is_plain {
                put_number(&mut self.requests, charge.demand().request.cost.units());
            } else {
                self.add_fields(request, index, charge);
            }
            self.keys.push(&charge.key);
        }
    }

    fn add_fields(&mut self, request: &StoreRequest, index: usize, charge: &ServerCharge) {
        let SentCharge { cost, role, a, b, id } = request.fields(index, charge);
        put_number(&mut self.requests, cost);
        self.requests.push(role);
        for number in [request.at_us().unwrap_or(NONE), a, b] {
            put_number(&mut self.requests, number);
        }
        if let Some(HoldId(id)) = id {
            self.requests.extend_from_slice(&id.to_be_bytes());
        }
        if let StoreRequest::Lease { lease, .. } = request {
            for units in [lease.used, lease.want, lease.most] {
                put_number(&mut self.requests, units.min(MAX_UNITS));
            }
        }
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

    /// Returns the script's number for the kind of a request that is not plain.
    fn kind_number(&self) -> u8 {
        match self {
            StoreRequest::Check { .. } => 1,
            StoreRequest::CheckAll { .. } => 2,
            StoreRequest::Peek { .. } => 3,
            StoreRequest::Refund { .. } => 4,
            StoreRequest::Reset { .. } => 5,
            StoreRequest::State { .. } => 6,
            StoreRequest::Settle { .. } => 7,
            StoreRequest::Extend { .. } => 8,
            StoreRequest::TakeBack { .. } => 9,
            StoreRequest::Lease { .. } => 10,
        }
    }

    /// Returns what the script is sent for a charge besides its limit and its time.
    fn fields(&self, index: usize, charge: &ServerCharge) -> SentCharge {
        let Demand { request, role, intent, hold } = *charge.demand();
        let is_shadow = u8::from(role == Role::Shadow);
        let max_wait_us = request.max_wait_us.map_or(NONE, |us| us.min(NONE - 1));
        let fields = SentCharge {
            cost: request.cost.units(),
            role: is_shadow,
            a: max_wait_us,
            b: 0,
            id: None,
        };
        match self {
            StoreRequest::Refund { place, .. } => {
                let (role, a, b) = match *place {
                    ChargePlace::Window { start_us, window_us } => (0, start_us, window_us),
                    ChargePlace::Entry { at_us } => (1, at_us, 0),
                    ChargePlace::Bucket { charged, over_us } => (2, charged, over_us),
                    // The store does not know of this charge. No limit has a charge at this place, so nothing is given back.
                    ChargePlace::Lease { .. } => (1, 0, 0),
                };
                SentCharge { role, a, b, ..fields }
            }
            // A peek request does not charge, whatever the intent of its charge is.
            StoreRequest::Peek { .. } => fields,
            StoreRequest::Settle { uses, .. } => {
                // OK because there is a hold for each charge.
                let (hold, used) = uses[index];
                let cost = used.units.min(MAX_UNITS);
                let (role, id) = (u8::from(used.is_last), Some(hold.id));
                SentCharge { cost, role, a: hold.expires_us, b: 0, id }
            }
            StoreRequest::TakeBack { extended, .. } => {
                let GrantedExtension { hold, more, expires_us } = *extended;
                let (cost, id) = (more.map_or(0, Cost::units), Some(hold.id));
                SentCharge { cost, role: 0, a: hold.expires_us, b: expires_us, id }
            }
            StoreRequest::Lease { lease, .. } => {
                let cost = lease.need.map_or(fields.cost, Cost::units);
                let a = lease.expires_us.map_or(NONE, |us| us.min(NONE - 1));
                let (role, b) = (u8::from(lease.need.is_some()), lease.lease_for.as_us());
                SentCharge { cost, role, a, b, id: Some(lease.id) }
            }
            StoreRequest::Extend { growths, .. } => {
                // OK because there is a hold for each charge.
                let (hold, growth) = growths[index];
                let cost = growth.more.map_or(0, Cost::units);
                let (a, b) = (hold.expires_us, growth.hold_for.as_us());
                SentCharge { cost, role: 0, a, b, id: Some(hold.id) }
            }
            _ => {
                let role = is_shadow | u8::from(intent == Intent::Peek) << 1;
                match hold {
                    Some(HoldTerms { id, hold_for }) => {
                        let (role, id) = (role | 1 << 2, Some(id));
                        SentCharge { role, b: hold_for.as_us(), id, ..fields }
                    }
                    None => SentCharge { role, ..fields },
                }
            }
        }
    }
}

/// The part of a request that belongs to one charge, as the script gets it.
struct SentCharge {
    cost: u64,
    role: u8,
    a: u64,
    b: u64,
    id: Option<HoldId>,
}
