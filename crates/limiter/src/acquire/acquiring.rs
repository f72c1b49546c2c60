//! The steps of one waiter, as a future.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::Sleep;
use tollgate_core::{Cost, Verdict};

use super::forecast::Forecast;
use super::gate::Gate;
use super::{Acquire, AcquireOutcome};
use crate::answer::Answer;
use crate::decision::Decision;
use crate::error::Error;
use crate::queues::{FrontAction, PacedWaiter, QueueEntry, QueuePosition, WaiterCharge};
use crate::scope::{Scope, bounded};
use crate::store::KeyState;

/// How long after its deadline a waiter still waits for the waiters ahead of it to leave. They leave within 1 ms, the
/// resolution of tokio's timers, unless the future of one of them is kept without being polled.
const GRACE_US: u64 = 10_000;

/// The longest delay that a waiter with a gate accepts from a shaping limit: the waiter is charged at most this long
/// before it may proceed. The time is long enough for timers and the round trip to the store, so that delays do not add
/// up. It is short, because a charged request has left the queue: if the gate then closes, the request proceeds when the
/// gate opens, at the same time as the first waiter.
const LEAD_US: u64 = 10_000;

/// The future of an [`Acquire`].
#[derive(Debug)]
#[must_use = "nothing is acquired until this is awaited"]
pub struct AcquireFuture<'a> {
    request: Acquire<'a>,
    /// When the request first had to wait; `None` if it has not waited.
    arrived_us: Option<u64>,
    step: AcquireStep<'a>,
}

/// The current step. Dropping a step leaves the queue, or refunds the charge, that the step holds.
#[derive(Debug)]
enum AcquireStep<'a> {
    Arriving,
    /// Behind other waiters, until it is known how long the wait will be.
    Forecasting {
        entry: QueueEntry<'a>,
        state: Answer<KeyState>,
        max_wait_us: u64,
    },
    /// Behind other waiters, until woken. The timer is for the deadline, in case the waiters ahead are stuck.
    Behind {
        entry: QueueEntry<'a>,
        deadline: Option<WaitTimer>,
    },
    /// First in the queue, while the store decides.
    Checking {
        entry: QueueEntry<'a>,
        answer: Answer<Decision>,
    },
    /// Refused by the queue, because the wait would be too long or the cost is above the limit. The decision for its
    /// key is being read.
    Refusing {
        answer: Answer<Decision>,
        would_wait: Option<Duration>,
    },
    /// First in the queue, until it is worth checking again.
    Sleeping {
        entry: QueueEntry<'a>,
        due_us: u64,
        timer: WaitTimer,
        /// `None` if only the end of the wait, or this process, can give units back.
        paced: Option<PacedWaiter<'a>>,
    },
    /// Charged and out of the queue, until its delay has passed.
    Delayed {
        charge: UndeliveredCharge<'a>,
        timer: WaitTimer,
    },
    Over,
}

