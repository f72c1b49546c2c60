//! A process of its own that runs one ignored test of this program, and exchanges lines with the test that started it.

use std::env;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tollgate_launcher::{freeze_process, thaw_process};

/// The environment variable with the URL of the server that the process uses.
const URL: &str = "TOLLGATE_TEST_PROCESS_URL";

/// The start of a line for the test; the test harness prints other lines.
const MARK: &str = "test process: ";

pub(crate) struct TestProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl TestProcess {
    /// Starts a process that runs this ignored test on this server.
    pub(crate) fn start(test: &str, url: &str) -> TestProcess {
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env(URL, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        TestProcess { child, input, output: BufReader::new(output) }
    }

    /// Sends the process a line, for which [`next_input`] waits.
    pub(crate) fn go(&mut self) {
        self.input.write_all(b"go\n").unwrap();
    }

    /// The next line that the process [reports](report).
    pub(crate) fn next_line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the process has ended");
            if let Some((_, text)) = line.trim_end().split_once(MARK) {
                return text.to_owned();
            }
        }
    }

    /// Sends SIGSTOP.
    pub(crate) fn freeze(&self) {
        assert!(freeze_process(&self.child));
    }

    /// Sends SIGCONT.
    pub(crate) fn thaw(&self) {
        assert!(thaw_process(&self.child));
    }

    /// Sends SIGKILL, and waits until the process is gone.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        // Errors are ignored: the process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// In the process: the URL of its server. `None` in a run of all ignored tests.
pub(crate) fn server_url() -> Option<String> {
    env::var(URL).ok()
}

/// In the process: prints a line for the test.
pub(crate) fn report(line: impl Display) {
    println!("\n{MARK}{line}");
}

/// In the process: waits for a line of the test.
pub(crate) fn next_input() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}
