//! A circuit breaker: a server that does not answer gets no requests for a while, and then one batch as a probe. No clock
//! and no I/O.
//!
//! The breaker is closed while the server answers. It opens after 5 bad outcomes in a row, or if half of the outcomes
//! of the last second were bad. Then nothing is admitted for 100 ms, and after that one batch, the probe. If the probe
//! is answered, the breaker closes; if not, it stays open for twice as long, up to a second.
//!
//! Every phase is a period with a number. A ticket carries the number of its period, and the outcome of a batch that
//! was sent in an earlier period is ignored.

use tollgate_limiter::BreakerState;

/// The number of bad outcomes in a row that opens the breaker.
const MAX_BAD_IN_A_ROW: u32 = 5;

/// The rule that half of the outcomes were bad applies only if there were at least this many in the last second.
const MIN_OUTCOMES: u64 = 20;

/// The outcomes of a second are counted in two halves.
const HALF_SECOND_US: u64 = 500_000;

/// How long the breaker is open, at first and at most, before jitter.
const MIN_PAUSE_US: u64 = 100_000;
const MAX_PAUSE_US: u64 = 1_000_000;

/// After this time, or after twice the deadline if that is longer, an unreported probe counts as lost: its task was
/// dropped.
const MAX_PROBE_US: u64 = 5_000_000;

/// How long a caller should wait while a probe is in flight, because the end of the probe is not known.
const PROBE_WAIT_US: u64 = 1_000;

/// If the breaker has been closed for this time, the next pause is the shortest again.
const SETTLED_US: u64 = 10_000_000;

/// The result of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BatchOutcome {
    Answered,
    Failed,
    /// No answer within the deadline.
    Slow,
}

/// The permission to send a batch, valid for one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

/// The breaker of one server. Times are of a monotonic clock, which may step back a little.
#[derive(Clone, Debug)]
pub(super) struct Breaker {
    phase: BreakerPhase,
    /// A new number in every phase.
    period: u64,
    /// How long the breaker was open last, before jitter; 0 if it never was.
    pause_us: u64,
    bad_in_a_row: u32,
    recent: RecentOutcomes,
    /// The state of a xorshift generator, never 0.
    random: u64,
    max_probe_us: u64,
}

#[derive(Clone, Copy, Debug)]
enum BreakerPhase {
    Closed { since_us: u64 },
    Open { since_us: u64, pause_us: u64 },
    Probing { since_us: u64 },
}

