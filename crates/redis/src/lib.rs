//! The Redis store: the state of every key is on a server, and is decided there, in one round trip.
//!
//! # The path of a check
//!
//! 1. `lib.rs`: makes the key on the server, and answers from the deny cache (`denials.rs`) if that has a refusal.
//! 2. `servers.rs`: makes the waiting request, and picks the server that has the key.
//! 3. `node.rs`: puts the request into the queue of that server (`batcher.rs`), unless its breaker is open.
//! 4. `node/sender.rs`: takes the next batch from the queue, if the breaker (`breaker.rs`) admits it.
//! 5. `node/flight.rs`: sends the batch as one script call (`wire/arguments.rs`), and waits for the reply in time.
//! 6. The script decides the batch on the server: `plain.lua` if the batch has only plain checks of windows and buckets,
//!    otherwise `check.lua`.
//! 7. `node/flight/replies.rs`: reads the reply to each request (`wire/answers.rs`).
//! 8. `waiting.rs`: answers the caller, exactly once. The caller's future (`reply.rs`) returns the answer.
//!
//! # Layers
//!
//! A module uses only modules of its own line and of the lines below. A lower layer gets what it needs from a higher one as
//! a function or a trait object: `node` gets its cluster's `Reroute`, `cluster` the function that splits a check, `refunds`
//! the function that sends a refund. Five modules take only a constant or plain types from a line above: `wire` the
//! `MAX_BATCH` of `batcher`; `node`, `target` and `sentinel` the addresses and redirects of `slots`; `shared` the
//! `ServerCharge` of `wire`.
//!
//! - the store: this module, its settings (`builder`), and batches that are decided in order (`in_order`)
//! - several places: `split_check` decides checks whose keys are on different servers, and `split_holds` settlements and
//!   extensions; `split_parts` sends the parts of both
//! - `heartbeat` counts the limiters that share the servers
//! - routing: `servers` knows which server has a key: the only one, one of several (`rendezvous`), or the one that has the
//!   key's slot in a `cluster` (`slots`)
//! - one server: `node`, with its queue (`batcher`) and its `breaker`
//! - one request: `waiting` answers it, `reply` is the caller's end, `refunds` (`refund_order`) gives unread charges back
//! - one connection: `target`, the primary that a `sentinel` names, `connect`, `race`, `address` and `tls`
//! - the wire: `wire`, the scripts (`script` puts them together), `key`, and errors of a server by kind (`fault`)
//! - shared by all: `shared`, with the `executor` of all tasks, the deny cache (`denials`) and the log of outages (`outage`)

mod address;
mod batcher;
#[doc(hidden)]
pub mod bench;
mod breaker;
mod builder;
mod cluster;
mod connect;
#[cfg(test)]
mod costs;
mod denials;
mod executor;
mod fault;
mod heartbeat;
mod in_order;
mod key;
mod node;
mod outage;
#[cfg(test)]
mod parity;
mod race;
mod refund_order;
mod refunds;
mod rendezvous;
mod reply;
mod script;
mod sentinel;
mod servers;
mod shared;
mod slots;
mod split_check;
mod split_holds;
mod split_parts;
mod target;
mod tls;
mod waiting;
mod wire;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate_core::{ChargeReceipt, ExtendAnswer, Intent, LeaseAnswer, SettleAnswer};
use tollgate_limiter::store::{
    Call, Charge, CheckRequest, DecisionSource, ExtendRequest, Fallback, JointRequest,
    KeyLeaseRequest, KeyState, RemoteStore, SettleRequest, Task, UnreadPolicy, Wake,
};
use tollgate_limiter::{Answer, Decision, Error, Health, JointDecision};

pub use builder::Redis;
use builder::RedisSettings;
use heartbeat::Heartbeat;
use key::Keys;
use refunds::{Refunds, UnreadCharge, UnreadHolds, UnreadUnits};
use reply::ReplyFuture;
use servers::Servers;
use shared::StoreContext;
use waiting::FollowUp;
use wire::{MAX_CHARGES, Reply};
pub(crate) use wire::{ServerCharge, StoreRequest};

/// The Redis store.
pub(crate) struct RedisStore {
    servers: Arc<Servers>,
    refunds: Arc<Refunds>,
    keys: Keys,
    prefix: String,
    heartbeat: Heartbeat,
}

