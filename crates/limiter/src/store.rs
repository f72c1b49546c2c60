//! Where state lives: the memory store, and the interface of stores across the network.
//!
//! The memory store decides at once and is called directly, so that a check is inlined and allocates nothing. Every
//! other store is a [`RemoteStore`] behind an `Arc`. The author of such a store needs to read only this module.
//!
//! A [`Limiter`](crate::Limiter) does the work that is the same for all remote stores:
//!
//! - It keeps the names and the limits, and rejects keys, names and costs that are out of bounds.
//! - It merges the parts of one check that have the same name and key into one [`Charge`], and hands the answer to
//!   each part.
//! - It applies the failure policy ([`OnFailure`]): where the store answers
//!   [`Error::Store`], the limiter decides instead, with its [`Fallback`].
//! - It queues the callers of [`acquire`](crate::Scope::acquire).
//!
//! A store keeps the state of each key, and makes the decisions.
//!
//! # What a store must do
//!
//! 1. State belongs to the name and the key of a [`Charge`], and is stored with the limit that it is under.
//!    When a request has another limit, the state is carried over
//!    ([`Limit::carry_over`](tollgate_core::Limit::carry_over)).
//! 2. Each request is atomic: no other request sees a part of it. The charges of one [`JointRequest`] are all
//!    made, or none is. A store that keeps its keys in several places may charge them one after the other, and
//!    refund them when one charge is refused; its documentation must say so.
//! 3. Decisions equal [`tollgate_core`]'s, field by field, at the time of the request: the conformance suite
//!    compares them.
//! 4. State expires some time after it no longer matters ([`StoredState::expires_at_us`] says when).
//! 5. A method starts its work before it returns. A dropped [`Answer`] does not undo it, unless the request says
//!    [`UnreadPolicy::Refund`].
//! 6. The answer comes within the deadline of the [`Call`]; after that it is
//!    [`StoreError::Timeout`]. A charge whose outcome is unknown is not sent again.
//! 7. Waits, queues and memory are bounded.
//!
//! # Holds
//!
//! A store can have holds ([`RemoteStore::has_holds`]); for a store without them the limiter answers
//! [`Error::HoldsUnsupported`]. A store with holds:
//!
//! 1. Decides reservations: charges with [hold terms](Demand::hold), whose units are set aside instead of charged. A
//!    reservation comes alone, or in a [`JointRequest`] with other charges and peeks, of which all are made or none is.
//! 2. Keeps the [`Holds`] of a key with its state, and passes both to every operation, because held units count in every
//!    check, peek and refund. The methods of [`StoredState`] and [`Charge`] take both.
//! 3. Charges a hold at its expiry, by the clock that it decides at; under a concurrency limit the hold is released
//!    instead. It needs no timer: every operation computes what has expired.
//! 4. Keeps a state with open holds at least until the last of them has expired.
//! 5. Forgets the holds with the state, when a key is reset.
//! 6. Refuses a reservation when it has no memory for one more hold. That is a denial, not an error.
//!
//! # Leases
//!
//! A store with holds can have leases too ([`RemoteStore::has_leases`]): holds from which a process takes units without asking
//! the store. A store decides [requests for leases](RemoteStore::lease) as it decides checks, and runs the
//! [tasks](RemoteStore::spawn) that renew them. The limiter does all else; it settles a lease that ends as it settles
//! any hold.
//!
//! A store never ends a lease by itself before its expiry, also if the answer that opened it was not read: the limiter may have
//! sent the same request again, and use the lease.
//!
//! # Writing a store
//!
//! 1. Implement [`RemoteStore`]. A store that runs the algorithms elsewhere, as Redis does in Lua, brings its own twin of
//!    them. Any other store reads [`StoredState`]s, calls [`Charge::decide`] or [`Charge::decide_all`], and writes them
//!    back, with a lock or a compare-and-swap around both.
//! 2. Use the helpers: [`Call::answer`] enforces the deadline, [`UnreadPolicy::guard`] refunds charges whose
//!    answer is never read, and [`StoredState::expires_at_us`] says how long a state is kept.
//! 3. Hand it to [`Builder::store`](crate::Builder::store). If the store can count the limiters that use it, it calls
//!    [`Fallback::set_live_processes`] with each new number; otherwise each process decides on the whole limit while the
//!    store fails.
//! 4. Run the conformance suite on it: the crate `tollgate-conformance` makes a test of each behaviour with one macro,
//!    `suite!`. `hold_suite!` and `lease_suite!` do the same for holds and leases.
//!
//! `crates/conformance/tests/example_store/store.rs` is a store of about 150 lines that passes the suite,
//! with reasons in its comments.
//!
//! # What a store may assume
//!
//! - A charge costs at least one unit, a key has at most 1 MiB, a name at most 4 KiB.
//! - The charges of one request have different names or keys.
//! - Methods are called from any thread, inside or outside of a runtime.

