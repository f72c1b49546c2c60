//! The requests that one run of a script decides, and the commands that run it.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, Value};

use crate::waiting::WaitingRequest;
use crate::wire::Arguments;

/// The most charges that one run of a script carries over, unless a single request has more.
pub(crate) const MAX_CARRIED_OVER: usize = 16;

/// Requests that one run of a script decides; at least one.
///
/// If the server does not know the script, it has run nothing, and the call is sent once more, with the script's text.
pub(super) struct ScriptCall {
    pub(super) members: Vec<WaitingRequest>,
    /// Whether the script reads keys with holds, although no request needs that.
    pub(super) is_beside_holds: bool,
    /// Whether the script carries over states that were reached under other limits.
    pub(super) is_carrying_over: bool,
    /// Whether the call is sent again, with the script's text, because the server did not know the script.
    pub(super) is_resent_with_text: bool,
}

impl ScriptCall {
    pub(super) fn of(members: Vec<WaitingRequest>) -> ScriptCall {
        ScriptCall {
            members,
            is_beside_holds: false,
            is_carrying_over: false,
            is_resent_with_text: false,
        }
    }

    /// Makes the call that decides these requests, whose keys have holds; `None` without requests.
    pub(super) fn beside_holds(members: Vec<WaitingRequest>) -> Option<ScriptCall> {
        let call = ScriptCall { is_beside_holds: true, ..ScriptCall::of(members) };
        (!call.members.is_empty()).then_some(call)
    }

    /// Makes the calls that carry over these requests, in order. Each call has few charges, because any of the states may
    /// be a long log, whatever its limit is now.
    pub(super) fn carrying_over(members: Vec<WaitingRequest>) -> Vec<ScriptCall> {
        let mut calls: Vec<ScriptCall> = Vec::new();
        let mut charges = 0;
        for waiting in members {
            charges += waiting.request.charges().len();
            match calls.last_mut() {
                Some(call) if charges <= MAX_CARRIED_OVER => call.members.push(waiting),
                _ => {
                    charges = waiting.request.charges().len();
                    calls.push(ScriptCall {
                        is_carrying_over: true,
                        ..ScriptCall::of(vec![waiting])
                    });
                }
            }
        }
        calls
    }

    pub(super) fn resent_with_text(self) -> ScriptCall {
        ScriptCall { is_resent_with_text: true, ..self }
    }

    pub(super) fn arguments(&self) -> Arguments<'_> {
        let arguments = Arguments::of(self.members.iter().map(|waiting| &waiting.request));
        match (self.is_carrying_over, self.is_beside_holds) {
            (true, _) => arguments.carrying_over(),
            (false, true) => arguments.beside_holds(),
            (false, false) => arguments,
        }
    }

    /// Whether `ASKING` is sent before the call, because the server does not own the slot yet.
    pub(super) fn is_asking(&self) -> bool {
        self.members.first().is_some_and(|waiting| waiting.route.is_asking)
    }
}

/// The commands that go to the server in one write.
pub(super) enum Commands {
    One(Cmd),
    /// Several commands, and their number.
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
