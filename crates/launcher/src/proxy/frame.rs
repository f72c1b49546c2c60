//! Finds the end of a request or reply of the Redis protocol.

use std::io;

/// Returns the length of the first request, if all of it has arrived.
pub(super) fn request_len(bytes: &[u8]) -> io::Result<Option<usize>> {
    match bytes.first() {
        Some(b'*') => reply_len(bytes),
        // An inline request, as a person types it: one line.
        _ => Ok(bytes.iter().position(|byte| *byte == b'\n').map(|end| end + 1)),
    }
}

/// Returns the length of the first reply, if all of it has arrived.
pub(super) fn reply_len(bytes: &[u8]) -> io::Result<Option<usize>> {
    let mut end = 0;
    let mut values_to_come = 1_usize;
    while values_to_come > 0 {
        let Some(line) = bytes.get(end..).and_then(first_line) else { return Ok(None) };
        end += line.len() + 2;
        values_to_come -= 1;
        match line.first() {
            Some(b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(') => {}
            Some(b'$' | b'!' | b'=') => {
                if let Some(len) = count(line)? {
                    end += len + 2;
                }
            }
            Some(b'*' | b'~' | b'>') => values_to_come += count(line)?.unwrap_or(0),
            Some(b'%') => values_to_come += 2 * count(line)?.unwrap_or(0),
            // Attributes, and then the value that they belong to.
            Some(b'|') => values_to_come += 2 * count(line)?.unwrap_or(0) + 1,
            _ => return Err(malformed()),
        }
    }
    Ok((end <= bytes.len()).then_some(end))
}

/// Whether a request runs a script.
pub(super) fn is_script(request: &[u8]) -> bool {
    let name = if request.starts_with(b"*") {
        request.split(|byte| *byte == b'\n').nth(2)
    } else {
        request.split(|byte| byte.is_ascii_whitespace()).find(|word| !word.is_empty())
    };
    name.map(<[u8]>::trim_ascii).is_some_and(|name| {
        name.eq_ignore_ascii_case(b"EVAL") || name.eq_ignore_ascii_case(b"EVALSHA")
    })
}

/// Whether a reply is an error.
pub(super) fn is_error(reply: &[u8]) -> bool {
    matches!(reply.first(), Some(b'-' | b'!'))
}

/// Whether a reply is a push message, which answers no request.
pub(super) fn is_push(reply: &[u8]) -> bool {
    reply.first() == Some(&b'>')
}

/// Returns the first line without its end.
fn first_line(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    Some(&bytes[..end])
}

/// Returns the number after the first byte; `None` if it is -1, which stands for a null value.
fn count(line: &[u8]) -> io::Result<Option<usize>> {
    let text = std::str::from_utf8(&line[1..]).map_err(|_| malformed())?;
    if text == "-1" { Ok(None) } else { text.parse().map(Some).map_err(|_| malformed()) }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "not the Redis protocol")
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPLIES: [&[u8]; 13] = [
        b"+OK\r\n",
        b"-NOSCRIPT none\r\n",
        b":-7\r\n",
        b"$4\r\na\r\nb\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"*3\r\n:1\r\n$0\r\n\r\n*1\r\n+x\r\n",
        b"_\r\n",
        b"%1\r\n+a\r\n*1\r\n#t\r\n",
        b"~2\r\n,1.5\r\n(12\r\n",
        b"|1\r\n+a\r\n+b\r\n:1\r\n",
        b">2\r\n+invalidate\r\n!3\r\nbad\r\n",
    ];

    #[test]
    fn reply_len_finds_the_end_of_a_reply() {
        for reply in REPLIES {
            let text = reply.escape_ascii();
            for len in 0..reply.len() {
                assert_eq!(reply_len(&reply[..len]).unwrap(), None, "{len} of {text}");
            }
            let followed = [reply, b"+OK\r\n"].concat();
            assert_eq!(reply_len(&followed).unwrap(), Some(reply.len()), "{text}");
        }
    }

    #[test]
    fn malformed_reply_is_an_error() {
        for bytes in [&b"GET / HTTP/1.1\r\n"[..], b"$x\r\n", b"*-2\r\n", b"\r\n"] {
            assert!(reply_len(bytes).is_err(), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn scripts_are_known_by_their_command() {
        for request in
            [&b"*2\r\n$4\r\nEVAL\r\n$1\r\nx\r\n"[..], b"*1\r\n$7\r\nevalsha\r\n", b"eval x 0\r\n"]
        {
            assert_eq!(request_len(request).unwrap(), Some(request.len()));
            assert!(is_script(request), "{}", request.escape_ascii());
        }
        for request in [&b"*2\r\n$3\r\nGET\r\n$4\r\nEVAL\r\n"[..], b"PING\r\n", b"\r\n"] {
            assert_eq!(request_len(request).unwrap(), Some(request.len()));
            assert!(!is_script(request), "{}", request.escape_ascii());
        }
    }
}
