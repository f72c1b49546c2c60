//! Random operations and messages in any order, against the real algorithms as the store.

use std::collections::HashMap;

use proptest::prelude::*;
use tollgate_core::{HoldId, Holds, LeaseAnswer, Limit, State};
use tollgate_lease::{
    LeaseCall, LeaseEffect, LeaseEnd, LeaseFailure, LeaseReceipt, LeaseTerms, Leases, Now,
    TableSize, TakeAnswer,
};

use crate::setup::cost;

/// A step of a trace. A message is chosen by its index among all messages that were ever sent.
#[derive(Clone, Debug)]
enum Step {
    Take {
        units: u64,
    },
    Refund {
        index: usize,
    },
    Tick,
    Pass {
        us: u64,
    },
    SetWall {
        us: i64,
    },
    /// A request arrives at the store, and stays in the network: it may arrive again.
    ToStore {
        index: usize,
    },
    /// An answer arrives at the process, and stays in the network.
    ToProcess {
        index: usize,
    },
    Fail {
        index: usize,
    },
    EndAll,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (1..20_u64).prop_map(|units| Step::Take { units }),
        1 => any::<usize>().prop_map(|index| Step::Refund { index }),
        3 => Just(Step::Tick),
        3 => prop_oneof![0..2_000_u64, 5_000..50_000_u64, 100_000..700_000_u64]
            .prop_map(|us| Step::Pass { us }),
        1 => (-100_000..100_000_i64).prop_map(|us| Step::SetWall { us }),
        4 => any::<usize>().prop_map(|index| Step::ToStore { index }),
        4 => any::<usize>().prop_map(|index| Step::ToProcess { index }),
        1 => any::<usize>().prop_map(|index| Step::Fail { index }),
        1 => Just(Step::EndAll),
    ]
}

enum Request {
    Lease(LeaseCall<u32>),
    End(LeaseEnd<u32>),
}

/// A process with one key, the store, and all messages that were ever sent.
struct World {
    leases: Leases<u32>,
    terms: LeaseTerms,
    now_us: u64,
    wall_ahead_us: i64,
    limit: Limit,
    state: State,
    holds: Holds,
    requests: Vec<Request>,
    answers: Vec<(u64, LeaseAnswer)>,
    receipts: Vec<LeaseReceipt>,
    used: HashMap<HoldId, u64>,
}

impl World {
    fn new(limit: &str) -> World {
        let limit: Limit = limit.parse().unwrap();
        World {
            leases: Leases::new(TableSize { leases: 2, counted_keys: 8 }, 3),
            terms: LeaseTerms::new(limit).unwrap().max_share(100).unwrap(),
            now_us: 1_700_000_000_000_000,
            wall_ahead_us: 0,
            limit,
            state: limit.fresh(),
            holds: Holds::default(),
            requests: Vec::new(),
            answers: Vec::new(),
            receipts: Vec::new(),
            used: HashMap::new(),
        }
    }

    fn now(&self) -> Now {
        let wall_us = self.now_us.saturating_add_signed(self.wall_ahead_us);
        Now { monotonic_us: self.now_us, wall_us }
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Take { units } => self.take(units),
            Step::Refund { index } if !self.receipts.is_empty() => {
                let receipt = self.receipts.swap_remove(index % self.receipts.len());
                let id = receipt.lease();
                let units = self.leases.refund(self.now(), &1, receipt);
                *self.used.get_mut(&id).unwrap() -= units;
            }
            Step::Tick => {
                for effect in self.leases.tick(self.now()) {
                    match effect {
                        LeaseEffect::Renew(call) => self.send(call),
                        LeaseEffect::End(end) => self.send_end(end),
                    }
                }
            }
            Step::Pass { us } => self.now_us += us,
            Step::SetWall { us } => self.wall_ahead_us += us,
            Step::ToStore { index } if !self.requests.is_empty() => {
                self.at_store(index % self.requests.len());
            }
            Step::ToProcess { index } if !self.answers.is_empty() => {
                let now = self.now();
                let (sequence, answer) = &self.answers[index % self.answers.len()];
                let effects = self.leases.replied(now, &1, *sequence, Ok(answer));
                effects.end.into_iter().for_each(|end| self.send_end(end));
                effects.ask_again.into_iter().for_each(|call| self.send(call));
            }
            Step::Fail { index } if !self.requests.is_empty() => {
                if let Request::Lease(call) = &self.requests[index % self.requests.len()] {
                    let _ = self.leases.replied(self.now(), &1, call.sequence, Err(LeaseFailure));
                }
            }
            Step::EndAll => {
                for end in self.leases.end_all() {
                    self.send_end(end);
                }
            }
            Step::Refund { .. }
            | Step::ToStore { .. }
            | Step::ToProcess { .. }
            | Step::Fail { .. } => {}
        }
        assert!(self.leases.len() <= 2);
    }

    fn take(&mut self, units: u64) {
        match self.leases.take(self.now(), &1, &self.terms, cost(units)) {
            TakeAnswer::Hit(hit) => {
                let id = hit.receipt.lease();
                let used = self.used.entry(id).or_default();
                *used += units;
                let mut holds = self.holds.iter();
                let hold = holds.find(|hold| hold.id == id && hold.expires_us > self.now_us);
                let hold = hold.expect("a hit needs a hold that has not expired");
                assert!(*used - hold.used <= hold.units, "{used} used, {hold:?}");
                self.receipts.push(hit.receipt);
            }
            TakeAnswer::Ask(call) => self.send(call),
            TakeAnswer::Refuse(decision) => {
                assert!(decision.remaining < units);
                assert!(decision.retry_after_us().is_some_and(|wait_us| wait_us > 0));
            }
            TakeAnswer::Wait | TakeAnswer::Fail | TakeAnswer::Changed(_) | TakeAnswer::Strict => {}
        }
    }

    /// Sends a request, which says exactly what was used.
    fn send(&mut self, call: LeaseCall<u32>) {
        assert_eq!(call.request.used, self.used.get(&call.request.id).copied().unwrap_or(0));
        assert!(call.request.want <= call.request.most);
        self.requests.push(Request::Lease(call));
    }

    fn send_end(&mut self, end: LeaseEnd<u32>) {
        assert_eq!(end.used.units, self.used.get(&end.hold.id).copied().unwrap_or(0));
        self.requests.push(Request::End(end));
    }

    fn at_store(&mut self, index: usize) {
        let (state, holds) = (&mut self.state, &mut self.holds);
        match &self.requests[index] {
            Request::Lease(call) => {
                let answer = self.limit.lease(state, holds, self.now_us, call.request).unwrap();
                self.answers.push((call.sequence, answer));
            }
            Request::End(end) => {
                self.limit.settle_hold(state, holds, self.now_us, end.hold, end.used);
            }
        }
    }
}

const LIMITS: [&str; 5] = [
    "token-bucket capacity=100 refill=100/s",
    "leaky-bucket mode=policing capacity=1000 leak=5000/s",
    "fixed-window limit=100 window=1s",
    "sliding-window-counter limit=1000 window=700ms",
    "sliding-window-log limit=300 window=2s",
];

proptest! {
    /// Every unit is held on the store when it is used, whatever is lost, late or repeated.
    #[test]
    fn used_units_are_held(limit in 0..LIMITS.len(), steps in prop::collection::vec(step(), 1..400)) {
        let mut world = World::new(LIMITS[limit]);
        (0..8).for_each(|_| world.take(1));
        steps.into_iter().for_each(|step| world.run(step));
    }
}
