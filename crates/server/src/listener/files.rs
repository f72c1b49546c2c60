//! How many files the system lets the server open: every connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the server opens beside connections to its API: the store, gRPC, its own files.
const OTHERS: u64 = 256;

/// Lets the server open as many files as the system allows it, and warns if those are too few.
pub(crate) fn allow_open_files(max_connections: u32) {
    let allowed = raise_to_hard_limit();
    if let Some(problem) = problem(allowed, max_connections) {
        tracing::warn!("{problem}");
    }
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

fn problem(allowed: Option<u64>, max_connections: u32) -> Option<String> {
    let allowed = allowed?;
    let fits = u64::from(max_connections) + OTHERS <= allowed;
    (!fits).then(|| {
        format!(
            "--max-connections {max_connections}: the system lets this process open {allowed} files, \
             too few for that many connections and {OTHERS} other files; raise `ulimit -n`, or lower --max-connections"
        )
    })
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
    fn connections_that_do_not_fit_are_warned_of() {
        assert_eq!(problem(None, u32::MAX), None);
        assert_eq!(problem(Some(10_256), 10_000), None);
        let problem = problem(Some(10_255), 10_000).unwrap();
        assert!(problem.starts_with("--max-connections 10000: "), "{problem}");
        assert!(problem.contains("open 10255 files"), "{problem}");
    }
}
