//! The flags and their help.

mod check;
mod complete;
mod import;
mod serve;
#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Arg, Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use tollgate_core::Limit;

pub(crate) use check::{CheckArgs, HealthyArgs};
pub(crate) use complete::{CompletionsArgs, ManArgs};
pub(crate) use import::{ImportArgs, ImportFormat};
pub(crate) use serve::{LogFormat, ServeArgs};

/// Exact rate limiting with five algorithms, and concurrency limits
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, max_term_width = 100, after_help = EXAMPLE)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// The flags of `tollgate` itself, without a command.
const OWN_FLAGS: [&str; 4] = ["-h", "--help", "-V", "--version"];

/// The flags for which an empty variable is an error. If it counted as unset, a server would be less safe than its
/// operator believes.
const NEVER_EMPTY: [&str; 3] = ["operator_token", "receipt_secret", "store"];

impl Cli {
    /// Reads the command line and the environment. A mistake in them is printed, and ends the process.
    pub(crate) fn read() -> Cli {
        let arguments = with_command(std::env::args_os());
        let mut command = Cli::command().mut_subcommands(|it| it.mut_args(without_empty_variable));
        let matches = command.clone().get_matches_from(arguments);
        Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
    }
}

/// Adds the command `serve` if no command is given: `tollgate --config limits.yaml` is `tollgate serve --config
/// limits.yaml`.
fn with_command(mut arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    // The list may be empty: a process can be started without any argument, not even its name.
    let name = arguments.next().unwrap_or_else(|| "tollgate".into());
    let mut rest = arguments.peekable();
    let is_flag = |first: &OsString| {
        first.as_encoded_bytes().starts_with(b"-") && !OWN_FLAGS.iter().any(|own| first == own)
    };
    let serve = rest.peek().is_none_or(is_flag).then(|| "serve".into());
    [name].into_iter().chain(serve).chain(rest).collect()
}