impl RedisStore {
    /// Makes the store, without connecting to a server.
    fn new(
        settings: RedisSettings,
        deadline: Duration,
        fallback: &Arc<Fallback>,
    ) -> Result<RedisStore, Error> {
        let RedisSettings { deployment, prefix } = settings;
        let shared = StoreContext::new(deadline, Arc::clone(fallback)).map_err(|error| {
            let problem = format!("no thread for its connections: {error}");
            Error::Setting { setting: "redis", problem }
        })?;
        let servers = split_check::servers(&Arc::new(shared), deployment);
        let sender = Arc::clone(&servers);
        let send = move |refund, wake| sender.give_back(refund, FollowUp::Wake(wake));
        let refunds = Arc::new(Refunds::new(send, fallback));
        let (keys, heartbeat) = (Keys::new(&prefix), Heartbeat::default());
        Ok(RedisStore { servers, refunds, keys, prefix, heartbeat })
    }

    /// Returns a charge with its key on the server.
    fn charge(&self, original: Charge) -> ServerCharge {
        let key = self.keys.key(original.key(), original.name().encoded());
        ServerCharge { key, original }
    }

    /// Sends a request whose keys are in one place.
    fn send<T: 'static>(
        &self,
        request: StoreRequest,
        call: &Call,
        follow_up: FollowUp,
        read: fn(Reply) -> Option<T>,
    ) -> Answer<T> {
        let receiver = self.servers.submit(request, call, follow_up);
        Answer::pending(ReplyFuture::new(receiver, read))
    }

    /// Sends a settlement or an extension of holds, which may be in different places.
    fn send_on_holds<T: 'static>(
        &self,
        request: StoreRequest,
        call: &Call,
        follow_up: FollowUp,
        read: fn(Reply) -> Option<T>,
    ) -> Answer<T> {
        let weight = request.charges().iter().map(ServerCharge::counts_as_hold).sum();
        if weight > MAX_CHARGES {
            return Answer::ready(Err(Error::TooMuchWork { weight, most: MAX_CHARGES }));
        }
        let receiver = split_holds::submit(&self.servers, request, call, follow_up);
        Answer::pending(ReplyFuture::new(receiver, read))
    }

    /// Returns the request for a check of several limits; an error if it is too much work for one run of a script.
    fn joint(&self, request: JointRequest) -> Result<(StoreRequest, Call), Error> {
        let JointRequest { charges, call } = request;
        self.heartbeat.start_for(&call, &self.servers, &self.prefix);
        let charges: Vec<ServerCharge> =
            charges.into_iter().map(|charge| self.charge(charge)).collect();
        let weight = charges.iter().map(ServerCharge::counts_as).sum();
        if weight > MAX_CHARGES {
            return Err(Error::TooMuchWork { weight, most: MAX_CHARGES });
        }
        Ok((StoreRequest::CheckAll { charges, at_us: call.at_us }, call))
    }
}

impl RemoteStore for RedisStore {
    fn encode_name(&self, text: &str) -> Box<[u8]> {
        key::encode_name(text)
    }

    fn max_charges(&self) -> usize {
        MAX_CHARGES
    }

    fn check(&self, request: CheckRequest) -> Answer<Decision> {
        let CheckRequest { charge, call, if_unread, may_be_remembered } = request;
        self.heartbeat.start_for(&call, &self.servers, &self.prefix);
        let (charge, at_us) = (self.charge(charge), call.at_us);
        if charge.demand().intent == Intent::Peek {
            return self.send(
                StoreRequest::Peek { charge, at_us },
                &call,
                FollowUp::Nothing,
                reply::decision,
            );
        }
        if may_be_remembered
            && at_us.is_none()
            && charge.demand().request.max_wait_us.is_none()
            && let Some(decision) = self.servers.shared().recall(&charge)
        {
            return Answer::ready(Ok(Decision::uncharged(decision, DecisionSource::Cache)));
        }
        let unread = match if_unread {
            UnreadPolicy::Keep => None,
            UnreadPolicy::Refund(wake) => {
                let charge = UnreadCharge::new(&self.refunds, &charge, at_us, wake);
                Some(UnreadUnits::Charge(Arc::new(charge)))
            }
        };
        let follow_up = FollowUp::giving_back(&unread);
        let receiver = self.servers.submit(StoreRequest::Check { charge, at_us }, &call, follow_up);
        Answer::pending(ReplyFuture::new(receiver, reply::decision).giving_back(unread))
    }