/// The outcome of a step.
enum StepOutcome<'a> {
    /// The next step, which begins at once.
    Continue(AcquireStep<'a>),
    /// The same step: the future is pending.
    Wait(AcquireStep<'a>),
    /// The end.
    Done(AcquireOutcome),
}

type WaitTimer = Pin<Box<Sleep>>;

impl<'a> AcquireFuture<'a> {
    pub(super) fn new(request: Acquire<'a>) -> AcquireFuture<'a> {
        AcquireFuture { request, arrived_us: None, step: AcquireStep::Arriving }
    }

    fn advance(
        &mut self,
        step: AcquireStep<'a>,
        context: &mut Context<'_>,
    ) -> Result<StepOutcome<'a>, Error> {
        match step {
            AcquireStep::Arriving => self.arrive(),
            AcquireStep::Forecasting { entry, state, max_wait_us } => {
                self.forecast(entry, state, max_wait_us, context)
            }
            AcquireStep::Behind { entry, deadline } => self.wait_behind(entry, deadline, context),
            AcquireStep::Checking { entry, answer } => self.check(entry, answer, context),
            AcquireStep::Sleeping { entry, due_us, timer, paced } => {
                Ok(self.sleep(entry, due_us, timer, paced, context))
            }
            AcquireStep::Delayed { charge, timer } => Ok(self.delay(charge, timer, context)),
            AcquireStep::Refusing { answer, would_wait } => {
                self.finish_refusal(answer, would_wait, context)
            }
            AcquireStep::Over => Err(Error::AnswerTaken),
        }
    }

    fn arrive(&mut self) -> Result<StepOutcome<'a>, Error> {
        let Acquire { scope, key, cost, max_wait_us, .. } = self.request;
        let (cost, _) = (cost?, bounded(key)?);
        scope.can_check()?;
        if cost.units() > scope.limit().size() {
            return Ok(self.refuse(None));
        }
        let charge = WaiterCharge { limit: *scope.limit(), cost };
        let name = scope.registered_name().number();
        let (entry, position) = scope.limiter().queues().join(name, key, charge)?;
        match position {
            QueuePosition::Front if self.closed_us() == 0 => return Ok(self.send_check(entry)),
            QueuePosition::Front => entry.has_room()?,
            _ => {}
        }
        self.arrived_us();
        Ok(StepOutcome::Continue(match max_wait_us {
            None => AcquireStep::Behind { entry, deadline: None },
            // The state of the key is read first, and then the queue. A request that is admitted between the two reads
            // is not counted at all. In the other order it would be counted twice, and a waiter could be refused
            // because of it.
            Some(max_wait_us) => {
                AcquireStep::Forecasting { entry, state: scope.state(key), max_wait_us }
            }
        }))
    }

    fn forecast(
        &mut self,
        entry: QueueEntry<'a>,
        mut state: Answer<KeyState>,
        max_wait_us: u64,
        context: &mut Context<'_>,
    ) -> Result<StepOutcome<'a>, Error> {
        let Poll::Ready(state_read) = Pin::new(&mut state).poll(context) else {
            return Ok(StepOutcome::Wait(AcquireStep::Forecasting { entry, state, max_wait_us }));
        };
        let Acquire { scope, cost, .. } = self.request;
        let deadline = || Some(timer(max_wait_us.saturating_add(GRACE_US)));
        let state = match state_read {
            // Without the store there is no forecast; the request is decided when it is first in the queue.
            Err(Error::Store(_)) if !scope.fails_closed() => {
                return Ok(StepOutcome::Continue(AcquireStep::Behind {
                    entry,
                    deadline: deadline(),
                }));
            }
            state_read => state_read?,
        };
        let charge = WaiterCharge { limit: *scope.limit(), cost: cost? };
        let closed_us = self.closed_us();
        let now_us = state.now_us.saturating_add(closed_us);
        let forecast = Forecast::of(KeyState { now_us, ..state });
        let enough_us = max_wait_us.saturating_sub(closed_us);
        let wait_us = forecast.wait_us(&entry.charges_ahead(), charge, enough_us);
        let wait_us = wait_us.saturating_add(closed_us);
        if wait_us > max_wait_us {
            return Ok(self.refuse(Some(wait_us)));
        }
        Ok(StepOutcome::Continue(AcquireStep::Behind { entry, deadline: deadline() }))
    }

    fn wait_behind(
        &mut self,
        entry: QueueEntry<'a>,
        mut deadline: Option<WaitTimer>,
        context: &mut Context<'_>,
    ) -> Result<StepOutcome<'a>, Error> {
        let arrived_us = self.arrived_us();
        let deadline_us =
            self.request.max_wait_us.map_or(u64::MAX, |us| arrived_us.saturating_add(us));
        match entry.poll_position(deadline_us, context.waker()) {
            QueuePosition::Front => Ok(self.send_check(entry)),
            QueuePosition::TooLate { due_us } => {
                Ok(self.refuse(Some(due_us.saturating_sub(arrived_us))))
            }
            QueuePosition::Behind => {
                let is_stuck =
                    deadline.as_mut().is_some_and(|timer| timer.as_mut().poll(context).is_ready());
                if is_stuck {
                    return Ok(self.refuse(Some(self.waited_us())));
                }
                Ok(StepOutcome::Wait(AcquireStep::Behind { entry, deadline }))
            }
        }
    }

    /// Sends the check to the store, unless the gate is closed.
    fn send_check(&mut self, entry: QueueEntry<'a>) -> StepOutcome<'a> {
        let closed_us = self.closed_us();
        if closed_us > 0 {
            return self.wait_at_gate(entry, closed_us);
        }
        let Acquire { scope, key, cost, .. } = self.request;
        let mut check = scope.check(key).cost(cost.map_or(0, Cost::units)).for_acquire();
        // Only a shaping limit has delays; the checks of other limits are simpler without a maximum.
        if let (Some(max_delay_us), true) = (self.max_delay_us(), self.is_shaping()) {
            check = check.max_wait(Duration::from_micros(max_delay_us));
        }
        StepOutcome::Continue(AcquireStep::Checking { entry, answer: check.into_future() })
    }

    /// Returns the longest delay to accept; `None` if any delay is accepted.
    fn max_delay_us(&self) -> Option<u64> {
        let left_us = self.request.max_wait_us.map(|us| us.saturating_sub(self.waited_us()));
        let lead_us = self.request.gate.map(|_| LEAD_US);
        left_us.into_iter().chain(lead_us).min()
    }

    /// Returns how long the gate stays closed; 0 if it is open, or if there is no gate.
    fn closed_us(&self) -> u64 {
        let closed_for = self.request.gate.map_or(Duration::ZERO, Gate::closed_for);
        // Rounded up, so that the gate is open after this time.
        u64::try_from(closed_for.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
    }

    fn wait_at_gate(&mut self, entry: QueueEntry<'a>, closed_us: u64) -> StepOutcome<'a> {
        self.arrived_us();
        if let Some(wait_us) = self.too_long_us(closed_us) {
            return self.refuse(Some(wait_us));
        }
        let due_us = self.now_us().saturating_add(closed_us);
        let timer = timer(closed_us);
        StepOutcome::Continue(AcquireStep::Sleeping { entry, due_us, timer, paced: None })
    }

    /// Returns the total wait, if `more_us` makes it longer than the caller's maximum.
    fn too_long_us(&self, more_us: u64) -> Option<u64> {
        let wait_us = self.waited_us().saturating_add(more_us);
        self.request.max_wait_us.is_some_and(|most_us| wait_us > most_us).then_some(wait_us)
    }

    fn check(
        &mut self,
        entry: QueueEntry<'a>,
        mut answer: Answer<Decision>,
        context: &mut Context<'_>,
    ) -> Result<StepOutcome<'a>, Error> {
        let Poll::Ready(decision) = Pin::new(&mut answer).poll(context) else {
            return Ok(StepOutcome::Wait(AcquireStep::Checking { entry, answer }));
        };
        let decision = decision?;
        match decision.verdict() {
            // The gate closed while the store decided.
            Verdict::Allowed { .. } if self.closed_us() > 0 => {
                drop(UndeliveredCharge::new(&self.request, decision));
                Ok(self.send_check(entry))
            }
            Verdict::Allowed { delay_us: 0 } => Ok(StepOutcome::Done(self.admitted(decision))),
            Verdict::Allowed { delay_us } => {
                self.arrived_us();
                let charge = UndeliveredCharge::new(&self.request, decision);
                Ok(StepOutcome::Continue(AcquireStep::Delayed { charge, timer: timer(delay_us) }))
            }
            Verdict::Denied { .. } => self.wait_or_refuse(entry, decision),
        }
    }

    fn wait_or_refuse(
        &mut self,
        entry: QueueEntry<'a>,
        denial: Decision,
    ) -> Result<StepOutcome<'a>, Error> {
        let is_first = self.arrived_us.is_none();
        self.arrived_us();
        let Some(retry_us) = denial.decided().retry_after_us() else {
            return Ok(StepOutcome::Done(AcquireOutcome::Refused {
                decision: denial,
                would_wait: None,
            }));
        };
        if let Some(wait_us) = self.too_long_us(self.until_admitted_us(retry_us, &denial)) {
            let would_wait = Some(Duration::from_micros(wait_us));
            return Ok(StepOutcome::Done(AcquireOutcome::Refused { decision: denial, would_wait }));
        }
        if is_first {
            entry.has_room()?;
        }
        let due_us = self.now_us().saturating_add(retry_us);
        let paced = denial.is_beside_holds().then(|| entry.paced());
        let pause_us = paced.as_ref().map_or(retry_us, PacedWaiter::pause_us);
        // At least 1 us, as in every denial: if a store returned 0, this loop would spin.
        let timer = timer(pause_us.min(retry_us).max(1));
        Ok(StepOutcome::Continue(AcquireStep::Sleeping { entry, due_us, timer, paced }))
    }

    /// Returns how long until a denied request could proceed. Under a shaping limit that is when nothing is spent any
    /// more: a request waits until all units charged before it have drained, whether the request itself is charged now
    /// or later.
    fn until_admitted_us(&self, retry_us: u64, denial: &Decision) -> u64 {
        if self.is_shaping() { denial.decided().reset_after_us.max(retry_us) } else { retry_us }
    }

    fn is_shaping(&self) -> bool {
        self.request.scope.is_shaping()
    }

    fn sleep(
        &mut self,
        entry: QueueEntry<'a>,
        due_us: u64,
        mut timer: WaitTimer,
        paced: Option<PacedWaiter<'a>>,
        context: &mut Context<'_>,
    ) -> StepOutcome<'a> {
        let is_due = timer.as_mut().poll(context).is_ready();
        if is_due || entry.sleep(due_us, context.waker()) == FrontAction::CheckAgain {
            return self.send_check(entry);
        }
        StepOutcome::Wait(AcquireStep::Sleeping { entry, due_us, timer, paced })
    }

    fn delay(
        &self,
        charge: UndeliveredCharge<'a>,
        mut timer: WaitTimer,
        context: &mut Context<'_>,
    ) -> StepOutcome<'a> {
        if timer.as_mut().poll(context).is_pending() {
            return StepOutcome::Wait(AcquireStep::Delayed { charge, timer });
        }
        let closed_us = self.closed_us();
        if closed_us > 0 {
            return match self.too_long_us(closed_us) {
                Some(wait_us) => self.refuse(Some(wait_us)),
                None => StepOutcome::Continue(AcquireStep::Delayed {
                    charge,
                    timer: self::timer(closed_us),
                }),
            };
        }
        match charge.deliver() {
            Some(decision) => StepOutcome::Done(self.admitted(decision)),
            // Not reached: a charge is delivered once.
            None => StepOutcome::Wait(AcquireStep::Over),
        }
    }

    fn admitted(&self, decision: Decision) -> AcquireOutcome {
        AcquireOutcome::Admitted { decision, waited: Duration::from_micros(self.waited_us()) }
    }

    /// Refuses a request that the store has not denied, and reads the decision for its key.
    fn refuse(&self, would_wait_us: Option<u64>) -> StepOutcome<'a> {
        let Acquire { scope, key, cost, .. } = self.request;
        let peek = scope.peek(key).cost(cost.map_or(0, Cost::units));
        let answer = peek.for_acquire().into_future();
        let would_wait = would_wait_us.map(Duration::from_micros);
        StepOutcome::Continue(AcquireStep::Refusing { answer, would_wait })
    }

    fn finish_refusal(
        &self,
        mut answer: Answer<Decision>,
        would_wait: Option<Duration>,
        context: &mut Context<'_>,
    ) -> Result<StepOutcome<'a>, Error> {
        match Pin::new(&mut answer).poll(context) {
            Poll::Ready(decision) => {
                Ok(StepOutcome::Done(AcquireOutcome::Refused { decision: decision?, would_wait }))
            }
            Poll::Pending => Ok(StepOutcome::Wait(AcquireStep::Refusing { answer, would_wait })),
        }
    }

    /// Returns when the request first had to wait: now, if it has not waited before.
    fn arrived_us(&mut self) -> u64 {
        let now_us = self.now_us();
        *self.arrived_us.get_or_insert(now_us)
    }

    fn waited_us(&self) -> u64 {
        self.arrived_us.map_or(0, |arrived_us| self.now_us().saturating_sub(arrived_us))
    }

    fn now_us(&self) -> u64 {
        self.request.scope.limiter().clock().now_us()
    }
}

