//! Answers to gRPC calls, and how they are sent.

use std::io::IoSlice;

use h2::SendStream;
use h2::server::SendResponse;
use hyper::body::{Buf, Bytes};
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Response};
use tonic::Status;

use crate::budget::MemoryCharge;

/// The longest answer whose memory is part of the charge of its call.
pub(super) const COVERED_BYTES: usize = 512;

/// The body of an answer.
#[derive(Debug)]
pub(super) enum CallReply {
    /// A message, followed by the status 0 in the trailers.
    Message(Bytes),
    /// No message, because the headers already have the status.
    Nothing,
}

/// Bytes to be sent, and the charge for them. h2 drops both when they are written or their stream has ended.
#[derive(Debug)]
pub(super) struct AnswerBytes {
    bytes: Bytes,
    _charge: Option<MemoryCharge>,
}

impl AnswerBytes {
    pub(super) fn new(bytes: Bytes, charge: Option<MemoryCharge>) -> AnswerBytes {
        AnswerBytes { bytes, _charge: charge }
    }
}

impl Buf for AnswerBytes {
    fn remaining(&self) -> usize {
        self.bytes.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.bytes.chunk()
    }

    fn chunks_vectored<'b>(&'b self, slices: &mut [IoSlice<'b>]) -> usize {
        self.bytes.chunks_vectored(slices)
    }

    fn advance(&mut self, bytes: usize) {
        self.bytes.advance(bytes);
    }
}

/// How a call ended.
pub(super) enum CallEnd {
    /// Its answer is ready to be sent.
    Answer {
        response: Response<CallReply>,
        respond: SendResponse<AnswerBytes>,
        charge: MemoryCharge,
    },
    /// Its answer was handed to h2.
    Sent,
    /// The client reset it.
    Reset,
    /// The connection ended before the call did.
    Lost,
}

impl CallEnd {
    /// Returns the end of a call whose stream was reset or lost.
    pub(super) fn of(reset: &Result<h2::Reason, h2::Error>) -> CallEnd {
        match reset {
            Ok(_) => CallEnd::Reset,
            Err(_) => CallEnd::Lost,
        }
    }
}

/// Hands an answer to h2. If it has no message, returns its charge, to be kept until the answer is written.
pub(super) fn send(
    response: Response<CallReply>,
    mut respond: SendResponse<AnswerBytes>,
    mut charge: MemoryCharge,
) -> Option<MemoryCharge> {
    let (head, answer) = response.into_parts();
    let head = Response::from_parts(head, ());
    match answer {
        CallReply::Nothing => respond.send_response(head, true).ok().map(|_| charge),
        CallReply::Message(message) => {
            charge.grow_anyway(message.len().saturating_sub(COVERED_BYTES));
            // An error means that the client has reset the call or closed the connection.
            if let Ok(stream) = respond.send_response(head, false) {
                let _ = send_message(stream, AnswerBytes::new(message, Some(charge)));
            }
            None
        }
    }
}

fn send_message(
    mut stream: SendStream<AnswerBytes>,
    message: AnswerBytes,
) -> Result<(), h2::Error> {
    stream.send_data(message, false)?;
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(Status::GRPC_STATUS, HeaderValue::from_static("0"));
    stream.send_trailers(trailers)
}
