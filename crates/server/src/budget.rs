//! How many bytes requests and answers may take in memory, all together.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use axum::body::{Body, Bytes};

use crate::http::Problem;

/// What a request or an answer takes without being counted: every check, and nearly every answer to one, so they go on
/// whatever others take. Connections bound these: 10,000 with as much are 40 MiB.
pub(crate) const SMALL_BYTES: usize = 4 << 10;

/// What requests take at most, bodies and answers. 64 of the longest bodies, or 8 of the longest answers: as much as the
/// keys have unless told otherwise, and far more than clients need that read what they asked for.
pub(crate) const REQUEST_BYTES: u32 = 64 << 20;

/// Beside these, what answers take at most that describe the server: its metrics are seen even then.
pub(crate) const PAGE_BYTES: u32 = 16 << 20;

/// Bytes are taken so many at a time: a batch does not ask for every answer.
const STEP_BYTES: usize = 64 << 10;

/// So many bytes, for whoever needs them.
#[derive(Debug)]
pub(crate) struct Budget {
    /// Below 0 if somebody took more than there were.
    free: Arc<AtomicI64>,
}

/// Bytes of a budget, which has them back when this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    bytes: usize,
    free: Arc<AtomicI64>,
}

/// There are not as many bytes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Exhausted;

impl Budget {
    pub(crate) fn new(bytes: u32) -> Budget {
        Budget { free: Arc::new(AtomicI64::new(bytes.into())) }
    }

    /// Nothing yet.
    pub(crate) fn held(&self) -> Held {
        Held { bytes: 0, free: Arc::clone(&self.free) }
    }

    /// An answer, which holds what it takes until it is sent or given up.
    pub(crate) fn body(&self, answer: Vec<u8>) -> Result<Body, Exhausted> {
        if answer.len() <= SMALL_BYTES {
            return Ok(Body::from(answer));
        }
        let mut held = self.held();
        held.grow_to(answer.len())?;
        Ok(held.body(answer))
    }

    /// The same of an answer that must be given, because what it tells is done: it may be more than there is, and then
    /// others have nothing until it is sent.
    pub(crate) fn body_anyway(&self, answer: Vec<u8>) -> Body {
        if answer.len() <= SMALL_BYTES {
            return Body::from(answer);
        }
        self.held().body(answer)
    }
}

impl Held {
    /// Holds at least so many, if there are.
    pub(crate) fn grow_to(&mut self, bytes: usize) -> Result<(), Exhausted> {
        if bytes <= self.bytes || bytes <= SMALL_BYTES {
            return Ok(());
        }
        let bytes = bytes.next_multiple_of(STEP_BYTES);
        // OK because nothing in memory has 2^63 bytes.
        let more = (bytes - self.bytes) as i64;
        let take = |free: i64| (free >= more).then_some(free - more);
        let taken = self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map_err(|_| Exhausted)?;
        self.bytes = bytes;
        Ok(())
    }

    /// Holds at least so many, whether there are or not.
    pub(crate) fn keep(&mut self, bytes: usize) {
        if bytes > self.bytes && bytes > SMALL_BYTES {
            self.set(bytes);
        }
    }

    /// Holds exactly so many, whether there are or not.
    fn set(&mut self, bytes: usize) {
        // OK as above.
        let more = bytes as i64 - self.bytes as i64;
        self.free.fetch_sub(more, Ordering::Relaxed);
        self.bytes = bytes;
    }

    /// Bytes that hold what they take.
    pub(crate) fn bytes(self, bytes: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(Kept { bytes, _held: self })
    }

    /// An answer that does.
    pub(crate) fn body(mut self, mut answer: Vec<u8>) -> Body {
        // What it had grown to is up to twice as much.
        answer.shrink_to_fit();
        self.set(answer.capacity());
        Body::from(self.bytes(answer))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.set(0);
    }
}

struct Kept<T> {
    bytes: T,
    _held: Held,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for Kept<T> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

impl From<Exhausted> for Problem {
    fn from(_: Exhausted) -> Problem {
        Problem::no_memory()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(budget: &Budget) -> i64 {
        budget.free.load(Ordering::Relaxed)
    }

    const STEP: i64 = STEP_BYTES as i64;

    #[test]
    fn what_is_held_is_given_back() {
        let budget = Budget::new(4 * STEP_BYTES as u32);
        let mut held = budget.held();
        held.grow_to(SMALL_BYTES).unwrap();
        assert_eq!(free(&budget), 4 * STEP, "small ones are free");
        held.grow_to(SMALL_BYTES + 1).unwrap();
        assert_eq!(free(&budget), 3 * STEP);
        held.grow_to(STEP_BYTES).unwrap();
        held.grow_to(10).unwrap();
        assert_eq!(free(&budget), 3 * STEP, "there is enough already");
        held.grow_to(3 * STEP_BYTES).unwrap();
        assert_eq!(free(&budget), STEP);
        assert_eq!(held.grow_to(5 * STEP_BYTES), Err(Exhausted));
        assert_eq!(budget.held().grow_to(2 * STEP_BYTES), Err(Exhausted));
        assert_eq!(free(&budget), STEP, "who gets nothing takes nothing");
        drop(held);
        assert_eq!(free(&budget), 4 * STEP);
    }

    #[test]
    fn bytes_and_answers_hold_until_nobody_has_them() {
        let budget = Budget::new(4 * STEP_BYTES as u32);
        let mut held = budget.held();
        held.grow_to(2 * STEP_BYTES).unwrap();
        let bytes = held.bytes(vec![b'x'; 100_000]);
        let slice = bytes.slice(..10);
        drop(bytes);
        assert_eq!(free(&budget), 2 * STEP);
        assert_eq!(slice, "xxxxxxxxxx");
        drop(slice);
        assert_eq!(free(&budget), 4 * STEP);

        let small = budget.body(vec![b'x'; SMALL_BYTES]).unwrap();
        assert_eq!(free(&budget), 4 * STEP);
        let mut answer = Vec::with_capacity(100_000);
        answer.resize(50_000, b'x');
        let large = budget.body(answer).unwrap();
        assert_eq!(
            free(&budget),
            4 * STEP - 50_000,
            "as long as it is, and not as long as it might"
        );
        assert!(budget.body(vec![b'x'; 250_000]).is_err());
        let anyway = budget.body_anyway(vec![b'x'; 250_000]);
        assert!(free(&budget) < 0);
        assert!(budget.body(vec![b'x'; SMALL_BYTES + 1]).is_err());
        drop((small, large, anyway));
        assert_eq!(free(&budget), 4 * STEP);
    }
}
