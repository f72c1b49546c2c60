//! The stage of a connection, and its deadline. Pure: time is an argument.
//!
//! Fresh → receiving → working → sending → idle → receiving → …

use std::time::{Duration, Instant};

use super::bounds::Bounds;
use super::reason::CloseReason;

/// How long a connection must have been silent before it is evicted, or closed because the server closes: a request of the
/// client may be in flight.
pub(super) const IN_FLIGHT_TIME: Duration = Duration::from_millis(100);

/// How long a request may take to arrive, and how long it may pause, before its connection can be evicted: a
/// lost packet is sent again after 200 ms.
const ARRIVAL: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(250);

/// How long an answer may stay unread before its connection can be evicted.
const UNREAD: Duration = Duration::from_secs(1);

/// The bytes of an answer that a client has to read per second, once it has made the server wait.
const MIN_READ_RATE: u64 = 16 << 10;

/// The stage of a connection, and what decides on its deadline.
#[derive(Debug)]
pub(super) struct ConnectionProgress {
    stage: Stage,
    /// When the connection learned that the server closes: only a request in flight is still read.
    closing_since: Option<Instant>,
    /// Whether a request of the connection was ever answered.
    was_answered: bool,
}

/// The order of eviction: by rank, and within a rank the connection that has been in its stage for longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EvictionOrder {
    pub(super) rank: Rank,
    since: Instant,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// In the middle of a request or of an answer, and the client makes no progress.
    Stuck,
    /// The client never sent anything.
    Silent,
    /// Between requests. The client has sent a request before.
    Idle,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Nothing has been received yet.
    Fresh { since: Instant },
    /// A part of a request has been received, but not its last byte.
    Receiving { since: Instant, last: Instant },
    /// The whole request has been received. There is no deadline for the answer.
    Working,
    /// The answer is being sent; `is_taken` once its last byte is ready to be written.
    Sending { out: AnswerOutput, is_taken: bool, behind: Option<SlowReader> },
    /// The answer has been sent, and nothing was received since.
    Idle { since: Instant },
    /// The last answer has been sent, and the client has time to read it.
    Leaving { since: Instant },
    /// Closed, or about to be: nothing is read any more.
    Over,
}

/// How much of the answer that is ready so far has been written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AnswerOutput {
    Nothing,
    Some,
    /// The client does not read.
    Stalled {
        since: Instant,
    },
    All,
}

/// How much a client has read since it first made the server wait. Reset when it has read everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SlowReader {
    since: Instant,
    read_bytes: u64,
}

impl SlowReader {
    /// Returns the deadline of an answer that stalls, which may last `time` each time. Each byte that the client reads adds
    /// its share of a second, so a client that reads single bytes cannot keep the answer for ever.
    fn until(self, stalled: Instant, time: Duration) -> Instant {
        let bought = Duration::from_millis(self.read_bytes.saturating_mul(1000) / MIN_READ_RATE);
        // OK because no client reads for as many years as fit.
        (stalled + time).min(self.since + time + bought)
    }
}

impl ConnectionProgress {
    pub(super) fn new(now: Instant) -> ConnectionProgress {
        ConnectionProgress {
            stage: Stage::Fresh { since: now },
            closing_since: None,
            was_answered: false,
        }
    }

    /// Records that bytes of a request were received, or that its head was found among earlier bytes. Bytes
    /// that are received while another request is answered do not count, because it is not known yet whether
    /// they are a request; the time of such a request begins after the answer.
    pub(super) fn received(&mut self, now: Instant) {
        match &mut self.stage {
            Stage::Fresh { .. } | Stage::Idle { .. } => {
                self.stage = Stage::Receiving { since: now, last: now };
            }
            Stage::Receiving { last, .. } => *last = now,
            _ => {}
        }
    }

    /// Records that the connection uses HTTP/2, with many requests at a time: only its age is known.
    pub(super) fn multiplexes(&mut self, now: Instant) {
        if self.stage != Stage::Over {
            self.stage = Stage::Idle { since: now };
            self.was_answered = true;
        }
    }

