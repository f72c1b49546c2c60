//! The checks of callers: how they are decided, and what is recorded.

use tollgate_core::Cost;
use tollgate_lease::{LeaseReceipt, LeasedDecision, TakeAnswer};

use super::{Event, Simulation};
use crate::bound_check::UseTimes;
use crate::messages::ToStore;
use crate::process::SimulatedCheck;
use crate::report::ViolationKind;

/// The longest time until another limit of a request has answered.
const OTHER_LIMIT_US: u64 = 3_000;

/// The most answers for which a check can wait. One or two are enough, because a request is for all checks that wait; but
/// with a small share of a small limit, each answer admits only a few of them.
const MOST_ROUNDS: u32 = 64;

impl Simulation<'_> {
    /// A check arrives.
    pub(super) fn check(&mut self, process: usize, caller: SimulatedCheck) {
        self.report.checks += 1;
        self.report.asked_units += caller.cost.units();
        let own = &mut self.processes[process];
        let now = own.clock.now(self.now_us);
        let terms = &self.scenario.keys[caller.key as usize].terms;
        let answer = own.leases.take(now, &caller.key, terms, caller.cost);
        self.follow(process, caller, answer);
    }

    /// A check that has waited for an answer is decided.
    pub(super) fn check_again(&mut self, process: usize, caller: SimulatedCheck) {
        let own = &mut self.processes[process];
        let now = own.clock.now(self.now_us);
        let terms = &self.scenario.keys[caller.key as usize].terms;
        let answer = own.leases.take_again(now, &caller.key, terms, caller.cost);
        let caller = SimulatedCheck { rounds: caller.rounds + 1, ..caller };
        if caller.rounds > MOST_ROUNDS {
            let at_us = self.at_us();
            self.report.violation(ViolationKind::WaitsTooLong, at_us, || format!("{caller:?}"));
        }
        self.follow(process, caller, answer);
    }

    fn follow(&mut self, process: usize, caller: SimulatedCheck, answer: TakeAnswer<u32>) {
        match answer {
            TakeAnswer::Hit(hit) => self.hit(process, caller, hit),
            TakeAnswer::Ask(call) => {
                self.send_lease(process, call, Some(caller));
                self.plan_tick(process);
            }
            TakeAnswer::Wait => {
                self.processes[process].waiting[caller.key as usize].push_back(caller);
            }
            TakeAnswer::Refuse(_) => self.report.local_refusals += 1,
            TakeAnswer::Fail => self.report.failures += 1,
            TakeAnswer::Changed(end) => {
                self.send_end(process, end);
                self.send_check(process, caller);
            }
            TakeAnswer::Strict => self.send_check(process, caller),
        }
    }

    fn hit(&mut self, process: usize, caller: SimulatedCheck, hit: LeasedDecision) {
        let (key, units) = (caller.key, caller.cost.units());
        self.report.hits += 1;
        let id = hit.receipt.lease();
        let hold = self.store.open_hold(self.now_us, key, id);
        let problem = self.ledger.take(key, id, units, hold);
        if let Some(text) = problem.filter(|_| self.now_us > self.held_from_us) {
            let at_us = self.at_us();
            self.report.violation(ViolationKind::NotHeld, at_us, || {
                format!("process {process}, key {key}: {text}")
            });
        }
        let own = &mut self.processes[process];
        let now = own.clock.now(self.now_us);
        own.first_use_us[key as usize].get_or_insert(now.wall_us);
        if hit.wakes {
            self.plan_tick(process);
        }
        if caller.is_given_back {
            self.give_back_later(process, caller, hit.receipt);
        } else {
            self.admitted(key, caller.cost);
            self.report.admitted_units += units;
        }
    }

    /// Another limit refuses the request, at once or when the store has answered.
    fn give_back_later(&mut self, process: usize, caller: SimulatedCheck, receipt: LeaseReceipt) {
        self.report.given_back += 1;
        if self.random.happens(500) {
            return self.give_back(process, caller, receipt);
        }
        let at_us = self.now_us + self.random.between(1, OTHER_LIMIT_US);
        let incarnation = self.processes[process].incarnation;
        self.events.add(at_us, Event::GiveBack { process, incarnation, caller, receipt });
    }

    pub(super) fn give_back(
        &mut self,
        process: usize,
        caller: SimulatedCheck,
        receipt: LeaseReceipt,
    ) {
        let own = &mut self.processes[process];
        let now = own.clock.now(self.now_us);
        let id = receipt.lease();
        let units = own.leases.refund(now, &caller.key, receipt);
        self.ledger.give_back(caller.key, id, units);
    }

    /// Records units that were admitted at this instant.
    pub(super) fn admitted(&mut self, key: u32, cost: Cost) {
        let times = UseTimes {
            store_us: self.store.clock.now_us(self.now_us).max(self.store.window_start_us(key)),
            generous_us: self.store.clock.generous_us(self.now_us),
        };
        if let Some(text) = self.bounds[key as usize].admit(times, cost) {
            let at_us = self.at_us();
            self.report
                .violation(ViolationKind::AboveLimit, at_us, || format!("key {key}: {text}"));
        }
    }

    /// Sends a check without a lease.
    fn send_check(&mut self, process: usize, caller: SimulatedCheck) {
        let own = &mut self.processes[process];
        own.next_number += 1;
        let number = own.next_number;
        own.strict.insert(number, caller);
        let incarnation = own.incarnation;
        let deadline_us = self.now_us + self.scenario.deadline_us;
        self.events.add(deadline_us, Event::CheckDeadline { process, incarnation, number });
        self.send(process, ToStore::Check { number, key: caller.key, cost: caller.cost });
    }

    /// A check without a lease was not answered in time.
    pub(super) fn check_failed(&mut self, process: usize, number: u64) {
        if self.processes[process].strict.remove(&number).is_some() {
            self.report.failures += 1;
        }
    }

    /// The store has decided a check.
    pub(super) fn decided(&mut self, caller: SimulatedCheck, is_allowed: bool) {
        if is_allowed {
            self.report.store_admissions += 1;
            self.report.admitted_units += caller.cost.units();
        } else {
            self.report.store_refusals += 1;
        }
    }
}
