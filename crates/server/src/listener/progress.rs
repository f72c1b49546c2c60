//! What a connection is doing, and until when it may. Pure: time is an argument.
//!
//! Fresh → receiving → working → sending → idle → receiving → …

use std::time::{Duration, Instant};

use super::{Bounds, Reason};

/// How long a connection must have been silent before it is closed for others, or because the server closes: a request
/// may be on its way.
pub(super) const ON_ITS_WAY: Duration = Duration::from_millis(100);

/// How far a connection is.
#[derive(Debug)]
pub(super) struct Progress {
    stage: Stage,
    /// Since when the server closes: there is no next request but what is on its way.
    last_call: Option<Instant>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing has come yet.
    Fresh { since: Instant },
    /// Some of a request has come, but not its last byte.
    Receiving { since: Instant },
    /// All of it has come. An answer takes the time that it takes.
    Working,
    /// The answer is on its way; `is_taken` when its last byte is ready to be written.
    Sending { out: Out, is_taken: bool },
    /// The answer is out, and nothing came since.
    Idle { since: Instant },
    /// The answer was the last, and the client is waited for to have read it.
    Leaving,
    /// Closed, or about to be: nothing is read any more.
    Over,
}

/// How much of an answer was written, of as much as there is so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Out {
    Nothing,
    Some,
    /// The client does not read.
    Stalled {
        since: Instant,
    },
    All,
}

impl Progress {
    pub(super) fn new(now: Instant) -> Progress {
        Progress { stage: Stage::Fresh { since: now }, last_call: None }
    }

    /// Bytes of a request came, or its head was found in what came earlier. What comes while another is answered
    /// does not count: nobody knows yet whether it is a request, so that one's time begins after the answer.
    pub(super) fn received(&mut self, now: Instant) {
        if let Stage::Fresh { .. } | Stage::Idle { .. } = self.stage {
            self.stage = Stage::Receiving { since: now };
        }
    }

    /// A request is complete with its head. If it was pipelined, no byte came before it.
    pub(super) fn complete(&mut self) {
        if self.stage != Stage::Over {
            self.stage = Stage::Working;
        }
    }

    /// A request's body is complete, or nobody reads the rest of it.
    pub(super) fn body_complete(&mut self) {
        if let Stage::Receiving { .. } = self.stage {
            self.stage = Stage::Working;
        }
    }

    /// An answer is ready to be sent.
    pub(super) fn answered(&mut self) {
        if self.stage != Stage::Over {
            self.stage = Stage::Sending { out: Out::Nothing, is_taken: false };
        }
    }

    /// The last of an answer was taken to be written.
    pub(super) fn taken(&mut self, now: Instant) {
        if let Stage::Sending { out, is_taken } = &mut self.stage {
            *is_taken = true;
            if *out == Out::All {
                self.sent(now);
            }
        }
    }

    /// Bytes were written.
    pub(super) fn wrote(&mut self) {
        if let Stage::Sending { out, .. } = &mut self.stage {
            *out = Out::Some;
        }
    }

    /// Bytes could not be written, because the client does not read.
    pub(super) fn stalled(&mut self, now: Instant) {
        match &mut self.stage {
            Stage::Sending { out: Out::Stalled { .. }, .. } => {}
            Stage::Sending { out, .. } => *out = Out::Stalled { since: now },
            _ => {}
        }
    }

    /// All that was to be written so far is written.
    pub(super) fn flushed(&mut self, now: Instant) {
        match &mut self.stage {
            Stage::Sending { out: Out::Nothing, .. } => {}
            Stage::Sending { is_taken: true, .. } => self.sent(now),
            Stage::Sending { out, .. } => *out = Out::All,
            _ => {}
        }
    }

    fn sent(&mut self, now: Instant) {
        let is_last = self.last_call.is_some();
        self.stage = if is_last { Stage::Over } else { Stage::Idle { since: now } };
    }

    /// No request is expected any more. Whether the client is to be waited for.
    pub(super) fn leaves(&mut self) -> bool {
        if self.stage != Stage::Over {
            self.stage = Stage::Leaving;
        }
        !self.is_over()
    }

    /// Since when nobody has anything to do: between requests, or before the first.
    pub(super) fn silent_since(&self) -> Option<Instant> {
        match self.stage {
            Stage::Fresh { since } | Stage::Idle { since } => Some(since),
            _ => None,
        }
    }

    /// Ends it if it is silent. Whether it is over.
    pub(super) fn end_if_silent(&mut self) -> bool {
        if self.silent_since().is_some() {
            self.stage = Stage::Over;
        }
        self.is_over()
    }