    /// Records that a request is complete with its head. For a pipelined request no byte is received before
    /// this.
    pub(super) fn complete(&mut self) {
        if self.stage != Stage::Over {
            self.stage = Stage::Working;
        }
    }

    /// Records that the body of a request is complete, or that the rest of it is not read.
    pub(super) fn body_complete(&mut self) {
        if let Stage::Receiving { .. } = self.stage {
            self.stage = Stage::Working;
        }
    }

    /// Records that an answer is ready to be sent.
    pub(super) fn answered(&mut self) {
        if self.stage != Stage::Over {
            self.stage =
                Stage::Sending { out: AnswerOutput::Nothing, is_taken: false, behind: None };
        }
    }

    /// Records that the last part of an answer was taken to be written.
    pub(super) fn taken(&mut self, now: Instant) {
        if let Stage::Sending { out, is_taken, .. } = &mut self.stage {
            *is_taken = true;
            if *out == AnswerOutput::All {
                self.sent(now);
            }
        }
    }

    /// Records that bytes were written.
    pub(super) fn wrote(&mut self, bytes: usize) {
        if let Stage::Sending { out, behind, .. } = &mut self.stage {
            *out = AnswerOutput::Some;
            if let Some(behind) = behind {
                behind.read_bytes = behind.read_bytes.saturating_add(bytes as u64);
            }
        }
    }

    /// Records that bytes could not be written, because the client does not read.
    pub(super) fn stalled(&mut self, now: Instant) {
        match &mut self.stage {
            Stage::Sending { out: AnswerOutput::Stalled { .. }, .. } => {}
            Stage::Sending { out, behind, .. } => {
                *out = AnswerOutput::Stalled { since: now };
                behind.get_or_insert(SlowReader { since: now, read_bytes: 0 });
            }
            _ => {}
        }
    }

    /// Records that everything that was to be written so far has been written.
    pub(super) fn flushed(&mut self, now: Instant) {
        match &mut self.stage {
            Stage::Sending { out: AnswerOutput::Nothing, .. } => {}
            Stage::Sending { is_taken: true, .. } => self.sent(now),
            Stage::Sending { out, behind, .. } => {
                *out = AnswerOutput::All;
                *behind = None;
            }
            _ => {}
        }
    }

    fn sent(&mut self, now: Instant) {
        self.was_answered = true;
        let is_last = self.closing_since.is_some();
        self.stage = if is_last { Stage::Over } else { Stage::Idle { since: now } };
    }

    /// Records that no further request is expected. Returns whether to wait for the client to close.
    pub(super) fn leaves(&mut self, now: Instant) -> bool {
        if self.stage != Stage::Over {
            self.stage = Stage::Leaving { since: now };
        }
        !self.is_over()
    }

    /// Returns since when the connection is silent: before the first request, or between requests.
    pub(super) fn silent_since(&self) -> Option<Instant> {
        match self.stage {
            Stage::Fresh { since } | Stage::Idle { since } => Some(since),
            _ => None,
        }
    }

    /// Returns the connection's position in the order of eviction; `None` if it must not be evicted.
    pub(super) fn eviction_order(&self, now: Instant) -> Option<EvictionOrder> {
        let (rank, since, until) = match self.stage {
            Stage::Fresh { since } => (Rank::Silent, since, since + IN_FLIGHT_TIME),
            Stage::Receiving { since, last } => {
                (Rank::Stuck, since, (since + ARRIVAL).min(last + PAUSE))
            }
            Stage::Sending {
                out: AnswerOutput::Stalled { since: stalled },
                behind: Some(behind),
                ..
            } => (Rank::Stuck, behind.since, behind.until(stalled, UNREAD)),
            Stage::Leaving { since } => (Rank::Stuck, since, since + PAUSE),
            Stage::Idle { since } => (Rank::Idle, since, since + IN_FLIGHT_TIME),
            Stage::Working | Stage::Sending { .. } | Stage::Over => return None,
        };
        (until <= now).then_some(EvictionOrder { rank, since })
    }

