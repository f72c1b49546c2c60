//! The state of a key as bytes.

use tollgate_core::{Cost, Fill, KeyClock, Level, Limit, State, Window, WindowPair};

use super::number::take_numbers;
use super::{limit, log};

/// Reads the state of a key, and the limit that decides on it when a request comes with the limit `requested`. `bytes` begin
/// with the tag of the limit that the state was reached under, and are empty if the server has no state. `None` if they
/// are not a state.
pub(super) fn read_state(
    requested: &Limit,
    (bytes, slots): (&[u8], &[Vec<u8>]),
    now_us: u64,
) -> Option<(Limit, State)> {
    if bytes.is_empty() {
        return Some((*requested, requested.fresh()));
    }
    let (under, bytes) = limit::of_tag(bytes)?;
    let state = state_of(&under, bytes, slots)?;
    match under == *requested {
        true => Some((under, state)),
        false => Some(requested.carry_over(&under, state, now_us, Cost::ONE).decides(requested)),
    }
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
