//! The messages between the processes and the store.

use tollgate_lease::{LeaseCall, LeaseEffect, LeaseEnd, LeaseFailure};

use super::{Event, START_US, Simulation};
use crate::faults::Direction;
use crate::messages::{ToProcess, ToStore};
use crate::process::SimulatedCheck;
use crate::report::ViolationKind;

impl Simulation<'_> {
    /// The time from the start of the run.
    pub(super) const fn at_us(&self) -> u64 {
        self.now_us - START_US
    }

    /// Sends a request for a lease, which decides the check of `caller`.
    pub(super) fn send_lease(
        &mut self,
        process: usize,
        call: LeaseCall<u32>,
        caller: Option<SimulatedCheck>,
    ) {
        self.compare_use(process, call.key, call.request.id, call.request.used);
        let own = &mut self.processes[process];
        own.asked.insert(call.sequence, caller);
        let (incarnation, key, sequence) = (own.incarnation, call.key, call.sequence);
        let first_use_us = own.first_use_us[key as usize].take();
        let deadline_us = self.now_us + self.scenario.deadline_us;
        let deadline = Event::LeaseDeadline { process, incarnation, key, sequence };
        self.events.add(deadline_us, deadline);
        self.send(process, ToStore::Lease { call, first_use_us });
    }

    pub(super) fn send_end(&mut self, process: usize, end: LeaseEnd<u32>) {
        self.compare_use(process, end.key, end.hold.id, end.used.units);
        self.send(process, ToStore::End(end));
    }

    /// A request must say what was used: no more, and no less.
    fn compare_use(&mut self, process: usize, key: u32, id: tollgate_core::HoldId, said: u64) {
        let used = self.ledger.used(key, id);
        if used != said {
            let at_us = self.at_us();
            self.report.violation(ViolationKind::WrongUse, at_us, || {
                format!("process {process}, key {key}: used {used}, and says {said}")
            });
        }
    }

    pub(super) fn send(&mut self, process: usize, message: ToStore) {
        let incarnation = self.processes[process].incarnation;
        let arrivals =
            self.network.arrivals_us(self.now_us, process, Direction::ToStore, &mut self.random);
        for at_us in arrivals.into_iter().flatten() {
            let message = message.clone();
            self.events.add(at_us, Event::AtStore { process, incarnation, message });
        }
    }

    pub(super) fn at_store(&mut self, process: usize, incarnation: u32, message: ToStore) {
        if self.store.down_until_us > self.now_us {
            return;
        }
        self.report.store_calls += 1;
        let answer = match message {
            ToStore::Lease { call, first_use_us } => {
                let (key, sequence, need) = (call.key, call.sequence, call.request.need);
                let Some(answer) = self.store.lease(self.now_us, key, call.request, first_use_us)
                else {
                    return;
                };
                if let Some(cost) = need.filter(|_| answer.decision.is_allowed()) {
                    self.admitted(key, cost);
                }
                ToProcess::Lease { key, sequence, answer }
            }
            ToStore::End(end) => return self.store.end(self.now_us, &end),
            ToStore::Check { number, key, cost } => {
                let is_allowed = self.store.check(self.now_us, key, cost).decision.is_allowed();
                if is_allowed {
                    self.admitted(key, cost);
                }
                ToProcess::Check { number, key, is_allowed }
            }
        };
        self.answer(process, incarnation, &answer);
    }

    fn answer(&mut self, process: usize, incarnation: u32, message: &ToProcess) {
        let arrivals =
            self.network.arrivals_us(self.now_us, process, Direction::FromStore, &mut self.random);
        for at_us in arrivals.into_iter().flatten() {
            let message = message.clone();
            self.events.add(at_us, Event::AtProcess { process, incarnation, message });
        }
    }

    pub(super) fn at_process(&mut self, process: usize, message: ToProcess) {
        match message {
            ToProcess::Check { number, is_allowed, .. } => {
                if let Some(caller) = self.processes[process].strict.remove(&number) {
                    self.decided(caller, is_allowed);
                }
            }
            ToProcess::Lease { key, sequence, mut answer } => {
                let own = &mut self.processes[process];
                own.mutation.change(key, sequence, &mut answer);
                let now = own.clock.now(self.now_us);
                let effects = own.leases.replied(now, &key, sequence, Ok(&answer));
                // `None` for an answer that came too late, or twice.
                let asked = own.asked.remove(&sequence);
                if let Some(end) = effects.end {
                    self.send_end(process, end);
                }
                let caller = asked.flatten();
                match (effects.ask_again, asked) {
                    (Some(call), _) => self.send_lease(process, call, caller),
                    (None, Some(_)) => {
                        if let Some(caller) = caller {
                            self.decided(caller, answer.decision.is_allowed());
                        }
                        self.wake(process, key);
                    }
                    (None, None) => {}
                }
                self.plan_tick(process);
            }
        }
    }

    /// A request for a lease was not answered in time.
    pub(super) fn lease_failed(&mut self, process: usize, key: u32, sequence: u64) {
        let own = &mut self.processes[process];
        let Some(caller) = own.asked.remove(&sequence) else { return };
        let now = own.clock.now(self.now_us);
        let effects = own.leases.replied(now, &key, sequence, Err(LeaseFailure));
        if let Some(end) = effects.end {
            self.send_end(process, end);
        }
        self.report.failures += u64::from(caller.is_some());
        self.wake(process, key);
        self.plan_tick(process);
    }

    /// Decides the checks that waited for an answer.
    fn wake(&mut self, process: usize, key: u32) {
        let waiting = std::mem::take(&mut self.processes[process].waiting[key as usize]);
        for caller in waiting {
            self.check_again(process, caller);
        }
    }

    /// Brings the time of the next tick up to date.
    pub(super) fn plan_tick(&mut self, process: usize) {
        let own = &mut self.processes[process];
        let Some(due_us) = own.leases.next_due() else { return };
        let at_us = own.clock.when_us(due_us).max(self.now_us + 1);
        if at_us < own.tick_at_us {
            own.tick_at_us = at_us;
            let incarnation = own.incarnation;
            self.events.add(at_us, Event::Tick { process, incarnation });
        }
    }

    pub(super) fn tick(&mut self, process: usize) {
        let own = &mut self.processes[process];
        if own.tick_at_us > self.now_us {
            return;
        }
        own.tick_at_us = u64::MAX;
        let now = own.clock.now(self.now_us);
        for effect in own.leases.tick(now) {
            match effect {
                LeaseEffect::Renew(call) => self.send_lease(process, call, None),
                LeaseEffect::End(end) => self.send_end(process, end),
            }
        }
        self.plan_tick(process);
    }

    /// A process ends its leases.
    pub(super) fn end_leases(&mut self, process: usize) {
        let own = &mut self.processes[process];
        if !own.is_up || own.frozen_until_us > self.now_us {
            return;
        }
        for end in own.leases.end_all() {
            self.send_end(process, end);
        }
    }
}
