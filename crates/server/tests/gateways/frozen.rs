//! A frozen server: it accepts connections and requests, but does not answer.

use std::fs;
use std::time::{Duration, Instant};
use std::{panic, thread};

use reqwest::blocking::Response;
use rustix::process::Signal;

use crate::eventually::eventually;
use crate::server::ServerProcess;

/// The time within which a request must be answered. The timeouts of the examples are at most 250 ms.
const PROMPT: Duration = Duration::from_secs(2);

/// A number of requests that exceeds a gateway's open connections to the server, so that some requests need new ones.
const AT_ONCE: usize = 8;

/// A stopped server. It runs again when this is dropped.
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

/// Whether a text such as `4711 (name) T …` says that a thread is stopped. A name can contain a parenthesis.
fn is_stopped(stat: &std::path::Path) -> bool {
    let text = fs::read_to_string(stat).unwrap_or_default();
    text.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
}

/// Sends several requests at the same time. Returns their status, which must be the same for all and come promptly.
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
