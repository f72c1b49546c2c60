//! The memory that requests and answers may take, on all connections together.
//!
//! - `account`: what one connection holds, and which connection is closed when the budget is spent

mod account;

use std::sync::Arc;

use axum::body::{Body, Bytes};

pub use account::{BudgetExhausted, MemoryAccount, MemoryCharge};

use account::Ledger;

/// The largest body or answer that counts as small. Small bodies and answers on the HTTP port are part of what a
/// connection takes; on the gRPC port, which has many calls on one connection, each call is charged for its own.
pub const SMALL_BYTES: usize = 4 << 10;

/// The step in which a growing body or answer takes bytes, so that a batch does not do so for each of its answers.
const STEP_BYTES: usize = 64 << 10;

/// A number of bytes that requests and answers share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Budget {
    ledger: Arc<Ledger>,
}

/// Bytes of a budget, which are given back when this is dropped.
#[derive(Debug)]
pub struct HeldMemory {
    bytes: usize,
    ledger: Arc<Ledger>,
}

impl Budget {
    /// Creates a budget without a reserve.
    pub fn new(bytes: u32) -> Budget {
        Budget::with_reserve(bytes, 0)
    }

    /// Creates a budget whose last `reserve_bytes` are for small requests alone.
    pub fn with_reserve(bytes: u32, reserve_bytes: u32) -> Budget {
        Budget { ledger: Arc::new(Ledger::new(bytes, reserve_bytes)) }
    }

    /// Opens the account of a connection.
    pub(crate) fn account(&self) -> MemoryAccount {
        MemoryAccount::open(&self.ledger)
    }

    /// Returns a holder of 0 bytes, which can grow.
    pub fn held(&self) -> HeldMemory {
        HeldMemory { bytes: 0, ledger: Arc::clone(&self.ledger) }
    }

    /// Returns an answer's body, which holds its bytes until it is sent or dropped.
    pub fn body(&self, answer: Vec<u8>) -> Result<Body, BudgetExhausted> {
        if answer.len() <= SMALL_BYTES {
            return Ok(Body::from(answer));
        }
        let mut held = self.held();
        held.grow_to(answer.len())?;
        Ok(held.body(answer))
    }

    /// Returns the body of an answer that must be sent because its charge was made. It may exceed the budget; other large
    /// bodies then get no memory until it is sent.
    pub fn body_anyway(&self, answer: Vec<u8>) -> Body {
        if answer.len() <= SMALL_BYTES {
            return Body::from(answer);
        }
        self.held().body(answer)
    }
}

impl HeldMemory {
    /// Holds at least `bytes`, if the budget has them and its reserve stays untouched.
    pub fn grow_to(&mut self, bytes: usize) -> Result<(), BudgetExhausted> {
        if bytes <= self.bytes || bytes <= SMALL_BYTES {
            return Ok(());
        }
        let bytes = bytes.next_multiple_of(STEP_BYTES);
        // OK because nothing in memory has 2^63 bytes.
        self.ledger.take_large((bytes - self.bytes) as i64)?;
        self.bytes = bytes;
        Ok(())
    }

    /// Holds at least `bytes`, even when that exceeds the budget.
    pub fn keep(&mut self, bytes: usize) {
        if bytes > self.bytes && bytes > SMALL_BYTES {
            self.set(bytes);
        }
    }

    /// Holds exactly `bytes`, even when that exceeds the budget.
    fn set(&mut self, bytes: usize) {
        // OK because nothing in memory has 2^63 bytes.
        self.ledger.take_anyway(bytes as i64 - self.bytes as i64);
        self.bytes = bytes;
    }

    /// Returns `bytes` in a form that gives the held bytes back when its last clone is dropped.
    pub fn bytes(self, bytes: impl AsRef<[u8]> + Send + 'static) -> Bytes {
        Bytes::from_owner(HeldBytes { bytes, _held: self })
    }

    /// Returns an answer's body, which holds its bytes until it is sent or dropped.
    pub fn body(mut self, mut answer: Vec<u8>) -> Body {
        // A vector that grew may have twice the capacity that it needs.
        answer.shrink_to_fit();
        self.set(answer.capacity());
        Body::from(self.bytes(answer))
    }
}

impl Drop for HeldMemory {
    fn drop(&mut self) {
        self.set(0);
    }
}

struct HeldBytes<T> {
    bytes: T,
    _held: HeldMemory,
}

impl<T: AsRef<[u8]>> AsRef<[u8]> for HeldBytes<T> {
    fn as_ref(&self) -> &[u8] {
        self.bytes.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn free(budget: &Budget) -> i64 {
        budget.ledger.free_bytes()
    }

    const STEP: i64 = STEP_BYTES as i64;

    #[test]
    fn held_memory_is_given_back_when_dropped() {
        let budget = Budget::new(4 * STEP_BYTES as u32);
        let mut held = budget.held();
        held.grow_to(SMALL_BYTES).unwrap();
        assert_eq!(free(&budget), 4 * STEP, "small bodies are not charged");
        held.grow_to(SMALL_BYTES + 1).unwrap();
        assert_eq!(free(&budget), 3 * STEP);
        held.grow_to(STEP_BYTES).unwrap();
        held.grow_to(10).unwrap();
        assert_eq!(free(&budget), 3 * STEP, "enough is held already");
        held.grow_to(3 * STEP_BYTES).unwrap();
        assert_eq!(free(&budget), STEP);
        assert_eq!(held.grow_to(5 * STEP_BYTES), Err(BudgetExhausted));
        assert_eq!(budget.held().grow_to(2 * STEP_BYTES), Err(BudgetExhausted));
        assert_eq!(free(&budget), STEP, "a refused holder takes nothing");
        drop(held);
        assert_eq!(free(&budget), 4 * STEP);
    }

    #[test]
    fn large_bodies_leave_the_reserve_to_small_requests() {
        let budget = Budget::with_reserve(4 * STEP_BYTES as u32, STEP_BYTES as u32);
        let mut held = budget.held();
        assert_eq!(held.grow_to(4 * STEP_BYTES), Err(BudgetExhausted));
        held.grow_to(3 * STEP_BYTES).unwrap();
        assert!(budget.account().charge(STEP_BYTES).is_ok());
    }

    #[test]
    fn bytes_and_answers_hold_memory_until_they_are_dropped() {
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
        assert_eq!(free(&budget), 4 * STEP - 50_000, "its length, not its capacity");
        assert!(budget.body(vec![b'x'; 250_000]).is_err());
        let anyway = budget.body_anyway(vec![b'x'; 250_000]);
        assert!(free(&budget) < 0);
        assert!(budget.body(vec![b'x'; SMALL_BYTES + 1]).is_err());
        drop((small, large, anyway));
        assert_eq!(free(&budget), 4 * STEP);
    }
}
