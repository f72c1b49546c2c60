//! The queue of requests for one server, and when they are sent. No clock and no I/O.
//!
//! A request that arrives while fewer than two batches are in flight is sent at once. Other requests wait until a batch
//! is answered, and are then sent together. There is no timer: a request never waits until a batch is full.
//!
//! Slow requests have a lane and a quota of their own, so that a client that sends many of them does
//! not delay the checks of other clients: slow requests are sent in separate batches, one batch at a
//! time, and after each slow batch, waiting checks of three times its weight are sent first.

use std::collections::VecDeque;

/// The number of batches that may be in flight at once: while the server works on one batch, the next one is made.
const MAX_IN_FLIGHT: usize = 2;

/// The largest weight of a batch. The server serves nothing else while it runs a batch: about 4 us per unit of weight,
/// and at most 2 ms, as the tests in `costs.rs` assert.
pub(super) const MAX_BATCH: usize = 64;

/// The weight of other requests, if any wait, that is sent for each unit of weight of slow requests.
const OTHERS_PER_SLOW: usize = 3;

/// Requests that wait to be sent.
#[derive(Debug)]
pub(super) struct Batcher<T> {
    queues: [LaneQueue<T>; 3],
    /// The number of the request that was put in last.
    newest: u64,
    in_flight: usize,
    is_slow_in_flight: bool,
    /// The weight of other requests that is sent before the next slow batch, if that much waits.
    others_first: usize,
    bounds: QueueBounds,
}

/// The largest weights that may wait.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueBounds {
    pub(super) slow: usize,
    pub(super) others: usize,
}

/// The queue in which a request waits. The requests in the lanes `Usual` and `LongDeadline` together are sent in order of
/// arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    Usual,
    /// Requests whose time is longer than the limiter's deadline. They have a lane of their own, so that each queue is in the
    /// order of the deadlines.
    LongDeadline,
    /// Requests that may take the server much longer than a check.
    Slow,
}

impl Lane {
    pub(super) const ALL: [Lane; 3] = [Lane::Usual, Lane::LongDeadline, Lane::Slow];

    /// The lanes whose requests share batches, in order of arrival.
    const OTHERS: [Lane; 2] = [Lane::Usual, Lane::LongDeadline];
}

/// The requests to send next.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Batch<T> {
    pub(super) requests: Vec<T>,
    /// Whether these are slow requests. Their sender then calls [`Batcher::finish_slow`] afterwards.
    pub(super) is_slow: bool,
}

/// The next action of the caller that has put a request into a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextAction {
    /// The caller starts to send: it takes batches until one is empty.
    Send,
    /// Nothing: another task is sending, and will send the request too.
    Wait,
}

/// There is no room for the request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct QueueFull<T> {
    pub(super) request: T,
    /// The weight of the requests that wait already in the lanes which share a bound with its lane.
    pub(super) waiting: usize,
}

impl<T> Batcher<T> {
    pub(super) fn new(bounds: QueueBounds) -> Batcher<T> {
        Batcher {
            queues: Lane::ALL.map(|_| LaneQueue::new()),
            newest: 0,
            in_flight: 0,
            is_slow_in_flight: false,
            others_first: 0,
            bounds,
        }
    }

    /// Returns the weight of all waiting requests.
    pub(super) fn weight(&self) -> usize {
        self.queues.iter().map(|queue| queue.weight).sum()
    }

    fn queue(&mut self, lane: Lane) -> &mut LaneQueue<T> {
        &mut self.queues[lane as usize]
    }

    /// Returns the weight that waits in the lanes which share a bound with `lane`, and that bound.
    fn waiting_and_bound(&self, lane: Lane) -> (usize, usize) {
        let slow = self.queues[Lane::Slow as usize].weight;
        match lane {
            Lane::Slow => (slow, self.bounds.slow),
            Lane::Usual | Lane::LongDeadline => (self.weight() - slow, self.bounds.others),
        }
    }

    /// Puts a request at the end of a queue. A request that is heavier than the bound is accepted when nothing waits.
    pub(super) fn put(
        &mut self,
        request: T,
        weight: usize,
        lane: Lane,
    ) -> Result<NextAction, QueueFull<T>> {
        let (waiting, most) = self.waiting_and_bound(lane);
        if waiting > 0 && waiting.saturating_add(weight) > most {
            return Err(QueueFull { request, waiting });
        }
        self.newest += 1;
        let number = self.newest;
        self.queue(lane).put(number, request, weight);
        if self.in_flight == MAX_IN_FLIGHT {
            return Ok(NextAction::Wait);
        }
        self.in_flight += 1;
        Ok(NextAction::Send)
    }

