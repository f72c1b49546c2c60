//! The memory of one connection: what is charged to it, and which connections are closed when the budget is spent.
//!
//! A connection is charged for what it has sent and is not decided yet, and for answers that its client does
//! not read. When the budget is nearly spent, the connections that hold most of it are closed until enough is
//! free. A client that sends complete requests and reads its answers holds almost nothing between two reads,
//! so it is not closed.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::task::Waker;

use ahash::AHashMap;
use parking_lot::Mutex;

/// Connections whose bytes wait for their clients are closed before others, ranked in steps of this many
/// bytes: below one step, the rest of a request may simply be in flight.
const WAITING_STEP_BYTES: i64 = 64 << 10;

/// A connection that holds more than one of these bounds may not take the last bytes of the budget: the first bounds the
/// bytes that wait for its client, the second all of its bytes, and is more than a single read can bring. The last bytes
/// are for other connections while memory is being freed.
const LIGHT_WAITING_BYTES: i64 = 16 << 10;
const LIGHT_BYTES: i64 = 4 << 20;

/// The bytes of a budget, and the accounts of the connections that take them.
#[derive(Debug)]
pub(super) struct Ledger {
    /// Below 0 if an answer exceeded the budget and had to be sent.
    free: AtomicI64,
    reserve: i64,
    /// If fewer bytes than this are free, connections are closed.
    low: i64,
    /// The bytes of connections that were chosen to be closed and still hold them.
    leaving: AtomicI64,
    accounts: Mutex<MemoryAccounts>,
}

#[derive(Debug, Default)]
struct MemoryAccounts {
    next_id: u64,
    by_id: AHashMap<u64, Arc<Balance>>,
}

/// The bytes that one connection holds.
#[derive(Debug, Default)]
struct Balance {
    /// All of its bytes.
    all: AtomicI64,
    /// The bytes among them that belong to incomplete requests.
    waiting: AtomicI64,
    /// The bytes that the connection held when it was chosen to be closed; 0 before that.
    leaving: AtomicI64,
    /// Whether the client does not read: then all bytes of the connection wait for the client.
    is_blocked: AtomicBool,
    is_closed: AtomicBool,
    task: Mutex<Option<Waker>>,
}

/// The account of one connection. The bytes of its charges are given back when they are dropped, not with the account.
#[derive(Debug)]
pub struct MemoryAccount {
    id: u64,
    balance: Arc<Balance>,
    ledger: Arc<Ledger>,
}

/// Bytes that are charged to an account until this is dropped.
#[derive(Debug)]
pub struct MemoryCharge {
    bytes: i64,
    is_waiting: bool,
    balance: Arc<Balance>,
    ledger: Arc<Ledger>,
}

/// The budget has too few bytes left.
#[derive(Debug, PartialEq, Eq)]
pub struct BudgetExhausted;

