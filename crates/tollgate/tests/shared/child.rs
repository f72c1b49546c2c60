//! Other processes of a test program, which run one of its ignored tests.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tollgate_launcher::{freeze_process, thaw_process};

/// Precedes each line that a child prints for the test that started it. The test harness prints lines too.
const MARK: &str = "child: ";

/// A process that runs one ignored test of this program. It is killed when this is dropped.
pub(crate) struct ChildTest {
    pub(crate) process: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl ChildTest {
    /// Starts a process for a test, by its path, with these environment variables.
    pub(crate) fn start(test: &str, variables: &[(&str, &str)]) -> ChildTest {
        let mut process = Command::new(env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture"])
            .envs(variables.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (process.stdin.take().unwrap(), process.stdout.take().unwrap());
        ChildTest { process, input, output: BufReader::new(output) }
    }

    /// Lets a child continue that waits in [`wait_for_test`].
    pub(crate) fn go(&mut self) {
        self.send("go");
    }

    /// Writes a line to the standard input of the child.
    pub(crate) fn send(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    /// Stops the child where it is, until [`thaw`](Self::thaw).
    pub(crate) fn freeze(&self) {
        assert!(freeze_process(&self.process));
    }

    pub(crate) fn thaw(&self) {
        assert!(thaw_process(&self.process));
    }

    /// Kills the child at any point, and waits until it is gone.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }

    /// Returns the next line that the child [says](say).
    pub(crate) fn next_line(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the child has ended");
            if let Some((_, text)) = line.trim_end().split_once(MARK) {
                return text.to_owned();
            }
        }
    }
}

impl Drop for ChildTest {
    fn drop(&mut self) {
        // Errors are ignored: the process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// In a child: prints a line for the test that started it.
pub(crate) fn say(text: &str) {
    println!("\n{MARK}{text}");
}

/// In a child: waits until the test lets it continue, or has ended.
pub(crate) fn wait_for_test() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}
