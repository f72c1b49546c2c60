//! The Redis store: every key's state on a server, decided there, in one round trip.
//!
//! - `address`: what a URL says; `tls`: what `rediss://` needs
//! - `key`: the key of a scope and a client
//! - `plain.lua`: what decides plain checks on the server; `check.lua`, `states.lua`, `ring.lua`: all
//!   others, with the algorithms' twins; `script` puts them together
//! - `wire`: requests and answers as the script has them
//! - `batcher`: what goes together; `breaker`: whether a server is asked; `node`: one server, and who
//!   gets which answer; `waiting`: a request in flight; `refund_order`: when a dropped charge is refunded
//! - `servers`: which server has a key: `rendezvous` of several, or by the `slots` of a `cluster`, or
//!   the one that `sentinel`s name; `target`: where a connection leads; `race`: asking several
//! - `across`: several limits of one check on different servers
//! - `denials`: refusals that need not be asked for again; `policy`: what is decided without a server;
//!   `outage`: logs when the store begins to fail and when it answers again; `executor`: the runtime of
//!   all tasks; `shared`: what all servers have in common

mod across;
mod address;
mod batcher;
mod breaker;
mod cluster;
#[cfg(test)]
mod costs;
mod denials;
mod executor;
mod key;
#[doc(hidden)]
pub mod measured;
mod node;
mod outage;
#[cfg(test)]
mod parity;
mod policy;
mod race;
mod refund_order;
mod rendezvous;
mod script;
mod sentinel;
mod servers;
mod shared;
mod slots;
mod target;
mod tls;
mod waiting;
mod wire;

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tollgate_core::{Ask, Cost, Entry, Limit, Receipt, State};

use crate::answer::Answer;
use crate::check::IfDropped;
use crate::clock::Clock;
use crate::decision::{Decision, Source};
use crate::error::{Error, StoreError};
use crate::failure::{OnFailure, Terms};
use crate::health::Health;
use crate::receipt::Holder;
use crate::together::{Demand, Together};
use address::Deployment;
use batcher::MAX_BATCH;
use key::Keys;
use servers::Servers;
use shared::Shared;
pub(crate) use waiting::Nudge;
use waiting::{AndThen, Receiver, Refund, bounded};
pub(crate) use wire::{Charge, Request};
use wire::{MAX_CHARGES, PartOf, Reply};

/// Where the servers are, and how they are used.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    deployment: Deployment,
    prefix: String,
    pub(crate) terms: Terms,
}

impl Settings {
    pub(crate) fn of(url: &str) -> Result<Settings, Error> {
        Ok(Settings {
            deployment: Deployment::of(url)?,
            prefix: "tollgate:".to_owned(),
            terms: Terms { deadline: Duration::from_millis(10), on_failure: None },
        })
    }

    #[cfg(feature = "tls")]
    pub(crate) fn set_root_certificate(&mut self, pem: Vec<u8>) -> Result<(), Error> {
        self.deployment.certify("root_certificate", |certificates| certificates.set_root(pem))
    }

    #[cfg(feature = "tls")]
    pub(crate) fn set_client_certificate(
        &mut self,
        certificate_pem: Vec<u8>,
        key_pem: Vec<u8>,
    ) -> Result<(), Error> {
        self.deployment.certify("client_certificate", |certificates| {
            certificates.set_client(certificate_pem, key_pem)
        })
    }

    pub(crate) fn set_prefix(&mut self, prefix: &str) -> Result<(), Error> {
        key::check_prefix(prefix).map_err(|problem| {
            let problem = format!("`{}` {problem}", prefix.escape_debug());
            Error::Setting { setting: "prefix", problem }
        })?;
        self.prefix = prefix.to_owned();
        Ok(())
    }
}

/// The servers of one limiter.
#[derive(Clone)]
pub(crate) struct Redis {
    servers: Arc<Servers>,
    prefix: Arc<str>,
    /// Of scopes that have none of their own.
    terms: Terms,
    /// The caller's, instead of the server's.
    clock: Option<Clock>,
}

/// A limit with a name, on Redis.
#[derive(Clone, Debug)]
pub(crate) struct Scope {
    redis: Redis,
    keys: Keys,
    limit: Limit,
    terms: Terms,
}

/// A check of several limits, and its terms; `None` if there is nothing to ask.
pub(crate) type Asked = Result<Option<(Request, Terms)>, Error>;

