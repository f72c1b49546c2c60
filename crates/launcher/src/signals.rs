//! Freezes servers and thaws them.

use std::sync::atomic::Ordering;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::Server;

impl Server {
    /// Stops it where it is: connections stay open, and nothing is answered until [`Server::thaw`].
    pub fn freeze(&self) {
        if self.signal(Signal::STOP) {
            self.frozen.store(true, Ordering::Relaxed);
            // The signal is under way; wait until it has arrived, or until the server is gone.
            let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            let _ = waitid(WaitId::Pid(Pid::from_child(&self.child)), options);
        }
    }

    /// Lets it go on after [`Server::freeze`].
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
        self.frozen.store(false, Ordering::Relaxed);
    }

    /// Whether there was a server to send it to.
    fn signal(&self, signal: Signal) -> bool {
        !self.gone && kill_process(Pid::from_child(&self.child), signal).is_ok()
    }
}