    /// Ends the connection if its position in the order of eviction has not changed. Returns whether it has ended.
    pub(super) fn end_if(&mut self, seen: EvictionOrder, now: Instant) -> bool {
        if self.eviction_order(now) == Some(seen) {
            self.stage = Stage::Over;
        }
        self.is_over()
    }

    /// Whether the connection is open and its client has not yet completed a request.
    pub(super) fn is_new(&self) -> bool {
        !self.was_answered && !matches!(self.stage, Stage::Working | Stage::Over)
    }

    /// Records that the server closes: a silent connection ends soon, a request in flight is answered first.
    pub(super) fn note_close(&mut self, now: Instant) {
        self.closing_since = Some(now);
    }

    pub(super) fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// Returns the deadline of the present stage, and the reason to close the connection then; no reason if
    /// the server closes.
    pub(super) fn deadline(&self, bounds: &Bounds) -> Option<(Instant, Option<CloseReason>)> {
        if let (Some(called), Some(_)) = (self.closing_since, self.silent_since()) {
            return Some((called + IN_FLIGHT_TIME, None));
        }
        let (since, bound, reason) = match self.stage {
            Stage::Fresh { since } => (since, bounds.first_byte, CloseReason::FirstByte),
            Stage::Receiving { since, .. } => (since, bounds.request, CloseReason::Request),
            Stage::Sending {
                out: AnswerOutput::Stalled { since }, behind: Some(behind), ..
            } => {
                return Some((behind.until(since, bounds.idle), Some(CloseReason::Idle)));
            }
            Stage::Idle { since } => (since, bounds.idle, CloseReason::Idle),
            Stage::Working | Stage::Sending { .. } | Stage::Leaving { .. } | Stage::Over => {
                return None;
            }
        };
        // OK because a bound is at most 24 hours.
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
        /// Enough bytes for four seconds.
        Wrote,
        WroteByte,
        Stalled,
        Flushed,
        Leaves,
        EndIfSpare,
        ServerCloses,
    }
    use Event::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum ExpectedDeadline {
        /// At this second, for this reason.
        Closed(u64, CloseReason),
        Unbounded,
        ClosedSoon,
        OverNow,
    }
    use ExpectedDeadline::*;

    /// Applies each event at its second, and compares the deadline after it.
    fn table(rows: &[(u64, Event, ExpectedDeadline)]) {
        let start = Instant::now();
        let mut progress = ConnectionProgress::new(start);
        for (row, &(at_s, event, want)) in rows.iter().enumerate() {
            let now = start + Duration::from_secs(at_s);
            match event {
                Received => progress.received(now),
                Complete => progress.complete(),
                BodyComplete => progress.body_complete(),
                Answered => progress.answered(),
                Taken => progress.taken(now),
                Wrote => progress.wrote(4 * MIN_READ_RATE as usize),
                WroteByte => progress.wrote(1),
                Stalled => progress.stalled(now),
                Flushed => progress.flushed(now),
                Leaves => drop(progress.leaves(now)),
                EndIfSpare => {
                    if let Some(eviction_queue) = progress.eviction_order(now) {
                        assert!(progress.end_if(eviction_queue, now));
                    }
                }
                ServerCloses => progress.note_close(now),
            }
            let got = match progress.deadline(&BOUNDS) {
                Some((at, Some(reason))) => Closed((at - start).as_secs(), reason),
                Some((at, None)) => {
                    assert_eq!(at, now + IN_FLIGHT_TIME);
                    ClosedSoon
                }
                None if progress.is_over() => OverNow,
                None => Unbounded,
            };
            assert_eq!(got, want, "row {row}: {event:?} at {at_s} s");
        }
    }

