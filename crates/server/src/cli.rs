//! The flags and their help.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use tollgate_core::Limit;

/// Exact rate limiting with five algorithms
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Put a trace through a limit, and print the decision on each request
    #[command(after_help = REPLAY_EXAMPLE)]
    Replay(ReplayArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// The limit: an algorithm with its numbers, such as "sliding-window-log limit=5 window=15m"
    #[arg(long, env = "TOLLGATE_LIMIT", value_parser = |text: &str| text.parse::<Limit>())]
    pub(crate) limit: Limit,

    // A URL may carry a password: it is not shown by --help, nor echoed in an error.
    /// Where the state lives: `memory`, or the URL of a Redis or Valkey
    ///
    /// redis://[user[:password]@]host[:port][/database], redis+unix:///path/of/a.sock,
    /// redis+cluster://a,b,c, redis+sentinel://a,b,c/name or redis+shards://a,b,c, and rediss
    /// instead of redis for TLS. The decisions are the same. Every run has keys of its own
    /// there, `tollgate:replay:<random>:…`, which expire by themselves, an hour after their quota
    /// is whole again. Give a password in the environment, where other users do not see it.
    #[arg(long, env = "TOLLGATE_STORE", default_value = "memory", hide_env_values = true)]
    pub(crate) store: String,

    /// The trace, as CSV with the header `at_us,key,cost`; `-` is standard input
    ///
    /// Times are microseconds since the Unix epoch, and may go back. The cost may be left out.
    pub(crate) trace: PathBuf,
}

const REPLAY_EXAMPLE: &str = r#"Example:    tollgate replay --limit "token-bucket capacity=10 refill=1/s" trace.csv
Output:     one JSON object a request, in order; a summary on standard error
Exit code:  0 every request was decided, 2 the limit, the trace or the store is at fault"#;
