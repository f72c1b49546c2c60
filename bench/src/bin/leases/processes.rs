//! Processes that share one key, and what they were admitted.

use std::env;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::NamedTempFile;
use tokio::runtime::Builder;
use tokio::time::{MissedTickBehavior, interval};
use tollgate::{LeaseOptions, OnFailure, Redis};

/// The units that a process was admitted in each millisecond since the Unix epoch, in order of time. The process writes them
/// to a file at once, so that they are known even if it is killed.
pub(crate) type Admitted = Vec<(u64, u64)>;

/// A process that checks the key while it is active.
pub(crate) struct SharingProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    record: NamedTempFile,
}

impl SharingProcess {
    /// Starts a process that checks this limit. Its demand is in units for each second.
    pub(crate) fn start(url: &str, limit: &str, demand: u64) -> Result<SharingProcess> {
        let record = NamedTempFile::new()?;
        let mut child = Command::new(env::current_exe()?)
            .args(["process", url, limit, &demand.to_string()])
            .arg(record.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().context("no input")?;
        let output = BufReader::new(child.stdout.take().context("no output")?);
        let mut process = SharingProcess { child, input, output, record };
        ensure!(process.line()? == "ready", "the process did not start");
        Ok(process)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// Makes the process check from now on, or pause.
    pub(crate) fn set_active(&mut self, is_active: bool) -> Result<()> {
        Ok(self.input.write_all(if is_active { b"go\n" } else { b"pause\n" })?)
    }

    /// Kills the process. Its units stay held until their lease ends.
    pub(crate) fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill()?)
    }

    /// Stops or continues the process.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Ends the process, and returns what it was admitted and its calls to Redis: none for a process that was killed.
    pub(crate) fn end(mut self) -> Result<(Admitted, u64)> {
        // An error means that the process was killed.
        let _ = self.input.write_all(b"end\n");
        let line = self.line()?;
        let calls = line.strip_prefix("calls ").map_or(Ok(0), str::parse)?;
        let record = fs::read_to_string(self.record.path())?;
        let admitted = record.lines().map(|line| {
            let (at_ms, units) = line.split_once(' ').context("a line without two numbers")?;
            Ok((at_ms.parse()?, units.parse()?))
        });
        Ok((admitted.collect::<Result<_>>()?, calls))
    }
}

impl Drop for SharingProcess {
    fn drop(&mut self) {
        // OK because an error means that it has ended already.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Returns the machine's time.
pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(0)
}

/// Returns the lines of the input, each of which is a command.
fn commands() -> std::sync::mpsc::Receiver<String> {
    let (sender, commands) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    commands
}

/// Runs a process that checks the key, and writes what it is admitted to a file.
pub(crate) fn run(url: &str, limit: &str, demand: u64, record: &str) -> Result<()> {
    let mut record = File::create(record)?;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let redis = Redis::at(url)?.on_failure(OnFailure::Closed);
        let limiter = redis.deadline(Duration::from_millis(200)).build()?;
        let scope = limiter.scope("shared", limit)?.leased(LeaseOptions::default())?;
        let _ = scope.peek("key").await?;
        println!("ready");
        let commands = commands();
        let (mut is_active, mut owed) = (false, 0.0);
        let mut ticks = interval(Duration::from_millis(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        loop {
            ticks.tick().await;
            match commands.try_recv() {
                Ok(command) if command == "end" => break,
                Ok(command) => is_active = command == "go",
                Err(std::sync::mpsc::TryRecvError::Disconnected) => return Ok(()),
                Err(std::sync::mpsc::TryRecvError::Empty) => {}
            }
            if !is_active {
                continue;
            }
            owed += demand as f64 / 1e3;
            let mut units = 0;
            while owed >= 1.0 {
                owed -= 1.0;
                match scope.check("key").await {
                    Ok(decision) if decision.is_allowed() => units += 1,
                    // The rest of this millisecond's demand would be refused too.
                    _ => owed = owed.fract(),
                }
            }
            if units > 0 {
                // One call, so that a process that is killed leaves whole lines.
                record.write_all(format!("{} {units}\n", now_ms()).as_bytes())?;
            }
        }
        let counters = limiter.lease_counters();
        println!("calls {}", counters.asks + counters.background_calls);
        Ok(())
    })
}
