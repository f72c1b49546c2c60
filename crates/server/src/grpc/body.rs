//! The body of a gRPC call.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use h2::RecvStream;
use hyper::body::{Body, Bytes, Frame, SizeHint};

/// The body of a call, which h2 receives. Taking bytes out of it allows the client to send as
/// many more.
pub(super) struct CallBody {
    stream: RecvStream,
    has_all_data: bool,
}

impl CallBody {
    pub(super) fn new(stream: RecvStream) -> CallBody {
        CallBody { stream, has_all_data: false }
    }
}

impl Body for CallBody {
    type Data = Bytes;
    type Error = h2::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, h2::Error>>> {
        if !self.has_all_data {
            match ready!(self.stream.poll_data(context)) {
                Some(Ok(data)) => {
                    // An error means that the stream has ended, so that its client sends no more.
                    let _ = self.stream.flow_control().release_capacity(data.len());
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => self.has_all_data = true,
            }
        }
        let trailers = ready!(self.stream.poll_trailers(context));
        Poll::Ready(match trailers {
            Ok(Some(trailers)) => Some(Ok(Frame::trailers(trailers))),
            Ok(None) => None,
            Err(error) => Some(Err(error)),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.stream.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
