//! The CPUs of Redis and of a single caller, which must be fixed: a single caller on the same CPU as Redis gets its answer
//! in a third of the time, because no thread has to be woken on another CPU, and the scheduler would move the threads
//! during the run.

use anyhow::Result;
use tollgate_bench::cpu;

/// One of the two CPUs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cpu {
    Redis = 0,
    SingleCaller = 1,
}

impl Cpu {
    /// Puts this thread on the CPU, with all threads and processes that it starts from now on.
    pub(crate) fn use_for_this_thread(self) -> Result<()> {
        cpu::stay_on(self as usize)
    }
}