    #[test]
    fn new_connection_has_the_first_byte_deadline() {
        let start = Instant::now();
        let deadline = ConnectionProgress::new(start).deadline(&BOUNDS);
        assert_eq!(deadline, Some((start + BOUNDS.first_byte, Some(CloseReason::FirstByte))));
    }

    #[test]
    fn request_without_a_body_passes_through_all_stages() {
        table(&[
            (1, Received, Closed(11, CloseReason::Request)),
            (2, Complete, Unbounded),
            (40, Answered, Unbounded),
            (40, Taken, Unbounded),
            (40, Wrote, Unbounded),
            (40, Flushed, Closed(115, CloseReason::Idle)),
            (50, Received, Closed(60, CloseReason::Request)),
        ]);
    }

    #[test]
    fn slow_bytes_do_not_extend_the_request_deadline() {
        table(&[
            (1, Received, Closed(11, CloseReason::Request)),
            (5, Received, Closed(11, CloseReason::Request)),
            (9, Received, Closed(11, CloseReason::Request)),
            (10, Received, Closed(11, CloseReason::Request)),
            (11, BodyComplete, Unbounded),
        ]);
    }

    #[test]
    fn pipelined_requests_begin_without_new_bytes() {
        table(&[
            (1, Received, Closed(11, CloseReason::Request)),
            (1, Complete, Unbounded),
            (2, Received, Unbounded),
            (3, Answered, Unbounded),
            (3, Received, Unbounded),
            (3, Taken, Unbounded),
            (3, Wrote, Unbounded),
            (3, Flushed, Closed(78, CloseReason::Idle)),
            // The head of the second request was received with the first; its body was not.
            (4, Received, Closed(14, CloseReason::Request)),
            (6, BodyComplete, Unbounded),
            (6, Answered, Unbounded),
            (6, Taken, Unbounded),
            (6, Wrote, Unbounded),
            (6, Flushed, Closed(81, CloseReason::Idle)),
            // The third request was received completely.
            (6, Complete, Unbounded),
        ]);
    }

    #[test]
    fn unread_answer_has_the_idle_deadline_from_its_last_byte() {
        table(&[
            (0, Complete, Unbounded),
            (0, Answered, Unbounded),
            (1, Stalled, Closed(76, CloseReason::Idle)),
            (2, Stalled, Closed(76, CloseReason::Idle)),
            (3, Taken, Closed(76, CloseReason::Idle)),
            (4, Wrote, Unbounded),
            (4, Stalled, Closed(79, CloseReason::Idle)),
            (5, Wrote, Unbounded),
            (5, Flushed, Closed(80, CloseReason::Idle)),
        ]);
    }

    #[test]
    fn streamed_answer_has_no_deadline() {
        table(&[
            (0, Complete, Unbounded),
            (0, Answered, Unbounded),
            // Before the head is written, there is nothing to flush.
            (0, Flushed, Unbounded),
            (0, Wrote, Unbounded),
            (0, Flushed, Unbounded),
            (100, Wrote, Unbounded),
            (100, Flushed, Unbounded),
            (200, Taken, Closed(275, CloseReason::Idle)),
        ]);
    }

    #[test]
    fn answer_may_precede_the_end_of_the_request() {
        table(&[
            (0, Received, Closed(10, CloseReason::Request)),
            (0, Received, Closed(10, CloseReason::Request)),
            (1, Answered, Unbounded),
            (1, BodyComplete, Unbounded),
            (1, Taken, Unbounded),
            (1, Wrote, Unbounded),
            (1, Flushed, Closed(76, CloseReason::Idle)),
            // A body that is dropped late says nothing about the next request.
            (2, BodyComplete, Closed(76, CloseReason::Idle)),
        ]);
    }

    #[test]
    fn continue_does_not_count_as_an_answer() {
        table(&[
            (0, Received, Closed(10, CloseReason::Request)),
            (0, Received, Closed(10, CloseReason::Request)),
            (1, Wrote, Closed(10, CloseReason::Request)),
            (1, Flushed, Closed(10, CloseReason::Request)),
            (2, Stalled, Closed(10, CloseReason::Request)),
        ]);
    }

