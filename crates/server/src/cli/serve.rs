//! The flags of `tollgate serve`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::BoolishValueParser;
use clap::{Args, ValueEnum};

use crate::secret::Secret;

// `-h` lists the flags that most people need. `hide_short_help` marks a flag that only --help lists.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// The file of limits and rules, as YAML or JSON; read again when it changes, and on SIGHUP
    ///
    /// Without a file, the server uses the limits and rules of an example, so that you can try it.
    #[arg(long, env = "TOLLGATE_CONFIG", value_name = "FILE", help_heading = "Limits and store")]
    pub(crate) config: Option<PathBuf>,

    /// A domain that must have rules; may be given several times
    ///
    /// The server does not start without rules for the domain, and refuses to reload a file that has none. A domain
    /// that a check has named is required from then on, unless the file lists it under `retired_domains`.
    #[arg(
        long = "require-domain",
        env = "TOLLGATE_REQUIRE_DOMAIN",
        hide_short_help = true,
        value_delimiter = ',',
        value_name = "DOMAIN",
        help_heading = "Limits and store"
    )]
    pub(crate) required_domains: Vec<String>,

    // A URL may have a password in it: --help and errors do not print it.
    /// Where the state is kept: `memory`, or the URL of a Redis or Valkey
    ///
    /// A URL is redis://[user[:password]@]host[:port][/database], redis+unix:///path/of/a.sock,
    /// redis+cluster://a,b,c, redis+sentinel://a,b,c/name or redis+shards://a,b,c; write rediss instead of redis for
    /// TLS. Servers with the same store share their limits. The memory store forgets what was spent when the server
    /// stops. Give a password in the environment: other users of the machine can read flags.
    #[arg(
        long,
        env = "TOLLGATE_STORE",
        default_value = "memory",
        hide_env_values = true,
        value_name = "STORE",
        value_parser = super::store,
        help_heading = "Limits and store"
    )]
    pub(crate) store: String,

    /// The prefix of every key on Redis
    #[arg(
        long,
        env = "TOLLGATE_STORE_PREFIX",
        hide_short_help = true,
        default_value = "tollgate:",
        value_name = "PREFIX",
        help_heading = "Limits and store"
    )]
    pub(crate) store_prefix: String,

    /// How long a check waits for the store, unless the configuration sets another deadline
    ///
    /// After that, `on_store_failure` decides the check. A server of the store that misses the deadline again and again
    /// gets no more requests for a moment: its circuit breaker opens.
    #[arg(
        long,
        env = "TOLLGATE_STORE_DEADLINE",
        default_value = "10ms",
        value_name = "TIME",
        value_parser = deadline,
        help_heading = "Limits and store"
    )]
    pub(crate) store_deadline: Duration,

    /// The most memory that keys may take in this process, such as 64MiB
    ///
    /// With the memory store, the server may use a quarter of this in addition, to remember which receipts were refunded.
    #[arg(
        long,
        env = "TOLLGATE_MAX_MEMORY",
        hide_short_help = true,
        default_value = "64MiB",
        value_name = "BYTES",
        value_parser = bytes,
        help_heading = "Limits and store"
    )]
    pub(crate) max_memory: usize,

    /// The address of the HTTP API; port 0 takes a free port
    #[arg(
        long,
        env = "TOLLGATE_LISTEN",
        default_value = "127.0.0.1:8080",
        value_name = "ADDRESS",
        value_parser = address,
        help_heading = "Connections"
    )]
    pub(crate) listen: SocketAddr,

    /// The address of the gRPC services; port 0 takes a free port
    #[arg(
        long,
        env = "TOLLGATE_GRPC_LISTEN",
        default_value = "127.0.0.1:8081",
        value_name = "ADDRESS",
        value_parser = address,
        help_heading = "Connections"
    )]
    pub(crate) grpc_listen: SocketAddr,

    /// The most connections at a time, on each port; a further connection replaces an unused one
    ///
    /// To make room, the server closes first a connection whose client is stuck in the middle of a request or an
    /// answer, then one that never sent anything, then one between requests. If every connection is in use, further
    /// ones wait.
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

    /// How long a new connection may take to send its first byte
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

    /// How long a connection may be idle between requests, and how long a client may take to read an answer
    ///
    /// A client gets one more second for every 16 KiB of the answer that it has read.
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

    // A secret: --help does not print it.
    /// The token that operators send to read and reset keys: `Authorization: Bearer <token>`
    ///
    /// Without a token, only requests from this machine are an operator's. Give the token in the environment: other
    /// users of the machine can read flags.
    #[arg(
        long,
        env = "TOLLGATE_OPERATOR_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN",
        help_heading = "Operations"
    )]
    pub(crate) operator_token: Option<Secret>,

    // A secret: --help does not print it.
    /// The secret that receipts are signed with; the same for all servers that share a store
    ///
    /// Without it, a server accepts only its own receipts, and only until it is restarted. With the memory store
    /// this is so with a secret too, because all charges are lost when the process ends.
    #[arg(
        long,
        env = "TOLLGATE_RECEIPT_SECRET",
        hide_short_help = true,
        hide_env_values = true,
        value_name = "SECRET",
        help_heading = "Operations"
    )]
    pub(crate) receipt_secret: Option<Secret>,

    /// Turn off the playground: the page at `/` then shows operators the state of the server, and nothing else
    #[arg(
        long,
        env = "TOLLGATE_NO_PLAYGROUND",
        hide_short_help = true,
        value_parser = BoolishValueParser::new(),
        help_heading = "Operations"
    )]
    pub(crate) no_playground: bool,

    /// Stay ready while the store does not answer
    ///
    /// Useful if the rules allow requests while the store fails, or decide them in this process. Without this flag
    /// `/readyz` answers 503 until every server of the store answers again, so that load balancers send requests to a
    /// server that reaches the store, if there is one.
    #[arg(
        long,
        env = "TOLLGATE_READY_WITHOUT_STORE",
        hide_short_help = true,
        value_parser = BoolishValueParser::new(),
        help_heading = "Operations"
    )]
    pub(crate) ready_without_store: bool,

    /// How long the server still accepts requests after SIGTERM while it reports that it is not ready, so that load
    /// balancers stop sending requests to it
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

    /// How long requests in flight may take after the drain delay
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

    /// The log level: `off`, `error`, `warn`, `info`, `debug` or `trace`, or parts such as `info,tollgate=debug`
    #[arg(
        long,
        env = "TOLLGATE_LOG",
        hide_short_help = true,
        default_value = "info",
        value_name = "FILTER",
        help_heading = "Operations"
    )]
    pub(crate) log: String,

    /// Log a sample of the refused requests, at most this many lines a second or a minute, such as 10/s
    ///
    /// A line has the rule, the limit, the key, and the number of refusals since the last line. Keys are escaped and
    /// cut after 128 characters, and only the first four characters of an API key are shown. Without this flag refusals
    /// are not logged.
    #[arg(
        long,
        env = "TOLLGATE_LOG_REFUSALS",
        hide_short_help = true,
        value_name = "RATE",
        value_parser = pause,
        help_heading = "Operations"
    )]
    pub(crate) log_refusals: Option<Duration>,

    /// The format of the log
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

    /// The URL of the collector to which traces are sent by OTLP over HTTP, such as http://127.0.0.1:4318
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
    /// Text for people
    Text,
    /// One JSON object on each line
    Json,
}

fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse().map_err(|_| "write it as address and port, such as 127.0.0.1:8080 or [::]:8080")
}

/// Parses a time: `250ms`, `5s`, `1m`, `24h`; also `0s`.
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

/// Parses the most lines a second or a minute, `10/s` or `6/m`, as the least time between two lines: 100 ms, or 10 s.
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

/// Parses a deadline, within the range that a store accepts.
fn deadline(text: &str) -> Result<Duration, String> {
    let deadline = time(text)?;
    let fits = (Duration::from_millis(1)..=Duration::from_secs(3_600)).contains(&deadline);
    fits.then_some(deadline).ok_or_else(|| "use 1ms to 1h".to_owned())
}

/// Parses a number of bytes: `1048576`, `64MiB`, `2GiB`.
fn bytes(text: &str) -> Result<usize, String> {
    let problem = || "write it as a number of bytes, such as 1048576, 64MiB or 2GiB".to_owned();
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
Signals:    SIGHUP reads the configuration again; SIGTERM finishes the requests in flight, then
            stops; a second SIGTERM stops at once
Exit code:  0 stopped by a signal; 2 could not start"#;
