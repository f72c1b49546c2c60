//! The flags of `tollgate check`.

use clap::Args;

use super::Format;
use crate::secret::Secret;

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// What the request spends
    #[arg(long, env = "TOLLGATE_COST", default_value_t = 1, value_name = "UNITS")]
    pub(crate) cost: u64,

    /// Looks, and charges nothing; for operators
    #[arg(long, env = "TOLLGATE_PEEK")]
    pub(crate) peek: bool,

    /// The server
    #[arg(
        long,
        env = "TOLLGATE_SERVER",
        default_value = "http://127.0.0.1:8080",
        value_name = "URL"
    )]
    pub(crate) server: String,

    // A secret: it is not shown by --help.
    /// The operators' token, to peek from another machine; give it in the environment
    #[arg(long, env = "TOLLGATE_OPERATOR_TOKEN", hide_env_values = true, value_name = "TOKEN")]
    pub(crate) operator_token: Option<Secret>,

    /// How the decision is printed
    #[arg(long, env = "TOLLGATE_FORMAT", value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,

    /// The name of a limit that the server has
    pub(crate) limit: String,

    /// Who is limited
    pub(crate) key: String,
}

pub(super) const CHECK_EXAMPLE: &str = r#"Example:    tollgate check free user:42 --cost 5
Exit code:  0 allowed, 1 denied, 2 could not decide"#;
