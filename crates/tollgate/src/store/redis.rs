//! The Redis store: every key's state on one server, decided there, in one round trip.
//!
//! - `key`: the key of a scope and a client
//! - `plain.lua`: what decides plain checks on the server; `check.lua`, `states.lua`, `ring.lua`: all
//!   others, with the algorithms' twins; `script` puts them together
//! - `wire`: requests and answers as the script has them
//! - `batcher`: what goes together; `node`: the connection, and who is told what
//! - `denials`: refusals that need not be asked for again
//! - `tls`: what `rediss://` needs

mod batcher;
mod denials;
mod key;
mod node;
#[cfg(test)]
mod parity;
mod script;
mod tls;
mod wire;

use std::fmt;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ::redis::Client;
use tokio::sync::oneshot;
use tollgate_core::{Ask, Cost, Entry, Limit, Receipt, Role, State};

use crate::answer::Answer;
use crate::clock::Clock;
use crate::decision::Decision;
use crate::error::{Error, StoreError};
use crate::together::{Together, merged};
use batcher::MAX_BATCH;
use key::Keys;
pub(crate) use node::{AndThen, Nudge};
use node::{Node, Receiver, Refund};
pub(crate) use wire::{Charge, Request};
use wire::{MAX_CHARGES, Reply};

/// Where a Redis is, and how it is used.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    client: Client,
    prefix: String,
    pub(crate) deadline: Duration,
}

