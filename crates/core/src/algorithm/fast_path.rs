//! A shorter computation of the most frequent decision: one unit that fits.

use super::Algorithm;
use crate::decision::CheckResult;

/// The fast path of an algorithm: decides a request for one unit that fits in fewer steps than
/// [`Algorithm::check`] takes.
///
/// A store tries [`check_one`](Self::check_one) first, and calls [`Algorithm::check`] when that returns `None`:
///
/// ```
/// use core::time::Duration;
/// use tollgate_core::store::FastPath;
/// use tollgate_core::{Algorithm, Cost, FixedWindow, UnitRequest, Window};
///
/// let limit = FixedWindow::new(1, Duration::from_secs(60))?;
/// let mut state = Window::default();
/// let mut check = |now_us| {
///     let checked = limit.check_one(&mut state, now_us);
///     checked.unwrap_or_else(|| limit.check(&mut state, now_us, UnitRequest::new(Cost::ONE)))
/// };
/// assert!(check(0).decision.is_allowed());
/// assert_eq!(check(0).decision.retry_after_us(), Some(60_000_000));
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
pub trait FastPath: Algorithm {
    /// The form of the state on which the fast path works: for a log its last one to three single units, for other
    /// algorithms the whole state.
    type FastState;

    /// Decides and charges a request for one unit that accepts any delay, in the common case that it is allowed. The
    /// answer is the same as that of [`Algorithm::check`].
    ///
    /// Returns `None` in all other cases, and then the state is unchanged. The state must come from this limit: from
    /// an earlier check, or from [`carry_over`](Algorithm::carry_over).
    fn check_one(&self, state: &mut Self::FastState, now_us: u64) -> Option<CheckResult>;
}