    /// The server closes: what is silent ends soon, what is in flight after its answer.
    pub(super) fn last_call(&mut self, now: Instant) {
        self.last_call = Some(now);
    }

    pub(super) fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Until when it may do what it does, and what it is closed for then; for nothing of its own if the server closes.
    pub(super) fn deadline(&self, bounds: &Bounds) -> Option<(Instant, Option<Reason>)> {
        if let (Some(called), Some(_)) = (self.last_call, self.silent_since()) {
            return Some((called + ON_ITS_WAY, None));
        }
        let (since, bound, reason) = match self.stage {
            Stage::Fresh { since } => (since, bounds.first_byte, Reason::FirstByte),
            Stage::Receiving { since } => (since, bounds.request, Reason::Request),
            Stage::Sending { out: Out::Stalled { since }, .. } | Stage::Idle { since } => {
                (since, bounds.idle, Reason::Idle)
            }
            Stage::Working | Stage::Sending { .. } | Stage::Leaving | Stage::Over => return None,
        };
        // OK because a bound is 24 hours at most.
        Some((since + bound, Some(reason)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const BOUNDS: Bounds = Bounds {
        max_connections: 1,
        first_byte: Duration::from_secs(5),
        request: Duration::from_secs(10),
        idle: Duration::from_secs(75),
    };

    #[derive(Clone, Copy, Debug)]
    enum Event {
        Received,
        Complete,
        BodyComplete,
        Answered,
        Taken,
        Wrote,
        Stalled,
        Flushed,
        Leaves,
        EndIfSilent,
        LastCall,
    }
    use Event::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Want {
        /// At a second, for a reason.
        Closed(u64, Reason),
        Unbounded,
        ClosedSoon,
        OverNow,
    }
    use Want::*;

    /// What happens at a second, and what then holds.
    fn table(rows: &[(u64, Event, Want)]) {
        let start = Instant::now();
        let mut progress = Progress::new(start);
        for (row, &(at_s, event, want)) in rows.iter().enumerate() {
            let now = start + Duration::from_secs(at_s);
            match event {
                Received => progress.received(now),
                Complete => progress.complete(),
                BodyComplete => progress.body_complete(),
                Answered => progress.answered(),
                Taken => progress.taken(now),
                Wrote => progress.wrote(),
                Stalled => progress.stalled(now),
                Flushed => progress.flushed(now),
                Leaves => drop(progress.leaves()),
                EndIfSilent => drop(progress.end_if_silent()),
                LastCall => progress.last_call(now),
            }
            let got = match progress.deadline(&BOUNDS) {
                Some((at, Some(reason))) => Closed((at - start).as_secs(), reason),
                Some((at, None)) => {
                    assert_eq!(at, now + ON_ITS_WAY);
                    ClosedSoon
                }
                None if progress.is_over() => OverNow,
                None => Unbounded,
            };
            assert_eq!(got, want, "row {row}: {event:?} at {at_s} s");
        }
    }

    #[test]
    fn a_new_connection_is_to_speak_within_the_first_byte_bound() {
        let start = Instant::now();
        let deadline = Progress::new(start).deadline(&BOUNDS);
        assert_eq!(deadline, Some((start + BOUNDS.first_byte, Some(Reason::FirstByte))));
    }

    #[test]
    fn a_request_without_a_body_goes_round() {
        table(&[
            (1, Received, Closed(11, Reason::Request)),
            (2, Complete, Unbounded),
            (40, Answered, Unbounded),
            (40, Taken, Unbounded),
            (40, Wrote, Unbounded),
            (40, Flushed, Closed(115, Reason::Idle)),
            (50, Received, Closed(60, Reason::Request)),
        ]);
    }

    #[test]
    fn a_byte_now_and_then_extends_nothing() {
        table(&[
            (1, Received, Closed(11, Reason::Request)),
            (5, Received, Closed(11, Reason::Request)),
            (9, Received, Closed(11, Reason::Request)),
            (10, Received, Closed(11, Reason::Request)),
            (11, BodyComplete, Unbounded),
        ]);
    }

    #[test]
    fn pipelined_requests_come_without_a_byte_in_between() {
        table(&[
            (1, Received, Closed(11, Reason::Request)),
            (1, Complete, Unbounded),
            (2, Received, Unbounded),
            (3, Answered, Unbounded),
            (3, Received, Unbounded),
            (3, Taken, Unbounded),
            (3, Wrote, Unbounded),
            (3, Flushed, Closed(78, Reason::Idle)),
            // The second, whose head was there already; its body was not.
            (4, Received, Closed(14, Reason::Request)),
            (6, BodyComplete, Unbounded),
            (6, Answered, Unbounded),
            (6, Taken, Unbounded),
            (6, Wrote, Unbounded),
            (6, Flushed, Closed(81, Reason::Idle)),
            // The third was there as a whole.
            (6, Complete, Unbounded),
        ]);
    }

    #[test]
    fn a_client_that_does_not_read_has_the_idle_bound_from_its_last_byte() {
        table(&[
            (0, Complete, Unbounded),
            (0, Answered, Unbounded),
            (1, Stalled, Closed(76, Reason::Idle)),
            (2, Stalled, Closed(76, Reason::Idle)),
            (3, Taken, Closed(76, Reason::Idle)),
            (4, Wrote, Unbounded),
            (4, Stalled, Closed(79, Reason::Idle)),
            (5, Wrote, Unbounded),
            (5, Flushed, Closed(80, Reason::Idle)),
        ]);
    }

    #[test]
    fn an_answer_that_is_made_bit_by_bit_is_waited_for() {
        table(&[
            (0, Complete, Unbounded),
            (0, Answered, Unbounded),
            // Before the head is written there is nothing to be out.
            (0, Flushed, Unbounded),
            (0, Wrote, Unbounded),
            (0, Flushed, Unbounded),
            (100, Wrote, Unbounded),
            (100, Flushed, Unbounded),
            (200, Taken, Closed(275, Reason::Idle)),
        ]);
    }

    #[test]
    fn an_answer_may_come_before_the_request_is_complete() {
        table(&[
            (0, Received, Closed(10, Reason::Request)),
            (0, Received, Closed(10, Reason::Request)),
            (1, Answered, Unbounded),
            (1, BodyComplete, Unbounded),
            (1, Taken, Unbounded),
            (1, Wrote, Unbounded),
            (1, Flushed, Closed(76, Reason::Idle)),
            // A body that is let go of late says nothing about what comes next.
            (2, BodyComplete, Closed(76, Reason::Idle)),
        ]);
    }

    #[test]
    fn continue_is_no_answer() {
        table(&[
            (0, Received, Closed(10, Reason::Request)),
            (0, Received, Closed(10, Reason::Request)),
            (1, Wrote, Closed(10, Reason::Request)),
            (1, Flushed, Closed(10, Reason::Request)),
            (2, Stalled, Closed(10, Reason::Request)),
        ]);
    }

    #[test]
    fn only_a_silent_connection_is_ended_for_another() {
        table(&[
            (1, EndIfSilent, OverNow),
            (1, Received, OverNow),
            (1, Complete, OverNow),
            (1, Answered, OverNow),
        ]);
        table(&[
            (1, Received, Closed(11, Reason::Request)),
            (1, EndIfSilent, Closed(11, Reason::Request)),
            (2, Complete, Unbounded),
            (2, EndIfSilent, Unbounded),
            (3, Answered, Unbounded),
            (3, EndIfSilent, Unbounded),
            (3, Taken, Unbounded),
            (3, Wrote, Unbounded),
            (3, Flushed, Closed(78, Reason::Idle)),
            (3, EndIfSilent, OverNow),
        ]);
    }

    #[test]
    fn what_is_in_flight_is_finished_when_the_server_closes() {
        table(&[
            (1, Received, Closed(11, Reason::Request)),
            (1, LastCall, Closed(11, Reason::Request)),
            (2, Complete, Unbounded),
            (3, Answered, Unbounded),
            (3, Taken, Unbounded),
            (3, Wrote, Unbounded),
            (3, Flushed, OverNow),
        ]);
    }

    #[test]
    fn what_is_silent_when_the_server_closes_ends_soon_unless_a_request_was_on_its_way() {
        table(&[(1, LastCall, ClosedSoon), (2, Received, Closed(12, Reason::Request))]);
    }

    #[test]
    fn who_leaves_is_neither_silent_nor_bounded_here() {
        table(&[
            (1, Received, Closed(11, Reason::Request)),
            (1, Leaves, Unbounded),
            (2, LastCall, Unbounded),
        ]);
        table(&[(1, EndIfSilent, OverNow), (1, Leaves, OverNow)]);
    }

    #[test]
    fn silence_is_before_the_first_byte_and_between_requests() {
        let start = Instant::now();
        let later = start + Duration::from_secs(3);
        let mut progress = Progress::new(start);
        assert_eq!(progress.silent_since(), Some(start));
        progress.received(later);
        assert_eq!(progress.silent_since(), None);
        progress.complete();
        progress.answered();
        progress.wrote();
        progress.taken(later);
        assert_eq!(progress.silent_since(), None);
        progress.flushed(later);
        assert_eq!(progress.silent_since(), Some(later));
    }
}
