//! A server that is none: it answers what a test tells it to.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// What it answers, by what it is asked. `None` is no answer at all.
type Answer = dyn Fn(Asked, SocketAddr) -> Option<String> + Send + Sync;

/// What it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    Script,
    Asking,
    Slots,
    /// What a connection begins with.
    Other,
}

/// A server that is none.
pub(crate) struct Fake {
    addr: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Fake {
    pub(crate) fn start(
        answer: impl Fn(Asked, SocketAddr) -> Option<String> + Send + Sync + 'static,
    ) -> Fake {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let (answer, asked) =
            (Arc::<Answer>::from(Box::new(answer) as Box<Answer>), Arc::default());
        let kept = Arc::clone(&asked);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, answer, asked) = (stream.unwrap(), answer.clone(), Arc::clone(&kept));
                // Until the other side has enough of it.
                thread::spawn(move || _ = serve(&stream, addr, &*answer, &asked));
            }
        });
        Fake { addr, asked }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn url(&self) -> String {
        format!("redis+cluster://{}", self.addr)
    }

    /// How often it was asked for this.
    pub(crate) fn asked(&self, what: Asked) -> usize {
        self.asked.lock().unwrap().iter().filter(|&&asked| asked == what).count()
    }
}

fn serve(
    mut stream: &TcpStream,
    addr: SocketAddr,
    answer: &Answer,
    asked: &Mutex<Vec<Asked>>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let what = match &command(&mut reader)?.to_ascii_uppercase()[..] {
            b"EVAL" | b"EVALSHA" => Asked::Script,
            b"ASKING" => Asked::Asking,
            b"CLUSTER" => Asked::Slots,
            _ => Asked::Other,
        };
        asked.lock().unwrap().push(what);
        if let Some(answer) = answer(what, addr) {
            stream.write_all(answer.as_bytes())?;
        }
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
