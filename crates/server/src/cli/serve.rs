//! The flags of `tollgate serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};

use crate::secret::Secret;

// What most people need is in the short help; `hide_short_help` leaves the rest to --help.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Limits and rules, as YAML or JSON; read again when it changes, and on SIGHUP
    ///
    /// Without one the server has the limits and rules of an example, to try it out.
    #[arg(long, env = "TOLLGATE_CONFIG", value_name = "FILE", help_heading = "What is limited")]
    pub(crate) config: Option<PathBuf>,

    /// A domain that must have rules; may be given several times
    ///
    /// The server does not start without rules for it, and refuses to reload a file that has none. A domain that a
    /// check has named is required from then on, unless the file lists it under `retired_domains`.
    #[arg(
        long = "require-domain",
        env = "TOLLGATE_REQUIRE_DOMAIN",
        hide_short_help = true,
        value_delimiter = ',',
        value_name = "DOMAIN",
        help_heading = "What is limited"
    )]
    pub(crate) required_domains: Vec<String>,

    // A URL may carry a password: it is not shown by --help, nor echoed in an error.
    /// Where the state lives: `memory`, or the URL of a Redis or Valkey
    ///
    /// redis://[user[:password]@]host[:port][/database], redis+unix:///path/of/a.sock,
    /// redis+cluster://a,b,c, redis+sentinel://a,b,c/name or redis+shards://a,b,c, and rediss
    /// instead of redis for TLS. Servers with the same store hold the same limits. In memory,
    /// what was spent is forgotten when the server stops. Give a password in the environment, where other
    /// users do not see it.
    #[arg(
        long,
        env = "TOLLGATE_STORE",
        default_value = "memory",
        hide_env_values = true,
        value_name = "STORE",
        value_parser = super::store,
        help_heading = "What is limited"
    )]
    pub(crate) store: String,

    /// What every key on a Redis begins with
    #[arg(
        long,
        env = "TOLLGATE_STORE_PREFIX",
        hide_short_help = true,
        default_value = "tollgate:",
        value_name = "PREFIX",
        help_heading = "What is limited"
    )]
    pub(crate) store_prefix: String,

    /// How long the store may take for a check, unless the configuration says otherwise
    ///
    /// Then the check comes to what `on_store_failure` says, and a store that is late again and again is left
    /// alone for a moment.
    #[arg(
        long,
        env = "TOLLGATE_STORE_DEADLINE",
        default_value = "10ms",
        value_name = "TIME",
        value_parser = deadline,
        help_heading = "What is limited"
    )]
    pub(crate) store_deadline: Duration,

    /// The most that keys may take in memory, such as 64MiB
    ///
    /// Beside that, a fourth as much remembers which receipts were given back.
    #[arg(
        long,
        env = "TOLLGATE_MAX_MEMORY",
        hide_short_help = true,
        default_value = "64MiB",
        value_name = "BYTES",
        value_parser = bytes,
        help_heading = "What is limited"
    )]
    pub(crate) max_memory: usize,

    /// Where the API listens; port 0 takes a free one
    #[arg(
        long,
        env = "TOLLGATE_LISTEN",
        default_value = "127.0.0.1:8080",
        value_name = "ADDRESS",
        value_parser = address,
        help_heading = "Connections"
    )]
    pub(crate) listen: SocketAddr,

    /// Where gRPC listens; port 0 takes a free one
    #[arg(
        long,
        env = "TOLLGATE_GRPC_LISTEN",
        default_value = "127.0.0.1:8081",
        value_name = "ADDRESS",
        value_parser = address,
        help_heading = "Connections"
    )]
    pub(crate) grpc_listen: SocketAddr,

    /// The most connections at a time, on each port; for further ones, others are closed
    ///
    /// First those whose clients do not go on with a request or an answer, then those that never said anything,
    /// then those between requests. If there are none of these, further ones wait.
    #[arg(
        long,
        env = "TOLLGATE_MAX_CONNECTIONS",
        hide_short_help = true,
        default_value_t = 8_000,
        value_name = "COUNT",
        value_parser = clap::value_parser!(u32).range(1..),
        help_heading = "Connections"
    )]
    pub(crate) max_connections: u32,

    /// How long a new connection may be silent
    #[arg(
        long,
        env = "TOLLGATE_FIRST_BYTE_TIMEOUT",
        hide_short_help = true,
        default_value = "5s",
        value_name = "TIME",
        value_parser = time,
        help_heading = "Connections"
    )]
    pub(crate) first_byte_timeout: Duration,

    /// How long a request may take to arrive, from its first byte to the last of its body
    #[arg(
        long,
        env = "TOLLGATE_REQUEST_TIMEOUT",
        hide_short_help = true,
        default_value = "10s",
        value_name = "TIME",
        value_parser = time,
        help_heading = "Connections"
    )]
    pub(crate) request_timeout: Duration,

    /// How long a connection may be silent between requests, and a client take to read an answer
    ///
    /// And a second more for every 16 KiB of the answer that it has read.
    #[arg(
        long,
        env = "TOLLGATE_IDLE_TIMEOUT",
        hide_short_help = true,
        default_value = "75s",
        value_name = "TIME",
        value_parser = time,
        help_heading = "Connections"
    )]
    pub(crate) idle_timeout: Duration,

    // A secret: it is not shown by --help.
    /// What operators show to read and reset keys: `Authorization: Bearer <token>`
    ///
    /// Without one, whoever asks from this machine is an operator, and nobody else. Give it in the
    /// environment, where other users do not see it.
    #[arg(
        long,
        env = "TOLLGATE_OPERATOR_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN",
        help_heading = "Operations"
    )]
    pub(crate) operator_token: Option<Secret>,

    // A secret: it is not shown by --help.
    /// What receipts are signed with: the same for all servers that share a store
    ///
    /// Without one, a server takes back its own receipts, until it is restarted. So it does with limits in memory,
    /// which end with it.
    #[arg(
        long,
        env = "TOLLGATE_RECEIPT_SECRET",
        hide_short_help = true,
        hide_env_values = true,
        value_name = "SECRET",
        help_heading = "Operations"
    )]
    pub(crate) receipt_secret: Option<Secret>,

    /// Leaves out the algorithms to play with: the page at `/` shows operators how the server does, and nothing else
    #[arg(
        long,
        env = "TOLLGATE_NO_PLAYGROUND",
        hide_short_help = true,
        value_parser = BoolishValueParser::new(),
        help_heading = "Operations"
    )]
    pub(crate) no_playground: bool,

    /// Stays ready while the store does not answer
    ///
    /// For rules that let requests go then, or decide them here: they are better served than turned away.
    /// Without it `/readyz` is 503 until the store, each server of it, answers again: so that requests go to
    /// a server that reaches it, where there is one.
    #[arg(
        long,
        env = "TOLLGATE_READY_WITHOUT_STORE",
        hide_short_help = true,
        value_parser = BoolishValueParser::new(),
        help_heading = "Operations"
    )]
    pub(crate) ready_without_store: bool,

    /// How long the server goes on after SIGTERM, unready, so that nobody sends it more
    #[arg(
        long,
        env = "TOLLGATE_DRAIN_DELAY",
        hide_short_help = true,
        default_value = "5s",
        value_name = "TIME",
        value_parser = time,
        help_heading = "Operations"
    )]
    pub(crate) drain_delay: Duration,

    /// How long requests that are in flight may then take
    #[arg(
        long,
        env = "TOLLGATE_DRAIN_TIMEOUT",
        hide_short_help = true,
        default_value = "20s",
        value_name = "TIME",
        value_parser = time,
        help_heading = "Operations"
    )]
    pub(crate) drain_timeout: Duration,

    /// What is logged: `error`, `warn`, `info`, `debug`, `trace`, or parts such as `info,tollgate=debug`
    #[arg(
        long,
        env = "TOLLGATE_LOG",
        hide_short_help = true,
        default_value = "info",
        value_name = "FILTER",
        help_heading = "Operations"
    )]
    pub(crate) log: String,

    /// Logs a sample of the refused requests, at most this many lines a second or a minute: 10/s
    ///
    /// With the rule, the limit and the key: whose requests are refused, and why. Keys are escaped and cut after 128
    /// characters, and only the first four characters of an API key are shown. Each line counts the refusals since the
    /// last one. Without it refusals are not logged.
    #[arg(
        long,
        env = "TOLLGATE_LOG_REFUSALS",
        hide_short_help = true,
        value_name = "RATE",
        value_parser = pause,
        help_heading = "Operations"
    )]
    pub(crate) log_refusals: Option<Duration>,

    /// How the log is written
    #[arg(
        long,
        env = "TOLLGATE_LOG_FORMAT",
        hide_short_help = true,
        value_enum,
        default_value_t = LogFormat::Text,
        value_name = "FORMAT",
        help_heading = "Operations"
    )]
    pub(crate) log_format: LogFormat,

    /// Where traces go, by OTLP over HTTP, such as http://127.0.0.1:4318
    #[arg(
        long,
        env = "TOLLGATE_OTLP_ENDPOINT",
        hide_short_help = true,
        hide_env_values = true,
        value_name = "URL",
        help_heading = "Operations"
    )]
    pub(crate) otlp_endpoint: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    /// To be read
    Text,
    /// One object a line
    Json,
}

fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "write it as address and port, such as 127.0.0.1:8080 or [::]:8080")
}

/// `250ms`, `5s`, `1m`, `24h`; also `0s`.
fn time(text: &str) -> Result<Duration, String> {
    let problem = || "write it as a number and a unit, such as 250ms, 5s or 1m".to_owned();
    let at = text.find(|letter: char| !letter.is_ascii_digit()).ok_or_else(problem)?;
    let (number, unit) = text.split_at(at);
    let number: u64 = number.parse().map_err(|_| problem())?;
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(problem()),
    };
    match number.checked_mul(unit_ms) {
        Some(ms) if ms <= 24 * 3_600_000 => Ok(Duration::from_millis(ms)),
        _ => Err("use at most 24h".to_owned()),
    }
}

/// The time between two lines of a log that has at most `10/s`, or `6/m`.
fn pause(text: &str) -> Result<Duration, String> {
    let problem = || "write it as a number and /s or /m, such as 10/s; at most 1000/s".to_owned();
    let (number, unit) = text.split_once('/').ok_or_else(problem)?;
    let unit = match unit {
        "s" => Duration::from_secs(1),
        "m" => Duration::from_secs(60),
        _ => return Err(problem()),
    };
    let number: u32 = number.parse().map_err(|_| problem())?;
    let pause = unit.checked_div(number).ok_or_else(problem)?;
    if pause < Duration::from_millis(1) { Err(problem()) } else { Ok(pause) }
}

/// What a store can be given.
fn deadline(text: &str) -> Result<Duration, String> {
    let deadline = time(text)?;
    let fits = (Duration::from_millis(1)..=Duration::from_secs(3_600)).contains(&deadline);
    fits.then_some(deadline).ok_or_else(|| "use 1ms to 1h".to_owned())
}

/// `1048576`, `64MiB`, `2GiB`.
fn bytes(text: &str) -> Result<usize, String> {
    let problem = || "write it as a number of bytes, or such as 64MiB or 2GiB".to_owned();
    let at = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(at);
    let number: usize = number.parse().map_err(|_| problem())?;
    let unit_bytes = match unit {
        "" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return Err(problem()),
    };
    number.checked_mul(unit_bytes).ok_or_else(problem)
}

pub(super) const SERVE_EXAMPLE: &str = r#"Example:    tollgate serve --config limits.yaml --store redis://127.0.0.1:6379
Try it:     tollgate check free user:42
Signals:    SIGHUP reads the configuration again; SIGTERM finishes what is in flight, and stops;
            a second one stops at once
Exit code:  0 stopped when told to, 2 could not start"#;