impl Redis {
    /// Begins to use the servers; nothing is connected yet. A share of the limits that is decided in
    /// this process takes at most `max_bytes`.
    pub(crate) fn new(
        settings: Settings,
        clock: Option<Clock>,
        max_bytes: Option<usize>,
    ) -> Result<Redis, Error> {
        let Settings { deployment, prefix, terms } = settings;
        let shared = Shared::new(terms.deadline, max_bytes).map_err(|error| {
            let problem = format!("no thread for its connections: {error}");
            Error::Setting { setting: "redis", problem }
        })?;
        let servers = Arc::new(Servers::new(&Arc::new(shared), deployment));
        Ok(Redis { servers, prefix: prefix.into(), terms, clock })
    }

    pub(crate) fn health(&self) -> Health {
        let failed = self.servers.shared().failed();
        Health {
            servers: self.servers.health(),
            failed: failed.count_in_all(),
            failed_by_kind: failed.by_kind(),
            last_failure: failed.last,
        }
    }

    pub(crate) fn scope(&self, name: &str, limit: Limit) -> Scope {
        let keys = Keys::new(&self.prefix, name);
        Scope { redis: self.clone(), keys, limit, terms: self.terms }
    }

    /// A check of several limits; parts of the same key are one charge, under the limit of the first that
    /// counts ([`Demand::outranks`]).
    pub(crate) fn request(&self, parts: Vec<(Charge, Terms)>, at_us: Option<u64>) -> Asked {
        if parts.len() > MAX_CHARGES {
            return Err(Error::TooManyCharges { count: parts.len(), most: MAX_CHARGES });
        }
        let weight = parts.iter().map(|(charge, _)| charge.counts_as()).sum();
        if weight > MAX_CHARGES {
            return Err(Error::TooMuchWork { weight, most: MAX_CHARGES });
        }
        let roles: Vec<_> =
            parts.iter().map(|(charge, terms)| (charge.demand.role, *terms)).collect();
        let Some(terms) = Terms::of_all(&roles) else { return Ok(None) };
        let mut charges: Vec<Charge> = Vec::with_capacity(parts.len());
        let mut parts_of = Vec::with_capacity(parts.len());
        for (charge, _) in parts {
            let same = charges.iter().position(|other| other.key == charge.key);
            let intent = charge.demand.intent;
            parts_of.push(PartOf { charge: same.unwrap_or(charges.len()), intent });
            match same {
                Some(same) => charges[same].add(&charge),
                None => charges.push(charge),
            }
        }
        let at_us = self.time(at_us);
        Ok(Some((Request::Together { charges, parts: parts_of, at_us }, terms)))
    }

    /// Decides a check of several limits.
    pub(crate) fn together(&self, asked: Asked, within: Option<Duration>) -> Answer<Together> {
        match asked {
            Ok(Some((request, terms))) => {
                self.send(request, bounded(terms, within), AndThen::Nothing, together)
            }
            Ok(None) => Answer::ready(Ok(of_nothing())),
            Err(error) => Answer::ready(Err(error)),
        }
    }

    /// Decides many, in this order.
    pub(crate) fn batch(
        &self,
        requests: Vec<Asked>,
        within: Option<Duration>,
    ) -> Answer<Vec<Result<Together, Error>>> {
        let (told, receiver) = oneshot::channel();
        let in_order = InOrder {
            servers: Arc::clone(&self.servers),
            within,
            began: Instant::now(),
            answers: Vec::with_capacity(requests.len()),
            asked: Vec::new(),
            places: Vec::new(),
            weight: 0,
        };
        self.servers.shared().executor.spawn_movable(in_order.decide(requests, told));
        let read = |reply| match reply {
            Reply::Batch(all) => Some(all),
            _ => None,
        };
        Answer::sent(Sent { receiver, read, refund: None })
    }

    fn send<T>(
        &self,
        request: Request,
        terms: Terms,
        and_then: AndThen,
        read: fn(Reply) -> Option<T>,
    ) -> Answer<T> {
        let receiver = self.servers.submit(request, terms, and_then);
        Answer::sent(Sent { receiver, read, refund: None })
    }

    /// The time to decide at; the server's, if `None`.
    fn time(&self, at_us: Option<u64>) -> Option<u64> {
        at_us.or_else(|| self.clock.as_ref().map(Clock::now_us))
    }
}

impl Scope {
    /// On its own terms instead of the limiter's, or of those that it had.
    pub(crate) fn with(&self, set: impl FnOnce(&mut Terms)) -> Scope {
        let mut own = self.clone();
        set(&mut own.terms);
        own
    }

