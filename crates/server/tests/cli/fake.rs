//! A fake server that gives one request the answer that a test chooses, and returns the request.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

pub(crate) struct FakeServer {
    /// `http://127.0.0.1:40123`.
    pub(crate) url: String,
    thread: JoinHandle<String>,
}

impl FakeServer {
    /// Starts a server that answers with a status such as `200 OK` and a JSON body.
    pub(crate) fn answers(status: &str, body: &str) -> FakeServer {
        let length = body.len();
        FakeServer::sends(
            format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}").into(),
        )
    }

    /// Starts a server that answers with these bytes, which need not be HTTP.
    pub(crate) fn sends(answer: Vec<u8>) -> FakeServer {
        FakeServer::answers_with(move |connection| {
            // OK to ignore an error: the client can close the connection before it has read everything.
            let _ = connection.write_all(&answer);
        })
    }

    /// Starts a server that reads a request and then calls `answer`.
    pub(crate) fn answers_with(answer: impl FnOnce(&mut TcpStream) + Send + 'static) -> FakeServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let thread = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let request = request(&mut connection);
            answer(&mut connection);
            request
        });
        FakeServer { url, thread }
    }

    /// Returns the request: its first line, its headers in lower case, and its body.
    pub(crate) fn received(self) -> String {
        self.thread.join().unwrap()
    }
}

fn request(connection: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let mut buffer = [0; 4096];
        let read = connection.read(&mut buffer).unwrap();
        bytes.extend_from_slice(&buffer[..read]);
        let text = String::from_utf8(bytes.clone()).unwrap();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            assert!(read > 0, "the request is incomplete: {text}");
            continue;
        };
        let length = head.to_lowercase().lines().find_map(|line| {
            Some(line.strip_prefix("content-length: ")?.parse::<usize>().unwrap())
        });
        if body.len() >= length.unwrap_or(0) {
            return text;
        }
    }
}
