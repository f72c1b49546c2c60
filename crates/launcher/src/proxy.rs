//! A proxy that injects faults between clients and a server.

mod connection;
mod faults;
mod frame;
mod listener;
mod open_connections;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::ports;
use faults::{ProxyState, ReplyFault};
use listener::ProxyListener;
use open_connections::OpenConnections;

/// A proxy between clients and one server that drops, cuts or delays replies on request.
///
/// Faults apply only to replies of scripts, `EVAL` and `EVALSHA`, that the server has run: an error such as
/// `NOSCRIPT` passes, and does not count as one of the next replies. The proxy does not read TLS, and expects
/// one reply to each request, so it does not support subscriptions.
///
/// ```no_run
/// use tollgate_launcher::{Flavour, Launch, Proxy};
///
/// let server = Launch::new(Flavour::Redis).start()?;
/// let proxy = Proxy::start(server.addr())?;
/// proxy.cut_mid_reply(1);
/// println!("the next script at {} runs, and its caller gets half of the reply", proxy.url());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<ProxyState>,
    open_connections: Arc<OpenConnections>,
    listener: Arc<ProxyListener>,
    accept_thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy in front of `server`, on a free port.
    pub fn start(server: SocketAddr) -> io::Result<Proxy> {
        let socket = ports::listen()?;
        let addr = socket.local_addr()?;
        let shared = Arc::new(ProxyState::new(server));
        let open_connections = Arc::new(OpenConnections::default());
        let listener = Arc::new(ProxyListener::open());
        let accept_thread = thread::spawn({
            let (shared, listener) = (Arc::clone(&shared), Arc::clone(&listener));
            let open_connections = Arc::clone(&open_connections);
            move || {
                listener.accept_until_removed(addr, socket, |client| {
                    if let Some((connection, threads)) = connection::begin(client, &shared) {
                        open_connections.add(connection, threads);
                    }
                });
            }
        });
        Ok(Proxy { addr, shared, open_connections, listener, accept_thread: Some(accept_thread) })
    }

    /// Returns the proxy's address.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Returns the address as a URL: `redis://127.0.0.1:14123`.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// Removes all faults: from now on everything passes without delay, and all connections are accepted.
    pub fn pass(&self) {
        self.shared.faults().clear();
        self.accept_connections();
    }

    /// Drops the next `count` replies; their connections stay open.
    ///
    /// Later replies on such a connection are held back as well, also after [`Proxy::pass`]: the client would
    /// take the next reply for the one that it waits for.
    pub fn drop_replies(&self, count: u64) {
        self.shared.faults().set(ReplyFault::Swallow, count);
    }

    /// Closes the connection in place of each of the next `count` replies.
    pub fn cut_after_request(&self, count: u64) {
        self.shared.faults().set(ReplyFault::CutBefore, count);
    }

    /// Passes half of each of the next `count` replies, and closes the connection.
    pub fn cut_mid_reply(&self, count: u64) {
        self.shared.faults().set(ReplyFault::CutWithin, count);
    }

    /// Delays every reply, of scripts or not; the function is called for each reply.
    ///
    /// Replies keep their order: a reply that is due before an earlier one of its connection follows that one
    /// at once.
    pub fn delay(&self, delay: impl FnMut() -> Duration + Send + 'static) {
        self.shared.faults().delay = Some(Box::new(delay));
    }

    /// Refuses new connections, as if no server listened. Open connections stay open.
    pub fn refuse_connections(&self) {
        self.listener.close(self.addr);
    }

    /// Accepts connections again.
    pub fn accept_connections(&self) {
        self.listener.reopen();
    }

    /// Closes every open connection.
    pub fn cut_connections(&self) {
        self.open_connections.close();
    }

    /// Returns how many scripts were passed to the server, including scripts that the server did not know.
    pub fn scripts_passed(&self) -> u64 {
        self.shared.scripts_passed.load(Ordering::SeqCst)
    }

    /// Returns how many replies of scripts were dropped, including replies held back after another one.
    pub fn replies_swallowed(&self) -> u64 {
        self.shared.replies_swallowed.load(Ordering::SeqCst)
    }

    /// Returns how many connections were cut, after a request or within a reply.
    pub fn connections_cut(&self) -> u64 {
        self.shared.connections_cut.load(Ordering::SeqCst)
    }

    /// Returns how many connections were accepted so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.listener.remove(self.addr);
        if let Some(thread) = self.accept_thread.take() {
            // OK because an error means that the thread has panicked, and so has ended too.
            let _ = thread.join();
        }
        self.open_connections.close();
        self.open_connections.join();
    }
}
