//! A server in its own process.

use std::fs::{self, File};
use std::io::{Read, Seek};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, Signal, kill_process};

/// How long the server may take to start. It is slow under valgrind.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server in its own process. Dropping this stops it.
pub struct Process {
    child: Child,
    address: SocketAddr,
    /// The output of the server.
    output: File,
}

impl Process {
    /// Runs the command for a free port, and waits until the server listens there.
    pub fn start(command: impl FnOnce(u16) -> Result<Command>) -> Result<Process> {
        // The port is free now. If another process takes it before the server does, the server fails to start.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let mut command = command(address.port())?;
        let output = tempfile::tempfile().context("cannot make a temporary file")?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output.try_clone()?);
        let child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
        let mut process = Process { child, address, output };
        process.wait_until_it_listens().with_context(|| format!("{command:?} did not start"))?;
        Ok(process)
    }

    fn wait_until_it_listens(&mut self) -> Result<()> {
        let started = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            if let Some(status) = self.child.try_wait()? {
                bail!("{status}\n{}", self.printed()?);
            }
            ensure!(started.elapsed() < PATIENCE, "after {PATIENCE:?}\n{}", self.printed()?);
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn printed(&mut self) -> Result<String> {
        let mut text = String::new();
        self.output.rewind()?;
        self.output.read_to_string(&mut text)?;
        Ok(text)
    }

    /// Returns the address on which the server listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Terminates the server, waits for its end, and returns all that it printed.
    pub fn terminate(mut self) -> Result<String> {
        kill_process(Pid::from_child(&self.child), Signal::TERM)?;
        self.child.wait()?;
        self.printed()
    }

    /// Returns the CPU time that all threads of the server have used, including the kernel's.
    pub fn cpu_us(&self) -> Result<f64> {
        let path = format!("/proc/{}/stat", self.child.id());
        let text = fs::read_to_string(&path).with_context(|| path.clone())?;
        let ticks =
            cpu_ticks(&text).with_context(|| format!("unexpected text in {path}: `{text}`"))?;
        Ok(ticks * 1e6 / clock_ticks_per_second() as f64)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // OK because an error means that it has ended already.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// Returns the sum of utime and stime of `/proc/<pid>/stat`: fields 14 and 15. The name, field 2, can have spaces.
fn cpu_ticks(stat: &str) -> Option<f64> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<f64>().ok();
    Some(next()? + next()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_includes_the_kernel() {
        let stat = "4711 (a (b) c) S 1 4711 4711 0 -1 4194560 94 0 0 0 250 31 0 0 20 0 3 0 99 7";
        assert_eq!(cpu_ticks(stat), Some(281.0));
        assert_eq!(cpu_ticks("4711 (server) S 1"), None);
    }

    #[test]
    fn error_of_a_failed_start_shows_the_output() {
        let fails = |_| {
            let mut command = Command::new("sh");
            command.args(["-c", "echo no port; exit 3"]);
            Ok(command)
        };
        let error = format!("{:#}", Process::start(fails).err().unwrap());
        assert!(error.contains("did not start: exit status: 3\nno port"), "{error}");
    }
}
