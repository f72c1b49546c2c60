//! Runs a scenario: the loop over its events.

mod checks;
mod exchange;

use tollgate_core::Cost;
use tollgate_lease::LeaseReceipt;

use crate::bound_check::BoundCheck;
use crate::clock::{ClockStep, ProcessClock};
use crate::events::EventQueue;
use crate::faults::SimulatedFault;
use crate::hold_ledger::HoldLedger;
use crate::messages::{ToProcess, ToStore};
use crate::mutant::AnswerMutation;
use crate::network::Network;
use crate::process::{SimulatedCheck, SimulatedProcess, no_leases};
use crate::random_source::RandomSource;
use crate::report::{RunReport, ViolationKind};
use crate::scenario::SimulatedScenario;
use crate::store::{SimulatedStore, StateLoss, StoredKey};

/// When a run starts, in microseconds since the Unix epoch.
const START_US: u64 = 1_700_000_000_000_000;

/// An event of a run.
#[derive(Debug)]
enum Event {
    Arrival {
        source: usize,
        checks: u32,
    },
    AtStore {
        process: usize,
        incarnation: u32,
        message: ToStore,
    },
    AtProcess {
        process: usize,
        incarnation: u32,
        message: ToProcess,
    },
    LeaseDeadline {
        process: usize,
        incarnation: u32,
        key: u32,
        sequence: u64,
    },
    CheckDeadline {
        process: usize,
        incarnation: u32,
        number: u64,
    },
    Tick {
        process: usize,
        incarnation: u32,
    },
    GiveBack {
        process: usize,
        incarnation: u32,
        caller: SimulatedCheck,
        receipt: LeaseReceipt,
    },
    Restart {
        process: usize,
    },
    Fault {
        fault: SimulatedFault,
        number: usize,
    },
    /// A replica gets its last copy before it takes over.
    Replicate {
        number: usize,
    },
}

impl Event {
    /// The process that must run for this event to happen.
    const fn process(&self) -> Option<(usize, u32)> {
        match self {
            Event::AtProcess { process, incarnation, .. }
            | Event::LeaseDeadline { process, incarnation, .. }
            | Event::CheckDeadline { process, incarnation, .. }
            | Event::Tick { process, incarnation }
            | Event::GiveBack { process, incarnation, .. } => Some((*process, *incarnation)),
            Event::Arrival { .. }
            | Event::AtStore { .. }
            | Event::Restart { .. }
            | Event::Fault { .. }
            | Event::Replicate { .. } => None,
        }
    }
}

/// Runs a scenario.
pub fn run(scenario: &SimulatedScenario) -> RunReport {
    let mut simulation = Simulation::new(scenario);
    simulation.start();
    while let Some((at_us, event)) = simulation.events.next() {
        if at_us >= START_US + scenario.duration_us {
            break;
        }
        simulation.now_us = at_us;
        simulation.happen(event);
    }
    simulation.finish()
}

#[derive(Debug)]
struct Simulation<'s> {
    scenario: &'s SimulatedScenario,
    now_us: u64,
    events: EventQueue<Event>,
    random: RandomSource,
    network: Network,
    store: SimulatedStore,
    processes: Vec<SimulatedProcess>,
    ledger: HoldLedger,
    bounds: Vec<BoundCheck>,
    /// From this time on, all leases in use are held on the store again.
    held_from_us: u64,
    replicas: Vec<Option<Vec<StoredKey>>>,
    report: RunReport,
}