mod fallback;
pub(crate) mod memory;
mod stored;

use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ahash::RandomState;
use tokio::time::{Instant, timeout_at};
use tollgate_core::{
    self as core, ChargeReceipt, ExtendAnswer, HoldGrowth, HoldReference, HoldUse, Holds, Intent,
    LeaseAnswer, Limit, SettleAnswer, State,
};

use crate::answer::Answer;
use crate::decision::Decision;
use crate::error::{Error, StoreError};
use crate::failure::{OnFailure, bounded_deadline};
use crate::health::Health;
use crate::joint::JointDecision;
pub use crate::names::Name;
use crate::receipt::Fingerprint;

pub use crate::answer::UnreadAnswer;
pub use crate::decision::DecisionSource;
pub use crate::joint::{Demand, HoldTerms};
pub use fallback::Fallback;
pub use stored::StoredState;

/// A store across the network. The [module](self) says what it must do and what it may assume.
pub trait RemoteStore: fmt::Debug + Send + Sync + 'static {
    /// Encodes the name of a limit, once for all requests under it: [`Name::encoded`] returns the result.
    ///
    /// The default is the text as it is; a store may need another form, such as an escaped part of its keys.
    fn encode_name(&self, text: &str) -> Box<[u8]> {
        text.as_bytes().into()
    }

    /// Returns the most charges that one check may have.
    fn max_charges(&self) -> usize {
        256
    }

    /// Decides one request on one limit. A peek ([`Intent::Peek`]) is not
    /// charged.
    fn check(&self, request: CheckRequest) -> Answer<Decision>;

    /// Decides one request on several limits: all are charged, or none is. The answer has one decision for
    /// each charge, in the same order.
    fn check_all(&self, request: JointRequest) -> Answer<JointDecision>;

    /// Decides independent requests in their order. `within` is the time that the caller has for all of them.
    ///
    /// The default decides them one after the other while the answer is polled: each request is sent when the
    /// previous one is answered, and none after `within`. If the answer is dropped, requests that are not
    /// sent yet are not decided.
    fn batch(
        self: Arc<Self>,
        requests: Vec<JointRequest>,
        within: Option<Duration>,
    ) -> Answer<Vec<Result<JointDecision, Error>>> {
        let began = Instant::now();
        Answer::pending(async move {
            let mut answers = Vec::with_capacity(requests.len());
            for mut request in requests {
                let left = within.map(|within| within.saturating_sub(began.elapsed()));
                request.call = request.call.bounded(left);
                answers.push(self.check_all(request).await);
            }
            Ok(answers)
        })
    }

    /// Gives back the part of a charge that still counts, and returns how many units that frees. Calls `wake` when
    /// the units are back, also if the answer was dropped.
    fn refund(&self, charge: Charge, receipt: ChargeReceipt, call: Call, wake: Wake)
    -> Answer<u64>;

    /// Forgets the state of a key. Calls `wake` when that is done, also if the answer was dropped.
    fn reset(&self, charge: Charge, call: Call, wake: Wake) -> Answer<()>;

    /// Returns a copy of the state of a key.
    fn state(&self, charge: Charge, call: Call) -> Answer<KeyState>;

    /// Whether the store has holds. If not, it gets no charge with [hold terms](Demand::hold), and neither
    /// [`settle`](Self::settle) nor [`extend`](Self::extend) is called.
    fn has_holds(&self) -> bool {
        false
    }

    /// Charges what was used of each hold, under the limit that its key is under now. A settlement is never refused. The
    /// answer has one entry for each part, in the same order. Calls `wake` when the settlement is done, also if the
    /// answer was dropped.
    fn settle(&self, request: SettleRequest) -> Answer<Vec<SettleAnswer>> {
        let _ = request;
        Answer::ready(Err(Error::HoldsUnsupported))
    }

    /// Adds units to each hold and moves its expiry, if the additional units of all holds fit. If one part is refused,
    /// or its hold has ended, nothing changes. The answer has one entry for each part, in the same order. A part that
    /// fits, but was not extended because of another part, is [`Extension::Refused`](tollgate_core::Extension::Refused)
    /// with a decision that says allowed.
    ///
    /// Additional units are decided as a check is: the key is first carried over to the limit of the charge. Without
    /// additional units, or if the hold is no longer listed, the key stays under the limit that it is under.
    fn extend(&self, request: ExtendRequest) -> Answer<Vec<ExtendAnswer>> {
        let _ = request;
        Answer::ready(Err(Error::HoldsUnsupported))
    }

    /// Whether the store has leases. If not, [`lease`](Self::lease) and [`spawn`](Self::spawn) are not called, and every
    /// check under a leased scope is a check of the store.
    fn has_leases(&self) -> bool {
        false
    }

    /// Opens or renews a lease, and decides the check that waits, as
    /// [`Limit::lease`](tollgate_core::Limit::lease) does: the key is first carried over to the limit of the charge, as
    /// for a check.
    fn lease(&self, request: KeyLeaseRequest) -> Answer<LeaseAnswer> {
        let _ = request;
        Answer::ready(Err(Error::HoldsUnsupported))
    }

    /// Runs a task until it is done, or drops it when the runtime ends. The limiter renews leases in such tasks, which use
    /// tokio's time. A store without leases drops the task.
    fn spawn(&self, task: Task) {
        drop(task);
    }

    /// Returns the state of the servers, as this process sees them.
    fn health(&self) -> Health;
}

