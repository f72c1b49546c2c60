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
    queues: [Queue<T>; 2],
    /// The number of the last that was put in.
    newest: u64,
    /// Of all that wait.
    weight: usize,
    in_flight: usize,
    max_weight: usize,
}

/// Where a request waits. They go in the order in which they came, wherever that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Usual,
    /// Of those who have longer: nobody is behind them who must be told before them.
    Patient,
}

impl Lane {
    pub(super) const ALL: [Lane; 2] = [Lane::Usual, Lane::Patient];
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
pub(super) struct Full<T> {
    pub(super) request: T,
    /// The weight of what waits already.
    pub(super) waiting: usize,
}

impl<T> Batcher<T> {
    pub(super) fn new(max_weight: usize) -> Batcher<T> {
        let queues = [Queue::new(), Queue::new()];
        Batcher { queues, newest: 0, weight: 0, in_flight: 0, max_weight }
    }

    /// The weight of all that wait.
    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    /// Puts a request at the end of a queue. What is too heavy for any queue goes in when nothing waits.
    pub(super) fn put(&mut self, request: T, weight: usize, lane: Lane) -> Result<Next, Full<T>> {
        let is_full = self.weight.saturating_add(weight) > self.max_weight;
        if is_full && self.queues.iter().any(|queue| queue.front().is_some()) {
            return Err(Full { request, waiting: self.weight });
        }
        self.newest += 1;
        self.weight += weight;
        self.queues[lane as usize].put(self.newest, request, weight);
        if self.in_flight == MAX_IN_FLIGHT {
            return Ok(Next::Wait);
        }
        self.in_flight += 1;
        Ok(Next::Send)
    }

    /// The next batch for one who sends, of a weight up to [`MAX_BATCH`], or of one request that is
    /// heavier. Empty if nothing waits: then it must stop sending.
    pub(super) fn take(&mut self) -> Vec<T> {
        let mut batch = Vec::new();
        let mut total = 0;
        while let Some((queue, weight)) = self.next() {
            total += weight;
            if total > MAX_BATCH && !batch.is_empty() {
                break;
            }
            batch.extend(queue.pop().map(|(request, _)| request));
            self.weight -= weight;
        }
        if batch.is_empty() {
            self.in_flight -= 1;
        }
        batch
    }

    /// The queue of the one that came first, and its weight.
    fn next(&mut self) -> Option<(&mut Queue<T>, usize)> {
        let fronts = self.queues.iter_mut().filter_map(|queue| {
            let Place { number, request } = queue.waiting.front()?;
            let (number, weight) = (*number, request.as_ref()?.1);
            Some((number, queue, weight))
        });
        let first = fronts.min_by_key(|(number, ..)| *number);
        first.map(|(_, queue, weight)| (queue, weight))
    }

    /// The first in a queue.
    pub(super) fn front(&self, lane: Lane) -> Option<&T> {
        self.queues[lane as usize].front()
    }

    /// Takes those out of the front of a queue that need not wait any longer, up to the first that must.
    pub(super) fn take_over(&mut self, lane: Lane, is_over: impl Fn(&T) -> bool) -> Vec<T> {
        let queue = &mut self.queues[lane as usize];
        let mut over = Vec::new();
        while queue.front().is_some_and(&is_over) {
            if let Some((request, weight)) = queue.pop() {
                self.weight -= weight;
                over.push(request);
            }
        }
        over
    }

    /// The number of the request that was put in last.
    pub(super) fn newest(&self) -> u64 {
        self.newest
    }

    /// Takes out one that need not wait any longer, if it still does. However many wait, that takes no
    /// time to speak of: under load they all may be over at once.
    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        let (request, weight) = self.queues.iter_mut().find_map(|queue| queue.remove(number))?;
        self.weight -= weight;
        Some(request)
    }

    /// Everything that waits, for one who cannot go on sending.
    pub(super) fn give_up(&mut self) -> Vec<T> {
        self.in_flight -= 1;
        self.weight = 0;
        let queues = std::mem::replace(&mut self.queues, [Queue::new(), Queue::new()]);
        let places = queues.into_iter().flat_map(|queue| queue.waiting);
        places.filter_map(|place| Some(place.request?.0)).collect()
    }
}

