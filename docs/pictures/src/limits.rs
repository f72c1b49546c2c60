//! The six limits that are drawn. All allow a nominal 10 units in 10 s.

use tollgate_core::Limit;

/// The window of the window limits, and the time in which a bucket refills or leaks completely.
pub(crate) const WINDOW_US: u64 = 10_000_000;

/// A limit that is drawn.
pub(crate) struct DrawnLimit {
    /// The name of its picture's file, without the extension.
    pub(crate) slug: &'static str,
    /// Its heading.
    pub(crate) title: &'static str,
    /// The limit, in the format of the command line.
    pub(crate) limit: &'static str,
}

/// The limits.
pub(crate) const LIMITS: [DrawnLimit; 6] = [
    DrawnLimit {
        slug: "fixed-window",
        title: "Fixed window",
        limit: "fixed-window limit=10 window=10s",
    },
    DrawnLimit {
        slug: "sliding-window-log",
        title: "Sliding window log",
        limit: "sliding-window-log limit=10 window=10s",
    },
    DrawnLimit {
        slug: "sliding-window-counter",
        title: "Sliding window counter",
        limit: "sliding-window-counter limit=10 window=10s",
    },
    DrawnLimit {
        slug: "token-bucket",
        title: "Token bucket",
        limit: "token-bucket capacity=10 refill=1/s",
    },
    DrawnLimit {
        slug: "leaky-bucket-policing",
        title: "Leaky bucket, policing",
        limit: "leaky-bucket capacity=10 leak=1/s mode=policing",
    },
    DrawnLimit {
        slug: "leaky-bucket-shaping",
        title: "Leaky bucket, shaping",
        limit: "leaky-bucket capacity=10 leak=1/s mode=shaping",
    },
];

/// Returns whether a limit counts in windows that begin at fixed times.
pub(crate) fn has_aligned_windows(limit: &Limit) -> bool {
    matches!(limit, Limit::FixedWindow(_) | Limit::SlidingWindowCounter(_))
}

/// Returns whether admitted requests leave later.
pub(crate) fn is_shaping(limit: &Limit) -> bool {
    matches!(limit, Limit::LeakyBucket(bucket) if bucket.mode() == tollgate_core::Mode::Shaping)
}
