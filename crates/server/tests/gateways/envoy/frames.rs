//! An HTTP/2 client that ignores the server's limits: it opens any number of streams at once, and cancels them.

use std::collections::HashSet;
use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// `GET / HTTP/2` in HPACK: three fields by their index in the static table, and the authority `a`.
const GET: &[u8] = b"\x82\x84\x86\x41\x01a";
const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];
const CANCEL: [u8; 4] = [0, 0, 0, 8];

/// A connection that buffers frames and sends them in one piece.
pub(crate) struct Frames {
    stream: TcpStream,
    next: u32,
    unsent: Vec<u8>,
}

impl Frames {
    /// Connects to a URL such as `http://127.0.0.1:40123`.
    pub(crate) fn connect(url: &str) -> Frames {
        let stream = TcpStream::connect(url.strip_prefix("http://").unwrap()).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut frames =
            Frames { stream, next: 1, unsent: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into() };
        frames.push(SETTINGS, 0, 0, &[]);
        frames
    }

    /// Adds `count` requests, and returns their streams.
    pub(crate) fn get(&mut self, count: usize) -> HashSet<u32> {
        let mut open = || {
            let stream = self.next;
            self.next += 2;
            self.push(HEADERS, END_STREAM | END_HEADERS, stream, GET);
            stream
        };
        (0..count).map(|_| open()).collect()
    }

    pub(crate) fn reset(&mut self, streams: &HashSet<u32>) {
        for stream in streams {
            self.push(RST_STREAM, 0, *stream, &CANCEL);
        }
    }

    pub(crate) fn send(&mut self) {
        self.stream.write_all(&self.unsent).unwrap();
        self.unsent.clear();
    }

    /// Waits until every stream is answered or refused. Returns the number of streams that got REFUSED_STREAM, and so were not
    /// processed.
    pub(crate) fn refused(&self, mut of: HashSet<u32>) -> usize {
        let mut read = BufReader::new(&self.stream);
        let mut refused = 0;
        while !of.is_empty() {
            let mut head = [0; 9];
            read.read_exact(&mut head).unwrap();
            let [_, _, _, kind, flags, ..] = head;
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let mut body = vec![0; length as usize];
            read.read_exact(&mut body).unwrap();
            assert_ne!(kind, GOAWAY, "{}", String::from_utf8_lossy(&body));
            let ends = matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0;
            if ends {
                of.remove(&stream);
            } else if kind == RST_STREAM && of.remove(&stream) {
                assert_eq!(body, REFUSED_STREAM);
                refused += 1;
            }
        }
        refused
    }

    fn push(&mut self, kind: u8, flags: u8, stream: u32, body: &[u8]) {
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        self.unsent.extend_from_slice(&length[1..]);
        self.unsent.extend_from_slice(&[kind, flags]);
        self.unsent.extend_from_slice(&stream.to_be_bytes());
        self.unsent.extend_from_slice(body);
    }
}