/// Those of one lane.
#[derive(Debug)]
struct Queue<T> {
    /// In the order of their numbers; the first is not empty.
    waiting: VecDeque<Place<T>>,
    /// How many of the places are empty.
    empty: usize,
}

#[derive(Debug)]
struct Place<T> {
    number: u64,
    /// With its weight; none if it was taken out.
    request: Option<(T, usize)>,
}

impl<T> Queue<T> {
    fn new() -> Queue<T> {
        Queue { waiting: VecDeque::new(), empty: 0 }
    }

    fn put(&mut self, number: u64, request: T, weight: usize) {
        self.waiting.push_back(Place { number, request: Some((request, weight)) });
    }

    fn front(&self) -> Option<&T> {
        self.waiting.front()?.request.as_ref().map(|(request, _)| request)
    }

    fn pop(&mut self) -> Option<(T, usize)> {
        let first = self.waiting.pop_front()?.request;
        self.skip_empty();
        first
    }

    fn remove(&mut self, number: u64) -> Option<(T, usize)> {
        let at = self.waiting.binary_search_by_key(&number, |place| place.number).ok()?;
        let removed = self.waiting[at].request.take()?;
        self.empty += 1;
        self.skip_empty();
        if self.empty > self.waiting.len() / 2 {
            self.waiting.retain(|place| place.request.is_some());
            self.empty = 0;
        }
        Some(removed)
    }

