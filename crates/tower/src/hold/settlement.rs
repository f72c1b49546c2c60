//! Settlements whose answer no caller awaits.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;
use tollgate_limiter::{Answer, Clock, Error, Hold, HoldSettlement, JointHold};

use super::held_limits::HeldLimits;
use super::terms::HoldSettings;

/// The time after which a failed settlement is sent again. It doubles each time, up to an eighth of the hold's time.
const FIRST_RETRY: Duration = Duration::from_millis(50);

/// Ends a hold and charges these units, or what is held if they are not known. While the store fails, the settlement is
/// sent again until the hold has expired: a settlement has the total that was used, so one that arrives twice charges
/// nothing twice.
pub(super) fn settle_unwatched(
    held: HeldLimits,
    used: Option<u64>,
    clock: &Clock,
    settings: &Arc<HoldSettings>,
) {
    let again = RemoteSettlement::of(&held, used);
    let longest_wait = (held.shortest_time() / 8).max(FIRST_RETRY);
    // When `settle` returns, the settlement has been sent; in memory it is done.
    let answer = held.settle(used);
    if let (false, Ok(runtime)) = (again.parts.is_empty(), Handle::try_current()) {
        runtime.spawn(again.complete(answer, longest_wait, clock.clone(), Arc::clone(settings)));
    }
}

/// A settlement on a store across the network, to send it again if the store fails.
struct RemoteSettlement {
    parts: Vec<RemotePart>,
}

/// A hold, and the units that its settlement charges.
struct RemotePart {
    hold: Hold,
    used: u64,
}

impl RemoteSettlement {
    /// Leaves out holds in memory, whose settlement cannot fail, and holds that the failure policy has admitted.
    fn of(held: &HeldLimits, used: Option<u64>) -> RemoteSettlement {
        let is_remote = |hold: &Hold| !hold.scope().is_local() && !hold.is_degraded();
        let uses = held.with_uses(used).filter(|(hold, _)| is_remote(hold));
        let parts = uses.map(|(hold, used)| RemotePart { hold: hold.again(), used }).collect();
        RemoteSettlement { parts }
    }

    /// Waits for the answer, and sends the settlement again if the store has failed.
    async fn complete(
        self,
        mut answer: Answer<Vec<HoldSettlement>>,
        longest_wait: Duration,
        clock: Clock,
        settings: Arc<HoldSettings>,
    ) {
        let expires_us = self.parts.iter().map(|part| part.hold.expires_at_us()).max();
        let mut wait = FIRST_RETRY;
        while let Err(error) = answer.await {
            sleep(wait).await;
            let is_store = matches!(error, Error::Store(_));
            let holds = match self.holds() {
                Ok(holds) if is_store && Some(clock.now_us()) < expires_us => holds,
                _ => return settings.log_failure(&clock, "settled", &error),
            };
            let mut parts = self.parts.iter();
            answer = holds.settle(|_| parts.next().map_or(0, |part| part.used));
            wait = (2 * wait).min(longest_wait);
        }
    }

    /// Makes the holds again.
    fn holds(&self) -> Result<JointHold, Error> {
        JointHold::of(self.parts.iter().map(|part| part.hold.again()).collect())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
