//! Freezes and thaws servers.

use std::sync::atomic::Ordering;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::Server;

impl Server {
    /// Stops the server's process where it is: connections stay open, and nothing is answered until
    /// [`Server::thaw`].
    pub fn freeze(&self) {
        if self.signal(Signal::STOP) {
            self.frozen.store(true, Ordering::Relaxed);
            // The signal was sent; wait until it has arrived, or until the server is gone.
            let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            let _ = waitid(WaitId::Pid(Pid::from_child(&self.child)), options);
        }
    }

    /// Continues the process after [`Server::freeze`].
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
        self.frozen.store(false, Ordering::Relaxed);
    }

    /// Returns whether there was a process to send the signal to.
    fn signal(&self, signal: Signal) -> bool {
        !self.gone && kill_process(Pid::from_child(&self.child), signal).is_ok()
    }
}
