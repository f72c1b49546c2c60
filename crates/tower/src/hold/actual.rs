//! The actual cost of a request, from its response.

use std::fmt;

use ::http::HeaderMap;

/// The actual cost of a request, as far as the head of its response says. The closure that
/// [`RateLimitLayer::settle`](crate::RateLimitLayer::settle) takes returns it.
///
/// It is made from a `u64`, or from an `Option<u64>` whose `None` says that the cost is not known, or it is measured
/// while the body streams.
pub struct ActualCost(pub(crate) CostSource);

/// Where the actual cost comes from.
pub(crate) enum CostSource {
    Unknown,
    Units(u64),
    Body(Box<dyn BodyMeter>),
}

impl ActualCost {
    /// The cost is measured while the body streams.
    pub fn metered(meter: impl BodyMeter) -> ActualCost {
        ActualCost(CostSource::Body(Box::new(meter)))
    }

    /// The cost is read from the end of the body: when the body has ended or was dropped, `read` gets its last
    /// `max_bytes` bytes, or all of them if it has fewer, and returns the cost if it finds one.
    ///
    /// Each response takes up to `2 * max_bytes` of memory while it streams.
    ///
    /// ```
    /// # use tollgate::tower::{ActualCost, RateLimitLayer};
    /// # fn total_tokens(tail: &[u8]) -> Option<u64> { None }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let layer = RateLimitLayer::per_ip("token-bucket capacity=10000 refill=10000/m")?
    ///     .reserve(|_| 1_000)
    ///     .settle(|_| ActualCost::from_tail(4_096, total_tokens));
    /// # Ok(())
    /// # }
    /// ```
    pub fn from_tail(
        max_bytes: usize,
        read: impl FnOnce(&[u8]) -> Option<u64> + Send + 'static,
    ) -> ActualCost {
        ActualCost::metered(TailMeter { max_bytes, tail: Vec::new(), read: Some(read) })
    }
}

impl From<u64> for ActualCost {
    fn from(units: u64) -> ActualCost {
        ActualCost(CostSource::Units(units))
    }
}

impl From<Option<u64>> for ActualCost {
    fn from(units: Option<u64>) -> ActualCost {
        ActualCost(units.map_or(CostSource::Unknown, CostSource::Units))
    }
}

impl fmt::Debug for ActualCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            CostSource::Unknown => f.write_str("Unknown"),
            CostSource::Units(units) => f.debug_tuple("Units").field(units).finish(),
            CostSource::Body(_) => f.write_str("Body"),
        }
    }
}

/// Measures what a request costs while the body of its response streams.
///
/// Its memory should be bounded, because there is one for each response that streams.
///
/// ```
/// use tollgate::tower::{ActualCost, BodyMeter, RateLimitLayer};
///
/// /// A unit for each KiB, or part of one, that the client was sent.
/// #[derive(Default)]
/// struct Kibibytes {
///     bytes: u64,
/// }
///
/// impl BodyMeter for Kibibytes {
///     fn data(&mut self, chunk: &[u8]) {
///         self.bytes += chunk.len() as u64;
///     }
///
///     fn units(&mut self) -> Option<u64> {
///         Some(self.bytes.div_ceil(1_024))
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let layer = RateLimitLayer::per_ip("token-bucket capacity=1000 refill=100/s")?
///     .reserve(|_| 100)
///     .settle(|_| ActualCost::metered(Kibibytes::default()));
/// # Ok(())
/// # }
/// ```
pub trait BodyMeter: Send + 'static {
    /// Sees a chunk of the body, before it is sent.
    fn data(&mut self, chunk: &[u8]);

    /// Sees the trailers, before they are sent. A gRPC response ends with them.
    fn trailers(&mut self, trailers: &HeaderMap) {
        let _ = trailers;
    }

    /// Returns the cost; `None` if it is not known. Called once, when the body has ended or was dropped.
    fn units(&mut self) -> Option<u64>;
}

/// Keeps the last bytes of a body, and reads the cost from them.
struct TailMeter<F> {
    max_bytes: usize,
    /// Up to twice `max_bytes`, so that most chunks move no bytes.
    tail: Vec<u8>,
    /// `None` once it was called.
    read: Option<F>,
}

impl<F> TailMeter<F> {
    fn cut(&mut self) {
        let surplus = self.tail.len().saturating_sub(self.max_bytes);
        self.tail.drain(..surplus);
    }
}

impl<F> BodyMeter for TailMeter<F>
where
    F: FnOnce(&[u8]) -> Option<u64> + Send + 'static,
{
    fn data(&mut self, chunk: &[u8]) {
        let last = &chunk[chunk.len().saturating_sub(self.max_bytes)..];
        if self.tail.len() + last.len() > self.max_bytes.saturating_mul(2) {
            self.cut();
        }
        self.tail.extend_from_slice(last);
    }

    fn units(&mut self) -> Option<u64> {
        self.cut();
        self.read.take()?(&self.tail)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[test]
    fn tail_is_the_last_bytes_and_takes_twice_their_memory_at_most() {
        for (max_bytes, chunks, want) in [
            (4, vec!["abcdefgh"], "efgh"),
            (4, vec!["ab", "cd", "ef", "gh", "i"], "fghi"),
            (4, vec!["abc", "d", "", "efghijk"], "hijk"),
            (4, vec!["ab"], "ab"),
            (4, vec![], ""),
            (0, vec!["ab", "c"], ""),
        ] {
            let seen = Arc::new(Mutex::new(None));
            let sees = Arc::clone(&seen);
            let read = move |tail: &[u8]| {
                *sees.lock().unwrap() = Some(String::from_utf8(tail.to_vec()).unwrap());
                Some(7)
            };
            let mut meter = TailMeter { max_bytes, tail: Vec::new(), read: Some(read) };
            for chunk in &chunks {
                meter.data(chunk.as_bytes());
                assert!(meter.tail.len() <= 2 * max_bytes, "{chunks:?}");
            }
            assert_eq!((meter.units(), meter.units()), (Some(7), None), "{chunks:?}");
            assert_eq!(seen.lock().unwrap().as_deref(), Some(want), "{chunks:?}");
        }
    }
}
