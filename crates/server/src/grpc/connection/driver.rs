//! Drives one gRPC connection: takes its calls, runs them, and sends their answers.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use h2::server::{Connection, SendResponse};
use h2::{Reason as Code, RecvStream};
use hyper::Request;
use tokio::io::{AsyncRead, AsyncWrite};

use super::keepalive::Keepalive;
use super::resets::ResetAllowance;
use super::socket::{Socket, SocketGate};
use crate::budget::{BudgetExhausted, MemoryCharge};
use crate::grpc::answer::{AnswerBytes, CallEnd, send};
use crate::grpc::calls::{Calls, RunningCall};
use crate::listener::{CloseReason, ConnectionSlot};

/// The most reads of a connection before other tasks run. Each read may bring hundreds of calls.
const READS_A_POLL: usize = 2;

/// The memory of a stream in h2. It is freed only with the connection, so a connection is charged for the most streams
/// that it ever had.
const STREAM_BYTES: usize = 1 << 10;

/// The most memory that h2 uses for a header block that has begun and not ended. The longest block has 2,048 headers,
/// and each takes 72 bytes.
const OPEN_BLOCK_BYTES: usize = 256 << 10;

/// The capacity of `arrived` that is kept for the next read. One read may bring a thousand calls.
const MAX_KEPT_CAPACITY: usize = 32;

/// A connection after its handshake, with its calls.
///
/// One task does all the work. It takes all calls of one read before it reads again, so that nothing accumulates
/// between the socket and the calls.
pub(super) struct ConnectionDriver<S> {
    http2: Connection<Socket<S>, AnswerBytes>,
    gate: Arc<SocketGate>,
    calls: Calls,
    /// The calls of the last read.
    arrived: Vec<(Request<RecvStream>, SendResponse<AnswerBytes>)>,
    running: FuturesUnordered<RunningCall>,
    /// The charges of answers without a message, which may not be written yet.
    unsent: Vec<MemoryCharge>,
    /// The charge for the most streams that the connection ever had.
    streams: MemoryCharge,
    /// The charge for a header block that has not ended.
    block: MemoryCharge,
    resets: ResetAllowance,
    keepalive: Keepalive,
    /// Dropped last, with the account that all charges above belong to.
    slot: Arc<ConnectionSlot>,
}

/// The result of a turn.
enum TurnResult {
    /// Nothing was done. The task is woken when there is something to do.
    Idle,
    /// Something was done, and there may be more to do.
    Busy,
    /// The connection has ended.
    Over,
    /// The server has to close the connection.
    Close(CloseReason),
}

impl<S: AsyncRead + AsyncWrite + Unpin> ConnectionDriver<S> {
    pub(super) fn new(
        mut http2: Connection<Socket<S>, AnswerBytes>,
        gate: Arc<SocketGate>,
        slot: Arc<ConnectionSlot>,
        calls: Calls,
    ) -> ConnectionDriver<S> {
        let keepalive = Keepalive::new(http2.ping_pong());
        let mut streams = slot.account.nothing();
        streams.stop_waiting();
        ConnectionDriver {
            http2,
            gate,
            calls,
            arrived: Vec::new(),
            running: FuturesUnordered::new(),
            unsent: Vec::new(),
            streams,
            block: slot.account.nothing(),
            resets: ResetAllowance::new(),
            keepalive,
            slot,
        }
    }

    /// Runs the connection until it has ended.
    pub(super) async fn run(&mut self) {
        poll_fn(|context| self.poll_end(context)).await;
    }

    /// Sends a GOAWAY, so that the client makes no more calls. The calls in flight are answered, then the connection
    /// ends.
    pub(super) fn shut_down(&mut self) {
        self.http2.graceful_shutdown();
    }

    fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<()> {
        self.slot.account.wake_when_closed(context.waker());
        if self.keepalive.is_dead(&self.gate, context) {
            return Poll::Ready(());
        }
        for turn in 0..=READS_A_POLL {
            // This last turn only writes the answers to calls that were read before.
            if turn < READS_A_POLL {
                self.gate.allow_read();
            }
            match self.turn(context) {
                TurnResult::Idle => return Poll::Pending,
                TurnResult::Busy => {}
                TurnResult::Over => return Poll::Ready(()),
                TurnResult::Close(reason) => {
                    self.close(reason, context);
                    return Poll::Ready(());
                }
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }

    /// Writes what it can, reads once if the gate allows it, and polls every call that can make progress.
    fn turn(&mut self, context: &mut Context<'_>) -> TurnResult {
        if self.slot.account.is_closed() {
            return TurnResult::Close(CloseReason::Memory);
        }
        if self.accept(context).is_ready() {
            return TurnResult::Over;
        }
        let is_blocked = self.gate.is_blocked();
        self.slot.account.set_blocked(is_blocked);
        if !is_blocked {
            self.unsent.clear();
        }
        if self.charge_open_block().is_err() {
            return TurnResult::Close(CloseReason::Memory);
        }
        let mut is_busy = self.gate.is_worth_another_read() || !self.arrived.is_empty();
        let is_charged = self.charge_streams().is_ok();
        let mut arrived = std::mem::take(&mut self.arrived);
        for (request, respond) in arrived.drain(..) {
            let charge = if is_charged { self.calls.charge(&self.slot.account).ok() } else { None };
            self.begin(request, respond, charge, context);
        }
        arrived.shrink_to(MAX_KEPT_CAPACITY);
        self.arrived = arrived;
        while let Poll::Ready(Some(end)) = self.running.poll_next_unpin(context) {
            is_busy = true;
            self.end(end);
        }
        match (self.resets.is_spent(), is_busy) {
            (true, _) => TurnResult::Close(CloseReason::Resets),
            (false, true) => TurnResult::Busy,
            (false, false) => TurnResult::Idle,
        }
    }

    /// Takes all calls that one read brings. Ready once the connection has ended.
    fn accept(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            match self.http2.poll_accept(context) {
                Poll::Ready(Some(Ok(call))) => self.arrived.push(call),
                Poll::Ready(Some(Err(error))) => {
                    tracing::debug!(%error, "a connection to the gRPC port ended");
                    return Poll::Ready(());
                }
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Starts a call, or refuses it if no memory could be charged for it. A call that needs nothing more ends at once.
    fn begin(
        &mut self,
        request: Request<RecvStream>,
        mut respond: SendResponse<AnswerBytes>,
        charge: Option<MemoryCharge>,
        context: &mut Context<'_>,
    ) {
        let Some(charge) = charge else {
            self.calls.count_refused(&request);
            respond.send_reset(Code::REFUSED_STREAM);
            return;
        };
        let mut call = self.calls.run(request, respond, charge);
        match Pin::new(&mut call).poll(context) {
            Poll::Ready(end) => self.end(end),
            Poll::Pending => self.running.push(call),
        }
    }

    /// Charges the memory of h2 for streams, if there are more than ever before.
    fn charge_streams(&mut self) -> Result<(), BudgetExhausted> {
        // OK because a connection has a few thousand streams at most.
        let bytes = (self.running.len() + self.arrived.len()) * STREAM_BYTES;
        match bytes.saturating_sub(self.streams.bytes()) {
            0 => Ok(()),
            more => self.streams.grow(more),
        }
    }

    fn charge_open_block(&mut self) -> Result<(), BudgetExhausted> {
        match (self.gate.is_block_open(), self.block.bytes()) {
            (true, 0) => self.block.grow(OPEN_BLOCK_BYTES),
            (false, 1..) => {
                self.block.clear();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn end(&mut self, end: CallEnd) {
        match end {
            CallEnd::Answer { response, respond, charge } => {
                self.resets.count_answer();
                self.unsent.extend(send(response, respond, charge));
            }
            CallEnd::Sent => self.resets.count_answer(),
            CallEnd::Reset => {
                self.calls.count_reset();
                self.resets.count_reset();
            }
            CallEnd::Lost => {}
        }
    }

    /// Closes the connection because of something that its client did. The client gets a GOAWAY if it reads.
    fn close(&mut self, reason: CloseReason, context: &mut Context<'_>) {
        self.slot.count_closed(reason);
        self.http2.abrupt_shutdown(Code::ENHANCE_YOUR_CALM);
        if let Poll::Ready(Err(error)) = self.http2.poll_closed(context) {
            tracing::debug!(%error, "a connection to the gRPC port was closed");
        }
    }
}
