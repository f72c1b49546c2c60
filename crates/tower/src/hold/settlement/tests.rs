use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tollgate_core::{ChargeReceipt, MAX_UNITS, SettleAnswer};
use tollgate_limiter::store::{
    Call, Charge, CheckRequest, JointRequest, KeyState, RemoteStore, SettleRequest, StoredState,
    Wake,
};
use tollgate_limiter::{Decision, Health, JointDecision, Limiter, Scope, StoreError};

use super::*;

const NOW_US: u64 = 1_794_700_800_000_000;

/// A store with one key. It can fail, and keeps the used units of each settlement that was sent.
#[derive(Debug, Default)]
struct OneKey {
    stored: Mutex<[Option<StoredState>; 1]>,
    fails: AtomicBool,
    settled: Mutex<Vec<u64>>,
}

#[derive(Clone, Debug)]
struct OneKeyStore(Arc<OneKey>);

fn failed<T>() -> Answer<T> {
    Answer::ready(Err(StoreError::Gone.into()))
}

impl RemoteStore for OneKeyStore {
    fn check(&self, CheckRequest { charge, .. }: CheckRequest) -> Answer<Decision> {
        Answer::ready(Ok(charge.decide(&mut self.0.stored.lock()[0], NOW_US)))
    }

    fn check_all(&self, JointRequest { charges, .. }: JointRequest) -> Answer<JointDecision> {
        Answer::ready(Ok(Charge::decide_all(&charges, &mut *self.0.stored.lock(), NOW_US)))
    }

    fn refund(&self, _: Charge, _: ChargeReceipt, _: Call, _: Wake) -> Answer<u64> {
        failed()
    }

    fn reset(&self, _: Charge, _: Call, _: Wake) -> Answer<()> {
        failed()
    }

    fn state(&self, _: Charge, _: Call) -> Answer<KeyState> {
        failed()
    }

    fn has_holds(&self) -> bool {
        true
    }

    fn settle(&self, SettleRequest { parts, .. }: SettleRequest) -> Answer<Vec<SettleAnswer>> {
        let [part] = &parts[..] else { return failed() };
        self.0.settled.lock().push(part.used.units);
        if self.0.fails.swap(false, Ordering::Relaxed) {
            return failed();
        }
        let settled =
            part.charge.settle(&mut self.0.stored.lock()[0], NOW_US, part.hold, part.used);
        Answer::ready(Ok(vec![settled]))
    }

    fn health(&self) -> Health {
        Health::new(Vec::new(), StoreError::KINDS.map(|kind| (kind, 0)).into(), None)
    }
}

/// A scope of 1,000 units on a store.
fn on(store: &Arc<OneKey>) -> Scope {
    let store = OneKeyStore(Arc::clone(store));
    let builder = Limiter::builder().clock(Clock::tokio(NOW_US)).store(|_| Ok::<_, Error>(store));
    builder.unwrap().build().scope("tokens", "fixed-window limit=1000 window=366d").unwrap()
}

/// Settles a hold of 100 units, with a check of 7 units of the same key that was merged into it, on a store that fails
/// once. Returns the units of each settlement that was sent, and the units that remain.
async fn settled_twice(used: Option<u64>) -> (Vec<u64>, u64) {
    let store = Arc::<OneKey>::default();
    let scope = on(&store);
    let parts = [scope.check("a").cost(7).into(), scope.reserve("a").cost(100).into()];
    let reserved = scope.limiter().reserve_all(&parts).await.unwrap();
    let hold = reserved.into_hold().unwrap().into_holds().pop().unwrap();
    assert_eq!(hold.checked_units(), 7);
    store.fails.store(true, Ordering::Relaxed);
    let held = HeldLimits::of_limit(hold, 100, Duration::from_secs(60));
    settle_unwatched(held, used, scope.limiter().clock(), &Arc::default());
    sleep(Duration::from_secs(1)).await;
    let settled = store.settled.lock().clone();
    (settled, scope.peek("a").await.unwrap().remaining())
}

#[tokio::test(start_paused = true)]
async fn settlement_that_is_sent_again_has_the_units_of_merged_checks() {
    assert_eq!(settled_twice(Some(30)).await, (vec![37, 37], 963));
    assert_eq!(settled_twice(None).await, (vec![107, 107], 893));
}

/// A meter that counts wrong must not make the settlement one that a store refuses.
#[tokio::test(start_paused = true)]
async fn settlement_that_is_sent_again_is_cut_as_the_first_one() {
    let (settled, remaining) = settled_twice(Some(u64::MAX)).await;
    assert_eq!((settled, remaining), (vec![MAX_UNITS; 2], 0));
}
