//! The order in which the charges of dropped answers are refunded. No clock and no I/O.
//!
//! A bucket's units leave in the order in which they were charged. Its state has no record of single charges: a refund
//! gives back the part of the level that exceeds all units charged later. Units that were charged later and refunded
//! already are no longer in the level, but still count as charged later. So if a later charge is refunded first, the
//! refund of the earlier charge gives back too little. Refunds in the order of the charges give back everything.
//!
//! Answers are dropped in any order, on any thread, before and after they arrive. A refund therefore waits here until
//! every answer that may belong to an earlier charge of its key was read or dropped.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use ahash::RandomState;
use parking_lot::Mutex;

/// The most refunds of one key that wait for earlier answers. With one more, all of them are sent: a caller that keeps an
/// answer without polling it must not hold them up for ever.
const MAX_WAITING: usize = 1_024;

/// The refunds of a limiter that wait for earlier answers.
pub(super) struct RefundOrder<T> {
    state: Mutex<RefundOrderState<T>>,
}

struct RefundOrderState<T> {
    /// The number of the last check.
    newest: u64,
    keys: HashMap<Vec<u8>, KeyChecks<T>, RandomState>,
}

/// The checks of one key whose charges are refunded if their answers are dropped.
struct KeyChecks<T> {
    /// The numbers of the checks whose answers were neither read nor dropped.
    open: BTreeSet<u64>,
    /// The refunds of the dropped answers, by the charge's place in the bucket and the check's number.
    owed: BTreeMap<(u64, u64), PendingRefund<T>>,
    /// Refunds to send, in order.
    ready: VecDeque<T>,
    /// Whether a thread is sending them.
    is_sending: bool,
}

/// A refund that waits for the checks up to number `newest`. They were made before its answer was dropped, so each of them
/// may have been charged earlier.
struct PendingRefund<T> {
    newest: u64,
    refund: T,
}

impl<T> RefundOrder<T> {
    pub(super) fn new() -> RefundOrder<T> {
        RefundOrder { state: Mutex::new(RefundOrderState { newest: 0, keys: HashMap::default() }) }
    }

    /// Notes a check of `key` before it is sent, and returns its number.
    pub(super) fn begin(&self, key: &[u8]) -> u64 {
        let inner = &mut *self.state.lock();
        inner.newest += 1;
        match inner.keys.get_mut(key) {
            Some(checks) => _ = checks.open.insert(inner.newest),
            None => _ = inner.keys.insert(key.to_vec(), KeyChecks::new(inner.newest)),
        }
        inner.newest
    }

    /// Notes that the answer to a check was read, or was dropped; a dropped answer comes with the place of its charge in the
    /// bucket and the refund to send. Sends the refunds that no longer have to wait, without a lock, and on one thread at a
    /// time for each key.
    pub(super) fn end(
        &self,
        key: &[u8],
        number: u64,
        owed: Option<(u64, T)>,
        mut send: impl FnMut(T),
    ) {
        let mut next = self.state.lock().end(key, number, owed);
        while let Some(refund) = next {
            send(refund);
            next = self.state.lock().next(key);
        }
    }
}

impl<T> RefundOrderState<T> {
    /// Returns the first refund to send, unless another thread is sending refunds of the key.
    fn end(&mut self, key: &[u8], number: u64, owed: Option<(u64, T)>) -> Option<T> {
        let checks = self.keys.get_mut(key)?;
        checks.open.remove(&number);
        if let Some((place, refund)) = owed {
            checks.owed.insert((place, number), PendingRefund { newest: self.newest, refund });
        }
        checks.release();
        if checks.is_sending {
            return None;
        }
        checks.is_sending = true;
        self.next(key)
    }

    /// Returns the next refund to send. If it is `None`, the caller must stop sending.
    fn next(&mut self, key: &[u8]) -> Option<T> {
        let checks = self.keys.get_mut(key)?;
        let next = checks.ready.pop_front();
        if next.is_none() {
            checks.is_sending = false;
            if checks.open.is_empty() && checks.owed.is_empty() {
                self.keys.remove(key);
            }
        }
        next
    }
}

impl<T> KeyChecks<T> {
    fn new(number: u64) -> KeyChecks<T> {
        KeyChecks {
            open: BTreeSet::from([number]),
            owed: BTreeMap::new(),
            ready: VecDeque::new(),
            is_sending: false,
        }
    }

