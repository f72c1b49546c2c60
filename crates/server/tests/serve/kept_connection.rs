//! A kept-alive connection, on which a test sends raw bytes.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// A kept-alive connection to a server. Requests are sent one after the other.
pub(crate) struct KeptConnection {
    stream: BufReader<TcpStream>,
}

/// A server's answer.
pub(crate) struct KeptAnswer {
    pub(crate) status: u16,
    /// Whether the server closes the connection after this answer.
    pub(crate) is_last: bool,
    pub(crate) body: Value,
}

impl KeptConnection {
    /// Connects to a URL such as `http://127.0.0.1:40123`.
    pub(crate) fn open(url: &str) -> io::Result<KeptConnection> {
        let stream = TcpStream::connect(url.trim_start_matches("http://"))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(KeptConnection { stream: BufReader::new(stream) })
    }

    pub(crate) fn send(&mut self, bytes: &str) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes.as_bytes())
    }

    /// Sends a check and reads its answer.
    pub(crate) fn check(&mut self, body: &str) -> io::Result<KeptAnswer> {
        self.send(&format!("{}\r\n{body}", head_of_check(body.len())))?;
        self.answer()
    }

    /// Reads the next answer, which has a JSON body.
    pub(crate) fn answer(&mut self) -> io::Result<KeptAnswer> {
        let status = self.line()?;
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or(ErrorKind::InvalidData)?;
        let (mut length, mut is_last) = (0, false);
        loop {
            let line = self.line()?.to_ascii_lowercase();
            match line.split_once(':') {
                None if line.is_empty() => break,
                Some(("content-length", value)) => length = value.trim().parse().unwrap(),
                Some(("connection", value)) => is_last = value.trim() == "close",
                _ => {}
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body)?;
        let body = if length == 0 { Value::Null } else { serde_json::from_slice(&body)? };
        Ok(KeptAnswer { status, is_last, body })
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        if self.stream.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}

/// Returns the head of a check without its final empty line, so that a test can add headers.
pub(crate) fn head_of_check(body_bytes: usize) -> String {
    format!(
        "POST /v1/check HTTP/1.1\r\nhost: tollgate\r\ncontent-type: application/json\r\n\
         content-length: {body_bytes}\r\n"
    )
}
