//! One connection through a proxy, served by three threads: requests, replies, and their delivery.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::faults::{ProxyState, ReplyFault};
use super::frame;

/// A client's connection, and the proxy's connection to the server for it.
#[derive(Debug)]
pub(super) struct ProxiedConnection {
    client: TcpStream,
    server: TcpStream,
    state: Mutex<DeliveryState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct DeliveryState {
    /// Whether each request in flight runs a script, oldest first.
    runs_script: VecDeque<bool>,
    /// The deliveries, oldest first, with the time at which each is due.
    outbox: VecDeque<(Instant, ReplyDelivery)>,
    closed: bool,
}

#[derive(Debug)]
enum ReplyDelivery {
    Pass(Vec<u8>),
    /// Passes this part and closes the connection.
    Cut(Vec<u8>),
    /// The server has closed the connection.
    End,
}

/// Connects a client to the server, and returns the connection with the threads that serve it.
///
/// Closes the client's connection and returns `None` if the server cannot be reached.
pub(super) fn begin(
    client: TcpStream,
    shared: &Arc<ProxyState>,
) -> Option<(Arc<ProxiedConnection>, Vec<JoinHandle<()>>)> {
    shared.connections.fetch_add(1, Ordering::SeqCst);
    let server = TcpStream::connect(shared.server).ok()?;
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    let (state, changed) = (Mutex::default(), Condvar::new());
    let connection = Arc::new(ProxiedConnection { client, server, state, changed });
    let spawn = |run: fn(&ProxiedConnection, &ProxyState) -> io::Result<()>| {
        let (connection, shared) = (Arc::clone(&connection), Arc::clone(shared));
        thread::spawn(move || {
            if run(&connection, &shared).is_err() {
                connection.close();
            }
        })
    };
    let threads = vec![
        spawn(ProxiedConnection::pass_requests),
        spawn(ProxiedConnection::take_replies),
        spawn(ProxiedConnection::deliver),
    ];
    Some((connection, threads))
}

impl ProxiedConnection {
    /// Closes both connections, which ends the threads.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
        // OK because an error means that it is closed already.
        let _ = self.client.shutdown(Shutdown::Both);
        let _ = self.server.shutdown(Shutdown::Both);
    }

    /// Passes the client's requests to the server.
    fn pass_requests(&self, shared: &ProxyState) -> io::Result<()> {
        for_each_frame(&self.client, frame::request_len, |request| {
            let is_script = frame::is_script(request);
            // Recorded before the request is sent, because the reply may come at once. An empty line has no reply.
            if !request.trim_ascii().is_empty() {
                self.lock().runs_script.push_back(is_script);
            }
            if is_script {
                shared.scripts_passed.fetch_add(1, Ordering::SeqCst);
            }
            (&self.server).write_all(request)
        })?;
        self.server.shutdown(Shutdown::Write)
    }

    /// Reads the server's replies, applies the faults, and puts the rest into the outbox.
    fn take_replies(&self, shared: &ProxyState) -> io::Result<()> {
        let mut drops_replies = false;
        for_each_frame(&self.server, frame::reply_len, |reply| {
            let is_of_script =
                !frame::is_push(reply) && self.lock().runs_script.pop_front() == Some(true);
            let mut faults = shared.faults();
            let has_run = is_of_script && !frame::is_error(reply);
            let fault = if has_run { faults.take() } else { None };
            let due = Instant::now() + faults.next_delay();
            drop(faults);
            drops_replies |= fault == Some(ReplyFault::Swallow);
            if drops_replies {
                shared.replies_swallowed.fetch_add(u64::from(has_run), Ordering::SeqCst);
                return Ok(());
            }
            let delivery = match fault {
                Some(ReplyFault::CutBefore) => ReplyDelivery::Cut(Vec::new()),
                Some(ReplyFault::CutWithin) => {
                    ReplyDelivery::Cut(reply[..reply.len() / 2].to_vec())
                }
                Some(ReplyFault::Swallow) | None => ReplyDelivery::Pass(reply.to_vec()),
            };
            self.post(due, delivery);
            Ok(())
        })?;
        self.post(Instant::now(), ReplyDelivery::End);
        Ok(())
    }

    /// Adds a delivery to the outbox.
    fn post(&self, due: Instant, delivery: ReplyDelivery) {
        self.lock().outbox.push_back((due, delivery));
        self.changed.notify_all();
    }

    /// Writes the deliveries to the client, each once it is due.
    fn deliver(&self, shared: &ProxyState) -> io::Result<()> {
        while let Some(delivery) = self.next_delivery() {
            match delivery {
                ReplyDelivery::Pass(reply) => (&self.client).write_all(&reply)?,
                ReplyDelivery::Cut(part) => {
                    shared.connections_cut.fetch_add(1, Ordering::SeqCst);
                    (&self.client).write_all(&part)?;
                    self.close();
                }
                ReplyDelivery::End => self.close(),
            }
        }
        Ok(())
    }

    /// Returns the oldest delivery once it is due; `None` once the connection is closed.
    fn next_delivery(&self) -> Option<ReplyDelivery> {
        let mut state = self.lock();
        loop {
            let now = Instant::now();
            if state.closed {
                return None;
            }
            state = match state.outbox.front() {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(&(due, _)) if due > now => {
                    let wait = self.changed.wait_timeout(state, due - now);
                    wait.unwrap_or_else(PoisonError::into_inner).0
                }
                Some(_) => return state.outbox.pop_front().map(|(_, delivery)| delivery),
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, DeliveryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reads until the end of the stream, and passes every complete frame to `take`.
fn for_each_frame(
    mut stream: &TcpStream,
    frame_len: fn(&[u8]) -> io::Result<Option<usize>>,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    let mut part = vec![0; 16_384];
    loop {
        let read = stream.read(&mut part)?;
        if read == 0 {
            return Ok(());
        }
        bytes.extend_from_slice(&part[..read]);
        while let Some(len) = frame_len(&bytes)? {
            take(&bytes[..len])?;
            bytes.drain(..len);
        }
    }
}
