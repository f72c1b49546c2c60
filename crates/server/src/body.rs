//! Reads the bodies of requests on both ports, up to a maximum length and within the memory budget.

use axum::body::{Bytes, HttpBody};
use http_body_util::BodyExt;

use crate::budget::{Budget, BudgetExhausted, MemoryCharge, SMALL_BYTES};

/// The detail of a 503 when the memory budget of requests is spent.
pub(crate) const OUT_OF_MEMORY: &str = "the server is out of memory for requests and answers; try again in a second, \
                                        or send a shorter request: short requests are answered";

/// Why a body was not read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnreadBody {
    #[error("the body is too long; send at most {most} bytes")]
    TooLong { most: usize },
    #[error("{OUT_OF_MEMORY}")]
    OutOfMemory,
    /// The rest never arrived. (A body that arrives too slowly is not reported here: the HTTP port closes its
    /// connection, and the gRPC port answers with a timeout.)
    #[error("the body ended early, or its chunks are malformed; send the whole body")]
    Incomplete,
}

impl From<BudgetExhausted> for UnreadBody {
    fn from(_: BudgetExhausted) -> UnreadBody {
        UnreadBody::OutOfMemory
    }
}

/// Reads a whole body of at most `most` bytes. A body whose declared length exceeds that is refused unread.
///
/// Memory for a body longer than [`SMALL_BYTES`] is taken from the budget as the body arrives, whatever its declared
/// length. For such a body, and for any body that does not arrive in one piece, [`SMALL_BYTES`] are also charged to
/// `small`, if given.
pub(crate) async fn read<B>(
    mut body: B,
    most: usize,
    budget: &Budget,
    small: Option<&mut MemoryCharge>,
) -> Result<Bytes, UnreadBody>
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    if body.size_hint().lower() > most as u64 {
        return Err(UnreadBody::TooLong { most });
    }
    let first = next(&mut body).await?.unwrap_or_default();
    if first.len() > most {
        return Err(UnreadBody::TooLong { most });
    }
    // Most bodies arrive in one piece, which is not copied.
    if body.is_end_stream() && first.len() <= SMALL_BYTES {
        return Ok(first);
    }
    if let Some(small) = small {
        small.grow(SMALL_BYTES)?;
    }
    let mut held = budget.held();
    held.grow_to(first.len())?;
    let mut all = Vec::from(first);
    while let Some(data) = next(&mut body).await? {
        // OK because both are in memory: their sum fits usize.
        let length = all.len() + data.len();
        if length > most {
            return Err(UnreadBody::TooLong { most });
        }
        if length > all.capacity() {
            // Double the capacity, so that a body in many pieces is not copied once for each piece.
            let room = (2 * length).max(SMALL_BYTES).min(most);
            held.grow_to(room)?;
            all.reserve_exact(room - all.len());
        }
        all.extend_from_slice(&data);
    }
    match all.capacity() <= SMALL_BYTES {
        true => Ok(all.into()),
        false => Ok(held.bytes(all)),
    }
}

/// Returns the next piece of the body; `None` at its end. Trailers are skipped.
async fn next<B>(body: &mut B) -> Result<Option<Bytes>, UnreadBody>
where
    B: HttpBody<Data = Bytes> + Unpin,
{
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| UnreadBody::Incomplete)?;
        if let Ok(data) = frame.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use axum::body::Body;
    use hyper::body::Frame;

    use super::*;

    /// A body that arrives in these pieces.
    struct Pieces(VecDeque<io::Result<&'static [u8]>>);

    impl HttpBody for Pieces {
        type Data = Bytes;
        type Error = io::Error;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
            let data = |piece| Frame::data(Bytes::from_static(piece));
            Poll::Ready(self.0.pop_front().map(|piece| piece.map(data)))
        }
    }

    fn read_all(pieces: Vec<io::Result<&'static [u8]>>, most: usize) -> Result<Bytes, UnreadBody> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let budget = Budget::new(4 << 20);
        runtime.block_on(read(Body::new(Pieces(pieces.into())), most, &budget, None))
    }

    #[test]
    fn pieces_are_joined_up_to_the_maximum_length() {
        assert_eq!(read_all(vec![], 4).unwrap(), "");
        assert_eq!(read_all(vec![Ok(b"ab"), Ok(b""), Ok(b"cd")], 4).unwrap(), "abcd");
        let one_more = read_all(vec![Ok(b"ab"), Ok(b"cd"), Ok(b"e")], 4);
        assert_eq!(one_more, Err(UnreadBody::TooLong { most: 4 }));
        assert_eq!(read_all(vec![Ok(b"abcde")], 4), Err(UnreadBody::TooLong { most: 4 }));
    }

    #[test]
    fn body_in_a_million_pieces_is_not_copied_for_each_piece() {
        // Copying the body for each piece would copy 500 GB.
        let pieces = (0..1 << 20).map(|_| Ok(&b" "[..])).collect();
        assert_eq!(read_all(pieces, 1 << 20).unwrap().len(), 1 << 20);
    }

    #[test]
    fn body_above_the_small_size_is_charged_to_the_budget() {
        let kib =
            |count: usize| (0..count).map(|_| Ok(&[b' '; 1 << 10][..])).collect::<VecDeque<_>>();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let nothing = Budget::new(0);
        let read = |pieces, budget| {
            let read = read(Body::new(Pieces(pieces)), 1 << 20, budget, None);
            runtime.block_on(read)
        };
        assert_eq!(read(kib(4), &nothing).unwrap().len(), 4 << 10);
        assert_eq!(read(kib(5), &nothing), Err(UnreadBody::OutOfMemory));
        let at_once = VecDeque::from([Ok(&[b' '; 5 << 10][..])]);
        assert_eq!(read(at_once, &nothing), Err(UnreadBody::OutOfMemory));

        let one = Budget::new(1 << 20);
        let body = read(kib(1024), &one).unwrap();
        assert_eq!(body.len(), 1 << 20);
        assert_eq!(read(kib(5), &one), Err(UnreadBody::OutOfMemory));
        drop(body);
        assert_eq!(read(kib(1024), &one).unwrap().len(), 1 << 20);
    }

    #[test]
    fn incomplete_body_is_an_error() {
        let gone = || Err(io::ErrorKind::UnexpectedEof.into());
        assert_eq!(read_all(vec![Ok(b"ab"), gone()], 4), Err(UnreadBody::Incomplete));
    }
}
