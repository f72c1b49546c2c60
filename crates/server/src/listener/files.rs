//! How many files the system lets the server open: every connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the server opens beside connections to its ports: the store, its own files.
const OTHERS: u64 = 256;

/// Lets the server open as many files as the system allows it. If those are too few it warns, and returns how many
/// connections each of the two ports may have: without files for the store, checks fail.
pub(crate) fn allow_open_files(max_connections: u32) -> u32 {
    let Some(allowed) = raise_to_hard_limit() else { return max_connections };
    let fit = fit(allowed);
    if fit >= max_connections {
        return max_connections;
    }
    tracing::warn!(
        "--max-connections {max_connections}: the system lets this process open {allowed} files, \
         which are enough for {fit} connections on each of both ports, beside {OTHERS} other files: \
         no more are let in; raise `ulimit -n`, or lower --max-connections"
    );
    fit
}

/// How many connections there are files for, on each of two ports: at least one.
///
/// With 300 files it is 22.
fn fit(allowed: u64) -> u32 {
    let each = allowed.saturating_sub(OTHERS) / 2;
    u32::try_from(each).unwrap_or(u32::MAX).max(1)
}

/// `None` if there is no limit.
fn raise_to_hard_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum,
        // A system that does not let it be raised keeps the soft limit.
        Err(_) => limit.current,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_of_open_files_becomes_the_hard_one() {
        allow_open_files(1);
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }

    #[test]
    fn both_ports_have_half_of_the_files_that_nothing_else_needs() {
        for (allowed, want) in
            [(20_256, 10_000), (20_255, 9_999), (300, 22), (258, 1), (0, 1), (u64::MAX, u32::MAX)]
        {
            assert_eq!(fit(allowed), want, "{allowed}");
        }
    }

    #[test]
    fn no_more_connections_are_let_in_than_there_are_files_for() {
        assert_eq!(allow_open_files(1), 1);
        let most = getrlimit(Resource::Nofile).maximum.map_or(u32::MAX, fit);
        assert_eq!(allow_open_files(u32::MAX), most);
    }
}