impl Ledger {
    pub(super) fn new(bytes: u32, reserve_bytes: u32) -> Ledger {
        Ledger {
            free: AtomicI64::new(bytes.into()),
            reserve: reserve_bytes.into(),
            low: i64::from(reserve_bytes) / 2,
            leaving: AtomicI64::new(0),
            accounts: Mutex::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn free_bytes(&self) -> i64 {
        self.free.load(Ordering::Relaxed)
    }

    /// Takes bytes for a large body, and leaves the reserve alone.
    pub(super) fn take_large(&self, bytes: i64) -> Result<(), BudgetExhausted> {
        self.take(bytes, self.reserve)
    }

    /// Takes or returns bytes, even when that exceeds the budget.
    pub(super) fn take_anyway(&self, bytes: i64) {
        self.free.fetch_sub(bytes, Ordering::Relaxed);
    }

    fn take(&self, bytes: i64, leave: i64) -> Result<(), BudgetExhausted> {
        let take = |free: i64| (free - bytes >= leave).then_some(free - bytes);
        let taken = self.free.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        taken.map(drop).map_err(|_| BudgetExhausted)
    }

    /// Takes bytes for a small request of a connection.
    fn take_small(&self, bytes: i64, balance: &Balance) -> Result<(), BudgetExhausted> {
        self.take(bytes, if balance.is_light() { 0 } else { self.low })
    }

    /// Chooses connections to be closed, until enough bytes are free or will soon be.
    fn make_room(&self) {
        if self.free.load(Ordering::Relaxed) >= self.low {
            return;
        }
        // Another task that holds the lock is making room.
        let Some(accounts) = self.accounts.try_lock() else { return };
        let soon_free =
            self.free.load(Ordering::Relaxed) + self.leaving.load(Ordering::Relaxed).max(0);
        if soon_free >= self.low {
            return;
        }
        let holds = |balance: &Arc<Balance>| balance.all.load(Ordering::Relaxed) > 0;
        let candidates =
            accounts.by_id.values().filter(|balance| !balance.is_closed() && holds(balance));
        let mut candidates: Vec<_> =
            candidates.map(|balance| (Reverse(balance.rank()), balance)).collect();
        candidates.sort_unstable_by_key(|(rank, _)| *rank);
        // Twice the missing bytes, so that not every request has to examine all connections.
        let mut missing = 2 * self.low - soon_free;
        for (_, balance) in candidates {
            if missing <= 0 {
                break;
            }
            missing -= self.close(balance);
        }
    }

    /// Makes a connection close, and returns how many bytes that will free.
    fn close(&self, balance: &Balance) -> i64 {
        let bytes = balance.all.load(Ordering::Relaxed);
        balance.leaving.store(bytes, Ordering::Relaxed);
        self.leaving.fetch_add(bytes, Ordering::Relaxed);
        balance.is_closed.store(true, Ordering::Release);
        if let Some(task) = balance.task.lock().take() {
            task.wake();
        }
        bytes
    }
}

impl Balance {
    /// Returns the rank in the order of closing, highest first.
    fn rank(&self) -> (i64, i64) {
        (self.waiting() / WAITING_STEP_BYTES, self.all.load(Ordering::Relaxed))
    }

    /// Returns the bytes that wait for the client.
    fn waiting(&self) -> i64 {
        let is_blocked = self.is_blocked.load(Ordering::Relaxed);
        let waiting = if is_blocked { &self.all } else { &self.waiting };
        waiting.load(Ordering::Relaxed)
    }

    fn is_light(&self) -> bool {
        self.waiting() < LIGHT_WAITING_BYTES && self.all.load(Ordering::Relaxed) < LIGHT_BYTES
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }
}

impl MemoryAccount {
    pub(super) fn open(ledger: &Arc<Ledger>) -> MemoryAccount {
        let balance = Arc::new(Balance::default());
        let mut accounts = ledger.accounts.lock();
        let id = accounts.next_id;
        // OK because a server does not accept 2^64 connections.
        accounts.next_id += 1;
        accounts.by_id.insert(id, Arc::clone(&balance));
        drop(accounts);
        MemoryAccount { id, balance, ledger: Arc::clone(ledger) }
    }

    /// Charges bytes that wait for the client.
    pub fn charge(&self, bytes: usize) -> Result<MemoryCharge, BudgetExhausted> {
        let mut charge = self.nothing();
        charge.grow(bytes)?;
        Ok(charge)
    }

    /// Returns a charge of 0 bytes, which can grow.
    pub fn nothing(&self) -> MemoryCharge {
        let (balance, ledger) = (Arc::clone(&self.balance), Arc::clone(&self.ledger));
        MemoryCharge { bytes: 0, is_waiting: true, balance, ledger }
    }

    /// Whether the connection has to close, to free memory for others.
    pub fn is_closed(&self) -> bool {
        self.balance.is_closed()
    }

    /// Sets whether the client has stopped reading.
    pub fn set_blocked(&self, is_blocked: bool) {
        self.balance.is_blocked.store(is_blocked, Ordering::Relaxed);
    }

    /// Registers a task to be woken when the connection has to close.
    pub fn wake_when_closed(&self, waker: &Waker) {
        let mut task = self.balance.task.lock();
        if !task.as_ref().is_some_and(|known| known.will_wake(waker)) {
            *task = Some(waker.clone());
        }
    }
}

impl Drop for MemoryAccount {
    fn drop(&mut self) {
        let removed = self.ledger.accounts.lock().by_id.remove(&self.id);
        let leaving = removed.map_or(0, |balance| balance.leaving.load(Ordering::Relaxed));
        self.ledger.leaving.fetch_sub(leaving, Ordering::Relaxed);
    }
}

impl MemoryCharge {
    /// Charges more bytes, if the budget has them.
    pub fn grow(&mut self, more: usize) -> Result<(), BudgetExhausted> {
        // OK because nothing in memory has 2^63 bytes.
        let more = more as i64;
        let taken = self.ledger.take_small(more, &self.balance);
        if taken.is_ok() {
            self.add(more);
        }
        // Last, so that this connection is chosen if it holds most.
        self.ledger.make_room();
        taken
    }

    /// Charges more bytes, even when that exceeds the budget.
    pub fn grow_anyway(&mut self, more: usize) {
        // OK because nothing in memory has 2^63 bytes.
        let more = more as i64;
        self.ledger.take_anyway(more);
        self.add(more);
    }

    /// Gives back all bytes.
    pub fn clear(&mut self) {
        let bytes = self.bytes;
        if bytes != 0 {
            self.ledger.take_anyway(-bytes);
            self.add(-bytes);
        }
    }

    /// Counts the bytes as work of the server from now on, because the request is complete.
    pub fn stop_waiting(&mut self) {
        if std::mem::replace(&mut self.is_waiting, false) {
            self.balance.waiting.fetch_sub(self.bytes, Ordering::Relaxed);
        }
    }

    /// Returns another charge to the same account, of 0 bytes.
    pub fn another(&self) -> MemoryCharge {
        let (balance, ledger) = (Arc::clone(&self.balance), Arc::clone(&self.ledger));
        MemoryCharge { bytes: 0, is_waiting: true, balance, ledger }
    }

    /// Returns how many bytes are charged.
    pub fn bytes(&self) -> usize {
        // OK because it is never below 0.
        self.bytes as usize
    }

    fn add(&mut self, more: i64) {
        self.bytes += more;
        self.balance.all.fetch_add(more, Ordering::Relaxed);
        if self.is_waiting {
            self.balance.waiting.fetch_add(more, Ordering::Relaxed);
        }
    }
}

impl Drop for MemoryCharge {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: usize = 1 << 10;

    /// A budget of 1 MiB that closes connections when less than 128 KiB are free.
    fn ledger() -> Arc<Ledger> {
        Arc::new(Ledger::new(1 << 20, 256 << 10))
    }

    fn accounts(ledger: &Arc<Ledger>, count: usize) -> Vec<MemoryAccount> {
        (0..count).map(|_| MemoryAccount::open(ledger)).collect()
    }

    #[test]
    fn charges_are_given_back_when_they_are_dropped() {
        let ledger = ledger();
        let account = MemoryAccount::open(&ledger);
        let mut charge = account.charge(10 * KIB).unwrap();
        charge.grow(KIB).unwrap();
        assert_eq!(charge.bytes(), 11 * KIB);
        drop(account);
        assert_eq!(ledger.free_bytes(), (1 << 20) - 11 * KIB as i64);
        drop(charge);
        assert_eq!(ledger.free_bytes(), 1 << 20);
        assert!(ledger.accounts.lock().by_id.is_empty());
    }

    #[test]
    fn the_connections_that_hold_most_are_closed_when_few_bytes_are_left() {
        let ledger = ledger();
        let accounts = accounts(&ledger, 10);
        let _few: Vec<_> = accounts[..8].iter().map(|account| account.charge(8 * KIB)).collect();
        let _more = accounts[8].charge(200 * KIB).unwrap();
        let most = accounts[9].charge(600 * KIB).unwrap();
        assert!(accounts.iter().all(|account| !account.is_closed()));
        let _last = accounts[0].charge(64 * KIB).unwrap();
        let closed: Vec<_> = accounts.iter().map(MemoryAccount::is_closed).collect();
        assert_eq!(closed.iter().filter(|closed| **closed).count(), 1, "{closed:?}");
        assert!(accounts[9].is_closed());
        // Its bytes are about to be free, so nothing else is closed meanwhile.
        let _again = accounts[1].charge(KIB).unwrap();
        assert!(!accounts[8].is_closed());
        drop(most);
        assert!(ledger.free_bytes() > 600 << 10);
    }

    #[test]
    fn requests_that_are_complete_do_not_close_their_connection() {
        let ledger = ledger();
        let accounts = accounts(&ledger, 2);
        let mut busy = accounts[0].charge(700 * KIB).unwrap();
        busy.stop_waiting();
        let _stalled = accounts[1].charge(200 * KIB).unwrap();
        assert!(!accounts[0].is_closed() && accounts[1].is_closed());
    }

    #[test]
    fn the_last_bytes_are_for_connections_that_hold_little() {
        let ledger = ledger();
        let accounts = accounts(&ledger, 2);
        let mut heavy = accounts[0].charge(900 * KIB).unwrap();
        assert_eq!(heavy.grow(KIB), Err(BudgetExhausted));
        assert!(accounts[1].charge(KIB).is_ok());
    }

    #[test]
    fn client_that_does_not_read_is_closed_before_other_clients() {
        let ledger = ledger();
        let accounts = accounts(&ledger, 3);
        let mut charges: Vec<_> =
            accounts[..2].iter().map(|account| account.charge(400 * KIB).unwrap()).collect();
        charges.iter_mut().for_each(MemoryCharge::stop_waiting);
        accounts[1].set_blocked(true);
        let _last = accounts[2].charge(150 * KIB).unwrap();
        assert!(!accounts[0].is_closed() && accounts[1].is_closed());
    }

    #[test]
    fn a_spent_budget_refuses_a_charge_and_closes_a_connection() {
        let ledger = ledger();
        let accounts = accounts(&ledger, 2);
        let _all = accounts[0].charge(1 << 20).unwrap();
        assert!(accounts[1].charge(1).is_err());
        assert!(accounts[0].is_closed());
        let mut answer = accounts[1].nothing();
        answer.grow_anyway(KIB);
        assert_eq!(ledger.free_bytes(), -(KIB as i64));
    }
}
