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
use super::{Acquire, Acquired};
use crate::answer::Answer;
use crate::decision::Decision;
use crate::error::Error;
use crate::lines::{Rest, Standing, Turn, Want};
use crate::scope::{Scope, bounded};
use crate::store::KeyState;

/// How long past its deadline a waiter still waits for the waiters ahead to leave. They leave within tokio's
/// millisecond, unless a future is kept without being polled.
const GRACE_US: u64 = 10_000;

/// How far ahead a waiter with a gate reserves its place in a shaping limit. Long enough for timers and the
/// round trip to the store, so that delays do not add up. Short, because a request that has a place when the
/// gate closes has left the queue already: it proceeds when the gate opens, at the same time as the first
/// waiter.
const LEAD_US: u64 = 10_000;

/// The future of an [`Acquire`].
#[derive(Debug)]
#[must_use = "nothing is acquired until this is awaited"]
pub struct Acquiring<'a> {
    request: Acquire<'a>,
    /// When it first had to wait; `None` if it has not waited.
    arrived_us: Option<u64>,
    step: Step<'a>,
}

/// The current step. Dropping a step gives back what it holds.
#[derive(Debug)]
enum Step<'a> {
    Arriving,
    /// Behind other waiters, until it is known how long the wait will be.
    Foreseeing {
        turn: Turn<'a>,
        state: Answer<KeyState>,
        max_wait_us: u64,
    },
    /// Behind other waiters, until woken. The timer is for the deadline, in case the waiters ahead are stuck.
    Behind {
        turn: Turn<'a>,
        deadline: Option<Timer>,
    },
    /// First in the queue, while the store decides.
    Asking {
        turn: Turn<'a>,
        answer: Answer<Decision>,
    },
    /// Refused, while the decision for its key is read.
    Refusing {
        answer: Answer<Decision>,
        would_wait: Option<Duration>,
    },
    /// First in the queue, until it is worth checking again.
    Resting {
        turn: Turn<'a>,
        due_us: u64,
        timer: Timer,
    },
    /// Charged and out of the queue, until its delay has passed.
    Delayed {
        charge: Charge<'a>,
        timer: Timer,
    },
    Over,
}