/// A charge to one key: a cost under a limit. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Charge(Arc<ChargeFields>);

#[derive(Debug)]
struct ChargeFields {
    name: Arc<Name>,
    key: Box<[u8]>,
    limit: Limit,
    demand: Demand,
}

impl Charge {
    /// Returns the charge of a key under a limit and its name.
    pub fn new(name: Arc<Name>, key: &[u8], limit: Limit, demand: Demand) -> Charge {
        Charge(Arc::new(ChargeFields { name, key: key.into(), limit, demand }))
    }

    /// Returns the name of the limit. State belongs to the name and the key.
    pub fn name(&self) -> &Arc<Name> {
        &self.0.name
    }

    /// Returns the client's key, as the caller gave it.
    pub fn key(&self) -> &[u8] {
        &self.0.key
    }

    /// Returns the limit.
    pub fn limit(&self) -> &Limit {
        &self.0.limit
    }

    /// Returns the cost, whether the limit is enforced, and whether it is charged at all.
    pub fn demand(&self) -> &Demand {
        &self.0.demand
    }

    /// Returns the fingerprint that receipts for this name and key carry.
    pub fn fingerprint(&self) -> Fingerprint {
        fingerprint(self.name(), self.key())
    }

    /// Returns a peek of the same cost.
    #[must_use]
    pub fn as_peek(&self) -> Charge {
        let demand = Demand { intent: Intent::Peek, hold: None, ..*self.demand() };
        Charge::new(Arc::clone(self.name()), self.key(), *self.limit(), demand)
    }

    /// Whether both have the same name and key.
    pub fn has_key_of(&self, other: &Charge) -> bool {
        self.name().number() == other.name().number() && self.key() == other.key()
    }
}

/// Returns the fingerprint of a key, which is the same in all limiters of this process. It never leaves the
/// process, so it may differ between machines.
pub(crate) fn fingerprint(name: &Name, key: &[u8]) -> Fingerprint {
    let mut hasher = RandomState::with_seeds(1, 2, 3, 4).build_hasher();
    hasher.write_usize(name.text().len());
    hasher.write(name.text().as_bytes());
    hasher.write(key);
    Fingerprint(hasher.finish())
}

/// When a request is decided, and what happens if the store fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The time to decide at; `None` for the store's own time.
    pub at_us: Option<u64>,
    /// How long the store has. If this is zero, the request is not sent.
    pub deadline: Duration,
    /// The policy by which the limiter decides if the store fails. A store needs it only if it decides a part
    /// of a request with [`Fallback`] and charges the other parts.
    pub on_failure: OnFailure,
}

impl Call {
    /// Returns this call for a caller with a deadline of its own: the store must answer 3 ms before it, so that there
    /// is time to return the answer.
    #[must_use]
    pub fn bounded(self, callers: Option<Duration>) -> Call {
        Call { deadline: bounded_deadline(self.deadline, callers), ..self }
    }

    /// Starts the work of a request, and returns its answer within the deadline, which begins now; after that
    /// the answer is [`StoreError::Timeout`]. With a deadline of zero the work is not started.
    ///
    /// `start` sends the request to `server`, whose address has no user and no password, and returns the
    /// reply. The answer must be polled on a tokio runtime with time enabled. When the deadline passes, the
    /// reply is dropped; a store that must know the outcome of the request waits for it elsewhere.
    pub fn answer<T, F>(&self, server: &str, start: impl FnOnce() -> F) -> Answer<T>
    where
        F: Future<Output = Result<T, Error>> + Send + Sync + 'static,
    {
        let (after, server) = (self.deadline, server.to_owned());
        if after.is_zero() {
            return Answer::ready(Err(StoreError::Timeout { server, after }.into()));
        }
        let until = Instant::now() + after;
        let reply = start();
        Answer::pending(async move {
            match timeout_at(until, reply).await {
                Ok(answer) => answer,
                Err(_) => Err(StoreError::Timeout { server, after }.into()),
            }
        })
    }
}