    #[test]
    fn slow_reader_does_not_keep_an_answer_for_ever() {
        table(&[
            (0, Complete, Unbounded),
            (0, Answered, Unbounded),
            (1, Stalled, Closed(76, CloseReason::Idle)),
            (50, WroteByte, Unbounded),
            (50, Stalled, Closed(76, CloseReason::Idle)),
            // Four seconds for the bytes that were read, and nearly nothing for the single byte.
            (60, Wrote, Unbounded),
            (60, Stalled, Closed(80, CloseReason::Idle)),
            (70, WroteByte, Unbounded),
            (70, Stalled, Closed(80, CloseReason::Idle)),
            // A client that has read everything begins anew.
            (79, Wrote, Unbounded),
            (79, Flushed, Unbounded),
            (90, Wrote, Unbounded),
            (90, Stalled, Closed(165, CloseReason::Idle)),
        ]);
    }

    #[test]
    fn served_connection_is_not_evicted() {
        table(&[
            (1, EndIfSpare, OverNow),
            (1, Received, OverNow),
            (1, Complete, OverNow),
            (1, Answered, OverNow),
        ]);
        table(&[
            (1, Received, Closed(11, CloseReason::Request)),
            (1, EndIfSpare, Closed(11, CloseReason::Request)),
            (2, Complete, Unbounded),
            (9, EndIfSpare, Unbounded),
            (9, Answered, Unbounded),
            (9, EndIfSpare, Unbounded),
            (9, Taken, Unbounded),
            (9, Wrote, Unbounded),
            (9, Stalled, Closed(84, CloseReason::Idle)),
            (9, EndIfSpare, Closed(84, CloseReason::Idle)),
            (9, Flushed, Closed(84, CloseReason::Idle)),
            (9, EndIfSpare, Closed(84, CloseReason::Idle)),
            (10, EndIfSpare, OverNow),
        ]);
    }

    #[test]
    fn stuck_connection_is_evicted() {
        table(&[(1, Received, Closed(11, CloseReason::Request)), (2, EndIfSpare, OverNow)]);
        table(&[
            (1, Answered, Unbounded),
            (1, Stalled, Closed(76, CloseReason::Idle)),
            (2, EndIfSpare, OverNow),
        ]);
        // A byte a second does not count as progress.
        table(&[
            (1, Answered, Unbounded),
            (1, Stalled, Closed(76, CloseReason::Idle)),
            (3, WroteByte, Unbounded),
            (3, Stalled, Closed(76, CloseReason::Idle)),
            (3, EndIfSpare, OverNow),
        ]);
        table(&[(1, Leaves, Unbounded), (2, EndIfSpare, OverNow)]);
    }

    /// Returns from which millisecond on the connection can be evicted, and its rank.
    fn spare_from(progress: &ConnectionProgress, start: Instant) -> Option<(u64, Rank)> {
        (0..5_000).find_map(|ms| {
            let eviction_queue = progress.eviction_order(start + Duration::from_millis(ms))?;
            Some((ms, eviction_queue.rank))
        })
    }

