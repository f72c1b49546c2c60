//! A process with leases, as a driver would run them.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};

use tollgate_core::Cost;
use tollgate_lease::{Leases, TableSize};

use crate::clock::ProcessClock;
use crate::mutant::AnswerMutation;

/// The leases of a process. Keys are hashed in the same way in each run, so that runs are the same.
pub(crate) type SimulatedLeases = Leases<u32, BuildHasherDefault<DefaultHasher>>;

/// Makes the leases of a process that starts.
pub(crate) fn no_leases(size: TableSize, seed: u64) -> SimulatedLeases {
    Leases::with_hasher(size, seed, BuildHasherDefault::default())
}

/// A check that is not answered yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimulatedCheck {
    pub(crate) key: u32,
    pub(crate) cost: Cost,
    /// Whether another limit of the same request refuses it, so that its units are given back.
    pub(crate) is_given_back: bool,
    /// The answers for which it has waited.
    pub(crate) rounds: u32,
}

#[derive(Debug)]
pub(crate) struct SimulatedProcess {
    pub(crate) leases: SimulatedLeases,
    pub(crate) mutation: AnswerMutation,
    pub(crate) clock: ProcessClock,
    /// The callers that wait for a request in flight, for each key.
    pub(crate) waiting: Vec<VecDeque<SimulatedCheck>>,
    /// The requests for leases that were not answered, with the callers whose checks they decide.
    pub(crate) asked: HashMap<u64, Option<SimulatedCheck>>,
    /// The checks without leases that were not answered.
    pub(crate) strict: HashMap<u64, SimulatedCheck>,
    /// For each key the wall clock at the first use that is not settled.
    pub(crate) first_use_us: Vec<Option<u64>>,
    /// Counts the starts of the process: messages to an earlier one are lost.
    pub(crate) incarnation: u32,
    pub(crate) is_up: bool,
    pub(crate) frozen_until_us: u64,
    /// When the leases are attended to next.
    pub(crate) tick_at_us: u64,
    pub(crate) next_number: u64,
}

impl SimulatedProcess {
    pub(crate) fn new(
        leases: SimulatedLeases,
        mutation: AnswerMutation,
        clock: ProcessClock,
        keys: usize,
    ) -> SimulatedProcess {
        SimulatedProcess {
            leases,
            mutation,
            clock,
            waiting: vec![VecDeque::new(); keys],
            asked: HashMap::new(),
            strict: HashMap::new(),
            first_use_us: vec![None; keys],
            incarnation: 0,
            is_up: true,
            frozen_until_us: 0,
            tick_at_us: u64::MAX,
            next_number: 0,
        }
    }

    /// How many checks are not answered.
    pub(crate) fn unanswered(&self) -> u64 {
        let waiting: usize = self.waiting.iter().map(VecDeque::len).sum();
        let asking = self.asked.values().flatten().count();
        (waiting + asking + self.strict.len()) as u64
    }

    /// The process is killed: everything that it knows is lost.
    pub(crate) fn crash(&mut self, leases: SimulatedLeases, mutation: AnswerMutation) {
        self.leases = leases;
        self.mutation = mutation;
        self.waiting.iter_mut().for_each(VecDeque::clear);
        self.asked.clear();
        self.strict.clear();
        self.first_use_us.fill(None);
        self.incarnation += 1;
        self.is_up = false;
        self.frozen_until_us = 0;
        self.tick_at_us = u64::MAX;
    }
}
