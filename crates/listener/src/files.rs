//! How many connections there are file descriptors for.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The most file descriptors that are kept for the rest: connections to the store, the log, the rules file.
const MAX_RESERVED: u64 = 256;

/// The process may open fewer files than the requested number of connections needs.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the system lets this process open {allowed_files} files, which are enough for {max_connections} connections on \
     each of the two ports and {reserved_files} other files"
)]
pub struct TooFewFiles {
    allowed_files: u64,
    reserved_files: u64,
    /// How many connections each of the two ports has file descriptors for.
    pub max_connections: u32,
}

/// Raises the limit of open files as far as the system allows, for `max_connections` on each of the two
/// ports.
pub fn allow_open_files(max_connections: u32) -> Result<(), TooFewFiles> {
    let Some(allowed_files) = raise_to_hard_limit() else { return Ok(()) };
    match (fit(allowed_files), reserved(allowed_files)) {
        (fit, _) if fit >= max_connections => Ok(()),
        (fit, reserved_files) => {
            Err(TooFewFiles { allowed_files, reserved_files, max_connections: fit })
        }
    }
}

/// Returns how many descriptors are kept for the rest: half of a small number, [`MAX_RESERVED`] of a large one. If it were
/// always 256, a server with 300 descriptors would have 22 connections on each port, and a few silent clients could lock
/// out all others.
fn reserved(allowed: u64) -> u64 {
    (allowed / 2).min(MAX_RESERVED)
}

/// Returns how many connections each of two ports has descriptors for: 16 if 64 are allowed, and at least one.
fn fit(allowed: u64) -> u32 {
    // OK because no more is reserved than allowed.
    let each = (allowed - reserved(allowed)) / 2;
    u32::try_from(each).unwrap_or(u32::MAX).max(1)
}

/// Returns the new limit; `None` if there is no limit.
fn raise_to_hard_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        // If the system does not allow it, the soft limit stays.
        Err(_) => limit.current,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limit_of_open_files_is_raised_to_the_hard_limit() {
        allow_open_files(1).unwrap();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }

    #[test]
    fn each_port_has_half_of_the_files_that_are_not_reserved() {
        for (allowed, want) in [
            (20_256, 10_000),
            (20_255, 9_999),
            (1_024, 384),
            (512, 128),
            (300, 75),
            (64, 16),
            (3, 1),
            (0, 1),
            (u64::MAX, u32::MAX),
        ] {
            assert_eq!(fit(allowed), want, "{allowed}");
        }
    }

    #[test]
    fn connections_are_capped_by_the_file_limit() {
        assert_eq!(allow_open_files(1), Ok(()));
        let most = getrlimit(Resource::Nofile).maximum.map_or(u32::MAX, fit);
        let fits = allow_open_files(u32::MAX).map_or_else(|few| few.max_connections, |()| u32::MAX);
        assert_eq!(fits, most);
    }
}
