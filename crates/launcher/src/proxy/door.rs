//! Accepts or refuses connections.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::wait::PATIENCE;

/// The listening side of a proxy, which can be shut and reopened.
#[derive(Debug)]
pub(super) struct Door {
    state: Mutex<DoorState>,
    changed: Condvar,
}

#[derive(Debug)]
struct DoorState {
    wanted: DoorTarget,
    /// Whether the port is open.
    listening: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DoorTarget {
    Open,
    Shut,
    Gone,
}

impl Door {
    pub(super) fn open() -> Door {
        let state = DoorState { wanted: DoorTarget::Open, listening: true };
        Door { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Returns once connections are refused.
    pub(super) fn shut(&self, addr: SocketAddr) {
        self.want(DoorTarget::Shut);
        wake(addr);
        self.wait_while(|state| state.wanted == DoorTarget::Shut && state.listening);
    }

    /// Returns once connections are accepted.
    pub(super) fn reopen(&self) {
        self.want(DoorTarget::Open);
        self.wait_while(|state| state.wanted == DoorTarget::Open && !state.listening);
    }

    /// Ends [`Door::keep`].
    pub(super) fn remove(&self, addr: SocketAddr) {
        self.want(DoorTarget::Gone);
        wake(addr);
    }

    /// Accepts connections and passes each to `welcome`, until the door is removed.
    pub(super) fn keep(
        &self,
        addr: SocketAddr,
        listener: TcpListener,
        welcome: impl Fn(TcpStream),
    ) {
        let mut listener = Some(listener);
        loop {
            match (self.wanted(), &listener) {
                (DoorTarget::Gone, _) => return,
                (DoorTarget::Shut, _) => {
                    listener.take().into_iter().for_each(close);
                    self.set_listening(false);
                    self.wait_while(|state| state.wanted == DoorTarget::Shut);
                }
                (DoorTarget::Open, None) => match TcpListener::bind(addr) {
                    Ok(again) => {
                        listener = Some(again);
                        self.set_listening(true);
                    }
                    // Another process has the port at the moment.
                    Err(_) => thread::sleep(Duration::from_millis(10)),
                },
                (DoorTarget::Open, Some(listener)) => {
                    if let Ok((client, _)) = listener.accept()
                        && self.wanted() == DoorTarget::Open
                    {
                        welcome(client);
                    }
                }
            }
        }
    }

    fn wanted(&self) -> DoorTarget {
        self.lock().wanted
    }

    fn want(&self, wanted: DoorTarget) {
        self.lock().wanted = wanted;
        self.changed.notify_all();
    }

    fn set_listening(&self, listening: bool) {
        self.lock().listening = listening;
        self.changed.notify_all();
    }

    fn wait_while(&self, holds: impl Fn(&DoorState) -> bool) {
        // With a timeout: if the door stays shut for longer, the keeper checks again.
        let wait = self.changed.wait_timeout_while(self.lock(), PATIENCE, |state| holds(state));
        drop(wait);
    }

    fn lock(&self) -> MutexGuard<'_, DoorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes the socket at once. A server that is being started at this moment has a copy of the socket until it
/// runs its program, and a client that connects would be accepted there.
fn close(listener: TcpListener) {
    let socket = TcpStream::from(OwnedFd::from(listener));
    // The result does not matter: after this no process accepts on the socket.
    let _ = socket.shutdown(Shutdown::Both);
}

/// Wakes the keeper, which waits for a connection, by making one.
fn wake(addr: SocketAddr) {
    let _ = TcpStream::connect(addr);
}