/// A check of one limit.
#[derive(Clone)]
pub struct CheckRequest {
    /// The charge.
    pub charge: Charge,
    /// The time, the deadline and the failure policy.
    pub call: Call,
    /// Whether the charge is refunded if the answer is never read.
    pub if_unread: UnreadPolicy,
    /// Whether the store may answer with a refusal that it remembers.
    pub may_be_remembered: bool,
}

/// A check of several limits.
#[derive(Clone, Debug)]
pub struct JointRequest {
    /// The charges, no two of them with the same name and key: all are made, or none is.
    pub charges: Vec<Charge>,
    /// The time, the deadline and the failure policy.
    pub call: Call,
}

/// A settlement of one or more holds.
pub struct SettleRequest {
    /// The holds and what was used of them, no two with the same name and key.
    pub parts: Vec<SettlePart>,
    /// The time and the deadline.
    pub call: Call,
    /// Called when the settlement is done.
    pub wake: Wake,
}

/// One hold of a [`SettleRequest`].
#[derive(Clone, Debug)]
pub struct SettlePart {
    /// The name, the key and the limit of the hold. Its cost is not used.
    pub charge: Charge,
    /// The hold.
    pub hold: HoldReference,
    /// What was used of it, and whether it ends.
    pub used: HoldUse,
}

/// An extension of one or more holds.
#[derive(Clone, Debug)]
pub struct ExtendRequest {
    /// The holds and their growth, no two with the same name and key.
    pub parts: Vec<ExtendPart>,
    /// The time and the deadline.
    pub call: Call,
}

/// One hold of an [`ExtendRequest`].
#[derive(Clone, Debug)]
pub struct ExtendPart {
    /// The name, the key and the limit of the hold. Its cost is that of the additional units, or 1.
    pub charge: Charge,
    /// The hold.
    pub hold: HoldReference,
    /// The units and the time by which it grows.
    pub growth: HoldGrowth,
}

/// A request to open or renew a lease.
#[derive(Clone, Debug)]
pub struct KeyLeaseRequest {
    /// The name, the key and the limit of the lease. Its cost is that of the check that waits, or 1.
    pub charge: Charge,
    /// The lease, what was used of it, and what is wanted.
    pub lease: core::LeaseRequest,
    /// The time and the deadline.
    pub call: Call,
}

/// A task of a limiter, which a [store runs](RemoteStore::spawn).
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The fate of a charge whose answer is dropped before it is read.
#[derive(Clone)]
pub enum UnreadPolicy {
    /// The charge stays.
    Keep,
    /// The charge is refunded as soon as its outcome is known, and then the function is called. Refunds of one bucket
    /// are made in the order of the charges, if the store can keep that order.
    Refund(Wake),
}

impl UnreadPolicy {
    /// Returns the decision for the caller to [read](UnreadAnswer::read). If the policy is [`Refund`](Self::Refund),
    /// and a decision that was charged is dropped unread, `refund` is called with the receipt and the function to
    /// call when the units are back: both are arguments of [`RemoteStore::refund`].
    pub fn guard(
        self,
        decision: Decision,
        refund: impl Fn(ChargeReceipt, Wake) + Send + Sync + 'static,
    ) -> UnreadAnswer<Decision> {
        match self {
            UnreadPolicy::Keep => UnreadAnswer::new(decision, drop),
            UnreadPolicy::Refund(wake) => UnreadAnswer::new(decision, move |decision| {
                if let Some(receipt) = decision.into_receipt() {
                    refund(ChargeReceipt::of(receipt.cost(), receipt.place()), Arc::clone(&wake));
                }
            }),
        }
    }
}

/// Wakes the callers that wait for units of a key.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// A copy of the state of a key.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyState {
    /// The limit that decides on the key: the requested limit; or, while the key has spent more than that limit allows,
    /// the old limit at the new size.
    pub limit: Limit,
    /// The state.
    pub state: State,
    /// The holds. Some may have expired: read both with the functions of [`Limit`] whose names end in `_beside`.
    pub holds: Holds,
    /// The time at which to read it.
    pub now_us: u64,
}
