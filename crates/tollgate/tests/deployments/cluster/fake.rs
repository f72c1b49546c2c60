//! A fake server, which answers commands as a test defines.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

/// Returns the answer to a command. `None` is no answer.
type Answer = dyn Fn(CommandKind, SocketAddr) -> Option<String> + Send + Sync;

/// The kind of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandKind {
    Script,
    Asking,
    Slots,
    /// The commands that open a connection.
    Other,
}

/// A fake server, with the commands that it received.
pub(crate) struct Fake {
    addr: SocketAddr,
    received: Arc<Mutex<Vec<CommandKind>>>,
}

impl Fake {
    pub(crate) fn start(
        answer: impl Fn(CommandKind, SocketAddr) -> Option<String> + Send + Sync + 'static,
    ) -> Fake {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        let (answer, received) =
            (Arc::<Answer>::from(Box::new(answer) as Box<Answer>), Arc::default());
        let kept = Arc::clone(&received);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, answer, received) =
                    (stream.unwrap(), answer.clone(), Arc::clone(&kept));
                // Until the client closes the connection.
                thread::spawn(move || _ = serve(&stream, addr, &*answer, &received));
            }
        });
        Fake { addr, received }
    }

    pub(crate) fn addr(&self) -> SocketAddr {
        self.addr
    }

    pub(crate) fn url(&self) -> String {
        format!("redis+cluster://{}", self.addr)
    }

    /// The number of commands of this kind that it received.
    pub(crate) fn received(&self, what: CommandKind) -> usize {
        self.received.lock().unwrap().iter().filter(|&&received| received == what).count()
    }
}

fn serve(
    mut stream: &TcpStream,
    addr: SocketAddr,
    answer: &Answer,
    received: &Mutex<Vec<CommandKind>>,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let what = match &command(&mut reader)?.to_ascii_uppercase()[..] {
            b"EVAL" | b"EVALSHA" => CommandKind::Script,
            b"ASKING" => CommandKind::Asking,
            b"CLUSTER" => CommandKind::Slots,
            _ => CommandKind::Other,
        };
        received.lock().unwrap().push(what);
        if let Some(answer) = answer(what, addr) {
            stream.write_all(answer.as_bytes())?;
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
