//! A service that answers with a greeting and counts its requests.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

/// The header in which a client sends the cost of its request. The service returns it in the response.
pub(crate) const SPENT: &str = "x-spent";

/// A service. Its threads end with the test's process.
pub(crate) struct Upstream {
    pub(crate) port: u16,
    served: Arc<AtomicU64>,
}

impl Upstream {
    pub(crate) fn start() -> Upstream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let served = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&served);
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let counted = Arc::clone(&counted);
                thread::spawn(move || while greet(&stream, &counted).is_some() {});
            }
        });
        Upstream { port, served }
    }

    /// Returns the number of requests that reached the service.
    pub(crate) fn served(&self) -> u64 {
        self.served.load(Ordering::SeqCst)
    }
}

/// Answers one request, which has no body. Returns `None` when the connection has no more requests.
fn greet(mut stream: &TcpStream, counted: &AtomicU64) -> Option<()> {
    let mut spent = String::new();
    // Headers need not be text.
    let mut lines = BufReader::new(stream).split(b'\n').map(|line| line.ok());
    loop {
        let line = lines.next()??;
        match line.as_slice() {
            b"\r" => break,
            own if own.starts_with(SPENT.as_bytes()) => {
                spent = String::from_utf8(line).unwrap() + "\n";
            }
            _ => {}
        }
    }
    counted.fetch_add(1, Ordering::SeqCst);
    let answer = format!("HTTP/1.1 200 OK\r\n{spent}content-length: 5\r\n\r\nhello");
    stream.write_all(answer.as_bytes()).ok()
}
