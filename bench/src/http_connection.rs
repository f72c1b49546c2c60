//! An HTTP connection that sends requests one after the other.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// How long an answer may take. The first one is slow under valgrind.
const PATIENCE: Duration = Duration::from_secs(30);

/// An HTTP connection that sends requests one after the other.
#[derive(Debug)]
pub struct HttpConnection {
    stream: TcpStream,
    host: SocketAddr,
}

impl HttpConnection {
    /// Connects to a server.
    pub fn connect(host: SocketAddr) -> Result<HttpConnection> {
        let stream = TcpStream::connect_timeout(&host, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(HttpConnection { stream, host })
    }

    /// Posts a body, and returns the body of the answer, whose status must be 200.
    pub fn post(&mut self, path: &str, body: &str) -> Result<String> {
        let (host, length) = (self.host, body.len());
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n\r\n{body}"
        );
        self.stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        let mut buffer = [0; 4096];
        while !is_complete(&answer) {
            let count = self.stream.read(&mut buffer)?;
            ensure!(count > 0, "{path}: the server closed the connection after `{answer}`");
            answer.push_str(&String::from_utf8_lossy(buffer.get(..count).unwrap_or_default()));
        }
        body_of(&answer)
            .map(str::to_owned)
            .with_context(|| format!("{path}: unexpected answer\n{answer}"))
    }
}

fn is_complete(answer: &str) -> bool {
    let Some((head, body)) = answer.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    length.and_then(|length| length.parse().ok()).is_some_and(|length: usize| body.len() >= length)
}

fn body_of(answer: &str) -> Option<&str> {
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.starts_with("HTTP/1.1 200 ").then_some(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_is_complete_with_its_last_byte() {
        let whole = "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}";
        assert!(is_complete(whole));
        for end in 0..whole.len() {
            assert!(!is_complete(&whole[..end]), "{end}");
        }
    }

    #[test]
    fn answer_without_status_200_has_no_body() {
        assert_eq!(body_of("HTTP/1.1 200 OK\r\na: b\r\n\r\n{}"), Some("{}"));
        assert_eq!(body_of("HTTP/1.1 404 Not Found\r\na: b\r\n\r\n{}"), None);
    }
}