impl Breaker {
    /// Returns a closed breaker. Breakers with different seeds probe at different times. `deadline_us` is the time after
    /// which an outcome is known.
    pub(super) fn new(seed: u64, deadline_us: u64) -> Breaker {
        Breaker {
            phase: BreakerPhase::Closed { since_us: 0 },
            period: 0,
            pause_us: 0,
            bad_in_a_row: 0,
            recent: RecentOutcomes::default(),
            random: seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).max(1),
            max_probe_us: deadline_us.saturating_mul(2).max(MAX_PROBE_US),
        }
    }

    /// Admits a batch, or returns how long until the next batch may be sent, in microseconds.
    pub(super) fn admit(&mut self, now_us: u64) -> Result<Ticket, u64> {
        if let Some(left_us) = self.wait_us(now_us) {
            return Err(left_us);
        }
        if !matches!(self.phase, BreakerPhase::Closed { .. }) {
            self.enter(BreakerPhase::Probing { since_us: now_us });
        }
        Ok(Ticket(self.period))
    }

    /// Returns how long until the next batch may be sent; `None` if a batch may be sent now. Changes nothing: for a request
    /// that would join a queue.
    #[inline]
    pub(super) fn wait_us(&self, now_us: u64) -> Option<u64> {
        match self.phase {
            BreakerPhase::Closed { .. } => None,
            BreakerPhase::Open { since_us, pause_us } => left_us(since_us, pause_us, now_us),
            BreakerPhase::Probing { since_us } => {
                let left_us = left_us(since_us, self.max_probe_us, now_us);
                left_us.map(|left_us| left_us.min(PROBE_WAIT_US))
            }
        }
    }

    /// Records the outcome of a batch. Ignores a batch of an earlier period.
    pub(super) fn report(&mut self, ticket: Ticket, outcome: BatchOutcome, now_us: u64) {
        if ticket.0 != self.period {
            return;
        }
        let is_bad = outcome != BatchOutcome::Answered;
        match self.phase {
            BreakerPhase::Closed { since_us } => {
                if self.count_outcome(is_bad, now_us) {
                    let is_settled = now_us.abs_diff(since_us) >= SETTLED_US;
                    self.open(if is_settled { 0 } else { self.pause_us }, now_us);
                }
            }
            BreakerPhase::Probing { .. } if is_bad => self.open(self.pause_us, now_us),
            BreakerPhase::Probing { .. } => self.close(now_us),
            // No ticket has this period.
            BreakerPhase::Open { .. } => {}
        }
    }

    /// Takes back the ticket of a batch whose outcome stays unknown. If the batch was the probe, the next batch is the probe.
    pub(super) fn withdraw(&mut self, ticket: Ticket, now_us: u64) {
        if ticket.0 == self.period && matches!(self.phase, BreakerPhase::Probing { .. }) {
            self.enter(BreakerPhase::Open { since_us: now_us, pause_us: 0 });
        }
    }

    pub(super) fn state(&self, now_us: u64) -> BreakerState {
        match self.phase {
            BreakerPhase::Closed { .. } => BreakerState::Closed,
            BreakerPhase::Open { .. } if self.wait_us(now_us).is_some() => BreakerState::Open,
            BreakerPhase::Open { .. } | BreakerPhase::Probing { .. } => BreakerState::HalfOpen,
        }
    }

    /// Counts an outcome. Returns whether the breaker must open.
    fn count_outcome(&mut self, is_bad: bool, now_us: u64) -> bool {
        self.bad_in_a_row = if is_bad { self.bad_in_a_row + 1 } else { 0 };
        self.recent.count(is_bad, now_us);
        self.bad_in_a_row >= MAX_BAD_IN_A_ROW || self.recent.is_half_bad()
    }

    /// Opens for twice as long as `last_us`.
    fn open(&mut self, last_us: u64, now_us: u64) {
        self.pause_us = (2 * last_us).clamp(MIN_PAUSE_US, MAX_PAUSE_US);
        let pause_us = self.jittered_us(self.pause_us);
        self.enter(BreakerPhase::Open { since_us: now_us, pause_us });
    }

    fn close(&mut self, now_us: u64) {
        self.bad_in_a_row = 0;
        self.recent = RecentOutcomes::default();
        self.enter(BreakerPhase::Closed { since_us: now_us });
    }

    fn enter(&mut self, phase: BreakerPhase) {
        self.phase = phase;
        self.period = self.period.wrapping_add(1);
    }

    /// Adds or subtracts up to a fifth, at random.
    fn jittered_us(&mut self, pause_us: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        let fifth_us = pause_us / 5;
        pause_us - fifth_us + self.random % (2 * fifth_us + 1)
    }
}

/// Returns what is left of a period that began at `since_us`, if anything. A clock that has stepped back can make the
/// period last twice as long at most.
fn left_us(since_us: u64, lasts_us: u64, now_us: u64) -> Option<u64> {
    lasts_us.checked_sub(now_us.abs_diff(since_us)).filter(|&left_us| left_us > 0)
}

/// The outcomes of this half second and of the one before it.
#[derive(Clone, Debug, Default)]
struct RecentOutcomes {
    older: BatchCounts,
    newer: BatchCounts,
    /// When the newer half began.
    begun_us: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct BatchCounts {
    all: u64,
    bad: u64,
}

impl RecentOutcomes {
    fn count(&mut self, is_bad: bool, now_us: u64) {
        self.rotate(now_us);
        self.newer.all += 1;
        self.newer.bad += u64::from(is_bad);
    }

    fn is_half_bad(&self) -> bool {
        let all = self.older.all + self.newer.all;
        let bad = self.older.bad + self.newer.bad;
        all >= MIN_OUTCOMES && bad * 2 >= all
    }

