//! Freezes and thaws servers, and other processes of a test.

use std::process::Child;
use std::sync::atomic::Ordering;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::Server;

/// Stops a child process where it is, as [`Server::freeze`] does. Returns whether there was a process to stop.
pub fn freeze_process(child: &Child) -> bool {
    let is_sent = signal(child, Signal::STOP);
    if is_sent {
        // The signal was sent; wait until it has arrived, or until the process is gone.
        let options = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let _ = waitid(WaitId::Pid(Pid::from_child(child)), options);
    }
    is_sent
}

/// Continues a child process after [`freeze_process`]. Returns whether there was a process to continue.
pub fn thaw_process(child: &Child) -> bool {
    signal(child, Signal::CONT)
}

/// Returns whether there was a process to send the signal to.
fn signal(child: &Child, signal: Signal) -> bool {
    kill_process(Pid::from_child(child), signal).is_ok()
}

impl Server {
    /// Stops the server's process where it is: connections stay open, and nothing is answered until
    /// [`Server::thaw`].
    pub fn freeze(&self) {
        if !self.gone && freeze_process(&self.child) {
            self.frozen.store(true, Ordering::Relaxed);
        }
    }

    /// Continues the process after [`Server::freeze`].
    pub fn thaw(&self) {
        if !self.gone {
            thaw_process(&self.child);
        }
        self.frozen.store(false, Ordering::Relaxed);
    }
}
