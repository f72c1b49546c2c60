//! What one run of a script decides, and how it goes to the server.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, Value};

use crate::store::redis::waiting::WaitingRequest;
use crate::store::redis::wire::Arguments;

/// The most charges that one run of a script carries over, unless a single request has more.
pub(in crate::store::redis) const MAX_CARRIED_OVER: usize = 16;

/// Requests that one run of a script decides; at least one.
///
/// A server that says it has done nothing is asked again, once for each reason.
pub(super) struct Call {
    pub(super) members: Vec<WaitingRequest>,
    /// By the script that carries over: states were reached under other limits.
    pub(super) is_carrying_over: bool,
    /// With the script's text: the server did not know it.
    pub(super) is_in_full: bool,
}

impl Call {
    pub(super) fn of(members: Vec<WaitingRequest>) -> Call {
        Call { members, is_carrying_over: false, is_in_full: false }
    }

    /// Makes the calls that carry over these requests, in order. Each call has few charges, because any of the states may
    /// be a long log, whatever its limit is now.
    pub(super) fn carrying_over(members: Vec<WaitingRequest>) -> Vec<Call> {
        let mut calls: Vec<Call> = Vec::new();
        let mut charges = 0;
        for waiting in members {
            charges += waiting.request.charges().len();
            match calls.last_mut() {
                Some(call) if charges <= MAX_CARRIED_OVER => call.members.push(waiting),
                _ => {
                    charges = waiting.request.charges().len();
                    calls.push(Call { is_carrying_over: true, ..Call::of(vec![waiting]) });
                }
            }
        }
        calls
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
        self.members.first().is_some_and(|waiting| waiting.route.is_asking)
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
