//! Finds out whether a silent client is still connected.

use std::pin::Pin;
use std::task::{Context, Poll};

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep};

use super::socket::SocketGate;
use crate::grpc::{PING_AFTER, PING_TIMEOUT};

/// Sends a ping after 20 s of silence. If nothing is read within 10 s after that, the client is gone.
pub(super) struct Keepalive {
    pings: Option<PingPong>,
    timer: Pin<Box<Sleep>>,
    /// When the last ping was sent, if nothing was read since.
    pinged: Option<Instant>,
}

impl Keepalive {
    pub(super) fn new(pings: Option<PingPong>) -> Keepalive {
        Keepalive { pings, timer: Box::pin(tokio::time::sleep(PING_AFTER)), pinged: None }
    }

    /// Returns whether the client is gone. If not, the task is woken when this has to be called again.
    pub(super) fn is_dead(&mut self, gate: &SocketGate, context: &mut Context<'_>) -> bool {
        while self.timer.as_mut().poll(context).is_ready() {
            let (now, heard) = (Instant::now(), gate.last_read());
            let is_unanswered = self.pinged.is_some_and(|pinged| heard < pinged);
            if is_unanswered {
                return true;
            }
            self.pinged = None;
            let due = heard + PING_AFTER;
            if due > now {
                self.timer.as_mut().reset(due);
                continue;
            }
            self.ping(context);
            self.pinged = Some(now);
            self.timer.as_mut().reset(now + PING_TIMEOUT);
        }
        false
    }

    fn ping(&mut self, context: &mut Context<'_>) {
        let Some(pings) = &mut self.pings else { return };
        // Takes the answer to the last ping, which h2 keeps until then.
        if let Poll::Ready(Err(error)) = pings.poll_pong(context) {
            tracing::debug!(%error, "a connection to the gRPC port is closing");
        }
        // An error means that the last ping is not written yet. That ping then serves instead of this one.
        let _ = pings.send_ping(Ping::opaque());
    }
}
