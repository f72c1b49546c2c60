//! The flags of `tollgate check` and `tollgate healthy`.

use clap::Args;
use clap::builder::BoolishValueParser;

use super::Format;
use crate::secret::Secret;

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// What the request spends
    #[arg(
        long,
        env = "TOLLGATE_COST",
        default_value_t = 1,
        value_name = "UNITS",
        value_parser = cost
    )]
    pub(crate) cost: u64,

    /// Looks, and charges nothing; for operators
    ///
    /// Instead of a limit it takes a rule too, such as `api/per-client` with the key `ip=203.0.113.9`, and prints a line
    /// for each limit that the rule may spend for the key. Then it exits with 0 only if all of them would allow it.
    #[arg(long, env = "TOLLGATE_PEEK", value_parser = BoolishValueParser::new())]
    pub(crate) peek: bool,

    #[command(flatten)]
    pub(crate) server: ServerArgs,

    // A secret: it is not shown by --help.
    /// The operators' token, to peek from another machine; give it in the environment
    ///
    /// It is sent with --peek, and not otherwise.
    #[arg(long, env = "TOLLGATE_OPERATOR_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub(crate) operator_token: Option<Secret>,

    /// How the decision is printed
    #[arg(long, env = "TOLLGATE_FORMAT", value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,

    /// The name of a limit that the server has
    pub(crate) limit: String,

    /// Who is limited, such as `user:42`; after `--` if it begins with a dash
    pub(crate) key: String,
}

#[derive(Debug, Args)]
pub(crate) struct HealthyArgs {
    #[command(flatten)]
    pub(crate) server: ServerArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    // A URL may carry a password, though this one may not: it is not shown by --help.
    /// Where the server is
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
        _ => Err("a request spends a whole number of units, at least 1"),
    }
}

pub(super) const CHECK_EXAMPLE: &str = r#"Example:    tollgate check free user:42 --cost 5
Output:     allowed: 54 of 60 left, whole again in 5.2 s; with --format json, the server's answer
Exit code:  0 allowed, 1 denied, 2 could not decide"#;

pub(super) const HEALTHY_EXAMPLE: &str = r#"Example:    HEALTHCHECK CMD ["tollgate", "healthy"]
Exit code:  0 the server answers, 1 it does not, 2 a bad flag"#;
