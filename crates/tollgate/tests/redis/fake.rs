//! Servers that are none.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use crate::setup::PATIENCE;

fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    (listener, addr)
}

/// Accepts connections, reads what is sent, and never answers.
pub(crate) struct Mute {
    addr: SocketAddr,
    connected: Receiver<()>,
}

impl Mute {
    pub(crate) fn start() -> Mute {
        let (listener, addr) = listen();
        let (connecting, connected) = channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let connecting = connecting.clone();
                thread::spawn(move || {
                    // The test may be over.
                    let _ = connecting.send(());
                    let _ = std::io::copy(&mut stream, &mut std::io::sink());
                });
            }
        });
        Mute { addr, connected }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }

    pub(crate) fn until_connected(&self) {
        self.connected.recv_timeout(PATIENCE).unwrap();
    }
}

/// Answers every script with the same bytes, and everything else with OK.
pub(crate) struct Parrot {
    addr: SocketAddr,
}

impl Parrot {
    pub(crate) fn start(answer: &[u8]) -> Parrot {
        let (listener, addr) = listen();
        let answer = answer.to_vec();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, answer) = (stream.unwrap(), answer.clone());
                // Until the other side has enough of it.
                thread::spawn(move || _ = repeat(&stream, &answer));
            }
        });
        Parrot { addr }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }
}

fn repeat(mut stream: &TcpStream, answer: &[u8]) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let command = command(&mut reader)?;
        let is_script = command.to_ascii_uppercase().starts_with(b"EVAL");
        stream.write_all(if is_script { answer } else { b"+OK\r\n" })?;
    }
}

/// The name of the next command.
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
