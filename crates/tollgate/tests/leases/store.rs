//! A store with leases, whose answers a test can hold back, and whose requests it can count and let fail.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Semaphore;
use tollgate::store::{
    Call, Charge, CheckRequest, JointRequest, KeyLeaseRequest, KeyState, RemoteStore,
    SettleRequest, Task, Wake,
};
use tollgate::{
    Answer, BreakerState, Clock, Decision, Error, Health, JointDecision, LeaseOptions, Limiter,
    OnFailure, Scope, ServerHealth, StoreError,
};
use tollgate_core::{
    ChargeReceipt, CheckResult, Holds, Intent, LeaseAnswer, LimitCheck, SettleAnswer, State,
    check_all,
};

/// The name of a limit and a key.
type TableKey = (String, Vec<u8>);

/// The store. Clones are to the same table.
#[derive(Clone, Debug)]
pub(crate) struct TestStore {
    table: Arc<Mutex<HashMap<TableKey, (State, Holds)>>>,
    /// One permit for each answer about a lease that may be returned, while answers are held back.
    answers: Arc<Semaphore>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    checks: AtomicU64,
    leases: AtomicU64,
    ends: AtomicU64,
    is_failing: AtomicBool,
}

/// The requests that the store got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Requests {
    /// Checks of one limit or several.
    pub(crate) checks: u64,
    /// Requests that open or renew a lease.
    pub(crate) leases: u64,
    /// Settlements that end a lease.
    pub(crate) ends: u64,
}

impl TestStore {
    pub(crate) fn new() -> TestStore {
        TestStore {
            table: Arc::default(),
            answers: Arc::new(Semaphore::new(Semaphore::MAX_PERMITS)),
            counts: Arc::default(),
        }
    }

    /// Returns a limiter of a process on this store.
    pub(crate) fn limiter(&self) -> Limiter {
        let store = self.clone();
        let builder = Limiter::builder().clock(Clock::tokio(1_000_000_000));
        builder.store(|_| Ok(store)).unwrap().on_failure(OnFailure::Closed).build()
    }

    /// Returns a leased scope of a new limiter on this store.
    pub(crate) fn leased(&self, limit: &str) -> Scope {
        let scope = self.limiter().scope("api", limit).unwrap();
        scope.leased(LeaseOptions::default()).unwrap()
    }

    /// Holds all answers about leases back, until [`answer`](Self::answer).
    pub(crate) fn hold_answers_back(&self) {
        self.answers.forget_permits(Semaphore::MAX_PERMITS);
    }

    /// Returns one answer about a lease.
    pub(crate) fn answer(&self) {
        self.answers.add_permits(1);
    }

    /// Lets all requests fail, or none.
    pub(crate) fn fail(&self, is_failing: bool) {
        self.counts.is_failing.store(is_failing, Ordering::Relaxed);
    }

    pub(crate) fn requests(&self) -> Requests {
        Requests {
            checks: self.counts.checks.load(Ordering::Relaxed),
            leases: self.counts.leases.load(Ordering::Relaxed),
            ends: self.counts.ends.load(Ordering::Relaxed),
        }
    }

    /// Runs an operation on the key of a charge, unless the store fails.
    fn change<T>(
        &self,
        charge: &Charge,
        act: impl FnOnce(&mut State, &mut Holds) -> T,
    ) -> Result<T, Error> {
        if self.counts.is_failing.load(Ordering::Relaxed) {
            return Err(StoreError::Gone.into());
        }
        let key = (charge.name().text().to_owned(), charge.key().to_vec());
        let mut table = self.table.lock().unwrap();
        let (state, holds) =
            table.entry(key).or_insert_with(|| (charge.limit().fresh(), Holds::default()));
        Ok(act(state, holds))
    }

