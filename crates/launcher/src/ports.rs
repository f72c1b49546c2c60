//! Unused ports.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// The first port. All ports are below the range that the system uses for outgoing connections, so that no such
/// connection takes the port of a server that is down.
const FIRST: u16 = 12_000;
const COUNT: u16 = 20_000;

/// The port that this process tries next, less [`FIRST`]. Concurrent processes start at different ports.
static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| {
    let random = RandomState::new().hash_one(std::process::id());
    // OK because a remainder below 2^16 fits.
    AtomicU16::new((random % u64::from(COUNT)) as u16)
});

/// Returns a port that is unused at the moment, and that was not returned to this process recently.
pub fn free_port() -> io::Result<u16> {
    Ok(listen()?.local_addr()?.port())
}

/// Listens on a port that [`free_port`] could return.
pub(crate) fn listen() -> io::Result<TcpListener> {
    let mut result = try_next();
    for _ in 1..COUNT {
        match result {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => result = try_next(),
            _ => break,
        }
    }
    result
}

fn try_next() -> io::Result<TcpListener> {
    let port = FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
    TcpListener::bind((Ipv4Addr::LOCALHOST, port))
}
