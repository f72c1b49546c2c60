//! A store with holds that stands for one across the network: it can fail, and its replies can wait.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::Semaphore;
use tollgate::store::{
    Call, Charge, CheckRequest, ExtendPart, ExtendRequest, JointRequest, KeyState, RemoteStore,
    SettleRequest, StoredState, Wake,
};
use tollgate::{Answer, Decision, Error, Health, JointDecision, StoreError};
use tollgate_core::{ChargeReceipt, ExtendAnswer, SettleAnswer};

/// The example store of the conformance suite on this thread, so that tokio's paused clock does not pass while it
/// decides.
#[derive(Clone, Debug)]
pub(super) struct BreakableStore {
    states: Arc<Mutex<HashMap<TableKey, StoredState>>>,
    fails: Arc<AtomicBool>,
    /// Each reply to a reservation waits for a permit.
    replies: Arc<Semaphore>,
}

type TableKey = (Box<[u8]>, Box<[u8]>);

impl BreakableStore {
    pub(super) fn start() -> BreakableStore {
        let replies = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        BreakableStore { states: Arc::default(), fails: Arc::default(), replies }
    }

    /// Sets whether requests fail from now on. They then change nothing.
    pub(super) fn set_failing(&self, fails: bool) {
        self.fails.store(fails, Ordering::Relaxed);
    }

    /// Makes the replies to reservations wait until [`reply`](Self::reply).
    pub(super) fn delay_replies(&self) {
        self.replies.forget_permits(Semaphore::MAX_PERMITS);
    }

    pub(super) fn reply(&self) {
        self.replies.add_permits(1);
    }

    /// Changes the states of these charges.
    fn change<T>(
        &self,
        charges: &[Charge],
        act: impl FnOnce(&mut [Option<StoredState>]) -> T,
    ) -> Result<T, Error> {
        if self.fails.load(Ordering::Relaxed) {
            return Err(Error::Store(StoreError::Gone));
        }
        let key = |charge: &Charge| (charge.name().encoded().into(), charge.key().into());
        let mut states = self.states.lock().unwrap();
        let mut stored: Vec<_> = charges.iter().map(|charge| states.remove(&key(charge))).collect();
        let answer = act(&mut stored);
        let both = charges.iter().zip(stored);
        states.extend(both.filter_map(|(charge, stored)| Some((key(charge), stored?))));
        Ok(answer)
    }
}

fn now_us(call: &Call) -> u64 {
    call.at_us.unwrap()
}

impl RemoteStore for BreakableStore {
    fn check(&self, CheckRequest { charge, call, .. }: CheckRequest) -> Answer<Decision> {
        // Without time for it, a request is not sent.
        if call.deadline.is_zero() {
            return Answer::ready(Err(Error::Store(StoreError::Gone)));
        }
        let charges = [charge.clone()];
        Answer::ready(self.change(&charges, |stored| charge.decide(&mut stored[0], now_us(&call))))
    }

    fn check_all(&self, JointRequest { charges, call }: JointRequest) -> Answer<JointDecision> {
        let decide = |stored: &mut [_]| Charge::decide_all(&charges, stored, now_us(&call));
        let answer = self.change(&charges, decide);
        let replies = Arc::clone(&self.replies);
        Answer::pending(async move {
            drop(replies.acquire().await);
            answer
        })
    }

    fn refund(&self, _: Charge, _: ChargeReceipt, _: Call, _: Wake) -> Answer<u64> {
        Answer::ready(Ok(0))
    }

    fn reset(&self, _: Charge, _: Call, _: Wake) -> Answer<()> {
        self.states.lock().unwrap().clear();
        Answer::ready(Ok(()))
    }

    fn state(&self, charge: Charge, call: Call) -> Answer<KeyState> {
        let charges = [charge.clone()];
        let state = |stored: &mut [Option<_>]| charge.key_state(stored[0].as_ref(), now_us(&call));
        Answer::ready(self.change(&charges, state))
    }

    fn has_holds(&self) -> bool {
        true
    }

    fn settle(
        &self,
        SettleRequest { parts, call, wake }: SettleRequest,
    ) -> Answer<Vec<SettleAnswer>> {
        let charges: Vec<Charge> = parts.iter().map(|part| part.charge.clone()).collect();
        let answer = self.change(&charges, |stored| {
            let both = parts.iter().zip(stored);
            both.map(|(part, stored)| {
                part.charge.settle(stored, now_us(&call), part.hold, part.used)
            })
            .collect()
        });
        wake();
        Answer::ready(answer)
    }

    fn extend(&self, ExtendRequest { parts, call }: ExtendRequest) -> Answer<Vec<ExtendAnswer>> {
        let charges: Vec<Charge> =
            parts.iter().map(|part: &ExtendPart| part.charge.clone()).collect();
        let extend = |stored: &mut [_]| Charge::extend_all(&parts, stored, now_us(&call));
        Answer::ready(self.change(&charges, extend))
    }

    fn health(&self) -> Health {
        Health::new(Vec::new(), StoreError::KINDS.map(|kind| (kind, 0)).into(), None)
    }
}