    /// Decides one request. With a `nudge`, a charge whose answer is dropped is refunded, and the
    /// waiters for its units are woken.
    pub(crate) fn check(
        &self,
        key: &[u8],
        ask: Ask,
        at_us: Option<u64>,
        within: Option<Duration>,
        if_dropped: IfDropped,
        nudge: Option<Nudge>,
    ) -> Answer<Decision> {
        let (charge, at_us) = (self.charge(key, Demand::of(ask)), self.redis.time(at_us));
        let servers = &self.redis.servers;
        if at_us.is_none()
            && ask.max_wait_us.is_none()
            && if_dropped != IfDropped::RefundedToWaiters
            && let Some(decision) = servers.shared().recall(&charge)
        {
            return Answer::ready(Ok(Decision::uncharged(decision, Source::Cache)));
        }
        let refund = nudge.map(|nudge| Arc::new(Refund::new(servers, &charge, at_us, nudge)));
        let and_then = match &refund {
            Some(refund) => AndThen::RefundUnlessTold(Arc::clone(refund)),
            None => AndThen::Nothing,
        };
        let request = Request::Check { charge, at_us };
        let receiver = servers.submit(request, self.terms(if_dropped, within), and_then);
        Answer::sent(Sent { receiver, read: decision, refund })
    }

    pub(crate) fn peek(
        &self,
        key: &[u8],
        ask: Ask,
        at_us: Option<u64>,
        within: Option<Duration>,
        if_dropped: IfDropped,
    ) -> Answer<Decision> {
        let (charge, at_us) = (self.charge(key, Demand::of(ask)), self.redis.time(at_us));
        let terms = self.terms(if_dropped, within);
        self.redis.send(Request::Peek { charge, at_us }, terms, AndThen::Nothing, decision)
    }

    pub(crate) fn refund(&self, key: &[u8], receipt: &Receipt, nudge: Nudge) -> Answer<u64> {
        let charge = self.charge(key, Demand::of(Ask::new(receipt.cost())));
        let (place, at_us) = (receipt.place(), self.redis.time(None));
        let request = Request::Refund { charge, place, at_us };
        self.redis.send(request, self.terms, AndThen::Nudge(nudge), |reply| match reply {
            Reply::Refunded(units) => Some(units),
            _ => None,
        })
    }

    pub(crate) fn reset(&self, key: &[u8], nudge: Nudge) -> Answer<()> {
        let request = Request::Reset { charge: self.looked_at(key) };
        self.redis.send(request, self.terms, AndThen::Nudge(nudge), |reply| match reply {
            Reply::Reset => Some(()),
            _ => None,
        })
    }

    /// How a key stands, under which limit, and when: the time at which to look at it.
    pub(crate) fn state(&self, key: &[u8]) -> Answer<(Limit, State, u64)> {
        let request = Request::State { charge: self.looked_at(key), at_us: self.redis.time(None) };
        self.redis.send(request, self.terms, AndThen::Nothing, |reply| match reply {
            Reply::State { limit, state, now_us, .. } => Some((limit, state, now_us)),
            _ => None,
        })
    }

    /// The charges of a log that count; none unless the limit is one.
    pub(crate) fn entries(&self, key: &[u8]) -> Answer<Vec<Entry>> {
        let request = Request::State { charge: self.looked_at(key), at_us: self.redis.time(None) };
        self.redis.send(request, self.terms, AndThen::Nothing, |reply| match reply {
            // Also of one that stays under a log: what was asked for is not one.
            Reply::State { asked, .. } if !matches!(asked, Limit::SlidingWindowLog(_)) => {
                Some(Vec::new())
            }
            Reply::State { limit, state, now_us, .. } => {
                Some(limit.entries(&state, now_us).map(Iterator::collect).unwrap_or_default())
            }
            _ => None,
        })
    }

    /// The terms of a check or a peek.
    fn terms(&self, if_dropped: IfDropped, within: Option<Duration>) -> Terms {
        let own = match if_dropped {
            IfDropped::RefundedToWaiters => self.terms.of_acquire(),
            IfDropped::Kept | IfDropped::Refunded => self.terms,
        };
        bounded(own, within)
    }

    /// Whether a check that the servers fail to decide is an error.
    pub(crate) fn fails_closed(&self) -> bool {
        self.terms.on_failure == Some(OnFailure::Closed)
    }

    /// The fingerprint of a key, for its receipts.
    pub(crate) fn holder(&self, key: &[u8]) -> Holder {
        key::holder(&self.keys.key(key))
    }

    fn looked_at(&self, key: &[u8]) -> Charge {
        self.charge(key, Demand::of(Ask::new(Cost::ONE)))
    }