    fn check_all(&self, request: JointRequest) -> Answer<JointDecision> {
        match self.joint(request) {
            Ok((request, call)) => {
                let unread = request.has_holds().then(|| {
                    let holds = UnreadHolds::new(&self.refunds, request.charges(), call);
                    UnreadUnits::Holds(Arc::new(holds))
                });
                let follow_up = FollowUp::giving_back(&unread);
                let receiver = split_check::submit(&self.servers, request, &call, follow_up);
                Answer::pending(ReplyFuture::new(receiver, reply::joint).giving_back(unread))
            }
            Err(error) => Answer::ready(Err(error)),
        }
    }

    fn batch(
        self: Arc<Self>,
        requests: Vec<JointRequest>,
        within: Option<Duration>,
    ) -> Answer<Vec<Result<JointDecision, Error>>> {
        let requests = requests.into_iter().map(|request| self.joint(request)).collect();
        in_order::decide(&self.servers, requests, within)
    }

    fn refund(
        &self,
        charge: Charge,
        receipt: ChargeReceipt,
        call: Call,
        wake: Wake,
    ) -> Answer<u64> {
        let charge = self.charge(charge);
        let request = StoreRequest::Refund { charge, place: receipt.place(), at_us: call.at_us };
        self.send(request, &call, FollowUp::Wake(wake), |reply| match reply {
            Reply::Refunded(units) => Some(units),
            _ => None,
        })
    }

    fn reset(&self, charge: Charge, call: Call, wake: Wake) -> Answer<()> {
        let request = StoreRequest::Reset { charge: self.charge(charge) };
        self.send(request, &call, FollowUp::Wake(wake), |reply| match reply {
            Reply::Reset => Some(()),
            _ => None,
        })
    }

    fn state(&self, charge: Charge, call: Call) -> Answer<KeyState> {
        let request = StoreRequest::State { charge: self.charge(charge), at_us: call.at_us };
        self.send(request, &call, FollowUp::Nothing, |reply| match reply {
            Reply::State { limit, state, holds, now_us } => {
                Some(KeyState { limit, state: *state, holds, now_us })
            }
            _ => None,
        })
    }

    fn has_holds(&self) -> bool {
        true
    }

    fn settle(&self, request: SettleRequest) -> Answer<Vec<SettleAnswer>> {
        let SettleRequest { parts, call, wake } = request;
        let (charges, uses) = parts
            .into_iter()
            .map(|part| (self.charge(part.charge), (part.hold, part.used)))
            .unzip();
        let request = StoreRequest::Settle { charges, uses, at_us: call.at_us };
        self.send_on_holds(request, &call, FollowUp::Wake(wake), |reply| match reply {
            Reply::Settled(answers) => Some(answers),
            _ => None,
        })
    }

    fn extend(&self, request: ExtendRequest) -> Answer<Vec<ExtendAnswer>> {
        let ExtendRequest { parts, call } = request;
        let (charges, growths) = parts
            .into_iter()
            .map(|part| (self.charge(part.charge), (part.hold, part.growth)))
            .unzip();
        let request = StoreRequest::Extend { charges, growths, at_us: call.at_us };
        self.send_on_holds(request, &call, FollowUp::Nothing, |reply| match reply {
            Reply::Extended(answers) => Some(answers),
            _ => None,
        })
    }

    fn has_leases(&self) -> bool {
        true
    }

    /// If the answer comes too late, the lease is left to expire: the process may have sent the same request again, and use
    /// the lease that this opened.
    fn lease(&self, request: KeyLeaseRequest) -> Answer<LeaseAnswer> {
        let KeyLeaseRequest { charge, lease, call } = request;
        let request = StoreRequest::Lease { charge: self.charge(charge), lease, at_us: call.at_us };
        self.send(request, &call, FollowUp::Nothing, |reply| match reply {
            Reply::Leased(answer) => Some(*answer),
            _ => None,
        })
    }

    fn spawn(&self, task: Task) {
        self.servers.shared().executor.spawn(task);
    }

    fn health(&self) -> Health {
        let failed = self.servers.shared().failures();
        Health::new(self.servers.health(), failed.by_kind(), failed.last)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("health", &self.health()).finish_non_exhaustive()
    }
}