impl<'s> Simulation<'s> {
    fn new(scenario: &'s SimulatedScenario) -> Simulation<'s> {
        let mut random = RandomSource::new(scenario.seed ^ 0x5eed);
        let processes = (0..scenario.processes)
            .map(|_| {
                let most = i64::from(scenario.drift_ppm);
                let drift = random.one_of(&[-most, most, random.clone().around_zero(most)]);
                let skew_us = random.around_zero(scenario.wall_skew_us as i64);
                SimulatedProcess::new(
                    no_leases(scenario.table_size, random.next()),
                    AnswerMutation::new(scenario.mutant),
                    ProcessClock::new(START_US, skew_us, drift),
                    scenario.keys.len(),
                )
            })
            .collect();
        let limits = scenario.keys.iter().map(|key| *key.terms.limit());
        let bound = |terms: &tollgate_lease::LeaseTerms| {
            BoundCheck::new(*terms.limit(), terms.lease_for().as_us())
        };
        Simulation {
            scenario,
            now_us: START_US,
            events: EventQueue::new(),
            random,
            network: Network::new(scenario.network.clone(), scenario.processes),
            store: SimulatedStore::new(limits, scenario.mutant),
            processes,
            ledger: HoldLedger::default(),
            bounds: scenario.keys.iter().map(|key| bound(&key.terms)).collect(),
            held_from_us: 0,
            replicas: vec![None; scenario.faults.len()],
            report: RunReport { duration_us: scenario.duration_us, ..RunReport::default() },
        }
    }

    fn start(&mut self) {
        for source in 0..self.scenario.traffic.len() {
            self.next_arrival(source);
        }
        for (number, timed) in self.scenario.faults.iter().enumerate() {
            if let SimulatedFault::Loss(StateLoss::Since { back_us }) = timed.fault {
                let copied_us = START_US + timed.at_us.saturating_sub(back_us);
                self.events.add(copied_us, Event::Replicate { number });
            }
            self.events.add(START_US + timed.at_us, Event::Fault { fault: timed.fault, number });
        }
    }

    fn finish(mut self) -> RunReport {
        for key in 0..self.bounds.len() {
            if let Some(text) = self.bounds[key].above_bound() {
                let at_us = self.now_us - START_US;
                self.report.violation(ViolationKind::AboveBound, at_us, || text);
            }
        }
        for process in &self.processes {
            self.report.unanswered += process.unanswered();
            self.report.counters += process.leases.counters();
        }
        self.report.held_units = self.store.held_units(self.now_us);
        self.report
    }

    fn happen(&mut self, event: Event) {
        if let Some((process, incarnation)) = event.process() {
            let own = &self.processes[process];
            if own.incarnation != incarnation || !own.is_up {
                return;
            }
            if own.frozen_until_us > self.now_us {
                return self.events.add(own.frozen_until_us, event);
            }
        }
        match event {
            Event::Arrival { source, checks } => self.arrive(source, checks),
            Event::AtStore { process, incarnation, message } => {
                self.at_store(process, incarnation, message);
            }
            Event::AtProcess { process, message, .. } => self.at_process(process, message),
            Event::LeaseDeadline { process, key, sequence, .. } => {
                self.lease_failed(process, key, sequence);
            }
            Event::CheckDeadline { process, number, .. } => self.check_failed(process, number),
            Event::Tick { process, .. } => self.tick(process),
            Event::GiveBack { process, caller, receipt, .. } => {
                self.give_back(process, caller, receipt);
            }
            Event::Restart { process } => self.processes[process].is_up = true,
            Event::Fault { fault, number } => self.fail(fault, number),
            Event::Replicate { number } => self.replicas[number] = Some(self.store.replica()),
        }
    }

    fn next_arrival(&mut self, source: usize) {
        let model = self.scenario.traffic[source].model;
        if let Some(arrival) = model.next(self.now_us - START_US, &mut self.random) {
            let event = Event::Arrival { source, checks: arrival.checks };
            self.events.add(START_US + arrival.at_us, event);
        }
    }

    fn arrive(&mut self, source: usize, checks: u32) {
        let own = self.scenario.traffic[source];
        let frozen_until_us = self.processes[own.process].frozen_until_us;
        if frozen_until_us > self.now_us {
            return self.events.add(frozen_until_us, Event::Arrival { source, checks });
        }
        self.next_arrival(source);
        if !self.processes[own.process].is_up {
            return;
        }
        for _ in 0..checks {
            let units = self.random.between(1, own.max_cost);
            let is_given_back = self.random.happens(self.scenario.given_back_permille);
            // OK because the costs of a scenario are small.
            let cost = Cost::new(units).unwrap_or(Cost::ONE);
            self.check(
                own.process,
                SimulatedCheck { key: own.key, cost, is_given_back, rounds: 0 },
            );
        }
    }

    fn fail(&mut self, fault: SimulatedFault, number: usize) {
        let now_us = self.now_us;
        match fault {
            SimulatedFault::Crash { process, for_us } => self.crash(process, for_us),
            SimulatedFault::Freeze { process, for_us } => {
                self.processes[process].frozen_until_us = now_us + for_us;
            }
            SimulatedFault::Cut { process, for_us, direction } => {
                self.network.cut(process, now_us + for_us, direction);
            }
            SimulatedFault::StoreDown { for_us } => self.store.down_until_us = now_us + for_us,
            SimulatedFault::WallStep { process, by_us } => {
                self.processes[process].clock.step_wall(by_us);
            }
            SimulatedFault::StoreStep { by_us } => match self.store.clock.step(by_us) {
                ClockStep::Small => {}
                ClockStep::Back => {
                    let generous_us = self.store.clock.generous_us(now_us);
                    self.bounds.iter_mut().for_each(|bound| bound.step_back(generous_us));
                }
                ClockStep::Loss => self.lose(),
            },
            SimulatedFault::Loss(_) => {
                self.lose();
                self.store.fail_over(self.replicas[number].take());
            }
            SimulatedFault::EndLeases { process } => self.end_leases(process),
        }
    }

    /// Counts a loss of state. The leases that were open are used without a hold until they are over.
    fn lose(&mut self) {
        self.report.losses += 1;
        let generous_us = self.store.clock.generous_us(self.now_us);
        let moves_windows = self.store.clock.was_set();
        self.bounds.iter_mut().for_each(|bound| bound.lose(generous_us, moves_windows));
        let leases_us = self.scenario.keys.iter().map(|key| key.terms.lease_for().as_us());
        self.held_from_us = self.now_us + leases_us.max().unwrap_or(0);
    }

    fn crash(&mut self, process: usize, for_us: u64) {
        let leases = no_leases(self.scenario.table_size, self.random.next());
        let own = &mut self.processes[process];
        self.report.crashed += own.unanswered();
        self.report.counters += own.leases.counters();
        own.crash(leases, AnswerMutation::new(self.scenario.mutant));
        self.events.add(self.now_us + for_us, Event::Restart { process });
    }
}