    /// Its part in a check of several limits.
    pub(crate) fn part(&self, key: &[u8], demand: Demand) -> (Charge, Terms) {
        (self.charge(key, demand), self.terms)
    }

    fn charge(&self, key: &[u8], demand: Demand) -> Charge {
        Charge { key: self.keys.key(key), limit: self.limit, demand }
    }
}

impl Charge {
    fn add(&mut self, other: &Charge) {
        if other.demand.outranks(&self.demand) {
            self.limit = other.limit;
        }
        self.demand = self.demand.merged(other.demand);
    }
}

/// Decides requests in their order, as many at a time as go in one batch, until nobody listens.
struct InOrder {
    servers: Arc<Servers>,
    /// How long the caller has for all of them, and since when.
    within: Option<Duration>,
    began: Instant,
    answers: Vec<Option<Result<Together, Error>>>,
    /// What goes next, whose answers have these places, and how heavy it is.
    asked: Vec<(Request, Terms)>,
    places: Vec<usize>,
    weight: usize,
}

impl InOrder {
    async fn decide(
        mut self,
        requests: Vec<Asked>,
        told: oneshot::Sender<Result<Reply, StoreError>>,
    ) {
        for request in requests {
            match request {
                Ok(Some((request, terms))) => {
                    let is_across = self.servers.is_across(&request);
                    if is_across || self.weight + request.weight() > MAX_BATCH {
                        self.send().await;
                    }
                    if told.is_closed() {
                        return;
                    }
                    self.places.push(self.answers.len());
                    self.weight += request.weight();
                    self.asked.push((request, terms));
                    self.answers.push(None);
                    if is_across {
                        self.send().await;
                    }
                }
                Ok(None) => self.answers.push(Some(Ok(of_nothing()))),
                Err(error) => self.answers.push(Some(Err(error))),
            }
        }
        self.send().await;
        let gone = || Err(StoreError::Gone.into());
        let all = self.answers.into_iter().map(|answer| answer.unwrap_or_else(gone)).collect();
        // Nobody may be left to tell.
        let _ = told.send(Ok(Reply::Batch(all)));
    }

    /// Sends what goes next: one whose keys are in different places, or all whose keys are in one.
    async fn send(&mut self) {
        if self.asked.is_empty() {
            return;
        }
        let (mut asked, places) = (mem::take(&mut self.asked), mem::take(&mut self.places));
        self.weight = 0;
        let left = self.within.map(|own| own.saturating_sub(self.began.elapsed()));
        asked.iter_mut().for_each(|(_, terms)| *terms = bounded(*terms, left));
        let receivers = match asked.pop_if(|(last, _)| self.servers.is_across(last)) {
            Some((across, terms)) => vec![self.servers.submit(across, terms, AndThen::Nothing)],
            None => self.servers.submit_all(asked),
        };
        for (place, receiver) in places.into_iter().zip(receivers) {
            let sent = Sent { receiver, read: together, refund: None };
            self.answers[place] = Some(sent.await);
        }
    }
}

fn of_nothing() -> Together {
    Together::new(tollgate_core::Together::of([]), Vec::new())
}

fn together(reply: Reply) -> Option<Together> {
    match reply {
        Reply::Together(decided, each) => Some(Together::new(decided, each)),
        _ => None,
    }
}

fn decision(reply: Reply) -> Option<Decision> {
    match reply {
        Reply::Checked(decision) => Some(decision),
        _ => None,
    }
}

/// An answer on its way.
pub(crate) struct Sent<T> {
    receiver: Receiver,
    read: fn(Reply) -> Option<T>,
    refund: Option<Arc<Refund>>,
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis").field("health", &self.health()).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Sent<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sent").finish_non_exhaustive()
    }
}

impl<T> Future for Sent<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let reply = std::task::ready!(Pin::new(&mut self.receiver).poll(context));
        self.refund = None;
        Poll::Ready(match reply {
            // OK because a request is only ever answered by its own kind.
            Ok(reply) => (self.read)(reply?).ok_or(Error::Store(StoreError::Gone)),
            Err(_) => Err(Error::Store(StoreError::Gone)),
        })
    }
}

impl<T> Drop for Sent<T> {
    fn drop(&mut self) {
        let Some(refund) = self.refund.take() else { return };
        // From here on it cannot be told any more, and will be refunded by whoever was to tell it.
        self.receiver.close();
        if let Ok(Ok(undelivered)) = self.receiver.try_recv() {
            refund.owe(undelivered);
        }
    }
}