/// Ignores a flag's variable if it is empty, as in `TOLLGATE_CONFIG=${CONFIG:-}`, except for [`NEVER_EMPTY`].
fn without_empty_variable(arg: Arg) -> Arg {
    let is_empty = |variable: &OsStr| std::env::var_os(variable).is_some_and(|it| it.is_empty());
    let is_unset = arg.get_env().is_some_and(is_empty);
    match is_unset && !NEVER_EMPTY.contains(&arg.get_id().as_str()) {
        true => arg.env(None),
        false => arg,
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the server, which decides requests over HTTP and gRPC (the default command)
    #[command(after_help = serve::SERVE_EXAMPLE)]
    Serve(Box<ServeArgs>),

    /// Charge a request to a limit, and say whether it is allowed (--peek: look without charging)
    #[command(after_help = check::CHECK_EXAMPLE)]
    Check(CheckArgs),

    /// Decide each request of a trace under one limit, and print the decisions
    #[command(after_help = REPLAY_EXAMPLE)]
    Replay(ReplayArgs),

    /// Check files of limits and rules, and print every problem
    #[command(after_help = VALIDATE_EXAMPLE)]
    Validate(ValidateArgs),

    /// Say which rules of a file apply to a request, which do not, and why
    #[command(after_help = EXPLAIN_EXAMPLE)]
    Explain(ExplainArgs),

    /// Convert the configuration of another rate limiter into limits and rules
    #[command(after_help = import::IMPORT_EXAMPLE)]
    Import(ImportArgs),

    /// Print the JSON Schema of files of limits and rules, for editors
    #[command(after_help = SCHEMA_EXAMPLE)]
    Schema,

    /// Say whether a server answers, for the health checks of container engines
    #[command(after_help = check::HEALTHY_EXAMPLE)]
    Healthy(HealthyArgs),

    /// Print the completions of this command for a shell
    #[command(after_help = complete::COMPLETIONS_EXAMPLE)]
    Completions(CompletionsArgs),

    /// Print a page of the manual
    #[command(after_help = complete::MAN_EXAMPLE)]
    Man(ManArgs),
}

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// The limit: an algorithm with its parameters, such as "sliding-window-log limit=5 window=15m"
    #[arg(long, env = "TOLLGATE_LIMIT", value_parser = |text: &str| text.parse::<Limit>())]
    pub(crate) limit: Limit,

    // A URL may have a password in it: --help and errors do not print it.
    /// Where the state is kept: `memory`, or the URL of a Redis or Valkey
    ///
    /// A URL is redis://[user[:password]@]host[:port][/database], redis+unix:///path/of/a.sock,
    /// redis+cluster://a,b,c, redis+sentinel://a,b,c/name or redis+shards://a,b,c; write rediss instead of redis for
    /// TLS. The decisions are the same on every store. On Redis, each run has keys of its own,
    /// `tollgate:replay:<random>:…`, which expire an hour after their quota is full again. Give a password in the
    /// environment: other users of the machine can read flags.
    #[arg(
        long,
        env = "TOLLGATE_STORE",
        default_value = "memory",
        hide_env_values = true,
        value_parser = store
    )]
    pub(crate) store: String,

    /// The trace, as CSV with the header `at_us,key,cost`; `-` is standard input
    ///
    /// Times are microseconds since the Unix epoch, and may go back. The column `cost` may be left out; each request
    /// then costs 1.
    ///
    /// For holds, a trace has the columns `op`, `hold` and `for_us` too. `op` is check, reserve, settle or extend; `hold`
    /// is a name of the key's hold, for all but checks; `for_us` is how long a reserve or an extend holds the units. The
    /// `cost` of a settle is what was used, and the `cost` of an extend is what is added: both may be 0.
    pub(crate) trace: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct ValidateArgs {
    /// The output format
    #[arg(long, env = "TOLLGATE_FORMAT", value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,

    /// A domain for which each file must have rules; may be given several times
    #[arg(
        long = "require-domain",
        env = "TOLLGATE_REQUIRE_DOMAIN",
        value_delimiter = ',',
        value_name = "DOMAIN"
    )]
    pub(crate) required_domains: Vec<String>,

    /// Fail on warnings too, with exit code 1
    #[arg(long, env = "TOLLGATE_STRICT", value_parser = BoolishValueParser::new())]
    pub(crate) strict: bool,

    /// The files, as YAML or JSON; `-` is standard input
    ///
    /// A file of API keys that one of the files names is read too. Tests in the files are run.
    #[arg(required = true, value_name = "FILE")]
    pub(crate) files: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    /// The domain whose rules are explained; may be left out if the file has only one domain
    #[arg(long, env = "TOLLGATE_DOMAIN")]
    pub(crate) domain: Option<String>,

    /// A known attribute of the request, such as method=POST; may be given several times
    #[arg(long = "attribute", env = "TOLLGATE_ATTRIBUTE", value_name = "NAME=VALUE", value_parser = attribute)]
    pub(crate) attributes: Vec<(String, String)>,

    /// An unverified attribute, sent by the client, such as header.user-agent=curl; may be given several times
    #[arg(long = "said", env = "TOLLGATE_SAID", value_name = "NAME=VALUE", value_parser = attribute)]
    pub(crate) said: Vec<(String, String)>,

    /// An unverified identity, claimed by the client, such as api_key=k_123; may be given several times
    #[arg(long = "claim", env = "TOLLGATE_CLAIM", value_name = "NAME=VALUE", value_parser = attribute)]
    pub(crate) claims: Vec<(String, String)>,

    /// The output format
    #[arg(long, env = "TOLLGATE_FORMAT", value_enum, default_value_t = Format::Human)]
    pub(crate) format: Format,

    /// The file, as YAML or JSON
    pub(crate) file: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Format {
    /// Text for people
    Human,
    /// JSON for programs
    Json,
}

/// Parses `--store`. An empty value is an error: if it meant `memory`, each server would count for itself.
fn store(text: &str) -> Result<String, &'static str> {
    let store = Some(text.to_owned()).filter(|store| !store.is_empty());
    store.ok_or("empty; unset it, or use memory or a URL")
}

fn attribute(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("write it as NAME=VALUE, such as method=POST".to_owned()),
    }
}

const EXAMPLE: &str = r#"Example:    tollgate &
            tollgate check free user:42
Variables:  each flag can be set by a variable, such as TOLLGATE_STORE for --store"#;

const REPLAY_EXAMPLE: &str = r#"Example:    tollgate replay --limit "token-bucket capacity=10 refill=1/s" trace.csv
Output:     one JSON object for each request, in order; a summary on standard error
Exit code:  0 every request was decided; 2 the limit or the trace is not valid, or the store failed"#;

const VALIDATE_EXAMPLE: &str = r#"Example:    tollgate validate --strict limits.yaml
Output:     the number of limits and rules of each valid file; problems on standard error;
            with --format json, the problems on standard output
Exit code:  0 every file is valid; 1 a file is not, or --strict and it has warnings; 2 a bad flag"#;

const EXPLAIN_EXAMPLE: &str = r#"Example:    tollgate explain limits.yaml --domain api --attribute method=POST \
                --attribute path=/login --attribute ip=203.0.113.9
Output:     each rule of the domain with its key, limit, cost and bound, or why it does not apply
Exit code:  0 explained; 1 the file is not valid; 2 a bad flag, or a domain without rules"#;

const SCHEMA_EXAMPLE: &str = r#"Example:    tollgate schema > tollgate.schema.json
            and in limits.yaml:  # yaml-language-server: $schema=tollgate.schema.json"#;
