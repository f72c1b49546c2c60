//! What waits to be sent, and when it goes. No clock and no I/O.
//!
//! What comes while nothing is on its way goes at once. What comes later waits until something is
//! back, and then goes together. There is no timer: an idle caller waits for nobody.

use std::collections::VecDeque;

/// How many batches may be on their way at once: while the server works on one, we make the next.
const MAX_IN_FLIGHT: usize = 2;

/// A batch holds up everybody else on the server for as long as it takes, about 4 us a charge.
pub(super) const MAX_BATCH: usize = 64;

/// Requests that wait for their turn.
#[derive(Debug)]
pub(super) struct Batcher<T> {
    waiting: VecDeque<T>,
    in_flight: usize,
    max_waiting: usize,
}

/// What to do after a request was put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Begin to send: take batches until there are none.
    Send,
    /// Nothing: somebody is sending, and will take it along.
    Wait,
}

/// There is no room for the request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full {
    pub(super) waiting: usize,
}

impl<T> Batcher<T> {
    pub(super) fn new(max_waiting: usize) -> Batcher<T> {
        Batcher { waiting: VecDeque::new(), in_flight: 0, max_waiting }
    }

    /// Puts a request at the end of the queue.
    pub(super) fn put(&mut self, request: T) -> Result<Next, Full> {
        if self.waiting.len() >= self.max_waiting {
            return Err(Full { waiting: self.waiting.len() });
        }
        self.waiting.push_back(request);
        if self.in_flight == MAX_IN_FLIGHT {
            return Ok(Next::Wait);
        }
        self.in_flight += 1;
        Ok(Next::Send)
    }

    /// The next batch for one who sends, of `weight` up to [`MAX_BATCH`], or of one request that is
    /// heavier. Empty if nothing waits: then it must stop sending.
    pub(super) fn take(&mut self, weight: impl Fn(&T) -> usize) -> Vec<T> {
        let mut total = 0;
        let fits = |request: &&T| {
            total += weight(request);
            total <= MAX_BATCH
        };
        let count = self.waiting.iter().take_while(fits).count().max(1);
        let batch: Vec<T> = self.waiting.drain(..count.min(self.waiting.len())).collect();
        if batch.is_empty() {
            self.in_flight -= 1;
        }
        batch
    }

    /// Everything that waits, for one who cannot go on sending.
    pub(super) fn give_up(&mut self) -> VecDeque<T> {
        self.in_flight -= 1;
        std::mem::take(&mut self.waiting)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn batcher() -> Batcher<usize> {
        Batcher::new(1_000)
    }

    #[test]
    fn the_first_goes_at_once_and_what_comes_meanwhile_goes_together() {
        let mut batcher = batcher();
        for sender in 0..MAX_IN_FLIGHT {
            assert_eq!(batcher.put(sender), Ok(Next::Send));
            assert_eq!(batcher.take(|_| 1), [sender]);
        }
        for request in 10..15 {
            assert_eq!(batcher.put(request), Ok(Next::Wait));
        }
        assert_eq!(batcher.take(|_| 1), [10, 11, 12, 13, 14]);
    }

    #[test]
    fn who_finds_nothing_stops_and_the_next_request_begins_again() {
        let mut batcher = batcher();
        for _ in 0..10 {
            assert_eq!(batcher.put(1), Ok(Next::Send));
            assert_eq!(batcher.take(|_| 1), [1]);
            assert_eq!(batcher.take(|_| 1), []);
        }
    }

    #[test]
    fn a_batch_is_bounded_by_weight_and_a_heavy_request_goes_alone() {
        let mut batcher = batcher();
        let weight = |request: &usize| *request;
        for request in [40, 24, 1, 500, 7] {
            batcher.put(request).unwrap();
        }
        for expected in [&[40, 24][..], &[1], &[500], &[7], &[]] {
            assert_eq!(batcher.take(weight), expected);
        }
    }

    #[test]
    fn the_queue_is_bounded_and_has_room_again() {
        let mut batcher = Batcher::new(2);
        assert_eq!(batcher.put(1), Ok(Next::Send));
        assert_eq!(batcher.put(2), Ok(Next::Send));
        assert_eq!(batcher.put(3), Err(Full { waiting: 2 }));
        assert_eq!(batcher.take(|_| 1), [1, 2]);
        assert_eq!(batcher.put(3), Ok(Next::Wait));
    }

    #[test]
    fn one_who_gives_up_leaves_nothing_behind_and_others_can_send() {
        let mut batcher = batcher();
        batcher.put(1).unwrap();
        batcher.take(|_| 1);
        batcher.put(2).unwrap();
        assert_eq!(batcher.give_up(), [2]);
        assert_eq!(batcher.put(3), Ok(Next::Send));
    }
}
