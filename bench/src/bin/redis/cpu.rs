//! The CPUs of Redis and its callers. A lone caller that shares a CPU with Redis gets its answer in a third of the time,
//! because no thread has to be woken on another CPU. The scheduler would change that all the time.

use anyhow::Result;
use tollgate_bench::cpu;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Cpu {
    OfRedis = 0,
    OfLoneCaller = 1,
}

impl Cpu {
    /// Puts this thread on the CPU, with all threads and processes that it starts from now on.
    pub(crate) fn take(self) -> Result<()> {
        cpu::stay_on(self as usize)
    }
}