    fn skip_empty(&mut self) {
        while self.waiting.pop_front_if(|place| place.request.is_none()).is_some() {
            self.empty -= 1;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::Lane::{Patient, Usual};
    use super::*;

    fn batcher() -> Batcher<usize> {
        Batcher::new(1_000)
    }

    #[test]
    fn the_first_goes_at_once_and_what_comes_meanwhile_goes_together() {
        let mut batcher = batcher();
        for sender in 0..MAX_IN_FLIGHT {
            assert_eq!(batcher.put(sender, 1, Usual), Ok(Next::Send));
            assert_eq!(batcher.take(), [sender]);
        }
        for request in 10..15 {
            assert_eq!(batcher.put(request, 1, Usual), Ok(Next::Wait));
        }
        assert_eq!(batcher.take(), [10, 11, 12, 13, 14]);
    }

    #[test]
    fn who_finds_nothing_stops_and_the_next_request_begins_again() {
        let mut batcher = batcher();
        for _ in 0..10 {
            assert_eq!(batcher.put(1, 1, Usual), Ok(Next::Send));
            assert_eq!(batcher.take(), [1]);
            assert!(batcher.take().is_empty());
        }
    }

    #[test]
    fn a_batch_is_bounded_by_weight_and_a_heavy_request_goes_alone() {
        let mut batcher = batcher();
        for weight in [40, 24, 1, 500, 7] {
            batcher.put(weight, weight, Usual).unwrap();
        }
        for expected in [&[40, 24][..], &[1], &[500], &[7], &[]] {
            assert_eq!(batcher.take(), expected);
        }
        assert_eq!(batcher.weight(), 0);
    }

    #[test]
    fn the_queue_is_bounded_by_weight_and_has_room_again() {
        let mut batcher = Batcher::new(20);
        assert_eq!(batcher.put(1, 12, Usual), Ok(Next::Send));
        assert_eq!(batcher.put(2, 8, Usual), Ok(Next::Send));
        assert_eq!(batcher.put(3, 1, Usual), Err(Full { request: 3, waiting: 20 }));
        assert_eq!(batcher.take(), [1, 2]);
        assert_eq!(batcher.put(3, 30, Usual), Ok(Next::Wait), "into an empty queue");
        assert_eq!(batcher.put(4, 1, Usual), Err(Full { request: 4, waiting: 30 }));
    }

    #[test]
    fn what_is_taken_out_leaves_room_and_the_others_their_order() {
        let mut batcher = Batcher::new(10);
        let numbers = [1, 2, 3, 4, 5].map(|request| {
            batcher.put(request, 2, Usual).unwrap();
            batcher.newest()
        });
        for (at, request) in [(1, Some(2)), (3, Some(4)), (1, None)] {
            assert_eq!(batcher.remove(numbers[at]), request);
        }
        assert_eq!(batcher.weight(), 6);
        assert!(batcher.put(6, 4, Usual).is_ok());
        assert_eq!(batcher.take(), [1, 3, 5, 6]);
        assert_eq!(batcher.remove(numbers[0]), None);
        assert_eq!((batcher.weight(), batcher.take()), (0, vec![]));
    }

    #[test]
    fn what_is_taken_out_behind_one_that_waits_leaves_nothing_behind() {
        let mut batcher = batcher();
        batcher.put(0, 1, Usual).unwrap();
        for request in 1..1_000 {
            batcher.put(request, 1, Usual).unwrap();
            assert_eq!(batcher.remove(batcher.newest()), Some(request));
            assert!(batcher.queues[0].waiting.len() <= 2);
        }
        assert_eq!((batcher.weight(), batcher.take()), (1, vec![0]));
    }

    #[test]
    fn what_is_too_heavy_goes_into_a_queue_that_was_emptied() {
        let mut batcher = Batcher::new(10);
        let numbers = [1, 2].map(|request| {
            batcher.put(request, 5, Usual).unwrap();
            batcher.newest()
        });
        assert!(batcher.put(3, 30, Usual).is_err());
        numbers.iter().for_each(|&number| assert!(batcher.remove(number).is_some()));
        assert!(batcher.put(3, 30, Usual).is_ok());
        assert_eq!(batcher.take(), [3]);
    }

    #[test]
    fn those_at_the_front_are_taken_out_up_to_the_first_that_must_wait() {
        let mut batcher = batcher();
        for request in [1, 2, 3, 9, 4] {
            batcher.put(request, 2, Usual).unwrap();
        }
        batcher.remove(1);
        assert_eq!(batcher.front(Usual), Some(&2));
        assert_eq!(batcher.take_over(Usual, |request| *request < 5), [2, 3]);
        assert_eq!((batcher.front(Usual), batcher.weight()), (Some(&9), 4));
        assert_eq!(batcher.take_over(Usual, |_| true), [9, 4]);
        assert_eq!((batcher.front(Usual), batcher.weight()), (None, 0));
        assert!(batcher.take().is_empty());
    }

    #[test]
    fn one_who_gives_up_leaves_nothing_behind_and_others_can_send() {
        let mut batcher = batcher();
        batcher.put(1, 1, Usual).unwrap();
        batcher.take();
        batcher.put(2, 1, Usual).unwrap();
        assert_eq!(batcher.give_up(), [2]);
        assert_eq!((batcher.weight(), batcher.put(3, 1, Usual)), (0, Ok(Next::Send)));
    }

    #[test]
    fn those_of_both_lanes_go_in_the_order_in_which_they_came() {
        let mut batcher = Batcher::new(10);
        for (request, lane) in [(1, Patient), (2, Usual), (3, Usual), (4, Patient), (5, Usual)] {
            batcher.put(request, 2, lane).unwrap();
        }
        assert_eq!(batcher.put(6, 1, Patient), Err(Full { request: 6, waiting: 10 }));
        assert_eq!(batcher.remove(3), Some(3));
        assert_eq!(batcher.take(), [1, 2, 4, 5]);
        assert_eq!((batcher.weight(), batcher.take()), (0, vec![]));
    }

    #[test]
    fn one_who_is_patient_does_not_hide_others_who_are_over() {
        let mut batcher = batcher();
        for (request, lane) in [(1, Patient), (2, Usual), (3, Usual)] {
            batcher.put(request, 1, lane).unwrap();
        }
        assert_eq!((batcher.front(Patient), batcher.front(Usual)), (Some(&1), Some(&2)));
        assert_eq!(batcher.take_over(Usual, |_| true), [2, 3]);
        assert_eq!((batcher.weight(), batcher.give_up()), (1, vec![1]));
    }
}
