//! The state of a key as bytes.

use tollgate_core::{Cost, Fill, Holds, KeyClock, Level, Limit, State, Window, WindowPair};

use super::number::take_numbers;
use super::{holds, limit, log};

/// The texts of a state, as the script sends it.
pub(super) struct StateTexts<'a> {
    /// The tag of the limit that the state was reached under, and the state. Empty if the server has no state.
    pub(super) state: &'a [u8],
    /// The slots of a log.
    pub(super) slots: &'a [Vec<u8>],
    /// Empty if the key has no holds.
    pub(super) holds: &'a [u8],
}

/// Reads the state and the holds of a key, and the limit that decides on it when a request comes with the limit
/// `requested`. `None` if the texts are not a state.
pub(super) fn read_state(
    requested: &Limit,
    texts: StateTexts<'_>,
    now_us: u64,
) -> Option<(Limit, State, Holds)> {
    let StateTexts { state, slots, holds } = texts;
    if state.is_empty() {
        return Some((*requested, requested.fresh(), Holds::default()));
    }
    let (under, bytes) = limit::of_tag(state)?;
    let (state, mut holds) = (state_of(&under, bytes, slots)?, holds::read(holds)?);
    if under == *requested {
        return Some((under, state, holds));
    }
    let carried = requested.carry_over_beside(&under, state, &mut holds, now_us, Cost::ONE);
    let (decides, state) = carried.decides(requested);
    Some((decides, state, holds))
}

fn state_of(limit: &Limit, bytes: &[u8], slots: &[Vec<u8>]) -> Option<State> {
    Some(match limit {
        Limit::FixedWindow(_) => {
            let [start_us, spent] = take_numbers(bytes)?;
            State::Window(Window { start_us, spent })
        }
        Limit::SlidingWindowCounter(_) => {
            let [start_us, current, previous] = take_numbers(bytes)?;
            State::WindowPair(WindowPair { start_us, current, previous })
        }
        Limit::TokenBucket(_) | Limit::LeakyBucket(_) => {
            let [units, fraction, as_of_us, charged] = take_numbers(bytes)?;
            State::Fill(Fill { level: Level { units, fraction }, as_of_us, charged })
        }
        Limit::SlidingWindowLog(_) => State::Log(log::read(bytes, slots)?),
        Limit::Concurrency(_) => {
            let [at_us] = take_numbers(bytes)?;
            State::KeyClock(KeyClock { at_us })
        }
    })
}