    #[test]
    fn slow_connection_can_be_evicted() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut progress = ConnectionProgress::new(start);
        assert_eq!(spare_from(&progress, start), Some((100, Rank::Silent)));
        progress.received(at(50));
        assert_eq!(spare_from(&progress, start), Some((300, Rank::Stuck)));
        progress.received(at(290));
        assert_eq!(spare_from(&progress, start), Some((540, Rank::Stuck)));
        progress.received(at(500));
        assert_eq!(spare_from(&progress, start), Some((550, Rank::Stuck)));
        progress.complete();
        assert_eq!(spare_from(&progress, start), None);
        progress.answered();
        progress.stalled(at(600));
        assert_eq!(spare_from(&progress, start), Some((1_600, Rank::Stuck)));
        progress.wrote(MIN_READ_RATE as usize / 2);
        assert_eq!(spare_from(&progress, start), None);
        progress.stalled(at(1_400));
        assert_eq!(spare_from(&progress, start), Some((2_100, Rank::Stuck)));
        progress.taken(at(1_500));
        progress.flushed(at(1_500));
        assert_eq!(spare_from(&progress, start), Some((1_600, Rank::Idle)));
        assert!(!progress.leaves(at(1_600)) || progress.eviction_order(at(1_849)).is_none());
        assert_eq!(spare_from(&progress, start), Some((1_850, Rank::Stuck)));
    }

    #[test]
    fn eviction_order_is_stuck_then_silent_then_idle() {
        let [earlier, later] = [0, 1].map(|s| Instant::now() + Duration::from_secs(s));
        let eviction_queue = |rank, since| EvictionOrder { rank, since };
        let ranked = [
            eviction_queue(Rank::Stuck, earlier),
            eviction_queue(Rank::Stuck, later),
            eviction_queue(Rank::Silent, earlier),
            eviction_queue(Rank::Silent, later),
            eviction_queue(Rank::Idle, earlier),
            eviction_queue(Rank::Idle, later),
        ];
        assert!(ranked.is_sorted());
    }

    #[test]
    fn connection_is_not_evicted_when_its_request_progressed_meanwhile() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut progress = ConnectionProgress::new(start);
        progress.received(at(0));
        let seen = progress.eviction_order(at(260)).unwrap();
        progress.received(at(270));
        assert!(!progress.end_if(seen, at(280)));
        progress.complete();
        assert!(!progress.end_if(seen, at(900)));
    }

    #[test]
    fn connection_is_not_new_once_served() {
        let now = Instant::now();
        let mut progress = ConnectionProgress::new(now);
        assert!(progress.is_new());
        progress.received(now);
        assert!(progress.is_new());
        progress.complete();
        assert!(!progress.is_new());
        progress.answered();
        assert!(progress.is_new());
        progress.wrote(1);
        progress.taken(now);
        progress.flushed(now);
        assert!(!progress.is_new());
        progress.received(now);
        assert!(!progress.is_new());
        let mut http2 = ConnectionProgress::new(now);
        http2.multiplexes(now);
        assert!(!http2.is_new());
        assert_eq!(spare_from(&http2, now), Some((100, Rank::Idle)));
    }

    #[test]
    fn request_in_flight_is_answered_when_the_server_closes() {
        table(&[
            (1, Received, Closed(11, CloseReason::Request)),
            (1, ServerCloses, Closed(11, CloseReason::Request)),
            (2, Complete, Unbounded),
            (3, Answered, Unbounded),
            (3, Taken, Unbounded),
            (3, Wrote, Unbounded),
            (3, Flushed, OverNow),
        ]);
    }

    #[test]
    fn silent_connection_ends_soon_when_the_server_closes() {
        table(&[(1, ServerCloses, ClosedSoon), (2, Received, Closed(12, CloseReason::Request))]);
    }

    #[test]
    fn leaving_connection_is_not_silent_and_has_no_deadline() {
        table(&[
            (1, Received, Closed(11, CloseReason::Request)),
            (1, Leaves, Unbounded),
            (2, ServerCloses, Unbounded),
        ]);
        table(&[(1, EndIfSpare, OverNow), (1, Leaves, OverNow)]);
    }

    #[test]
    fn connection_is_silent_before_the_first_byte_and_between_requests() {
        let start = Instant::now();
        let later = start + Duration::from_secs(3);
        let mut progress = ConnectionProgress::new(start);
        assert_eq!(progress.silent_since(), Some(start));
        progress.received(later);
        assert_eq!(progress.silent_since(), None);
        progress.complete();
        progress.answered();
        progress.wrote(1);
        progress.taken(later);
        assert_eq!(progress.silent_since(), None);
        progress.flushed(later);
        assert_eq!(progress.silent_since(), Some(later));
    }
}
