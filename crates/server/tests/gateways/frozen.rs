//! A frozen server: it accepts connections and requests, and answers none.

use std::fs;
use std::time::{Duration, Instant};
use std::{panic, thread};

use reqwest::blocking::Response;
use rustix::process::Signal;

use crate::eventually::eventually;
use crate::server::ServerProcess;

/// A request must be answered in this time. The timeouts of the examples are 250 ms at most.
const PROMPT: Duration = Duration::from_secs(2);

/// More requests than a gateway has open connections to the server, so that some need new ones.
const AT_ONCE: usize = 8;

/// A stopped server. Runs again when this is dropped.
pub(crate) struct FrozenServer<'s>(&'s ServerProcess);

impl<'s> FrozenServer<'s> {
    /// Stops every thread of the server.
    pub(crate) fn new(server: &'s ServerProcess) -> FrozenServer<'s> {
        server.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", server.pid().as_raw_nonzero());
        eventually("the server is stopped", || {
            let mut tasks = fs::read_dir(&tasks).unwrap();
            tasks.all(|task| is_stopped(&task.unwrap().path().join("stat"))).then_some(())
        });
        FrozenServer(server)
    }
}

impl Drop for FrozenServer<'_> {
    fn drop(&mut self) {
        self.0.signal(Signal::CONT);
    }
}

/// Whether `4711 (name) T …` says that a thread is stopped. A name may contain a parenthesis.
fn is_stopped(stat: &std::path::Path) -> bool {
    let text = fs::read_to_string(stat).unwrap_or_default();
    text.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
}

/// Sends several requests at once. Returns the status of all of them, which must be the same and come promptly.
pub(crate) fn prompt_status(get: impl Fn() -> Response + Sync) -> u16 {
    let timed = || {
        let began = Instant::now();
        let status = get().status().as_u16();
        (status, began.elapsed())
    };
    let answers: Vec<_> = thread::scope(|scope| {
        let requests: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(timed)).collect();
        let join = |request: thread::ScopedJoinHandle<'_, _>| {
            request.join().unwrap_or_else(|problem| panic::resume_unwind(problem))
        };
        requests.into_iter().map(join).collect()
    });
    let (first, _) = answers[0];
    let is_good = |&(status, took)| status == first && took < PROMPT;
    assert!(answers.iter().all(is_good), "{answers:?}");
    first
}