impl Future for AcquireFuture<'_> {
    type Output = Result<AcquireOutcome, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            let step = mem::replace(&mut this.step, AcquireStep::Over);
            match this.advance(step, context)? {
                StepOutcome::Continue(step) => this.step = step,
                StepOutcome::Wait(step) => {
                    this.step = step;
                    return Poll::Pending;
                }
                StepOutcome::Done(acquired) => return Poll::Ready(Ok(acquired)),
            }
        }
    }
}

/// A charge that has not been delivered. Dropping it refunds the charge.
#[derive(Debug)]
struct UndeliveredCharge<'a> {
    scope: &'a Scope,
    key: &'a [u8],
    decision: Option<Decision>,
}

impl<'a> UndeliveredCharge<'a> {
    fn new(request: &Acquire<'a>, decision: Decision) -> UndeliveredCharge<'a> {
        UndeliveredCharge { scope: request.scope, key: request.key, decision: Some(decision) }
    }

    fn deliver(mut self) -> Option<Decision> {
        self.decision.take()
    }
}

impl Drop for UndeliveredCharge<'_> {
    fn drop(&mut self) {
        if let Some(receipt) = self.decision.take().and_then(Decision::into_receipt) {
            // No caller can read the result any more. On Redis the refund is sent before its answer is dropped.
            drop(self.scope.refund(self.key, receipt));
        }
    }
}

fn timer(wait_us: u64) -> WaitTimer {
    Box::pin(tokio::time::sleep(Duration::from_micros(wait_us)))
}