/// The outcome of a step.
enum Next<'a> {
    Go(Step<'a>),
    Stay(Step<'a>),
    Done(Acquired),
}

type Timer = Pin<Box<Sleep>>;

impl<'a> Acquiring<'a> {
    pub(super) fn new(request: Acquire<'a>) -> Acquiring<'a> {
        Acquiring { request, arrived_us: None, step: Step::Arriving }
    }

    fn advance(&mut self, step: Step<'a>, context: &mut Context<'_>) -> Result<Next<'a>, Error> {
        match step {
            Step::Arriving => self.arrive(),
            Step::Foreseeing { turn, state, max_wait_us } => {
                self.foresee(turn, state, max_wait_us, context)
            }
            Step::Behind { turn, deadline } => self.stand(turn, deadline, context),
            Step::Asking { turn, answer } => self.ask(turn, answer, context),
            Step::Resting { turn, due_us, timer } => Ok(self.rest(turn, due_us, timer, context)),
            Step::Delayed { charge, timer } => Ok(self.delay(charge, timer, context)),
            Step::Refusing { answer, would_wait } => self.be_refused(answer, would_wait, context),
            Step::Over => Err(Error::AnswerTaken),
        }
    }

    fn arrive(&mut self) -> Result<Next<'a>, Error> {
        let Acquire { scope, key, cost, max_wait_us, .. } = self.request;
        let (cost, _) = (cost?, bounded(key)?);
        if cost.units() > scope.limit().size() {
            return Ok(self.refuse(None));
        }
        let want = Want { limit: *scope.limit(), cost };
        let name = scope.registered().number();
        let (turn, standing) = scope.limiter().lines().join(name, key, want)?;
        match standing {
            Standing::Front if self.closed_us() == 0 => return Ok(self.put(turn)),
            Standing::Front => turn.has_room()?,
            _ => {}
        }
        self.arrived_us();
        Ok(Next::Go(match max_wait_us {
            None => Step::Behind { turn, deadline: None },
            // The state of the key is read first. A request that is admitted in between is then missed
            // instead of being counted twice, so no waiter is refused because of it.
            Some(max_wait_us) => Step::Foreseeing { turn, state: scope.state(key), max_wait_us },
        }))
    }

    fn foresee(
        &mut self,
        turn: Turn<'a>,
        mut state: Answer<KeyState>,
        max_wait_us: u64,
        context: &mut Context<'_>,
    ) -> Result<Next<'a>, Error> {
        let Poll::Ready(stands) = Pin::new(&mut state).poll(context) else {
            return Ok(Next::Stay(Step::Foreseeing { turn, state, max_wait_us }));
        };
        let Acquire { scope, cost, .. } = self.request;
        let deadline = || Some(timer(max_wait_us.saturating_add(GRACE_US)));
        let KeyState { limit, state, now_us } = match stands {
            // Without the store there is no forecast; the request is decided when it is first in the queue.
            Err(Error::Store(_)) if !scope.fails_closed() => {
                return Ok(Next::Go(Step::Behind { turn, deadline: deadline() }));
            }
            stands => stands?,
        };
        let want = Want { limit: *scope.limit(), cost: cost? };
        let closed_us = self.closed_us();
        let forecast = Forecast::of(limit, state, now_us.saturating_add(closed_us));
        let enough_us = max_wait_us.saturating_sub(closed_us);
        let wait_us = forecast.wait_us(&turn.wants_ahead(), want, enough_us);
        let wait_us = wait_us.saturating_add(closed_us);
        if wait_us > max_wait_us {
            return Ok(self.refuse(Some(wait_us)));
        }
        Ok(Next::Go(Step::Behind { turn, deadline: deadline() }))
    }

    fn stand(
        &mut self,
        turn: Turn<'a>,
        mut deadline: Option<Timer>,
        context: &mut Context<'_>,
    ) -> Result<Next<'a>, Error> {
        let arrived_us = self.arrived_us();
        let deadline_us =
            self.request.max_wait_us.map_or(u64::MAX, |us| arrived_us.saturating_add(us));
        match turn.stand(deadline_us, context.waker()) {
            Standing::Front => Ok(self.put(turn)),
            Standing::TooLate { due_us } => {
                Ok(self.refuse(Some(due_us.saturating_sub(arrived_us))))
            }
            Standing::Behind => {
                let is_stuck =
                    deadline.as_mut().is_some_and(|timer| timer.as_mut().poll(context).is_ready());
                if is_stuck {
                    return Ok(self.refuse(Some(self.waited_us())));
                }
                Ok(Next::Stay(Step::Behind { turn, deadline }))
            }
        }
    }

    /// Sends the check to the store, unless the gate is closed.
    fn put(&mut self, turn: Turn<'a>) -> Next<'a> {
        let closed_us = self.closed_us();
        if closed_us > 0 {
            return self.wait_at_gate(turn, closed_us);
        }
        let Acquire { scope, key, cost, .. } = self.request;
        let mut check = scope.check(key).cost(cost.map_or(0, Cost::units)).for_acquire();
        // Only a shaping limit has delays; the checks of other limits are simpler without a maximum.
        if let (Some(max_delay_us), true) = (self.max_delay_us(), self.is_shaped()) {
            check = check.max_wait(Duration::from_micros(max_delay_us));
        }
        Next::Go(Step::Asking { turn, answer: check.into_future() })
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
        // Rounded up: the gate is open by then.
        u64::try_from(closed_for.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
    }

    fn wait_at_gate(&mut self, turn: Turn<'a>, closed_us: u64) -> Next<'a> {
        self.arrived_us();
        if let Some(wait_us) = self.too_long_us(closed_us) {
            return self.refuse(Some(wait_us));
        }
        let due_us = self.now_us().saturating_add(closed_us);
        Next::Go(Step::Resting { turn, due_us, timer: timer(closed_us) })
    }

    /// Returns the total wait, if `more_us` makes it longer than the caller's maximum.
    fn too_long_us(&self, more_us: u64) -> Option<u64> {
        let wait_us = self.waited_us().saturating_add(more_us);
        self.request.max_wait_us.is_some_and(|most_us| wait_us > most_us).then_some(wait_us)
    }

    fn ask(
        &mut self,
        turn: Turn<'a>,
        mut answer: Answer<Decision>,
        context: &mut Context<'_>,
    ) -> Result<Next<'a>, Error> {
        let Poll::Ready(decision) = Pin::new(&mut answer).poll(context) else {
            return Ok(Next::Stay(Step::Asking { turn, answer }));
        };
        let decision = decision?;
        match decision.verdict() {
            // The gate closed while the store decided.
            Verdict::Allowed { .. } if self.closed_us() > 0 => {
                drop(Charge::new(&self.request, decision));
                Ok(self.put(turn))
            }
            Verdict::Allowed { delay_us: 0 } => Ok(Next::Done(self.admitted(decision))),
            Verdict::Allowed { delay_us } => {
                self.arrived_us();
                let charge = Charge::new(&self.request, decision);
                Ok(Next::Go(Step::Delayed { charge, timer: timer(delay_us) }))
            }
            Verdict::Denied { .. } => self.wait_or_refuse(turn, decision),
        }
    }

    fn wait_or_refuse(&mut self, turn: Turn<'a>, denial: Decision) -> Result<Next<'a>, Error> {
        let is_first = self.arrived_us.is_none();
        self.arrived_us();
        let Some(retry_us) = denial.decided().retry_after_us() else {
            return Ok(Next::Done(Acquired::Refused { decision: denial, would_wait: None }));
        };
        if let Some(wait_us) = self.too_long_us(self.until_it_goes_us(retry_us, &denial)) {
            let would_wait = Some(Duration::from_micros(wait_us));
            return Ok(Next::Done(Acquired::Refused { decision: denial, would_wait }));
        }
        if is_first {
            turn.has_room()?;
        }
        let due_us = self.now_us().saturating_add(retry_us);
        // At least 1 us, as every denial says: a store that returned 0 would make this loop spin.
        Ok(Next::Go(Step::Resting { turn, due_us, timer: timer(retry_us.max(1)) }))
    }

    /// Returns how long until a denied request could proceed. A shaping limit admits it when everything
    /// before it has left, which is when nothing is spent any more; that holds whether its place is reserved
    /// now or later.
    fn until_it_goes_us(&self, retry_us: u64, denial: &Decision) -> u64 {
        if self.is_shaped() { denial.decided().reset_after_us.max(retry_us) } else { retry_us }
    }

    fn is_shaped(&self) -> bool {
        self.request.scope.is_shaping()
    }

    fn rest(
        &mut self,
        turn: Turn<'a>,
        due_us: u64,
        mut timer: Timer,
        context: &mut Context<'_>,
    ) -> Next<'a> {
        let is_due = timer.as_mut().poll(context).is_ready();
        if is_due || turn.rest(due_us, context.waker()) == Rest::Nudged {
            return self.put(turn);
        }
        Next::Stay(Step::Resting { turn, due_us, timer })
    }

    fn delay(&self, charge: Charge<'a>, mut timer: Timer, context: &mut Context<'_>) -> Next<'a> {
        if timer.as_mut().poll(context).is_pending() {
            return Next::Stay(Step::Delayed { charge, timer });
        }
        let closed_us = self.closed_us();
        if closed_us > 0 {
            return match self.too_long_us(closed_us) {
                Some(wait_us) => self.refuse(Some(wait_us)),
                None => Next::Go(Step::Delayed { charge, timer: self::timer(closed_us) }),
            };
        }
        match charge.deliver() {
            Some(decision) => Next::Done(self.admitted(decision)),
            // Not reached: a charge is delivered once.
            None => Next::Stay(Step::Over),
        }
    }

    fn admitted(&self, decision: Decision) -> Acquired {
        Acquired::Admitted { decision, waited: Duration::from_micros(self.waited_us()) }
    }

    /// Refuses a request that was not sent to the store.
    fn refuse(&self, would_wait_us: Option<u64>) -> Next<'a> {
        let Acquire { scope, key, cost, .. } = self.request;
        let peek = scope.peek(key).cost(cost.map_or(0, Cost::units));
        let answer = peek.for_acquire().into_future();
        let would_wait = would_wait_us.map(Duration::from_micros);
        Next::Go(Step::Refusing { answer, would_wait })
    }

    fn be_refused(
        &self,
        mut answer: Answer<Decision>,
        would_wait: Option<Duration>,
        context: &mut Context<'_>,
    ) -> Result<Next<'a>, Error> {
        match Pin::new(&mut answer).poll(context) {
            Poll::Ready(decision) => {
                Ok(Next::Done(Acquired::Refused { decision: decision?, would_wait }))
            }
            Poll::Pending => Ok(Next::Stay(Step::Refusing { answer, would_wait })),
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

impl Future for Acquiring<'_> {
    type Output = Result<Acquired, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        loop {
            let step = mem::replace(&mut this.step, Step::Over);
            match this.advance(step, context)? {
                Next::Go(step) => this.step = step,
                Next::Stay(step) => {
                    this.step = step;
                    return Poll::Pending;
                }
                Next::Done(acquired) => return Poll::Ready(Ok(acquired)),
            }
        }
    }
}

/// A charge that has not been delivered. Dropping it refunds the charge.
#[derive(Debug)]
struct Charge<'a> {
    scope: &'a Scope,
    key: &'a [u8],
    decision: Option<Decision>,
}

impl<'a> Charge<'a> {
    fn new(request: &Acquire<'a>, decision: Decision) -> Charge<'a> {
        Charge { scope: request.scope, key: request.key, decision: Some(decision) }
    }

    fn deliver(mut self) -> Option<Decision> {
        self.decision.take()
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        if let Some(receipt) = self.decision.take().and_then(Decision::into_receipt) {
            // No caller is left that could read the result. On Redis the refund is sent all the same.
            drop(self.scope.refund(self.key, receipt));
        }
    }
}

fn timer(wait_us: u64) -> Timer {
    Box::pin(tokio::time::sleep(Duration::from_micros(wait_us)))
}
