//! The events of a run, in the order of their time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Events that have not happened yet. Events of one instant happen in the order in which they were added.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    heap: BinaryHeap<Reverse<Scheduled<E>>>,
    added: u64,
}

#[derive(Debug)]
struct Scheduled<E> {
    at_us: u64,
    number: u64,
    event: E,
}

impl<E> Scheduled<E> {
    const fn order(&self) -> (u64, u64) {
        (self.at_us, self.number)
    }
}

impl<E> PartialEq for Scheduled<E> {
    fn eq(&self, other: &Scheduled<E>) -> bool {
        self.order() == other.order()
    }
}

impl<E> Eq for Scheduled<E> {}

impl<E> PartialOrd for Scheduled<E> {
    fn partial_cmp(&self, other: &Scheduled<E>) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Scheduled<E> {
    fn cmp(&self, other: &Scheduled<E>) -> std::cmp::Ordering {
        self.order().cmp(&other.order())
    }
}

impl<E> EventQueue<E> {
    pub(crate) fn new() -> EventQueue<E> {
        EventQueue { heap: BinaryHeap::new(), added: 0 }
    }

    pub(crate) fn add(&mut self, at_us: u64, event: E) {
        self.added += 1;
        self.heap.push(Reverse(Scheduled { at_us, number: self.added, event }));
    }

    /// Removes and returns the next event and its time.
    pub(crate) fn next(&mut self) -> Option<(u64, E)> {
        self.heap.pop().map(|Reverse(scheduled)| (scheduled.at_us, scheduled.event))
    }
}
