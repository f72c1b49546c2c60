//! Metrics of the process, from `/proc`. Without `/proc`, only its start time and its limit of open files.

use std::fs;
use std::time::SystemTime;

use rustix::process::{Resource, getrlimit};

use super::text::{MetricKind, MetricsText, unix_seconds};

/// The unit of CPU times in `/proc`: 100 ticks a second on every Linux that Rust supports.
const TICKS_PER_SECOND: f64 = 100.0;

pub(super) fn write(text: &mut MetricsText, started: SystemTime) {
    let help = "Time at which the server was started, in seconds since 1970.";
    text.single("process_start_time_seconds", MetricKind::Gauge, help, unix_seconds(started));
    if let Some(bytes) = resident_bytes() {
        let help = "Resident memory of the process, in bytes.";
        text.single("process_resident_memory_bytes", MetricKind::Gauge, help, bytes);
    }
    if let Some(seconds) = cpu_seconds() {
        let help = "CPU time of the process in user and system mode, in seconds.";
        text.single("process_cpu_seconds_total", MetricKind::Counter, help, seconds);
    }
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        // One of the entries is the open directory itself.
        let open = files.count().saturating_sub(1);
        let help = "Open file descriptors of the process: files and connections.";
        text.single("process_open_fds", MetricKind::Gauge, help, open);
    }
    // `None` means that there is no limit.
    if let Some(most) = getrlimit(Resource::Nofile).current {
        let help = "Most file descriptors that the process may have open.";
        text.single("process_max_fds", MetricKind::Gauge, help, most);
    }
}

fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kibibytes.checked_mul(1024)
}

fn cpu_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the name, in parentheses, and may have anything in it.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_ascii_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user.saturating_add(system) as f64 / TICKS_PER_SECOND)
}
