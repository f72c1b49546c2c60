//! How a limit is leased, and the most that may be held unused.

use std::time::Duration;

use serde::Serialize;
use tollgate::{LeaseOptions, Limit};
use tollgate_core::duration_text;
use utoipa::ToSchema;

/// How the keys of a limit are leased, and the most units of a key that are set aside and not used. The bound of the limit is
/// the same with leases and without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Lease)]
pub(crate) struct LeaseBounds {
    /// How long a lease lasts unless it is renewed. The units of a process that crashes are unused for so long.
    #[schema(example = 1_000_000)]
    for_us: u64,
    /// The least time between two calls of the store by one process about one key.
    #[schema(example = 10_000)]
    pace_us: u64,
    /// The most unused units that one process holds: its share of the limit.
    #[schema(example = 15)]
    max_unused: u64,
    /// The most unused units that a process gets while less remains. In it, `holders` is the number of processes that have a
    /// lease of the key.
    #[schema(example = "min(max_unused, remaining / (2 * holders))")]
    formula: &'static str,
}

impl LeaseBounds {
    /// Returns the bounds of a limit's leases; `None` if the limit cannot be leased.
    pub(crate) fn of(options: LeaseOptions, limit: &Limit) -> Option<LeaseBounds> {
        Some(LeaseBounds {
            for_us: in_us(options.lease_for),
            pace_us: in_us(options.pace),
            max_unused: options.max_unused(limit).ok()?,
            formula: "min(max_unused, remaining / (2 * holders))",
        })
    }

    /// Describes how the limit is leased: `for 1s, renewed every 10ms at most`.
    pub(crate) fn times(&self) -> String {
        let (time, pace) = (duration_text(self.for_us), duration_text(self.pace_us));
        format!("for {time}, renewed every {pace} at most")
    }

    /// Describes the most that is held unused.
    pub(crate) fn unused(&self) -> String {
        let most = self.max_unused;
        format!(
            "unused at most {most} in each process, and at most half of what remains, divided by the processes with a lease"
        )
    }
}

fn in_us(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
