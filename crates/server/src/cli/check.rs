//! The flags of `tollgate check` and `tollgate healthy`.

use clap::Args;
use clap::builder::BoolishValueParser;

use super::Format;
use crate::secret::Secret;

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The units that the request spends
    #[arg(
        long,
        env = "TOLLGATE_COST",
        default_value_t = 1,
        value_name = "UNITS",
        value_parser = cost
    )]
    pub(crate) cost: u64,

    /// Look at the key without charging it; for operators
    ///
    /// With --peek, LIMIT may also be a rule, such as `api/per-client` with the key `ip=203.0.113.9`. Then a line is
    /// printed for each limit that the rule may spend for the key, and the exit code is 0 only if all of them would
    /// allow the request.
    #[arg(long, env = "TOLLGATE_PEEK", value_parser = BoolishValueParser::new())]
    pub(crate) peek: bool,

    #[command(flatten)]
    pub(crate) server: ServerArgs,

    // A secret: --help does not print it.
    /// The operators' token, to peek from another machine; give it in the environment
    ///
    /// It is sent only with --peek.
    #[arg(long, env = "TOLLGATE_OPERATOR_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub(crate) operator_token: Option<Secret>,

    /// The output format
    #[arg(long, env = "TOLLGATE_FORMAT", value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,

    /// The name of a limit of the server
    pub(crate) limit: String,

    /// The key that is limited, such as `user:42`; put `--` before it if it begins with a dash
    pub(crate) key: String,
}

#[derive(Debug, Args)]
pub(crate) struct HealthyArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    // --help does not print it: a URL with a password is refused, but it may be set by mistake.
    /// The URL of the server
    #[arg(
        long = "server",
        env = "TOLLGATE_SERVER",
        default_value = "http://127.0.0.1:8080",
        hide_env_values = true,
        value_name = "URL"
    )]
    pub(crate) url: String,
}

fn cost(text: &str) -> Result<u64, &'static str> {
    match text.parse() {
        Ok(cost) if cost >= 1 => Ok(cost),
        _ => Err("use a whole number of units, at least 1"),
    }
}

pub(super) const CHECK_EXAMPLE: &str = r#"Example:    tollgate check free user:42 --cost 5
Output:     allowed: 54 of 60 left, full again in 5.2 s; with --format json, the server's answer
Exit code:  0 allowed, 1 denied, 2 could not decide"#;

pub(super) const HEALTHY_EXAMPLE: &str = r#"Example:    HEALTHCHECK CMD ["tollgate", "healthy"]
Exit code:  0 the server answers, 1 it does not, 2 a bad flag"#;
