//! A key's state under any limit.

use crate::algorithm::{Algorithm, Fill, Log, Window, WindowPair};

/// What is kept for one key, whichever algorithm limits it.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// Of a fixed window.
    Window(Window),
    /// Of a sliding window log.
    Log(Log),
    /// Of a sliding window counter.
    WindowPair(WindowPair),
    /// Of a token bucket or a leaky bucket.
    Fill(Fill),
}

/// Runs `act` on the state as the algorithm's own. A state that another algorithm left counts as
/// its units spent now: [`Limit::carry_over`](super::Limit::carry_over) does better, knowing the old limit.
pub(super) fn change<A: Algorithm, T>(
    limit: &A,
    state: &mut State,
    now_us: u64,
    act: impl FnOnce(&mut A::State) -> T,
) -> T
where
    A::State: StateKind,
{
    if let Some(own) = A::State::of_mut(state) {
        return act(own);
    }
    let mut own = limit.after_spending(state.units().min(limit.size()), now_us);
    let answer = act(&mut own);
    *state = own.into();
    answer
}

/// [`change`], for looking.
pub(super) fn read<A: Algorithm, T>(
    limit: &A,
    state: &State,
    now_us: u64,
    look: impl FnOnce(&A::State) -> T,
) -> T
where
    A::State: StateKind,
{
    match A::State::of(state) {
        Some(own) => look(own),
        None => look(&limit.after_spending(state.units().min(limit.size()), now_us)),
    }
}

impl State {
    /// All units it holds, as if none had left since.
    fn units(&self) -> u64 {
        match self {
            State::Window(window) => window.spent,
            State::Log(log) => log.units(),
            State::WindowPair(windows) => windows.current.saturating_add(windows.previous),
            State::Fill(fill) => fill.level.ceil(),
        }
    }
}

/// An algorithm's own state as one of the kinds of [`State`].
pub(super) trait StateKind: Into<State> {
    fn of(state: &State) -> Option<&Self>;
    fn of_mut(state: &mut State) -> Option<&mut Self>;
}

macro_rules! state_kinds {
    ($($kind:ident),*) => {$(
        impl From<$kind> for State {
            fn from(own: $kind) -> State {
                State::$kind(own)
            }
        }

        impl StateKind for $kind {
            fn of(state: &State) -> Option<&$kind> {
                if let State::$kind(own) = state { Some(own) } else { None }
            }

            fn of_mut(state: &mut State) -> Option<&mut $kind> {
                if let State::$kind(own) = state { Some(own) } else { None }
            }
        }
    )*};
}

state_kinds!(Window, Log, WindowPair, Fill);
