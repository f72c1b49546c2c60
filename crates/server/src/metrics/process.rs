//! What the system says of this process. Where there is no `/proc`, only when it was started.

use std::fs;
use std::time::SystemTime;

use rustix::process::{Resource, getrlimit};

use super::text::{Kind, Text, unix_seconds};

/// Of one second, on every Linux that Rust knows.
const TICKS: f64 = 100.0;

pub(super) fn write(text: &mut Text, started: SystemTime) {
    let help = "When the server was started, in seconds since 1970.";
    text.single("process_start_time_seconds", Kind::Gauge, help, unix_seconds(started));
    if let Some(bytes) = resident_bytes() {
        let help = "Memory that the process has.";
        text.single("process_resident_memory_bytes", Kind::Gauge, help, bytes);
    }
    if let Some(seconds) = cpu_seconds() {
        let help = "Time on processors, the system's for the process included.";
        text.single("process_cpu_seconds_total", Kind::Counter, help, seconds);
    }
    if let Ok(files) = fs::read_dir("/proc/self/fd") {
        // One of them is the directory.
        let open = files.count().saturating_sub(1);
        text.single("process_open_fds", Kind::Gauge, "Files and connections that are open.", open);
    }
    // None is that there is no limit.
    if let Some(most) = getrlimit(Resource::Nofile).current {
        let help = "The most files and connections that may be open.";
        text.single("process_max_fds", Kind::Gauge, help, most);
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
    Some(user.saturating_add(system) as f64 / TICKS)
}
