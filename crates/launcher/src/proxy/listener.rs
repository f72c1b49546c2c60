//! Accepts or refuses the connections of clients.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::wait::PATIENCE;

/// The listening port of a proxy, which can be closed and opened again.
#[derive(Debug)]
pub(super) struct ProxyListener {
    state: Mutex<ListenerState>,
    changed: Condvar,
}

#[derive(Debug)]
struct ListenerState {
    /// The next task of the accepting thread.
    wanted: ListenerTarget,
    /// Whether the port is open.
    listening: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListenerTarget {
    /// Connections are accepted.
    Open,
    /// Connections are refused.
    Closed,
    /// The accepting thread ends.
    Removed,
}

impl ProxyListener {
    pub(super) fn open() -> ProxyListener {
        let state = ListenerState { wanted: ListenerTarget::Open, listening: true };
        ProxyListener { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Closes the port, and returns once connections are refused.
    pub(super) fn close(&self, addr: SocketAddr) {
        self.want(ListenerTarget::Closed);
        wake(addr);
        self.wait_while(|state| state.wanted == ListenerTarget::Closed && state.listening);
    }

    /// Opens the port again, and returns once connections are accepted.
    pub(super) fn reopen(&self) {
        self.want(ListenerTarget::Open);
        self.wait_while(|state| state.wanted == ListenerTarget::Open && !state.listening);
    }

    /// Ends [`ProxyListener::accept_until_removed`].
    pub(super) fn remove(&self, addr: SocketAddr) {
        self.want(ListenerTarget::Removed);
        wake(addr);
    }

    /// Accepts connections while the port is open, and passes each to `serve`. Returns once [`ProxyListener::remove`]
    /// was called.
    pub(super) fn accept_until_removed(
        &self,
        addr: SocketAddr,
        listener: TcpListener,
        serve: impl Fn(TcpStream),
    ) {
        let mut listener = Some(listener);
        loop {
            match (self.wanted(), &listener) {
                (ListenerTarget::Removed, _) => return,
                (ListenerTarget::Closed, _) => {
                    listener.take().into_iter().for_each(close_socket);
                    self.set_listening(false);
                    self.wait_while(|state| state.wanted == ListenerTarget::Closed);
                }
                (ListenerTarget::Open, None) => match TcpListener::bind(addr) {
                    Ok(bound) => {
                        listener = Some(bound);
                        self.set_listening(true);
                    }
                    // Another process has the port at the moment.
                    Err(_) => thread::sleep(Duration::from_millis(10)),
                },
                (ListenerTarget::Open, Some(listener)) => {
                    if let Ok((client, _)) = listener.accept()
                        && self.wanted() == ListenerTarget::Open
                    {
                        serve(client);
                    }
                }
            }
        }
    }

    fn wanted(&self) -> ListenerTarget {
        self.lock().wanted
    }

    fn want(&self, wanted: ListenerTarget) {
        self.lock().wanted = wanted;
        self.changed.notify_all();
    }

    fn set_listening(&self, listening: bool) {
        self.lock().listening = listening;
        self.changed.notify_all();
    }

    fn wait_while(&self, holds: impl Fn(&ListenerState) -> bool) {
        // The timeout only ends one call: the accepting thread waits again while the port has to stay closed.
        let wait = self.changed.wait_timeout_while(self.lock(), PATIENCE, |state| holds(state));
        drop(wait);
    }

    fn lock(&self) -> MutexGuard<'_, ListenerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Closes the socket for all processes.
///
/// Closing only this process's copy is not enough: a server that is being started at this moment has a copy of
/// the socket until it runs its program, and that copy would accept connections.
fn close_socket(listener: TcpListener) {
    let socket = TcpStream::from(OwnedFd::from(listener));
    // OK because an error means that the socket is closed already.
    let _ = socket.shutdown(Shutdown::Both);
}

/// Wakes the accepting thread, which waits for a connection, by making one.
fn wake(addr: SocketAddr) {
    let _ = TcpStream::connect(addr);
}
