//! Sets the clock of a running server.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::{LaunchError, Server, faketime, wait};

/// The largest age of the time that a server reports.
const MAX_AGE_US: i64 = 200_000;

impl Server {
    /// Sets the server's clock to this many seconds ahead of the machine's, or behind it, while it runs, and
    /// waits until the server uses the new time.
    pub fn set_clock_offset(&self, seconds: i64) -> Result<(), LaunchError> {
        if !self.has_own_clock() {
            return Err(LaunchError::ClockNotOwn { addr: self.addr() });
        }
        faketime::write_offset(self.directory.path(), seconds)?;
        if !self.is_live() {
            return Ok(());
        }
        // The server reads its clock at intervals, and uses the last value until the next reading.
        wait::until("the server used the new time", || {
            let from_us = machine_us();
            let (whole, micros): (i64, i64) = self.ask(&redis::cmd("TIME"))?;
            let shown_us = (whole - seconds) * 1_000_000 + micros;
            Ok((from_us - MAX_AGE_US..=machine_us()).contains(&shown_us))
        })
    }
}

/// Returns the machine's time since the Unix epoch.
fn machine_us() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    // OK because it fits for another 290,000 years.
    now.as_micros() as i64
}
