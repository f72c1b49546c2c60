//! A key's state under any limit.

use crate::algorithm::{Algorithm, Fill, KeyClock, Log, Window, WindowPair};

/// A key's stored state under any algorithm.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// The state of a fixed window.
    Window(Window),
    /// The state of a sliding window log.
    Log(Log),
    /// The state of a sliding window counter.
    WindowPair(WindowPair),
    /// The state of a token bucket or a leaky bucket.
    Fill(Fill),
    /// The state of a concurrency limit.
    KeyClock(KeyClock),
}

/// Runs `act` on the state as the algorithm's own type. If the state is of another algorithm, its units count as spent
/// now. [`Limit::carry_over`](super::Limit::carry_over) is more precise, because it knows the old limit.
pub(super) fn change<A: Algorithm, T>(
    limit: &A,
    state: &mut State,
    now_us: u64,
    act: impl FnOnce(&mut A::State) -> T,
) -> T
where
    A::State: StateKind,
{
    if let Some(own) = A::State::own_mut(state) {
        return act(own);
    }
    let mut own = limit.after_spending(state.units().min(limit.size()), now_us);
    let answer = act(&mut own);
    *state = own.into();
    answer
}

/// Runs `read_own` on the state as the algorithm's own type, as [`change`] does, without changing the state.
pub(super) fn read<A: Algorithm, T>(
    limit: &A,
    state: &State,
    now_us: u64,
    read_own: impl FnOnce(&A::State) -> T,
) -> T
where
    A::State: StateKind,
{
    match A::State::own(state) {
        Some(own) => read_own(own),
        None => read_own(&limit.after_spending(state.units().min(limit.size()), now_us)),
    }
}

impl State {
    /// All units in the state, as if none had left since the last charge.
    fn units(&self) -> u64 {
        match self {
            State::Window(window) => window.spent,
            State::Log(log) => log.units(),
            State::WindowPair(windows) => windows.current.saturating_add(windows.previous),
            State::Fill(fill) => fill.level.ceil(),
            State::KeyClock(_) => 0,
        }
    }
}

/// An algorithm's own state as one of the kinds of [`State`].
pub(super) trait StateKind: Into<State> {
    fn own(state: &State) -> Option<&Self>;
    fn own_mut(state: &mut State) -> Option<&mut Self>;
}

macro_rules! state_kinds {
    ($($kind:ident),*) => {$(
        impl From<$kind> for State {
            fn from(own: $kind) -> State {
                State::$kind(own)
            }
        }

        impl StateKind for $kind {
            fn own(state: &State) -> Option<&$kind> {
                if let State::$kind(own) = state { Some(own) } else { None }
            }

            fn own_mut(state: &mut State) -> Option<&mut $kind> {
                if let State::$kind(own) = state { Some(own) } else { None }
            }
        }
    )*};
}

state_kinds!(Window, Log, WindowPair, Fill, KeyClock);
