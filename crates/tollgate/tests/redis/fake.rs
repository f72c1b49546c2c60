//! Fake servers.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// A server that reads commands and never answers.
pub(crate) struct Mute {
    addr: SocketAddr,
}

impl Mute {
    pub(crate) fn start() -> Mute {
        let (listener, addr) = listen();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                thread::spawn(move || std::io::copy(&mut stream, &mut std::io::sink()));
            }
        });
        Mute { addr }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }
}

/// A server that answers every script with the same bytes, and all other commands with OK.
pub(crate) struct Parrot {
    addr: SocketAddr,
}

impl Parrot {
    pub(crate) fn start(answer: &[u8]) -> Parrot {
        Parrot::answering(answer, b"+OK\r\n")
    }

    /// Starts a server that answers every command with the same bytes.
    pub(crate) fn to_everything(answer: &[u8]) -> Parrot {
        Parrot::answering(answer, answer)
    }

    fn answering(scripts: &[u8], others: &[u8]) -> Parrot {
        let (listener, addr) = listen();
        let answers = (scripts.to_vec(), others.to_vec());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, answers) = (stream.unwrap(), answers.clone());
                // Until the client closes the connection.
                thread::spawn(move || _ = repeat(&stream, &answers.0, &answers.1));
            }
        });
        Parrot { addr }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }
}

fn repeat(mut stream: &TcpStream, scripts: &[u8], others: &[u8]) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let command = command(&mut reader)?;
        let is_script = command.to_ascii_uppercase().starts_with(b"EVAL");
        stream.write_all(if is_script { scripts } else { others })?;
    }
}

/// A proxy between a limiter and a server.
pub(crate) struct Proxy {
    addr: SocketAddr,
    connections: Arc<Mutex<Vec<Arc<AtomicBool>>>>,
}

impl Proxy {
    /// Starts a proxy. Each new connection is forwarded after the time `slow`.
    pub(crate) fn start(server: SocketAddr, slow: Duration) -> Proxy {
        let (listener, addr) = listen();
        let connections = Arc::<Mutex<Vec<Arc<AtomicBool>>>>::default();
        let kept = Arc::clone(&connections);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (near, is_dark) = (stream.unwrap(), Arc::new(AtomicBool::new(false)));
                kept.lock().unwrap().push(Arc::clone(&is_dark));
                thread::spawn(move || {
                    thread::sleep(slow);
                    let far = TcpStream::connect(server).unwrap();
                    let (near_too, far_too) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                    let is_dark_too = Arc::clone(&is_dark);
                    thread::spawn(move || pass_on(&near_too, &far_too, &is_dark_too));
                    pass_on(&far, &near, &is_dark);
                });
            }
        });
        Proxy { addr, connections }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    /// The number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.lock().unwrap().len()
    }

    /// Drops all further bytes of the open connections, without closing them.
    pub(crate) fn forget_connections(&self) {
        for is_dark in &*self.connections.lock().unwrap() {
            is_dark.store(true, Ordering::Relaxed);
        }
    }
}

fn pass_on(mut from: &TcpStream, mut to: &TcpStream, is_dark: &AtomicBool) {
    let mut bytes = [0; 4_096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if !is_dark.load(Ordering::Relaxed) && to.write_all(&bytes[..count]).is_err() {
            return;
        }
    }
}

/// Reads the next command. Returns its name.
fn command(reader: &mut impl BufRead) -> std::io::Result<Vec<u8>> {
    let count = number(reader)?;
    let mut name = Vec::new();
    for index in 0..count {
        let mut argument = vec![0; number(reader)? + 2];
        reader.read_exact(&mut argument)?;
        if index == 0 {
            argument.truncate(argument.len() - 2);
            name = argument;
        }
    }
    Ok(name)
}

/// The number in a line such as `*3` or `$10`.
fn number(reader: &mut impl BufRead) -> std::io::Result<usize> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let number = line.trim_end().get(1..).and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| std::io::ErrorKind::UnexpectedEof.into())
}
