//! The network between the processes and the store.

use crate::faults::Direction;
use crate::random_source::RandomSource;

/// The delays and losses of messages. Each message has a delay of its own, so messages overtake each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkModel {
    /// The shortest delay of a message.
    pub min_delay_us: u64,
    /// The longest usual delay.
    pub max_delay_us: u64,
    /// The messages, in 1,000, that are lost.
    pub lost_permille: u32,
    /// The messages, in 1,000, that arrive twice.
    pub repeated_permille: u32,
    /// The messages, in 1,000, that are late.
    pub late_permille: u32,
    /// The longest delay of a late message.
    pub late_us: u64,
}

/// The network in a run: the model, and the processes that are cut off.
#[derive(Debug)]
pub(crate) struct Network {
    model: NetworkModel,
    /// For each process until when its messages are lost, to the store and from it.
    cut_until_us: Vec<(u64, u64)>,
}

impl Network {
    pub(crate) fn new(model: NetworkModel, processes: usize) -> Network {
        Network { model, cut_until_us: vec![(0, 0); processes] }
    }

    pub(crate) fn cut(&mut self, process: usize, until_us: u64, direction: Direction) {
        let (to_store, from_store) = &mut self.cut_until_us[process];
        if direction != Direction::FromStore {
            *to_store = until_us;
        }
        if direction != Direction::ToStore {
            *from_store = until_us;
        }
    }

    /// Returns when a message that is sent now arrives: never, once, or twice.
    pub(crate) fn arrivals_us(
        &self,
        now_us: u64,
        process: usize,
        direction: Direction,
        random: &mut RandomSource,
    ) -> [Option<u64>; 2] {
        let (to_store, from_store) = self.cut_until_us[process];
        let cut_until_us = if direction == Direction::FromStore { from_store } else { to_store };
        if now_us < cut_until_us || random.happens(self.model.lost_permille) {
            return [None, None];
        }
        let first = now_us + self.delay_us(random);
        let second = random.happens(self.model.repeated_permille);
        [Some(first), second.then(|| now_us + self.delay_us(random))]
    }

    fn delay_us(&self, random: &mut RandomSource) -> u64 {
        let model = &self.model;
        if random.happens(model.late_permille) {
            return random.between(model.max_delay_us, model.late_us.max(model.max_delay_us));
        }
        random.between(model.min_delay_us, model.max_delay_us)
    }
}
