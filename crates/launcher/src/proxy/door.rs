//! Lets connections in, or not.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::wait::PATIENCE;

/// Where connections come in.
#[derive(Debug)]
pub(super) struct Door {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    wanted: Wanted,
    /// Whether somebody listens.
    listening: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    Open,
    Shut,
    Gone,
}

impl Door {
    pub(super) fn open() -> Door {
        let state = State { wanted: Wanted::Open, listening: true };
        Door { state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Returns once connections are refused.
    pub(super) fn shut(&self, addr: SocketAddr) {
        self.want(Wanted::Shut);
        wake(addr);
        self.wait_while(|state| state.wanted == Wanted::Shut && state.listening);
    }

    /// Returns once connections are accepted.
    pub(super) fn reopen(&self) {
        self.want(Wanted::Open);
        self.wait_while(|state| state.wanted == Wanted::Open && !state.listening);
    }

    /// Ends [`Door::keep`].
    pub(super) fn remove(&self, addr: SocketAddr) {
        self.want(Wanted::Gone);
        wake(addr);
    }

    /// Hands over whoever comes in, until the door is removed.
    pub(super) fn keep(
        &self,
        addr: SocketAddr,
        listener: TcpListener,
        welcome: impl Fn(TcpStream),
    ) {
        let mut listener = Some(listener);
        loop {
            match (self.wanted(), &listener) {
                (Wanted::Gone, _) => return,
                (Wanted::Shut, _) => {
                    listener.take().into_iter().for_each(close);
                    self.set_listening(false);
                    self.wait_while(|state| state.wanted == Wanted::Shut);
                }
                (Wanted::Open, None) => match TcpListener::bind(addr) {
                    Ok(again) => {
                        listener = Some(again);
                        self.set_listening(true);
                    }
                    // Somebody else has the port at the moment.
                    Err(_) => thread::sleep(Duration::from_millis(10)),
                },
                (Wanted::Open, Some(listener)) => {
                    if let Ok((client, _)) = listener.accept()
                        && self.wanted() == Wanted::Open
                    {
                        welcome(client);
                    }
                }
            }
        }
    }

    fn wanted(&self) -> Wanted {
        self.lock().wanted
    }

    fn want(&self, wanted: Wanted) {
        self.lock().wanted = wanted;
        self.changed.notify_all();
    }

    fn set_listening(&self, listening: bool) {
        self.lock().listening = listening;
        self.changed.notify_all();
    }

    fn wait_while(&self, holds: impl Fn(&State) -> bool) {
        // A door that stays shut for longer is looked at again by its keeper.
        let wait = self.changed.wait_timeout_while(self.lock(), PATIENCE, |state| holds(state));
        drop(wait);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends it at once: a server that is being started at this moment has a copy of the socket until it is, and whoever
/// connects would be let in there.
fn close(listener: TcpListener) {
    let socket = TcpStream::from(OwnedFd::from(listener));
    // Nobody listens on it any more, whatever it says.
    let _ = socket.shutdown(Shutdown::Both);
}

/// The keeper waits for a connection; so make one.
fn wake(addr: SocketAddr) {
    let _ = TcpStream::connect(addr);
}