    /// Releases the refunds for which no earlier answer is missing, the earliest charge first.
    fn release(&mut self) {
        let oldest_open = match self.owed.len() {
            0..=MAX_WAITING => self.open.first().copied().unwrap_or(u64::MAX),
            _ => u64::MAX,
        };
        while let Some(first) = self.owed.first_entry() {
            if first.get().newest >= oldest_open {
                return;
            }
            self.ready.push_back(first.remove().refund);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use tollgate_core::{ChargePlace, ChargeReceipt, Cost, Limit, State, UnitRequest};

    use super::*;

    const KEY: &[u8] = b"key";
    const NONE: [u64; 0] = [];

    /// Ends a check, and returns the refunds that are sent then.
    fn end(order: &RefundOrder<u64>, number: u64, place: Option<u64>) -> Vec<u64> {
        let mut sent = Vec::new();
        order.end(KEY, number, place.map(|place| (place, place)), |refund| sent.push(refund));
        sent
    }

    fn is_empty<T>(order: &RefundOrder<T>) -> bool {
        order.state.lock().keys.is_empty()
    }

    #[test]
    fn refund_of_a_single_check_goes_at_once() {
        let order = RefundOrder::new();
        let number = order.begin(KEY);
        assert_eq!(end(&order, number, Some(7)), [7]);
        assert!(is_empty(&order));
    }

    #[test]
    fn refunds_wait_for_earlier_checks_and_go_in_the_order_of_the_charges() {
        let order = RefundOrder::new();
        let [one, two, three, four] = [(); 4].map(|()| order.begin(KEY));
        assert_eq!(end(&order, four, Some(4)), NONE);
        // Sent by another thread, and charged before the first.
        assert_eq!(end(&order, two, Some(1)), NONE);
        assert_eq!(end(&order, one, Some(2)), NONE);
        let five = order.begin(KEY);
        assert_eq!(end(&order, three, None), [1, 2, 4], "read, and five came later");
        assert_eq!(end(&order, five, None), NONE);
        assert!(is_empty(&order));
    }

    #[test]
    fn keys_do_not_wait_for_each_other() {
        let order = RefundOrder::new();
        order.begin(b"other");
        let number = order.begin(KEY);
        assert_eq!(end(&order, number, Some(7)), [7]);
    }

    #[test]
    fn answer_that_is_kept_holds_up_a_bounded_number_of_refunds() {
        let order = RefundOrder::new();
        let kept = order.begin(KEY);
        let most = MAX_WAITING as u64;
        for place in 1..=most {
            let number = order.begin(KEY);
            assert_eq!(end(&order, number, Some(place)), NONE);
        }
        let number = order.begin(KEY);
        assert_eq!(end(&order, number, Some(most + 1)).len(), MAX_WAITING + 1);
        assert_eq!(end(&order, kept, None), NONE);
        assert!(is_empty(&order));
    }

    #[test]
    fn refund_that_is_sent_meanwhile_comes_after() {
        let order = RefundOrder::new();
        let [one, two] = [(); 2].map(|()| order.begin(KEY));
        let mut sent = Vec::new();
        order.end(KEY, one, None, |_: u64| {});
        order.end(KEY, two, Some((1, 1)), |refund| {
            let three = order.begin(KEY);
            if refund == 1 {
                order.end(KEY, three, Some((2, 2)), |_| panic!("sent by two threads"));
            } else {
                order.end(KEY, three, None, |_| panic!("sent by two threads"));
            }
            sent.push(refund);
        });
        assert_eq!(sent, [1, 2]);
        assert!(is_empty(&order));
    }

    /// A bucket on a server, and checks of it that are charged in any order, and read or dropped in any order.
    struct RefundModel {
        limit: Limit,
        state: State,
        order: RefundOrder<ChargeReceipt>,
        /// Checks that were not charged yet, and their numbers.
        sent: Vec<(u64, u64)>,
        charged: Vec<(u64, ChargeReceipt)>,
        kept: u64,
    }

    impl RefundModel {
        fn step(&mut self, action: u8, pick: usize, cost: u64) {
            match action {
                0 | 1 => self.sent.push((self.order.begin(KEY), cost)),
                2 | 3 if !self.sent.is_empty() => {
                    let (number, cost) = self.sent.swap_remove(pick % self.sent.len());
                    let ask = UnitRequest::new(Cost::new(cost).unwrap());
                    match self.limit.check(&mut self.state, 0, ask).receipt {
                        Some(receipt) => self.charged.push((number, receipt)),
                        None => self.end(number, None),
                    }
                }
                4 | 5 if !self.charged.is_empty() => {
                    let (number, receipt) = self.charged.swap_remove(pick % self.charged.len());
                    self.end(number, Some(receipt));
                }
                6 if !self.charged.is_empty() => {
                    let (number, receipt) = self.charged.swap_remove(pick % self.charged.len());
                    self.kept += receipt.cost().units();
                    self.end(number, None);
                }
                _ => {}
            }
        }

        fn end(&mut self, number: u64, receipt: Option<ChargeReceipt>) {
            let owed = receipt.map(|receipt| match receipt.place() {
                ChargePlace::Bucket { charged, .. } => (charged, receipt),
                other => unreachable!("{other:?}"),
            });
            let RefundModel { limit, state, .. } = self;
            self.order.end(KEY, number, owed, |receipt| _ = limit.refund(state, 0, receipt));
        }
    }

    proptest! {
        #[test]
        fn bucket_holds_exactly_what_was_read(steps in vec((0..7_u8, any::<usize>(), 1..4_u64), 0..300)) {
            let limit: Limit = "token-bucket capacity=100 refill=1/d".parse().unwrap();
            let mut model = RefundModel {
                limit,
                state: limit.fresh(),
                order: RefundOrder::new(),
                sent: Vec::new(),
                charged: Vec::new(),
                kept: 0,
            };
            for (action, pick, cost) in steps {
                model.step(action, pick, cost);
            }
            while !model.sent.is_empty() {
                model.step(2, 0, 1);
            }
            while !model.charged.is_empty() {
                model.step(4, 0, 1);
            }
            let left = limit.peek(&model.state, 0, UnitRequest::new(Cost::ONE)).remaining;
            prop_assert_eq!(left, 100 - model.kept);
            prop_assert!(is_empty(&model.order));
        }
    }
}