    /// Returns the next batch for a sender: up to [`MAX_BATCH`] in weight, or one request that is heavier. Empty if no
    /// waiting request may be sent: the caller must then stop sending.
    pub(super) fn take(&mut self) -> Batch<T> {
        let is_slow = self.is_next_slow();
        let lanes = if is_slow { &[Lane::Slow][..] } else { &Lane::OTHERS };
        let mut requests = Vec::new();
        let mut total = 0;
        while let Some((lane, weight)) = self.next(lanes) {
            if total + weight > MAX_BATCH && !requests.is_empty() {
                break;
            }
            total += weight;
            requests.extend(self.queue(lane).pop());
        }
        if is_slow {
            self.is_slow_in_flight = true;
            self.others_first = total * OTHERS_PER_SLOW;
        } else {
            self.others_first = self.others_first.saturating_sub(total);
        }
        if requests.is_empty() {
            self.in_flight -= 1;
        }
        Batch { requests, is_slow }
    }

    /// Whether the next batch is of slow requests.
    fn is_next_slow(&mut self) -> bool {
        let has_others = self.next(&Lane::OTHERS).is_some();
        let may_go = !self.is_slow_in_flight && (self.others_first == 0 || !has_others);
        may_go && self.next(&[Lane::Slow]).is_some()
    }

    /// Allows another slow batch: the last one was answered or given up.
    pub(super) fn finish_slow(&mut self) {
        self.is_slow_in_flight = false;
    }

    /// Returns the lane of the request that came first, and its weight.
    fn next(&self, lanes: &[Lane]) -> Option<(Lane, usize)> {
        let fronts = lanes.iter().filter_map(|&lane| {
            let BatchEntry { number, request } = self.queues[lane as usize].waiting.front()?;
            Some((*number, lane, request.as_ref()?.1))
        });
        let first = fronts.min_by_key(|(number, ..)| *number);
        first.map(|(_, lane, weight)| (lane, weight))
    }

    /// Returns the first request of a queue.
    pub(super) fn front(&self, lane: Lane) -> Option<&T> {
        self.queues[lane as usize].front()
    }

    /// Removes requests from the front of a queue while `is_overdue` holds, and returns them.
    pub(super) fn take_overdue(&mut self, lane: Lane, is_overdue: impl Fn(&T) -> bool) -> Vec<T> {
        let queue = self.queue(lane);
        let mut over = Vec::new();
        while queue.front().is_some_and(&is_overdue) {
            over.extend(queue.pop());
        }
        over
    }

    /// Returns the number of the request that was put in last.
    pub(super) fn newest(&self) -> u64 {
        self.newest
    }

    /// Removes a request by its number, if it still waits. A binary search, so that long queues cost little
    /// more: under load all requests may time out at once.
    pub(super) fn remove(&mut self, number: u64) -> Option<T> {
        self.queues.iter_mut().find_map(|queue| queue.remove(number))
    }

    /// Removes and returns all waiting requests, in order of arrival, for a sender that has to stop.
    pub(super) fn give_up(&mut self) -> Vec<T> {
        self.in_flight -= 1;
        self.is_slow_in_flight = false;
        let queues = std::mem::replace(&mut self.queues, Lane::ALL.map(|_| LaneQueue::new()));
        let mut places: Vec<_> = queues.into_iter().flat_map(|queue| queue.waiting).collect();
        places.sort_unstable_by_key(|place| place.number);
        places.into_iter().filter_map(|place| Some(place.request?.0)).collect()
    }
}

/// The queue of one lane.
#[derive(Debug)]
struct LaneQueue<T> {
    /// In the order of their numbers; the first entry is not empty.
    waiting: VecDeque<BatchEntry<T>>,
    /// How many entries are empty.
    empty: usize,
    /// The weight of the requests in the queue.
    weight: usize,
}

#[derive(Debug)]
struct BatchEntry<T> {
    number: u64,
    /// The request and its weight; `None` if it was removed.
    request: Option<(T, usize)>,
}

impl<T> LaneQueue<T> {
    fn new() -> LaneQueue<T> {
        LaneQueue { waiting: VecDeque::new(), empty: 0, weight: 0 }
    }

    fn put(&mut self, number: u64, request: T, weight: usize) {
        self.waiting.push_back(BatchEntry { number, request: Some((request, weight)) });
        self.weight += weight;
    }

    fn front(&self) -> Option<&T> {
        self.waiting.front()?.request.as_ref().map(|(request, _)| request)
    }

    fn pop(&mut self) -> Option<T> {
        let (first, weight) = self.waiting.pop_front()?.request?;
        self.weight -= weight;
        self.skip_empty();
        Some(first)
    }

