//! Who runs where. A lone caller that shares a CPU with Redis has its answer in a third of the time,
//! as nobody must be woken on another one; left to the scheduler, that changes all the time.

use anyhow::Result;
use tollgate_bench::cpu;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Cpu {
    OfRedis = 0,
    OfLoneCaller = 1,
}

impl Cpu {
    /// Puts this thread there, and all that it starts from now on.
    pub(crate) fn take(self) -> Result<()> {
        cpu::stay_on(self as usize)
    }
}
