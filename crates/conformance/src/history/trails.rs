//! The states that a key can have in a search, and what came before each.

use std::collections::HashMap;
use std::collections::hash_map::DefaultHasher;
use std::fmt::{self, Write};
use std::hash::Hasher;

use tollgate_core::State;

/// The states that a key can have, each with the states before it. Equal states with equal states before them have the
/// same number.
#[derive(Default)]
pub(super) struct Trails {
    all: Vec<(Option<usize>, State)>,
    /// By the state before and the hash of the state.
    numbers: HashMap<(Option<usize>, u64), Vec<usize>>,
}

impl Trails {
    /// Returns the number of a state that follows the state `before`.
    pub(super) fn add(&mut self, before: Option<usize>, state: State) -> usize {
        if let Some(before) = before.filter(|&before| self.all[before].1 == state) {
            return before;
        }
        let numbers = self.numbers.entry((before, hash(&state))).or_default();
        if let Some(&known) = numbers.iter().find(|&&number| self.all[number].1 == state) {
            return known;
        }
        self.all.push((before, state));
        numbers.push(self.all.len() - 1);
        self.all.len() - 1
    }

    pub(super) fn state(&self, number: usize) -> &State {
        &self.all[number].1
    }

    /// Returns the states before this one, the latest first.
    pub(super) fn before(&self, number: usize) -> Vec<usize> {
        let before = |&at: &usize| self.all[at].0;
        std::iter::successors(before(&number), before).collect()
    }
}

/// Returns a hash of the state, which is not `Hash`.
fn hash(state: &State) -> u64 {
    struct Text(DefaultHasher);
    impl Write for Text {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            self.0.write(text.as_bytes());
            Ok(())
        }
    }
    let mut text = Text(DefaultHasher::new());
    // OK because `write_str` never fails; and without a hash the states are compared one by one.
    let _ = write!(text, "{state:?}");
    text.0.finish()
}