impl Settings {
    pub(crate) fn of(url: &str) -> Result<Settings, Error> {
        tls::prepare_for(url)?;
        // What is wrong with a URL may be in its password: the kind of problem has to do.
        let client = Client::open(url).map_err(|error| Error::Setting {
            setting: "redis",
            problem: format!(
                "{}; use redis://[user[:password]@]host[:port][/database], or rediss:// for TLS",
                error.category()
            ),
        })?;
        let prefix = "tollgate:".to_owned();
        Ok(Settings { client, prefix, deadline: Duration::from_millis(10) })
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

/// One Redis.
#[derive(Clone, Debug)]
pub(crate) struct Redis {
    node: Arc<Node>,
    prefix: Arc<str>,
    /// The caller's, instead of the server's.
    clock: Option<Clock>,
}

/// A limit with a name, on one Redis.
#[derive(Debug)]
pub(crate) struct Scope {
    redis: Redis,
    keys: Keys,
    limit: Limit,
}

impl Redis {
    pub(crate) fn new(settings: Settings, clock: Option<Clock>) -> Result<Redis, Error> {
        let Settings { client, prefix, deadline } = settings;
        let node = Arc::new(Node::new(client, deadline)?);
        Ok(Redis { node, prefix: prefix.into(), clock })
    }

    pub(crate) fn scope(&self, name: &str, limit: Limit) -> Scope {
        Scope { redis: self.clone(), keys: Keys::new(&self.prefix, name, &limit), limit }
    }

    /// A check of several limits; parts of the same key are one charge with the costs added. `None`
    /// if there is nothing to ask.
    pub(crate) fn request(
        &self,
        parts: Vec<Charge>,
        at_us: Option<u64>,
    ) -> Result<Option<Request>, Error> {
        if parts.len() > MAX_CHARGES {
            return Err(Error::TooManyCharges { count: parts.len(), most: MAX_CHARGES });
        }
        let mut charges: Vec<Charge> = Vec::with_capacity(parts.len());
        let mut charge_of = Vec::with_capacity(parts.len());
        for charge in parts {
            let same = charges.iter().position(|other| other.key == charge.key);
            charge_of.push(same.unwrap_or(charges.len()));
            match same {
                Some(same) => charges[same].add(&charge),
                None => charges.push(charge),
            }
        }
        if charges.is_empty() {
            return Ok(None);
        }
        Ok(Some(Request::Together { charges, charge_of, at_us: self.time(at_us) }))
    }

    /// Decides a check of several limits.
    pub(crate) fn together(&self, request: Result<Option<Request>, Error>) -> Answer<Together> {
        match request {
            Ok(Some(request)) => self.send(request, AndThen::Nothing, together),
            Ok(None) => Answer::ready(Ok(of_nothing())),
            Err(error) => Answer::ready(Err(error)),
        }
    }

    /// Decides many, in this order.
    pub(crate) fn batch(
        &self,
        requests: Vec<Result<Option<Request>, Error>>,
    ) -> Answer<Vec<Result<Together, Error>>> {
        let (told, receiver) = oneshot::channel();
        let in_order = InOrder {
            node: Arc::clone(&self.node),
            answers: Vec::with_capacity(requests.len()),
            asked: Vec::new(),
            places: Vec::new(),
            weight: 0,
        };
        self.node.spawn(in_order.decide(requests, told));
        let read = |reply| match reply {
            Reply::Batch(all) => Some(all),
            _ => None,
        };
        Answer::sent(Sent { receiver, read, refund: None })
    }

    fn send<T>(
        &self,
        request: Request,
        and_then: AndThen,
        read: fn(Reply) -> Option<T>,
    ) -> Answer<T> {
        match self.node.submit(request, and_then) {
            Ok(receiver) => Answer::sent(Sent { receiver, read, refund: None }),
            Err(error) => Answer::ready(Err(error.into())),
        }
    }

    /// The time to decide at; the server's, if `None`.
    fn time(&self, at_us: Option<u64>) -> Option<u64> {
        at_us.or_else(|| self.clock.as_ref().map(Clock::now_us))
    }
}

impl Scope {
    pub(crate) fn check(
        &self,
        key: &[u8],
        ask: Ask,
        at_us: Option<u64>,
        and_then: AndThen,
    ) -> Answer<Decision> {
        let (charge, at_us) = (self.charge(key, ask, Role::Enforced), self.redis.time(at_us));
        // One that waits in line is not told what was so a while ago: units may have come back.
        if at_us.is_none()
            && ask.max_wait_us.is_none()
            && matches!(and_then, AndThen::Nothing)
            && let Some(decision) = self.redis.node.recall(&charge)
        {
            return Answer::ready(Ok(Decision::cached(decision)));
        }
        let refund = match &and_then {
            AndThen::RefundUnlessTold(nudge) => {
                let (node, nudge) = (Arc::clone(&self.redis.node), Arc::clone(nudge));
                Some(Box::new(Refund { node, charge: charge.clone(), at_us, nudge }))
            }
            _ => None,
        };
        match self.redis.node.submit(Request::Check { charge, at_us }, and_then) {
            Ok(receiver) => Answer::sent(Sent { receiver, read: decision, refund }),
            Err(error) => Answer::ready(Err(error.into())),
        }
    }

    pub(crate) fn peek(&self, key: &[u8], ask: Ask, at_us: Option<u64>) -> Answer<Decision> {
        let (charge, at_us) = (self.charge(key, ask, Role::Enforced), self.redis.time(at_us));
        self.redis.send(Request::Peek { charge, at_us }, AndThen::Nothing, decision)
    }

    pub(crate) fn refund(&self, key: &[u8], receipt: &Receipt, nudge: Nudge) -> Answer<u64> {
        let charge = self.charge(key, Ask::new(receipt.cost()), Role::Enforced);
        let (place, at_us) = (receipt.place(), self.redis.time(None));
        let request = Request::Refund { charge, place, at_us };
        self.redis.send(request, AndThen::Nudge(nudge), |reply| match reply {
            Reply::Refunded(units) => Some(units),
            _ => None,
        })
    }

    pub(crate) fn reset(&self, key: &[u8], nudge: Nudge) -> Answer<()> {
        let charge = self.charge(key, Ask::new(Cost::ONE), Role::Enforced);
        self.redis.send(Request::Reset { charge }, AndThen::Nudge(nudge), |reply| match reply {
            Reply::Reset => Some(()),
            _ => None,
        })
    }

    /// How a key stands, and when: the time at which to look at it.
    pub(crate) fn state(&self, key: &[u8]) -> Answer<(State, u64)> {
        let charge = self.charge(key, Ask::new(Cost::ONE), Role::Enforced);
        let at_us = self.redis.time(None);
        self.redis.send(Request::State { charge, at_us }, AndThen::Nothing, |reply| match reply {
            Reply::State { state, now_us, .. } => Some((state, now_us)),
            _ => None,
        })
    }

    /// The charges of a log that count.
    pub(crate) fn entries(&self, key: &[u8]) -> Answer<Vec<Entry>> {
        let charge = self.charge(key, Ask::new(Cost::ONE), Role::Enforced);
        let at_us = self.redis.time(None);
        self.redis.send(Request::State { charge, at_us }, AndThen::Nothing, |reply| match reply {
            Reply::State { limit, state, now_us } => {
                Some(limit.entries(&state, now_us).map(Iterator::collect).unwrap_or_default())
            }
            _ => None,
        })
    }

    pub(crate) fn charge(&self, key: &[u8], ask: Ask, role: Role) -> Charge {
        Charge { key: self.keys.key(key), limit: self.limit, ask, role }
    }
}

impl Charge {
    fn add(&mut self, other: &Charge) {
        (self.ask, self.role) = merged((self.ask, self.role), (other.ask, other.role));
    }
}

/// Decides requests in their order, as many at a time as go in one batch, until nobody listens.
struct InOrder {
    node: Arc<Node>,
    answers: Vec<Option<Result<Together, Error>>>,
    /// What goes next, whose answers have these places, and how heavy it is.
    asked: Vec<Request>,
    places: Vec<usize>,
    weight: usize,
}

impl InOrder {
    async fn decide(
        mut self,
        requests: Vec<Result<Option<Request>, Error>>,
        told: oneshot::Sender<Result<Reply, StoreError>>,
    ) {
        for request in requests {
            match request {
                Ok(Some(request)) => {
                    if self.weight + request.weight() > MAX_BATCH {
                        self.send().await;
                    }
                    if told.is_closed() {
                        return;
                    }
                    self.places.push(self.answers.len());
                    self.weight += request.weight();
                    self.asked.push(request);
                    self.answers.push(None);
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

    async fn send(&mut self) {
        let (asked, places) = (mem::take(&mut self.asked), mem::take(&mut self.places));
        self.weight = 0;
        match self.node.submit_all(asked) {
            Ok(receivers) => {
                for (place, receiver) in places.into_iter().zip(receivers) {
                    let sent = Sent { receiver, read: together, refund: None };
                    self.answers[place] = Some(sent.await);
                }
            }
            Err(error) => {
                for place in places {
                    self.answers[place] = Some(Err(error.clone().into()));
                }
            }
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
        Reply::Checked(checked) => Some(checked.into()),
        _ => None,
    }
}

/// An answer on its way.
pub(crate) struct Sent<T> {
    receiver: Receiver,
    read: fn(Reply) -> Option<T>,
    refund: Option<Box<Refund>>,
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
            refund.give_back(undelivered);
        }
    }
}
