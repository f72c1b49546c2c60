//! Runs the command `tollgate replay` with traces.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

pub(crate) const BUCKET: &str = "token-bucket capacity=10 refill=1/s";

pub(crate) fn tollgate(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(args).env_remove("TOLLGATE_LIMIT").env_remove("TOLLGATE_STORE");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn replay(limit: &str, trace: &[u8]) -> Output {
    replay_on("memory", limit, trace)
}

pub(crate) fn replay_on(store: &str, limit: &str, trace: &[u8]) -> Output {
    let child = tollgate(&["replay", "--limit", limit, "--store", store, "-"]).spawn().unwrap();
    feed(child, trace)
}

pub(crate) fn feed(mut child: Child, trace: &[u8]) -> Output {
    let mut stdin = child.stdin.take().unwrap();
    let trace = trace.to_vec();
    // OK to ignore an error: an invalid line ends the replay early, and the rest of the trace is not read.
    let writer = std::thread::spawn(move || stdin.write_all(&trace).ok());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

pub(crate) fn stdout(output: &Output) -> &str {
    str::from_utf8(&output.stdout).unwrap()
}

pub(crate) fn stderr(output: &Output) -> &str {
    str::from_utf8(&output.stderr).unwrap()
}

/// A trace that is written while it is replayed.
pub(crate) struct GrowingTrace {
    child: Child,
    trace: ChildStdin,
    decisions: BufReader<ChildStdout>,
}

impl GrowingTrace {
    pub(crate) fn begin(store: &str) -> GrowingTrace {
        let args = ["replay", "--limit", BUCKET, "--store", store, "-"];
        let mut child = tollgate(&args).spawn().unwrap();
        let trace = child.stdin.take().unwrap();
        let decisions = BufReader::new(child.stdout.take().unwrap());
        GrowingTrace { child, trace, decisions }
    }

    pub(crate) fn write(&mut self, lines: &str) {
        self.trace.write_all(lines.as_bytes()).unwrap();
    }

    /// Waits for the next decision, and returns it; empty after the last one.
    pub(crate) fn decision(&mut self) -> String {
        let mut decision = String::new();
        self.decisions.read_line(&mut decision).unwrap();
        decision
    }

    pub(crate) fn end(self) -> Output {
        drop(self.trace);
        self.child.wait_with_output().unwrap()
    }
}

/// Asserts that every line is decided before the next line is written, even if a blank or incomplete line follows it.
pub(crate) fn assert_decides_each_line(store: &str) {
    let mut replay = GrowingTrace::begin(store);
    replay.write("at_us,key\n");
    for (at_us, lines) in ["0,a\n", "1,a\n\n", "\r\n2,a\n \n\n3", ",a\n"].into_iter().enumerate() {
        replay.write(lines);
        let decision = replay.decision();
        assert!(decision.starts_with(&format!("{{\"at_us\":{at_us},")), "{decision}");
    }
    let output = replay.end();
    assert!(output.status.success(), "{}", stderr(&output));
}

/// A worked example: a trace, and the decisions that the command must print.
pub(crate) struct WorkedTrace {
    pub(crate) limit: String,
    pub(crate) trace: String,
    pub(crate) decisions: String,
}

pub(crate) fn examples() -> Vec<WorkedTrace> {
    let data = include_str!("../../../core/tests/behaviour/data/worked-examples.json");
    let data: serde_json::Value = serde_json::from_str(data).unwrap();
    data["examples"].as_array().unwrap().iter().map(example).collect()
}

fn example(example: &serde_json::Value) -> WorkedTrace {
    let limit = example["limit"].as_str().unwrap().to_owned();
    let size: u64 = limit.split(['=', ' ']).nth(2).unwrap().parse().unwrap();
    let mut trace = String::from("at_us,key,cost\n");
    let mut decisions = String::new();
    for row in example["requests"].as_array().unwrap() {
        let (at_us, key, cost) = (&row[0], row[1].as_str().unwrap(), &row[2]);
        trace += &format!("{at_us},{key},{cost}\n");
        let (allowed, remaining, retry, reset, delay) =
            (&row[3], &row[4], &row[5], &row[6], &row[7]);
        decisions += &format!(
            r#"{{"at_us":{at_us},"key":"{key}","cost":{cost},"allowed":{allowed},"limit":{size},"remaining":{remaining},"retry_after_us":{retry},"reset_after_us":{reset},"delay_us":{delay}}}"#
        );
        decisions += "\n";
    }
    WorkedTrace { limit, trace, decisions }
}
