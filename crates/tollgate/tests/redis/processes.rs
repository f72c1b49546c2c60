//! P5 across processes: together they admit what one caller would.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tokio::task::JoinSet;
use tollgate_launcher::Flavour;

use crate::setup::{LIMITS, at, open, remaining, scope, start};

const PROCESSES: usize = 4;
const TASKS: usize = 8;

/// The environment variable with the URL of a racer's server.
pub(crate) const URL: &str = "TOLLGATE_RACER_URL";

/// Another process of this program, which runs one ignored test of it.
pub(crate) struct Racer {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Racer {
    /// Starts a process that runs `test` on the server at `url`.
    pub(crate) fn start(test: &str, url: &str) -> Racer {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env(URL, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Racer { child, input, output: BufReader::new(output) }
    }

    fn go(&mut self) {
        self.send("go");
    }

    /// Writes a line to the standard input of the process.
    pub(crate) fn send(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// The next line that the process prints for the test.
    pub(crate) fn next_line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the racer has ended");
            if let Some((_, text)) = line.trim_end().split_once("racer: ") {
                return text.to_owned();
            }
        }
    }
}

impl Drop for Racer {
    fn drop(&mut self) {
        // Errors are ignored: the process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
async fn processes_that_race_admit_exactly_the_limit() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let limiter = open(&server);
        let mut racers: Vec<Racer> =
            (0..PROCESSES).map(|_| Racer::start("processes::racer", &server.url())).collect();
        for text in LIMITS {
            for racer in &mut racers {
                assert_eq!(racer.next_line(), "ready");
            }
            racers.iter_mut().for_each(Racer::go);
            let admitted: Vec<u64> =
                racers.iter_mut().map(|racer| racer.next_line().parse().unwrap()).collect();
            assert_eq!(admitted.iter().sum::<u64>(), 100, "{flavour}, {text}: {admitted:?}");
            assert_eq!(remaining(&scope(&limiter, text), "key").await, 0, "{flavour}, {text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test above in a process of its own"]
async fn racer() {
    let Ok(url) = env::var(URL) else { return };
    let limiter = at(&url);
    for text in LIMITS {
        let scope = scope(&limiter, text);
        scope.peek("key").await.unwrap();
        println!("\nracer: ready");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let scope = scope.clone();
            tasks.spawn(async move {
                let mut admitted = 0_u64;
                for _ in 0..100 / TASKS {
                    admitted += u64::from(scope.check("key").await.unwrap().is_allowed());
                }
                admitted
            });
        }
        let admitted: u64 = tasks.join_all().await.into_iter().sum();
        println!("\nracer: {admitted}");
    }
}
