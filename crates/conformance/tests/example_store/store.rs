//! A small store, written as a tutorial.
//!
//! Its server is a thread that owns a table of states. Clients send it work through a queue and wait for the reply, as
//! they would wait for a server across the network. The server does one piece of work at a time, so each request is
//! atomic, and requests of one client are decided in their order.

use std::collections::HashMap;
use std::sync::mpsc::{self, SyncSender, TrySendError};
use std::time::{SystemTime, UNIX_EPOCH};
use std::{fmt, thread};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tollgate_core::{ChargeReceipt, ExtendAnswer, LeaseAnswer, SettleAnswer};
use tollgate_limiter::store::{
    Call, Charge, CheckRequest, ExtendPart, ExtendRequest, JointRequest, KeyLeaseRequest, KeyState,
    RemoteStore, SettlePart, SettleRequest, StoredState, Task, Wake,
};
use tollgate_limiter::{
    Answer, BreakerState, Decision, Error, Health, JointDecision, ServerHealth, StoreError,
};

/// The address of the server, for errors and for [`Health`].
const SERVER: &str = "example";

/// The most requests that wait for the server. Queues are bounded: a request that finds the queue full fails at once.
const MAX_WAITING: usize = 1_024;

/// A connection to the server. Clones are to the same server, which ends with the last of them.
#[derive(Clone)]
pub(crate) struct ExampleStore {
    queue: SyncSender<Work>,
}

/// An operation that the server runs on its table.
pub(crate) type Work = Box<dyn FnOnce(&mut Table) + Send>;

impl ExampleStore {
    /// Starts a server with an empty table.
    pub(crate) fn start() -> ExampleStore {
        let (queue, requests) = mpsc::sync_channel::<Work>(MAX_WAITING);
        thread::spawn(move || {
            let mut table = Table::default();
            requests.into_iter().for_each(|work| work(&mut table));
        });
        ExampleStore { queue }
    }

    /// Puts work in the queue without waiting for it.
    pub(crate) fn send(&self, work: Work) -> Result<(), StoreError> {
        self.queue.try_send(work).map_err(|error| match error {
            TrySendError::Full(_) => StoreError::Overloaded { waiting: MAX_WAITING },
            TrySendError::Disconnected(_) => StoreError::Gone,
        })
    }

    /// Sends work to the server at once. Returns a future of the reply.
    ///
    /// If the caller drops the future, the server still does the work, and the reply is dropped.
    fn request<T, W>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<T, Error>> + Send + Sync + use<T, W>
    where
        T: Send + 'static,
        W: FnOnce(&mut Table) -> T + Send + 'static,
    {
        let (reply, answer) = oneshot::channel();
        let sent = self.send(Box::new(move |table| drop(reply.send(work(table)))));
        async move {
            sent?;
            Ok(answer.await.map_err(|_| StoreError::Gone)?)
        }
    }
}

impl RemoteStore for ExampleStore {
    fn check(&self, request: CheckRequest) -> Answer<Decision> {
        // `may_be_remembered` is for stores that cache refusals. This one sends every check to the server.
        let CheckRequest { charge, call, if_unread, .. } = request;
        let store = self.clone();
        call.answer(SERVER, || {
            let reply = self.request(move |table| {
                let decision =
                    table.change(&charge, &call, |stored, now_us| charge.decide(stored, now_us));
                // Between here and `read` the decision can be lost: the reply is not sent, or not received.
                if_unread.guard(decision, move |receipt, wake| {
                    drop(store.refund(charge.clone(), receipt, call, wake));
                })
            });
            async move { reply.await?.read() }
        })
    }

    fn check_all(&self, JointRequest { charges, call }: JointRequest) -> Answer<JointDecision> {
        call.answer(SERVER, || self.request(move |table| table.decide_all(&charges, &call)))
    }

    fn refund(
        &self,
        charge: Charge,
        receipt: ChargeReceipt,
        call: Call,
        wake: Wake,
    ) -> Answer<u64> {
        call.answer(SERVER, || {
            self.request(move |table| {
                let back = table.change(&charge, &call, |stored, now_us| {
                    stored.as_mut().map_or(0, |stored| stored.refund(now_us, receipt))
                });
                // Called here and not in the future, which the caller may have dropped.
                wake();
                back
            })
        })
    }

    fn reset(&self, charge: Charge, call: Call, wake: Wake) -> Answer<()> {
        call.answer(SERVER, || {
            self.request(move |table| {
                table.rows.remove(&table_key(&charge));
                wake();
            })
        })
    }

    fn state(&self, charge: Charge, call: Call) -> Answer<KeyState> {
        call.answer(SERVER, || {
            self.request(move |table| {
                let row = table.rows.get(&table_key(&charge));
                charge.key_state(row.map(|row| &row.stored), now_us(&call))
            })
        })
    }

    fn has_holds(&self) -> bool {
        true
    }

