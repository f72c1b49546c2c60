//! Answers to gRPC calls, and how they are sent.

use std::io::IoSlice;

use h2::SendStream;
use h2::server::SendResponse;
use hyper::body::{Buf, Bytes};
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Response};
use tonic::Status;

use crate::budget::MemoryCharge;

/// The longest answer that the charge of its call covers.
pub(super) const COVERED_BYTES: usize = 512;

/// The body of an answer.
#[derive(Debug)]
pub(super) enum Answer {
    /// A message, after which all is well.
    Message(Bytes),
    /// Nothing: the headers say it all.
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
    Answer { response: Response<Answer>, respond: SendResponse<AnswerBytes>, charge: MemoryCharge },
    /// Its answer is on its way.
    Sent,
    /// The client reset it.
    Reset,
    /// The connection ended before it.
    Lost,
}

impl CallEnd {
    /// The end of a call whose stream was reset or lost.
    pub(super) fn of(reset: &Result<h2::Reason, h2::Error>) -> CallEnd {
        match reset {
            Ok(_) => CallEnd::Reset,
            Err(_) => CallEnd::Lost,
        }
    }
}

/// Hands an answer to h2. Returns the charge of an answer without a message, for when it is written.
pub(super) fn send(
    response: Response<Answer>,
    mut respond: SendResponse<AnswerBytes>,
    mut charge: MemoryCharge,
) -> Option<MemoryCharge> {
    let (head, answer) = response.into_parts();
    let head = Response::from_parts(head, ());
    match answer {
        Answer::Nothing => respond.send_response(head, true).ok().map(|_| charge),
        Answer::Message(message) => {
            charge.grow_anyway(message.len().saturating_sub(COVERED_BYTES));
            // An error is that the client has reset the call, or is gone.
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
