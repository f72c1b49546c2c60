//! What one run of a script decides, and how it goes to the server.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, Value};

use crate::store::redis::waiting::Waiting;
use crate::store::redis::wire::Arguments;

/// Requests that one run of a script decides; at least one.
///
/// A server that says it has done nothing is asked again, once for each reason.
pub(super) struct Call {
    pub(super) members: Vec<Waiting>,
    /// By the script that carries over: states were reached under other limits.
    pub(super) is_carrying_over: bool,
    /// With the script's text: the server did not know it.
    pub(super) is_in_full: bool,
}

impl Call {
    pub(super) fn of(members: Vec<Waiting>) -> Call {
        Call { members, is_carrying_over: false, is_in_full: false }
    }

    pub(super) fn carrying_over(members: Vec<Waiting>) -> Call {
        Call { is_carrying_over: true, ..Call::of(members) }
    }

    pub(super) fn in_full(self) -> Call {
        Call { is_in_full: true, ..self }
    }

    pub(super) fn arguments(&self) -> Arguments<'_> {
        let arguments = Arguments::of(self.members.iter().map(|waiting| &waiting.request));
        if self.is_carrying_over { arguments.carrying_over() } else { arguments }
    }

    /// Whether the server must be told first that this is known to be no key of its own yet.
    pub(super) fn is_asking(&self) -> bool {
        self.members.first().is_some_and(|waiting| waiting.way.is_asking)
    }
}

/// What goes to the server in one write.
pub(super) enum Commands {
    One(Cmd),
    Many(Pipeline, usize),
}

impl Commands {
    pub(super) async fn send(self, mut open: MultiplexedConnection) -> RedisResult<Vec<Value>> {
        match self {
            Commands::One(command) => {
                open.send_packed_command(&command).await.map(|value| vec![value])
            }
            Commands::Many(pipeline, count) => open.send_packed_commands(&pipeline, 0, count).await,
        }
    }
}
