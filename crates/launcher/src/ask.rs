//! Sends commands to a server over its Unix socket, bypassing any proxy or network setting of its port.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use redis::{Arg, Cmd, FromRedisValue, Parser, RedisResult};

use crate::{LaunchError, Server};

/// How long the server may take for one reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

impl Server {
    /// Sends one command over the Unix socket, as [`Launch::admin`](crate::Launch::admin) if there is one,
    /// and returns the reply.
    pub fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, LaunchError> {
        self.talk(command).map_err(|source| LaunchError::CommandFailed {
            addr: self.addr(),
            command: name(command),
            source,
        })
    }

    fn talk<T: FromRedisValue>(&self, command: &Cmd) -> RedisResult<T> {
        let mut stream = UnixStream::connect(self.unix_socket())?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        let mut parser = Parser::new();
        let mut exchange = |command: &Cmd| {
            stream.write_all(&command.get_packed_command())?;
            parser.parse_value(&stream)?.extract_error()
        };
        if let Some(admin) = &self.admin {
            exchange(redis::cmd("AUTH").arg(&admin.user).arg(&admin.password))?;
        }
        Ok(redis::from_redis_value(exchange(command)?)?)
    }
}

/// Returns the command without its arguments, which may be secret: `CLUSTER MEET`.
fn name(command: &Cmd) -> String {
    let is_word =
        |word: &String| word.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-');
    let words = command.args_iter().filter_map(|arg| match arg {
        Arg::Simple(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        _ => None,
    });
    words.take(2).filter(is_word).collect::<Vec<_>>().join(" ")
}
