//! Puts threads on fixed CPUs, because the scheduler would move them during a measurement.

use anyhow::{Context, Result, ensure};

/// Puts this thread on one of two CPUs, 0 or 1, with all threads and processes that it starts from now on.
pub fn stay_on(nth: usize) -> Result<()> {
    let cpus = core_affinity::get_core_ids().context("cannot list the CPUs")?;
    ensure!(cpus.len() >= 2, "two CPUs are needed");
    let cpu = *cpus.get(nth).with_context(|| format!("there is no CPU {nth}"))?;
    ensure!(core_affinity::set_for_current(cpu), "cannot put a thread on {cpu:?}");
    Ok(())
}
