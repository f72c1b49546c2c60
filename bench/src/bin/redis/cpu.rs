//! Who runs where. A lone caller that shares a CPU with Redis has its answer in a third of the time,
//! as nobody must be woken on another one; left to the scheduler, that changes all the time.

use anyhow::{Context, Result, ensure};

#[derive(Clone, Copy, Debug)]
pub(crate) enum Cpu {
    OfRedis = 0,
    OfLoneCaller = 1,
}

impl Cpu {
    /// Puts this thread there, and all that it starts from now on.
    pub(crate) fn take(self) -> Result<()> {
        let cpus = core_affinity::get_core_ids().context("cannot list the CPUs")?;
        ensure!(cpus.len() >= 2, "two CPUs are needed");
        let cpu = cpus[self as usize];
        ensure!(core_affinity::set_for_current(cpu), "cannot put a thread on {cpu:?}");
        Ok(())
    }
}