    fn settle(
        &self,
        SettleRequest { parts, call, wake }: SettleRequest,
    ) -> Answer<Vec<SettleAnswer>> {
        call.answer(SERVER, || {
            self.request(move |table| {
                let settle = |SettlePart { charge, hold, used }: &SettlePart| {
                    let act = |stored: &mut _, now_us| charge.settle(stored, now_us, *hold, *used);
                    table.change(charge, &call, act)
                };
                let settled = parts.iter().map(settle).collect();
                wake();
                settled
            })
        })
    }

    fn extend(&self, ExtendRequest { parts, call }: ExtendRequest) -> Answer<Vec<ExtendAnswer>> {
        call.answer(SERVER, || self.request(move |table| table.extend_all(&parts, &call)))
    }

    fn has_leases(&self) -> bool {
        true
    }

    fn lease(
        &self,
        KeyLeaseRequest { charge, lease, call }: KeyLeaseRequest,
    ) -> Answer<LeaseAnswer> {
        call.answer(SERVER, || {
            self.request(move |table| {
                let act = |stored: &mut _, now_us| charge.lease(stored, now_us, lease);
                table.change(&charge, &call, act)
            })
        })
    }

    /// The tasks that renew leases run on the runtime of the caller. A store that may be used without a runtime starts one
    /// of its own.
    fn spawn(&self, task: Task) {
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(task);
        }
    }

    fn health(&self) -> Health {
        // A store that counts its failures, or that has a circuit breaker, reports them here.
        let server = ServerHealth::new(SERVER, BreakerState::Closed, 0);
        Health::new(vec![server], StoreError::KINDS.map(|kind| (kind, 0)).into(), None)
    }
}

/// [`RemoteStore`] requires `Debug`, for the logs of programs that use a store.
impl fmt::Debug for ExampleStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ExampleStore")
    }
}

/// The states that the server keeps.
#[derive(Default)]
pub(crate) struct Table {
    rows: HashMap<TableKey, Row>,
    /// The number of rows at which expired ones are removed next.
    sweep_at: usize,
}

/// The name of a limit, and a client's key. They are two parts, because joined in one text `a:` and `b` would equal
/// `a` and `:b`.
type TableKey = (Box<[u8]>, Box<[u8]>);

fn table_key(charge: &Charge) -> TableKey {
    (charge.name().encoded().into(), charge.key().into())
}

struct Row {
    stored: StoredState,
    expires_at_us: u64,
}

impl Table {
    /// Takes a key's state out of the table, lets `act` change it, and puts it back.
    fn change<T>(
        &mut self,
        charge: &Charge,
        call: &Call,
        act: impl FnOnce(&mut Option<StoredState>, u64) -> T,
    ) -> T {
        let (key, now_us) = (table_key(charge), now_us(call));
        let mut stored = self.rows.remove(&key).map(|row| row.stored);
        let answer = act(&mut stored, now_us);
        self.put(key, stored, now_us);
        answer
    }

    fn decide_all(&mut self, charges: &[Charge], call: &Call) -> JointDecision {
        self.change_all(charges, call, |stored, now_us| Charge::decide_all(charges, stored, now_us))
    }

    fn extend_all(&mut self, parts: &[ExtendPart], call: &Call) -> Vec<ExtendAnswer> {
        let charges: Vec<Charge> = parts.iter().map(|part| part.charge.clone()).collect();
        self.change_all(&charges, call, |stored, now_us| Charge::extend_all(parts, stored, now_us))
    }

    /// Takes the states of all keys out of the table, lets `act` change them, and puts them back.
    fn change_all<T>(
        &mut self,
        charges: &[Charge],
        call: &Call,
        act: impl FnOnce(&mut [Option<StoredState>], u64) -> T,
    ) -> T {
        let now_us = now_us(call);
        let keys: Vec<TableKey> = charges.iter().map(table_key).collect();
        let mut stored: Vec<Option<StoredState>> =
            keys.iter().map(|key| self.rows.remove(key).map(|row| row.stored)).collect();
        let answer = act(&mut stored, now_us);
        keys.into_iter().zip(stored).for_each(|(key, stored)| self.put(key, stored, now_us));
        answer
    }

    fn put(&mut self, key: TableKey, stored: Option<StoredState>, now_us: u64) {
        let Some(stored) = stored else { return };
        let expires_at_us = stored.expires_at_us(now_us);
        self.rows.insert(key, Row { stored, expires_at_us });
        if self.rows.len() >= self.sweep_at {
            self.rows.retain(|_, row| row.expires_at_us > now_us);
            self.sweep_at = 2 * self.rows.len().max(512);
        }
    }
}

/// Returns the time at which to decide: the caller's, or else the server's, so that the clocks of clients do not matter.
fn now_us(call: &Call) -> u64 {
    call.at_us.unwrap_or_else(|| {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
    })
}