    fn remove(&mut self, number: u64) -> Option<T> {
        let at = self.waiting.binary_search_by_key(&number, |place| place.number).ok()?;
        let (removed, weight) = self.waiting[at].request.take()?;
        self.weight -= weight;
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
    use super::Lane::{LongDeadline, Slow, Usual};
    use super::*;

    fn batcher() -> Batcher<usize> {
        with_room(1_000)
    }

    fn with_room(others: usize) -> Batcher<usize> {
        Batcher::new(QueueBounds { slow: 200, others })
    }

    /// Returns the requests of the next batch, which must not be slow.
    fn take(batcher: &mut Batcher<usize>) -> Vec<usize> {
        let Batch { requests, is_slow } = batcher.take();
        assert!(!is_slow);
        requests
    }

    #[test]
    fn first_request_is_sent_at_once_and_later_ones_together() {
        let mut batcher = batcher();
        for sender in 0..MAX_IN_FLIGHT {
            assert_eq!(batcher.put(sender, 1, Usual), Ok(NextAction::Send));
            assert_eq!(take(&mut batcher), [sender]);
        }
        for request in 10..15 {
            assert_eq!(batcher.put(request, 1, Usual), Ok(NextAction::Wait));
        }
        assert_eq!(take(&mut batcher), [10, 11, 12, 13, 14]);
    }

    #[test]
    fn sender_stops_at_an_empty_batch_and_the_next_request_starts_another() {
        let mut batcher = batcher();
        for _ in 0..10 {
            assert_eq!(batcher.put(1, 1, Usual), Ok(NextAction::Send));
            assert_eq!(take(&mut batcher), [1]);
            assert!(take(&mut batcher).is_empty());
        }
    }

    #[test]
    fn batch_is_bounded_by_weight_and_a_heavy_request_goes_alone() {
        let mut batcher = batcher();
        for weight in [40, 24, 1, 500, 7] {
            batcher.put(weight, weight, Usual).unwrap();
        }
        for expected in [&[40, 24][..], &[1], &[500], &[7], &[]] {
            assert_eq!(take(&mut batcher), expected);
        }
        assert_eq!(batcher.weight(), 0);
    }

    #[test]
    fn queue_is_bounded_by_weight_and_has_room_again() {
        let mut batcher = with_room(20);
        assert_eq!(batcher.put(1, 12, Usual), Ok(NextAction::Send));
        assert_eq!(batcher.put(2, 8, Usual), Ok(NextAction::Send));
        assert_eq!(batcher.put(3, 1, Usual), Err(QueueFull { request: 3, waiting: 20 }));
        assert_eq!(take(&mut batcher), [1, 2]);
        assert_eq!(batcher.put(3, 30, Usual), Ok(NextAction::Wait), "into an empty queue");
        assert_eq!(batcher.put(4, 1, Usual), Err(QueueFull { request: 4, waiting: 30 }));
    }

    #[test]
    fn removed_requests_leave_room_and_keep_the_order_of_the_others() {
        let mut batcher = with_room(10);
        let numbers = [1, 2, 3, 4, 5].map(|request| {
            batcher.put(request, 2, Usual).unwrap();
            batcher.newest()
        });
        for (at, request) in [(1, Some(2)), (3, Some(4)), (1, None)] {
            assert_eq!(batcher.remove(numbers[at]), request);
        }
        assert_eq!(batcher.weight(), 6);
        assert!(batcher.put(6, 4, Usual).is_ok());
        assert_eq!(take(&mut batcher), [1, 3, 5, 6]);
        assert_eq!(batcher.remove(numbers[0]), None);
        assert_eq!((batcher.weight(), take(&mut batcher)), (0, vec![]));
    }

    #[test]
    fn removed_requests_leave_no_entries_behind_a_waiting_one() {
        let mut batcher = batcher();
        batcher.put(0, 1, Usual).unwrap();
        for request in 1..1_000 {
            batcher.put(request, 1, Usual).unwrap();
            assert_eq!(batcher.remove(batcher.newest()), Some(request));
            assert!(batcher.queues[0].waiting.len() <= 2);
        }
        assert_eq!((batcher.weight(), take(&mut batcher)), (1, vec![0]));
    }

    #[test]
    fn heavy_request_goes_into_a_queue_that_was_emptied() {
        let mut batcher = with_room(10);
        let numbers = [1, 2].map(|request| {
            batcher.put(request, 5, Usual).unwrap();
            batcher.newest()
        });
        assert!(batcher.put(3, 30, Usual).is_err());
        numbers.iter().for_each(|&number| assert!(batcher.remove(number).is_some()));
        assert!(batcher.put(3, 30, Usual).is_ok());
        assert_eq!(take(&mut batcher), [3]);
    }

    #[test]
    fn overdue_requests_are_removed_from_the_front_only() {
        let mut batcher = batcher();
        for request in [1, 2, 3, 9, 4] {
            batcher.put(request, 2, Usual).unwrap();
        }
        batcher.remove(1);
        assert_eq!(batcher.front(Usual), Some(&2));
        assert_eq!(batcher.take_overdue(Usual, |request| *request < 5), [2, 3]);
        assert_eq!((batcher.front(Usual), batcher.weight()), (Some(&9), 4));
        assert_eq!(batcher.take_overdue(Usual, |_| true), [9, 4]);
        assert_eq!((batcher.front(Usual), batcher.weight()), (None, 0));
        assert!(take(&mut batcher).is_empty());
    }

    #[test]
    fn sender_that_gives_up_leaves_nothing_behind_and_others_can_send() {
        let mut batcher = batcher();
        batcher.put(1, 1, Usual).unwrap();
        batcher.take();
        for (request, lane) in [(2, Usual), (3, Slow), (4, LongDeadline), (5, Usual)] {
            batcher.put(request, 1, lane).unwrap();
        }
        assert_eq!(batcher.give_up(), [2, 3, 4, 5], "in order of arrival");
        assert_eq!((batcher.weight(), batcher.put(6, 1, Usual)), (0, Ok(NextAction::Send)));
    }

    #[test]
    fn usual_requests_and_those_with_a_long_deadline_are_sent_in_order_of_arrival() {
        let mut batcher = with_room(10);
        for (request, lane) in
            [(1, LongDeadline), (2, Usual), (3, Usual), (4, LongDeadline), (5, Usual)]
        {
            batcher.put(request, 2, lane).unwrap();
        }
        assert_eq!(batcher.put(6, 1, LongDeadline), Err(QueueFull { request: 6, waiting: 10 }));
        assert_eq!(batcher.remove(3), Some(3));
        assert_eq!(take(&mut batcher), [1, 2, 4, 5]);
        assert_eq!((batcher.weight(), take(&mut batcher)), (0, vec![]));
    }

    #[test]
    fn request_with_a_long_deadline_does_not_hide_overdue_ones() {
        let mut batcher = batcher();
        for (request, lane) in [(1, LongDeadline), (2, Usual), (3, Usual)] {
            batcher.put(request, 1, lane).unwrap();
        }
        assert_eq!((batcher.front(LongDeadline), batcher.front(Usual)), (Some(&1), Some(&2)));
        assert_eq!(batcher.take_overdue(Usual, |_| true), [2, 3]);
        assert_eq!((batcher.weight(), batcher.give_up()), (1, vec![1]));
    }

    #[test]
    fn slow_requests_are_sent_in_separate_batches_one_at_a_time() {
        let mut batcher = batcher();
        for request in [1, 2, 3] {
            batcher.put(request, 32, Slow).unwrap();
        }
        batcher.put(4, 1, Usual).unwrap();
        assert_eq!(batcher.take(), Batch { requests: vec![1, 2], is_slow: true });
        assert_eq!(take(&mut batcher), [4], "checks are sent meanwhile");
        assert!(take(&mut batcher).is_empty(), "the third waits for the answers of the first two");
        batcher.finish_slow();
        assert_eq!(batcher.take(), Batch { requests: vec![3], is_slow: true });
    }

    #[test]
    fn waiting_checks_get_three_times_the_weight_of_slow_requests() {
        let mut batcher = batcher();
        for _ in 0..2 {
            batcher.put(0, 64, Slow).unwrap();
        }
        for request in 1..=8 {
            batcher.put(request, 64, Usual).unwrap();
        }
        let mut order = Vec::new();
        for _ in 0..10 {
            order.extend(batcher.take().requests);
            batcher.finish_slow();
        }
        assert_eq!(order, [0, 1, 2, 3, 0, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn slow_requests_have_a_queue_bound_of_their_own() {
        let mut batcher = with_room(20);
        batcher.put(1, 190, Slow).unwrap();
        assert_eq!(batcher.put(2, 11, Slow), Err(QueueFull { request: 2, waiting: 190 }));
        batcher.put(3, 20, Usual).unwrap();
        assert_eq!(batcher.put(4, 1, LongDeadline), Err(QueueFull { request: 4, waiting: 20 }));
        assert!(batcher.put(5, 10, Slow).is_ok());
    }

    #[test]
    fn slow_batch_that_is_given_up_does_not_block_the_next() {
        let mut batcher = batcher();
        batcher.put(1, 64, Slow).unwrap();
        assert!(batcher.take().is_slow);
        assert!(batcher.give_up().is_empty());
        batcher.put(2, 64, Slow).unwrap();
        assert_eq!(batcher.take().requests, [2]);
    }
}