    fn decide_all(
        &self,
        JointRequest { charges, call }: &JointRequest,
    ) -> Result<JointDecision, Error> {
        if self.counts.is_failing.load(Ordering::Relaxed) {
            return Err(StoreError::Gone.into());
        }
        let mut table = self.table.lock().unwrap();
        let key = |charge: &Charge| (charge.name().text().to_owned(), charge.key().to_vec());
        let taken = |charge| {
            table.remove(&key(charge)).unwrap_or_else(|| (charge.limit().fresh(), Holds::default()))
        };
        let mut kept: Vec<_> = charges.iter().map(taken).collect();
        let both = charges.iter().zip(&mut kept);
        let mut checks: Vec<LimitCheck<'_>> = both
            .map(|(charge, (state, holds))| {
                let demand = charge.demand();
                let check = LimitCheck::enforced(charge.limit(), state, demand.request.cost);
                check.beside(holds).with(demand.role, demand.intent)
            })
            .collect();
        let combined = check_all(&mut checks, now_us(call));
        let each = checks.iter_mut().zip(charges).map(|(check, charge)| {
            let (decision, receipt) = (*check.decision().unwrap(), check.take_receipt());
            Decision::of_key(CheckResult { decision, receipt }, charge.fingerprint())
        });
        let joint = JointDecision::new(combined, each.collect());
        drop(checks);
        table.extend(charges.iter().map(key).zip(kept));
        Ok(joint)
    }
}

fn now_us(call: &Call) -> u64 {
    call.at_us.unwrap()
}

impl RemoteStore for TestStore {
    fn check(&self, CheckRequest { charge, call, .. }: CheckRequest) -> Answer<Decision> {
        self.counts.checks.fetch_add(1, Ordering::Relaxed);
        let (limit, demand) = (charge.limit(), charge.demand());
        Answer::ready(self.change(&charge, |state, holds| {
            let checked = match demand.intent {
                Intent::Charge => limit.check_beside(state, holds, now_us(&call), demand.request),
                Intent::Peek => {
                    let decision = limit.peek_beside(state, holds, now_us(&call), demand.request);
                    CheckResult { decision, receipt: None }
                }
            };
            Decision::of_key(checked, charge.fingerprint())
        }))
    }

    fn check_all(&self, request: JointRequest) -> Answer<JointDecision> {
        self.counts.checks.fetch_add(1, Ordering::Relaxed);
        Answer::ready(self.decide_all(&request))
    }

    fn refund(
        &self,
        charge: Charge,
        receipt: ChargeReceipt,
        call: Call,
        wake: Wake,
    ) -> Answer<u64> {
        let back = self.change(&charge, |state, holds| {
            charge.limit().refund_beside(state, holds, now_us(&call), receipt)
        });
        wake();
        Answer::ready(back)
    }

    fn reset(&self, charge: Charge, _: Call, wake: Wake) -> Answer<()> {
        let limit = *charge.limit();
        let done = self.change(&charge, |state, holds| {
            (*state, *holds) = (limit.fresh(), Holds::default());
        });
        wake();
        Answer::ready(done)
    }

    fn state(&self, charge: Charge, call: Call) -> Answer<KeyState> {
        let limit = *charge.limit();
        let (call, now_us) = (call, now_us(&call));
        let _ = call;
        Answer::ready(self.change(&charge, |state, holds| KeyState {
            limit,
            state: state.clone(),
            holds: holds.clone(),
            now_us,
        }))
    }

    fn has_holds(&self) -> bool {
        true
    }

    fn settle(
        &self,
        SettleRequest { parts, call, wake }: SettleRequest,
    ) -> Answer<Vec<SettleAnswer>> {
        let settled = parts.iter().map(|part| {
            self.counts.ends.fetch_add(u64::from(part.used.is_last), Ordering::Relaxed);
            self.change(&part.charge, |state, holds| {
                part.charge.limit().settle_hold(state, holds, now_us(&call), part.hold, part.used)
            })
        });
        let settled = settled.collect();
        wake();
        Answer::ready(settled)
    }

    fn has_leases(&self) -> bool {
        true
    }

    /// Decides at once, and answers when the test lets it.
    fn lease(
        &self,
        KeyLeaseRequest { charge, lease, call }: KeyLeaseRequest,
    ) -> Answer<LeaseAnswer> {
        self.counts.leases.fetch_add(1, Ordering::Relaxed);
        let answer = self.change(&charge, |state, holds| {
            charge.limit().lease(state, holds, now_us(&call), lease).map_err(Error::from)
        });
        let answers = Arc::clone(&self.answers);
        Answer::pending(async move {
            // As long as a round trip on a local network.
            tokio::time::sleep(Duration::from_micros(200)).await;
            answers.acquire().await.unwrap().forget();
            answer?
        })
    }

    fn spawn(&self, task: Task) {
        tokio::spawn(task);
    }

    fn health(&self) -> Health {
        let server = ServerHealth::new("test", BreakerState::Closed, 0);
        Health::new(vec![server], StoreError::KINDS.map(|kind| (kind, 0)).into(), None)
    }
}
