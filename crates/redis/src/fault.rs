//! The errors of servers, classified where they are read.
//!
//! The rest of the store matches on [`FaultKind`], never on the text of an error. Callers get the [`StoreError`].

use redis::{ErrorKind, RedisError, ServerErrorKind};

use tollgate_limiter::StoreError;

/// An error of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) kind: FaultKind,
    /// The error for the caller.
    pub(super) error: StoreError,
}

/// The kind of a server's error, by what the store does about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FaultKind {
    /// The server does not know the script, and has done nothing.
    NoScript,
    /// The server is a replica: another server is the primary by now.
    Replica,
    /// No server has the slot of the keys. The other slots are not affected.
    SlotNotServed,
    /// The server does not know the command.
    UnknownCommand,
    /// The script found data under a key that is not a state.
    Corrupt,
    /// The connection failed.
    Connection,
    /// Any other error that the server reports.
    Refused,
}

impl Fault {
    /// Returns the fault for the error of a command.
    pub(super) fn from_command(error: &RedisError, server: &str) -> Fault {
        let kind = FaultKind::from_command(error);
        if kind == FaultKind::Connection {
            return Fault { kind, error: StoreError::unreachable(server, &error.to_string()) };
        }
        let (code, detail) =
            (error.code().unwrap_or(error.category()), error.detail().unwrap_or_default());
        Fault { kind, error: StoreError::refused(&format!("{code} {detail}")) }
    }

    /// Returns the fault for a script's message about a request that it did not decide: the problem, a line break and the
    /// key.
    pub(super) fn from_script(text: &[u8]) -> Fault {
        let text = String::from_utf8_lossy(text);
        let (problem, key) = text.rsplit_once('\n').unwrap_or((&text, ""));
        match FaultKind::from_script(problem) {
            FaultKind::Corrupt => Fault::corrupt(key.as_bytes()),
            kind => Fault { kind, error: StoreError::refused(problem) },
        }
    }

    /// Returns a fault for a key whose data is not a state.
    pub(super) fn corrupt(key: &[u8]) -> Fault {
        let key = String::from_utf8_lossy(key).into_owned();
        Fault { kind: FaultKind::Corrupt, error: StoreError::Corrupt { key } }
    }

    /// Returns a fault for a reply that the script does not send.
    pub(super) fn unexpected_reply() -> Fault {
        Fault::refused(
            "unexpected reply format; check that a Redis or Valkey server answers at this address",
        )
    }

    pub(super) fn refused(problem: &str) -> Fault {
        Fault { kind: FaultKind::Refused, error: StoreError::refused(problem) }
    }
}

impl FaultKind {
    fn from_command(error: &RedisError) -> FaultKind {
        let detail = error.detail().unwrap_or_default();
        match error.kind() {
            ErrorKind::Server(ServerErrorKind::NoScript) => FaultKind::NoScript,
            ErrorKind::Server(ServerErrorKind::ReadOnly) => FaultKind::Replica,
            // The code is the same when the whole cluster is down.
            ErrorKind::Server(ServerErrorKind::ClusterDown)
                if detail.contains("Hash slot not served") =>
            {
                FaultKind::SlotNotServed
            }
            // No code of its own: `ERR unknown command 'HELLO'`.
            ErrorKind::Server(ServerErrorKind::ResponseError)
                if detail.contains("unknown command") =>
            {
                FaultKind::UnknownCommand
            }
            ErrorKind::RESP3NotSupported => FaultKind::UnknownCommand,
            // Redis 6 puts the error of a command in a script into the text of the script's error.
            ErrorKind::Server(_) | ErrorKind::Extension if detail.contains("READONLY") => {
                FaultKind::Replica
            }
            ErrorKind::Server(_) | ErrorKind::Extension | ErrorKind::AuthenticationFailed => {
                FaultKind::Refused
            }
            _ => FaultKind::Connection,
        }
    }

    /// Returns the kind of a problem that a script reports. The script itself reports `CORRUPT`; the other problems are errors
    /// of its commands. Depending on the server's version, the name of the script may precede their codes.
    fn from_script(problem: &str) -> FaultKind {
        match problem {
            "CORRUPT" => FaultKind::Corrupt,
            _ if problem.contains("WRONGTYPE") => FaultKind::Corrupt,
            _ if problem.contains("READONLY") => FaultKind::Replica,
            _ => FaultKind::Refused,
        }
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> StoreError {
        fault.error
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use redis::parse_redis_value;

    use super::*;

    fn from_command(line: &str) -> Fault {
        let line = format!("-{line}\r\n");
        let error = parse_redis_value(line.as_bytes()).unwrap().extract_error().unwrap_err();
        Fault::from_command(&error, "a:1")
    }

    #[test]
    fn kind_of_a_command_error_comes_from_its_code_or_its_text() {
        let script_of_redis_6 = "ERR Error running script (call to f_0): @user_script:3: -READONLY You can't write against \
                                 a read only replica.";
        let cases = [
            ("NOSCRIPT No matching script.", FaultKind::NoScript),
            ("READONLY You can't write against a read only replica.", FaultKind::Replica),
            (script_of_redis_6, FaultKind::Replica),
            ("CLUSTERDOWN Hash slot not served", FaultKind::SlotNotServed),
            ("CLUSTERDOWN The cluster is down", FaultKind::Refused),
            ("ERR unknown command 'HELLO'", FaultKind::UnknownCommand),
            ("NOAUTH Authentication required.", FaultKind::Refused),
            ("ODD what no version says", FaultKind::Refused),
        ];
        for (line, kind) in cases {
            let fault = from_command(line);
            assert_eq!(fault.kind, kind, "{line}");
            let StoreError::Refused { problem } = fault.error else { panic!("{line}") };
            assert!(line.starts_with(problem.trim()), "{line}: {problem}");
        }
    }

    #[test]
    fn kind_of_a_script_error_comes_from_its_text_and_the_error_names_the_key() {
        let corrupt = StoreError::Corrupt { key: "tollgate:{a}:api".to_owned() };
        for problem in
            ["CORRUPT", "WRONGTYPE Operation against a key", "@user_script: -WRONGTYPE x"]
        {
            let fault = Fault::from_script(format!("{problem}\ntollgate:{{a}}:api").as_bytes());
            assert_eq!(fault, Fault { kind: FaultKind::Corrupt, error: corrupt.clone() });
        }
        let replica = Fault::from_script(b"READONLY You can't write\ntollgate:{a}:api");
        assert_eq!(replica.kind, FaultKind::Replica);
        assert_eq!(replica.error, StoreError::refused("READONLY You can't write"));
        assert_eq!(
            Fault::from_script(b"OOM command not allowed\na"),
            Fault::refused("OOM command not allowed")
        );
    }

    #[test]
    fn connection_errors_are_unreachable() {
        let error = RedisError::from(std::io::Error::other("broken pipe"));
        let fault = Fault::from_command(&error, "a:1");
        assert_eq!(fault.kind, FaultKind::Connection);
        assert_eq!(fault.error, StoreError::unreachable("a:1", "broken pipe"));
        let old = RedisError::from((ErrorKind::RESP3NotSupported, "no HELLO"));
        assert_eq!(Fault::from_command(&old, "a:1").kind, FaultKind::UnknownCommand);
    }
}
