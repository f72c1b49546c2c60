//! A node's connection: opened when needed, and given up when it breaks or when no reply comes.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::sync::watch;
use tokio::time::Instant;
use tollgate_limiter::StoreError;

use super::Node;
use crate::connect::OpenConnection;
use crate::executor::RuntimeKind;
use crate::script::{Abilities, SentScripts};

/// A connection is given up after more than this long without a reply to the commands that were sent on it: a device on
/// the network path may have dropped the connection without closing it.
const MAX_SILENCE: Duration = Duration::from_secs(1);

/// The connection, if there is one.
#[derive(Default)]
pub(super) struct NodeConnection {
    open: Option<OpenConnection>,
    /// The runtime that drives the connection.
    runtime: Option<RuntimeKind>,
    /// The number of connections so far.
    generation: u64,
    /// The scripts that were sent on the connection.
    scripts: SentScripts,
    /// The connection that is being opened.
    opening: Option<PendingConnection>,
    /// When the oldest of the commands without a reply was sent.
    silent_since: Option<Instant>,
    /// The last failure.
    pub(super) failure: Option<StoreError>,
}

/// A connection that is being opened.
#[derive(Clone)]
struct PendingConnection {
    outcome: watch::Receiver<Option<Result<(), StoreError>>>,
    runtime: RuntimeKind,
}

impl Node {
    /// Returns the connection and its generation. Opens a connection if none is open.
    pub(super) async fn connection(
        self: &Arc<Self>,
    ) -> Result<(MultiplexedConnection, u64), StoreError> {
        loop {
            let runtime = self.shared.executor.runtime_kind();
            let mut opening = {
                let mut connection = self.connection.lock();
                connection.drop_unusable(runtime);
                if let Some(open) = &connection.open {
                    return Ok((open.connection.clone(), connection.generation));
                }
                connection.opening.get_or_insert_with(|| self.open(runtime)).clone()
            };
            match opening.outcome.wait_for(Option::is_some).await.map(|opened| opened.clone()) {
                Ok(Some(Err(error))) => return Err(error),
                // The new connection may have broken meanwhile.
                Ok(_) => {}
                Err(_) => {
                    let is_same = |other: &mut PendingConnection| {
                        other.outcome.same_channel(&opening.outcome)
                    };
                    self.connection.lock().opening.take_if(is_same);
                    // The opening task was dropped because its runtime has ended: another runtime opens a connection.
                    if self.shared.executor.runtime_kind() == opening.runtime {
                        return Err(StoreError::Gone);
                    }
                }
            }
        }
    }

    /// Returns the connection, if one is open and the breaker is closed.
    pub(crate) fn connection_if_open(&self) -> Option<MultiplexedConnection> {
        if !self.is_breaker_closed() {
            return None;
        }
        let mut connection = self.connection.lock();
        connection.drop_unusable(self.shared.executor.runtime_kind());
        connection.open.as_ref().map(|open| open.connection.clone())
    }

    /// Returns the connection, if the breaker is closed. Opens a connection if none is open.
    pub(crate) async fn connection_if_working(self: &Arc<Self>) -> Option<MultiplexedConnection> {
        if !self.is_breaker_closed() {
            return None;
        }
        self.connection().await.ok().map(|(connection, _)| connection)
    }

    /// Begins to open a connection, in a task of its own, because that may take longer than the requests' deadlines.
    fn open(self: &Arc<Self>, runtime: RuntimeKind) -> PendingConnection {
        let (sender, outcome) = watch::channel(None);
        let node = Arc::clone(self);
        self.shared.executor.spawn(async move {
            let opened = node.target.open().await;
            let mut connection = node.connection.lock();
            connection.opening = None;
            let outcome = opened.map(|open| connection.replace(open, runtime));
            drop(connection);
            // It fails if no task waits for the connection.
            let _ = sender.send(Some(outcome));
        });
        PendingConnection { outcome, runtime }
    }

    /// Checks at intervals whether the primary has moved, and then connects to the new one. The next
    /// batch uses the new connection.
    pub(super) fn follow_primary(self: &Arc<Self>) {
        if !self.target.begin_refresh_if_due() {
            return;
        }
        let (node, runtime) = (Arc::clone(self), self.shared.executor.runtime_kind());
        self.shared.executor.spawn(async move {
            if let Some(open) = node.target.open_elsewhere().await {
                node.connection.lock().replace(open, runtime);
            }
        });
    }
}

impl NodeConnection {
    /// Returns whether a script has been sent on the connection, and notes that it is sent now.
    pub(super) fn note_script(&mut self, generation: u64, abilities: Abilities) -> bool {
        self.generation == generation && self.scripts.insert(abilities)
    }

    /// Drops a connection that was closed while it was idle, or whose runtime has ended: it is opened again without a
    /// failure.
    fn drop_unusable(&mut self, runtime: RuntimeKind) {
        let has_ended = self.runtime != Some(runtime);
        self.open.take_if(|open| open.is_closed() || has_ended);
    }

    fn replace(&mut self, open: OpenConnection, runtime: RuntimeKind) {
        self.generation += 1;
        self.open = Some(open);
        self.runtime = Some(runtime);
        self.scripts = SentScripts::default();
        self.silent_since = None;
    }

    /// Closes the connection of this generation.
    pub(super) fn give_up(&mut self, generation: u64) {
        if self.generation == generation {
            self.open = None;
        }
    }

    /// Closes the connection.
    pub(super) fn close(&mut self) {
        self.open = None;
    }

    pub(super) fn note_answer(&mut self) {
        self.silent_since = None;
    }

    /// Notes that the commands which were sent at `sent` got no reply in time. Closes the connection after
    /// [`MAX_SILENCE`].
    pub(super) fn note_silence(&mut self, generation: u64, sent: Instant) {
        if self.generation == generation
            && self.silent_since.get_or_insert(sent).elapsed() > MAX_SILENCE
        {
            self.open = None;
        }
    }
}