    fn rotate(&mut self, now_us: u64) {
        if now_us.abs_diff(self.begun_us) < HALF_SECOND_US {
            return;
        }
        let next_us = self.begun_us.saturating_add(HALF_SECOND_US);
        *self = if now_us.abs_diff(next_us) < HALF_SECOND_US {
            RecentOutcomes { older: self.newer, newer: BatchCounts::default(), begun_us: next_us }
        } else {
            RecentOutcomes { begun_us: now_us, ..RecentOutcomes::default() }
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::BatchOutcome::{Answered, Failed, Slow};
    use super::BreakerState::{Closed, HalfOpen, Open};
    use super::*;

    const MS: u64 = 1_000;
    const SECOND: u64 = 1_000_000;
    const START: u64 = 1_000 * SECOND;

    /// Sends bad batches until the breaker opens.
    fn open(breaker: &mut Breaker, now_us: u64) {
        for _ in 0..5 {
            let ticket = breaker.admit(now_us).unwrap();
            breaker.report(ticket, Failed, now_us);
        }
        assert_eq!(breaker.state(now_us), Open);
    }

    /// Opens the breaker, and sends the probe as soon as it may go.
    fn probe(breaker: &mut Breaker, now_us: u64) -> (Ticket, u64) {
        open(breaker, now_us);
        let then_us = now_us + breaker.wait_us(now_us).unwrap();
        (breaker.admit(then_us).unwrap(), then_us)
    }

    fn assert_about(got_us: u64, want_us: u64) {
        let fifth_us = want_us / 5;
        assert!((want_us - fifth_us..=want_us + fifth_us).contains(&got_us), "{got_us} {want_us}");
    }

    #[test]
    fn breaker_is_closed_while_batches_are_answered() {
        let mut breaker = Breaker::new(7, 10_000);
        for at_us in START..START + 1_000 {
            assert_eq!((breaker.state(at_us), breaker.wait_us(at_us)), (Closed, None));
            let ticket = breaker.admit(at_us).unwrap();
            breaker.report(ticket, Answered, at_us);
        }
    }

    #[test]
    fn five_bad_outcomes_in_a_row_open_the_breaker() {
        let mut breaker = Breaker::new(7, 10_000);
        let ticket = breaker.admit(START).unwrap();
        let outcomes = [Failed, Slow, Failed, Slow, Answered, Slow, Failed, Slow, Failed, Slow];
        for (count, outcome) in outcomes.into_iter().enumerate() {
            assert_eq!(breaker.state(START), Closed, "{count}");
            // However far apart they are.
            breaker.report(ticket, outcome, START + count as u64 * SECOND);
        }
        let now_us = START + 9 * SECOND;
        assert_eq!(breaker.state(now_us), Open);
        let left_us = breaker.wait_us(now_us).unwrap();
        assert_about(left_us, 100 * MS);
        assert_eq!(breaker.admit(now_us), Err(left_us));
        assert_eq!(breaker.admit(now_us + left_us - 1), Err(1));
        assert_eq!(breaker.state(now_us + left_us), HalfOpen);
    }

    #[test]
    fn probe_that_is_withdrawn_is_followed_by_another_at_once() {
        let mut breaker = Breaker::new(7, 10_000);
        let (ticket, now_us) = probe(&mut breaker, START);
        assert!(breaker.admit(now_us).is_err());
        breaker.withdraw(ticket, now_us);
        assert_eq!(breaker.state(now_us), HalfOpen);
        let next = breaker.admit(now_us).unwrap();
        breaker.withdraw(ticket, now_us);
        breaker.report(ticket, Answered, now_us);
        assert_eq!(breaker.state(now_us), HalfOpen, "the first ticket is void");
        breaker.report(next, Answered, now_us);
        assert_eq!(breaker.state(now_us), Closed);
        breaker.withdraw(next, now_us);
        assert_eq!(breaker.state(now_us), Closed);
    }

    #[test]
    fn half_of_twenty_outcomes_in_a_second_open_the_breaker() {
        let mut breaker = Breaker::new(7, 10_000);
        let ticket = breaker.admit(START).unwrap();
        for count in 0..10 {
            assert_eq!(breaker.state(START), Closed, "{count}");
            breaker.report(ticket, Answered, START + count * 80 * MS);
            breaker.report(ticket, Slow, START + count * 80 * MS);
        }
        assert_eq!(breaker.state(START + 720 * MS), Open);
    }

    #[test]
    fn less_than_half_or_less_than_twenty_in_a_second_do_not_open_the_breaker() {
        let mut breaker = Breaker::new(7, 10_000);
        let ticket = breaker.admit(START).unwrap();
        for count in 0..1_000 {
            for outcome in [Answered, Failed, Answered] {
                breaker.report(ticket, outcome, START + count * 7 * MS);
            }
        }
        assert_eq!(breaker.state(START + 7 * SECOND), Closed, "a third");

        let later_us = START + 60 * SECOND;
        for count in 0..1_000 {
            let at_us = later_us + count * 112 * MS;
            for outcome in [Failed, Answered] {
                breaker.report(ticket, outcome, at_us);
            }
            assert_eq!(breaker.state(at_us), Closed, "18 a second");
        }
    }

    #[test]
    fn outcomes_older_than_a_second_do_not_count() {
        let mut breaker = Breaker::new(7, 10_000);
        let ticket = breaker.admit(START).unwrap();
        for outcome in [Failed, Failed, Failed, Failed, Answered, Failed, Failed, Failed, Failed] {
            breaker.report(ticket, outcome, START);
        }
        for _ in 0..11 {
            breaker.report(ticket, Answered, START + SECOND);
        }
        assert_eq!(breaker.state(START + SECOND), Closed);
    }

    #[test]
    fn one_probe_is_sent_and_other_batches_wait_for_its_outcome() {
        let mut breaker = Breaker::new(7, 10_000);
        open(&mut breaker, START);
        let then_us = START + breaker.wait_us(START).unwrap();
        assert_eq!((breaker.wait_us(then_us), breaker.state(then_us)), (None, HalfOpen));
        let ticket = breaker.admit(then_us).unwrap();
        for at_us in [then_us, then_us + MS, then_us + SECOND] {
            assert_eq!(breaker.admit(at_us), Err(1_000));
            assert_eq!((breaker.wait_us(at_us), breaker.state(at_us)), (Some(1_000), HalfOpen));
        }
        breaker.report(ticket, Answered, then_us + SECOND);
        assert_eq!(breaker.state(then_us + SECOND), Closed);
        assert!(breaker.admit(then_us + SECOND).is_ok());
    }

    #[test]
    fn every_failed_probe_doubles_the_pause_up_to_a_second() {
        for outcome in [Failed, Slow] {
            let mut breaker = Breaker::new(7, 10_000);
            let (mut ticket, mut now_us) = probe(&mut breaker, START);
            for want_ms in [200, 400, 800, 1_000, 1_000, 1_000] {
                breaker.report(ticket, outcome, now_us);
                let left_us = breaker.wait_us(now_us).unwrap();
                assert_about(left_us, want_ms * MS);
                now_us += left_us;
                ticket = breaker.admit(now_us).unwrap();
            }
        }
    }

    #[test]
    fn probe_that_is_never_reported_is_replaced_after_five_seconds() {
        let mut breaker = Breaker::new(7, 10_000);
        let (lost, sent_us) = probe(&mut breaker, START);
        let late_us = sent_us + 5 * SECOND;
        assert_eq!(breaker.admit(late_us - 1), Err(1));
        assert_eq!((breaker.wait_us(late_us), breaker.state(late_us)), (None, HalfOpen));
        let ticket = breaker.admit(late_us).unwrap();
        for outcome in [Failed, Answered] {
            breaker.report(lost, outcome, late_us);
            assert_eq!(breaker.admit(late_us), Err(1_000), "the second is still in flight");
        }
        breaker.report(ticket, Answered, late_us);
        assert_eq!(breaker.state(late_us), Closed);
    }

    #[test]
    fn outcomes_of_earlier_periods_are_ignored() {
        let mut breaker = Breaker::new(7, 10_000);
        let early = breaker.admit(START).unwrap();
        open(&mut breaker, START);
        let left_us = breaker.wait_us(START);
        breaker.report(early, Answered, START);
        breaker.report(early, Failed, START);
        assert_eq!((breaker.wait_us(START), breaker.state(START)), (left_us, Open));

        let then_us = START + left_us.unwrap();
        let ticket = breaker.admit(then_us).unwrap();
        breaker.report(early, Answered, then_us);
        breaker.report(early, Failed, then_us);
        assert_eq!(breaker.admit(then_us), Err(1_000));

        breaker.report(ticket, Answered, then_us);
        for _ in 0..100 {
            breaker.report(early, Slow, then_us);
            breaker.report(ticket, Slow, then_us);
        }
        assert_eq!(breaker.state(then_us), Closed, "nor after it closed");
    }

    #[test]
    fn breaker_counts_anew_after_it_closed() {
        let mut breaker = Breaker::new(7, 10_000);
        let ticket = breaker.admit(START).unwrap();
        for _ in 0..10 {
            breaker.report(ticket, Answered, START);
            breaker.report(ticket, Failed, START);
        }
        let now_us = START + breaker.wait_us(START).unwrap();
        let probe = breaker.admit(now_us).unwrap();
        breaker.report(probe, Answered, now_us);
        for _ in 0..4 {
            let ticket = breaker.admit(now_us).unwrap();
            breaker.report(ticket, Failed, now_us);
            assert_eq!(breaker.state(now_us), Closed);
        }
    }

    #[test]
    fn pause_keeps_doubling_unless_the_breaker_was_closed_for_ten_seconds() {
        let mut breaker = Breaker::new(7, 10_000);
        let (mut ticket, mut now_us) = probe(&mut breaker, START);
        let cases = [(0, 200), (9_999, 400), (9_999, 800), (10_000, 100), (1, 200)];
        for (closed_ms, want_ms) in cases {
            breaker.report(ticket, Answered, now_us);
            now_us += closed_ms * MS;
            open(&mut breaker, now_us);
            let left_us = breaker.wait_us(now_us).unwrap();
            assert_about(left_us, want_ms * MS);
            now_us += left_us;
            ticket = breaker.admit(now_us).unwrap();
        }
    }

    #[test]
    fn breakers_with_different_seeds_probe_at_different_times() {
        let mut pauses_us: Vec<_> = (0..100)
            .map(|seed| {
                let mut breaker = Breaker::new(seed, 10_000);
                open(&mut breaker, START);
                breaker.wait_us(START).unwrap()
            })
            .collect();
        pauses_us.sort();
        assert!(pauses_us[0] >= 80 * MS && pauses_us[10] < 90 * MS, "{pauses_us:?}");
        assert!(pauses_us[99] <= 120 * MS && pauses_us[90] > 110 * MS, "{pauses_us:?}");
        pauses_us.dedup();
        assert!(pauses_us.len() > 95);
    }

    #[test]
    fn breaker_closes_after_large_clock_steps_and_at_extreme_times() {
        for at_us in [0, START, u64::MAX] {
            let mut breaker = Breaker::new(7, 10_000);
            open(&mut breaker, at_us);
            let elsewhere_us = at_us.abs_diff(3_600 * SECOND);
            let ticket = breaker.admit(elsewhere_us).unwrap();
            breaker.report(ticket, Answered, at_us);
            assert_eq!(breaker.state(at_us), Closed);
        }
    }

    #[derive(Clone, Debug)]
    enum Act {
        Admit,
        /// Reports the outcome of one of the tickets that are out.
        Report(prop::sample::Index, BatchOutcome),
        Wait(u64),
        StepBack(u64),
    }

    fn any_act() -> impl Strategy<Value = Act> {
        let outcome = prop_oneof![Just(Answered), Just(Failed), Just(Slow)];
        prop_oneof![
            8 => Just(Act::Admit),
            8 => (any::<prop::sample::Index>(), outcome).prop_map(|(of, it)| Act::Report(of, it)),
            4 => (0..60 * MS).prop_map(Act::Wait),
            1 => (0..1_500 * MS).prop_map(Act::Wait),
            1 => (0..12 * SECOND).prop_map(Act::Wait),
            1 => (0..100 * MS).prop_map(Act::StepBack),
        ]
    }

    /// A breaker, and the calls of it that the test has observed.
    struct ObservedBreaker {
        breaker: Breaker,
        now_us: u64,
        /// Unreported tickets, of this period and of earlier ones.
        fresh: Vec<Ticket>,
        stale: Vec<Ticket>,
        /// When the latest probe was sent, until it is reported.
        probe_us: Option<u64>,
        /// When each outcome was reported and whether it was bad, since the breaker closed.
        outcomes: Vec<(u64, bool)>,
    }

    impl ObservedBreaker {
        fn act(&mut self, act: &Act) {
            match act {
                Act::Admit => self.admit(),
                Act::Report(of, outcome) => self.report(of, *outcome),
                Act::Wait(wait_us) => self.now_us += wait_us,
                Act::StepBack(step_us) => self.now_us -= step_us,
            }
            let later_us = self.now_us + 6 * SECOND;
            assert!(self.breaker.clone().admit(later_us).is_ok(), "stuck: {:?}", self.breaker);
        }

        fn admit(&mut self) {
            let now_us = self.now_us;
            let (state, wait_us) = (self.breaker.state(now_us), self.breaker.wait_us(now_us));
            let admitted = self.breaker.admit(now_us);
            assert_eq!(admitted.err(), wait_us);
            let Ok(ticket) = admitted else { return assert_ne!(state, Closed) };
            assert_ne!(state, Open);
            if state == HalfOpen {
                let sent_us = self.probe_us.replace(now_us);
                let is_lost = |sent_us: u64| now_us.abs_diff(sent_us) >= 5 * SECOND;
                assert!(sent_us.is_none_or(is_lost), "two probes");
                self.stale.append(&mut self.fresh);
            }
            self.fresh.push(ticket);
        }

        fn report(&mut self, of: &prop::sample::Index, outcome: BatchOutcome) {
            let count = self.fresh.len() + self.stale.len();
            if count == 0 {
                return;
            }
            match of.index(count).checked_sub(self.fresh.len()) {
                Some(stale) => self.report_stale(stale, outcome),
                None => self.report_fresh(of.index(count), outcome),
            }
        }

        fn report_stale(&mut self, index: usize, outcome: BatchOutcome) {
            let before = format!("{:?}", self.breaker);
            self.breaker.report(self.stale.swap_remove(index), outcome, self.now_us);
            assert_eq!(format!("{:?}", self.breaker), before);
        }

        fn report_fresh(&mut self, index: usize, outcome: BatchOutcome) {
            let is_bad = outcome != Answered;
            self.breaker.report(self.fresh.swap_remove(index), outcome, self.now_us);
            let state = self.breaker.state(self.now_us);
            if self.probe_us.take().is_some() {
                assert_eq!(state, if is_bad { Open } else { Closed });
                return;
            }
            self.outcomes.push((self.now_us, is_bad));
            assert_eq!(state == Open, self.is_cause_to_open() || self.is_half_bad());
            if state == Open {
                self.outcomes.clear();
                self.stale.append(&mut self.fresh);
            }
        }

        fn is_cause_to_open(&self) -> bool {
            let last = self.outcomes.iter().rev().take(5);
            last.filter(|(_, is_bad)| *is_bad).count() == 5
        }

        /// Returns whether the breaker has opened, and its recent outcomes may be the cause. An outcome between half a second
        /// and a second ago counts or not, depending on when the halves begin and on how the clock stepped back.
        fn is_half_bad(&self) -> bool {
            if self.breaker.state(self.now_us) != Open {
                return false;
            }
            let recent = self.outcomes.iter().rev();
            let mut recent =
                recent.take_while(|(at_us, _)| self.now_us.abs_diff(*at_us) < 1_500 * MS);
            let (mut all, mut bad) = (0, 0);
            recent.any(|(_, is_bad)| {
                all += 1;
                bad += u32::from(*is_bad);
                all >= 20 && bad * 2 >= all
            })
        }
    }

    proptest! {
        #[test]
        fn breaker_opens_only_for_a_cause_and_never_for_ever(
            seed in any::<u64>(),
            acts in vec(any_act(), 0..400),
        ) {
            let mut watched = ObservedBreaker {
                breaker: Breaker::new(seed, 10_000),
                now_us: START,
                fresh: Vec::new(),
                stale: Vec::new(),
                probe_us: None,
                outcomes: Vec::new(),
            };
            for act in &acts {
                watched.act(act);
            }
        }
    }
}
