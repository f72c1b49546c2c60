//! The log: lines for people, or objects for machines, on standard error.
//!
//! - `filter`: what is logged
//! - `lines`: the way to standard error, which never holds a request up
//! - `sparingly`: what happens often is said once a second
//! - `requests`: a line for each request, if that is asked for
//! - `refusals`: a sample of the refused requests, with `--log-refusals`; `key`: the form in which keys are logged

mod filter;
mod key;
mod lines;
mod refusals;
mod requests;
mod sparingly;

use std::ffi::OsString;
use std::fmt::Debug;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::time::Duration;

use tracing::field::Field;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::fmt::format::{Writer, debug_fn};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, Registry, fmt};

use crate::cli::LogFormat;
use lines::{Form, Harmless, Lines};

pub(crate) use key::ShownKey;
pub(crate) use refusals::RefusalLog;
pub(crate) use requests::RequestLine;
pub(crate) use sparingly::Sparingly;

/// How long the end waits until what was logged is written.
const MAX_FLUSH: Duration = Duration::from_secs(1);

/// The log of this process. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Log {
    format: LogFormat,
    lines: Lines,
}

/// What a server says of itself when it starts.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    /// Without user and password.
    pub(crate) store: String,
    pub(crate) rules: usize,
    pub(crate) limits: usize,
    /// The file; `None` if the rules are the example's.
    pub(crate) config: Option<String>,
}

/// Logs what happens from here on.
pub(crate) fn start(filter: &str, format: LogFormat) -> anyhow::Result<Log> {
    let filter = filter::parse(filter)?;
    let form = form(format, || io::stderr().is_terminal(), std::env::var_os("NO_COLOR"));
    let lines = Lines::start(io::stderr(), form)
        .map_err(|error| anyhow::anyhow!("no thread for the log: {error}"))?;
    tracing_subscriber::registry()
        .with(layer(&lines, form))
        .with(filter)
        .try_init()
        .map_err(|error| anyhow::anyhow!("the log: {error}"))?;
    Ok(Log { format, lines })
}

impl Log {
    /// A log that writes nothing.
    pub(crate) fn silent() -> anyhow::Result<Log> {
        Ok(Log { format: LogFormat::Text, lines: Lines::start(io::sink(), Form::Text)? })
    }
}

/// Colours are for terminals, unless `NO_COLOR` has something in it (no-color.org).
fn form(format: LogFormat, is_terminal: impl FnOnce() -> bool, no_color: Option<OsString>) -> Form {
    match format {
        LogFormat::Json => Form::Json,
        LogFormat::Text if no_color.is_some_and(|value| !value.is_empty()) => Form::Text,
        LogFormat::Text if is_terminal() => Form::Colours,
        LogFormat::Text => Form::Text,
    }
}

fn layer(lines: &Lines, form: Form) -> Box<dyn Layer<Registry> + Send + Sync> {
    // `Lines` counts the lines that cannot be written; the layer has no other place to report that.
    let layer = fmt::layer().with_writer(lines.clone()).log_internal_errors(false);
    match form {
        Form::Json => layer.json().flatten_event(true).boxed(),
        Form::Text | Form::Colours => {
            let layer = layer.with_ansi(form == Form::Colours);
            layer.fmt_fields(debug_fn(write_field).delimited(" ")).boxed()
        }
    }
}

/// The formatter's own leaves ESC in a value that shows itself by `%` as it is.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> std::fmt::Result {
    match field.name() {
        "message" => write!(writer, "{}", Harmless(value)),
        name => write!(writer, "{name}={}", Harmless(value)),
    }
}

impl Log {
    /// Where it listens, with which store and rules: three lines for people, or one event.
    pub(crate) fn announce(&self, start: &Start) {
        let Start { http, grpc, store, rules, limits, config } = start;
        let version = env!("CARGO_PKG_VERSION");
        if self.format == LogFormat::Json {
            let http = format!("http://{http}");
            let config = config.as_deref().unwrap_or("example");
            tracing::info!(version, http, %grpc, store, rules, limits, config, "started");
            return;
        }
        self.lines.push(&format!("tollgate {version}: http://{http}, gRPC {grpc}\n"));
        self.lines.push(&format!("store: {store}\n"));
        let from = config.as_deref().unwrap_or("of the example; give your own with --config");
        self.lines.push(&format!("{rules} rules, {limits} limits: {from}\n"));
    }

    /// Returns how many lines were lost: the queue was full, or they could not be written.
    pub(crate) fn lost(&self) -> u64 {
        self.lines.lost()
    }

    /// Waits until everything is written, or for a second: whoever reads it may not.
    pub(crate) fn flush(&self) {
        self.lines.flush(MAX_FLUSH);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Written(Arc<Mutex<Vec<u8>>>);

    impl Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is written of an event whose every value is that text.
    fn written(form: Form, text: &str) -> String {
        let written = Written::default();
        let lines = Lines::start(written.clone(), form).unwrap();
        let subscriber = tracing_subscriber::registry().with(layer(&lines, form));
        tracing::subscriber::with_default(subscriber, || {
            let error = anyhow::anyhow!("{text}").context(text.to_owned());
            let error: &(dyn std::error::Error + 'static) = error.as_ref();
            tracing::info!(text, shown = %text, debug = ?text, error, "{text}");
        });
        lines.flush(Duration::from_secs(60));
        let bytes = written.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn colours_are_for_terminals_that_have_not_said_no() {
        let table = [
            (LogFormat::Text, true, None, Form::Colours),
            (LogFormat::Text, true, Some(""), Form::Colours),
            (LogFormat::Text, true, Some("1"), Form::Text),
            (LogFormat::Text, false, None, Form::Text),
            (LogFormat::Json, true, None, Form::Json),
        ];
        for (format, is_terminal, no_color, wanted) in table {
            assert_eq!(form(format, || is_terminal, no_color.map(OsString::from)), wanted);
        }
    }

    #[test]
    fn an_event_is_one_line_and_no_value_moves_the_cursor() {
        let hostile = "in\nforged\r\u{1b}[2J\u{9b}2J\u{7}\0";
        let is_control = |letter: char| letter.is_control();
        let text = written(Form::Text, hostile);
        assert_eq!(text.matches(is_control).collect::<String>(), "\n", "{text}");
        assert!(text.ends_with('\n'));
        let json = written(Form::Json, hostile);
        assert_eq!(json.matches(is_control).collect::<String>(), "\n", "{json}");
        let object: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&object["message"], &object["text"]), (&hostile.into(), &hostile.into()));
    }

    #[test]
    fn with_colours_only_the_colours_are_escape_sequences() {
        let text = written(Form::Colours, "in\nforged\r\u{1b}[2J\u{9b}2J");
        assert!(text.contains("\u{1b}[32m") && !text.contains("\u{1b}[2J"), "{text:?}");
        let controls: String = text.matches(|letter: char| letter.is_control()).collect();
        assert_eq!(controls.replace('\u{1b}', ""), "\n", "{text:?}");
    }
}
