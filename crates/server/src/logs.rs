//! The log: lines of text for people, or JSON objects for machines, on standard error.
//!
//! - `filter`: `--log`, which says what is logged
//! - `lines`: the queue in front of standard error, so that no request waits for the log
//! - `throttle`: limits how often an event is logged
//! - `requests`: a line for each request at the level `debug`, and lines about failed requests
//! - `refusals`: a sample of the refused requests, with `--log-refusals`; `key`: the form in which keys are logged

mod filter;
mod key;
mod lines;
mod refusals;
mod requests;
mod throttle;

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
use lines::{EscapedValue, LineForm, Lines};

pub(crate) use key::ShownKey;
pub(crate) use refusals::RefusalLog;
pub(crate) use requests::RequestLine;
pub(crate) use throttle::LogThrottle;

/// How long the process waits at its end until all lines are written.
const MAX_FLUSH: Duration = Duration::from_secs(1);

/// The log of this process. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct ServerLog {
    format: LogFormat,
    lines: Lines,
}

/// The addresses, store and rules that a server logs when it starts.
#[derive(Debug)]
pub(crate) struct StartReport {
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    /// Without user and password.
    pub(crate) store: String,
    pub(crate) rules: usize,
    pub(crate) limits: usize,
    /// The rules file; `None` for the rules of the example.
    pub(crate) config: Option<String>,
}

/// Starts the log of this process.
pub(crate) fn start(filter: &str, format: LogFormat) -> anyhow::Result<ServerLog> {
    let filter = filter::parse(filter)?;
    let form = form(format, || io::stderr().is_terminal(), std::env::var_os("NO_COLOR"));
    let lines = Lines::start(io::stderr(), form)
        .map_err(|error| anyhow::anyhow!("cannot start a thread for the log: {error}"))?;
    tracing_subscriber::registry()
        .with(layer(&lines, form))
        .with(filter)
        .try_init()
        .map_err(|error| anyhow::anyhow!("cannot start the log: {error}"))?;
    Ok(ServerLog { format, lines })
}

impl ServerLog {
    /// Returns a log that writes nothing.
    pub(crate) fn silent() -> anyhow::Result<ServerLog> {
        Ok(ServerLog { format: LogFormat::Text, lines: Lines::start(io::sink(), LineForm::Text)? })
    }
}

/// Returns the form of the lines. Only terminals get colours, and none if `NO_COLOR` is set and not empty
/// (no-color.org).
fn form(
    format: LogFormat,
    is_terminal: impl FnOnce() -> bool,
    no_color: Option<OsString>,
) -> LineForm {
    match format {
        LogFormat::Json => LineForm::Json,
        LogFormat::Text if no_color.is_some_and(|value| !value.is_empty()) => LineForm::Text,
        LogFormat::Text if is_terminal() => LineForm::Colours,
        LogFormat::Text => LineForm::Text,
    }
}

fn layer(lines: &Lines, form: LineForm) -> Box<dyn Layer<Registry> + Send + Sync> {
    // `Lines` counts the lines that cannot be written; the layer has no other place to report that.
    let layer = fmt::layer().with_writer(lines.clone()).log_internal_errors(false);
    match form {
        LineForm::Json => layer.json().flatten_event(true).boxed(),
        LineForm::Text | LineForm::Colours => {
            let layer = layer.with_ansi(form == LineForm::Colours);
            layer.fmt_fields(debug_fn(write_field).delimited(" ")).boxed()
        }
    }
}

/// Writes a field with its control characters escaped. The formatter of the crate does not escape ESC in a value that
/// is logged with `%`.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn Debug) -> std::fmt::Result {
    match field.name() {
        "message" => write!(writer, "{}", EscapedValue(value)),
        name => write!(writer, "{name}={}", EscapedValue(value)),
    }
}

impl ServerLog {
    /// Logs the start of the server: three lines of text, or one JSON event.
    pub(crate) fn announce(&self, start: &StartReport) {
        let StartReport { http, grpc, store, rules, limits, config } = start;
        let version = env!("CARGO_PKG_VERSION");
        if self.format == LogFormat::Json {
            let http = format!("http://{http}");
            let config = config.as_deref().unwrap_or("example");
            tracing::info!(version, http, %grpc, store, rules, limits, config, "started");
            return;
        }
        self.lines.push(&format!("tollgate {version}: http://{http}, gRPC {grpc}\n"));
        self.lines.push(&format!("store: {store}\n"));
        let from = config.as_deref().unwrap_or("from the example; use --config for your own");
        self.lines.push(&format!("{rules} rules, {limits} limits: {from}\n"));
    }

    /// Returns the number of lines that were lost, because the queue was full or the write failed.
    pub(crate) fn lost(&self) -> u64 {
        self.lines.lost()
    }

    /// Waits until all lines are written, at most one second: the reader of standard error may have stopped reading.
    pub(crate) fn flush(&self) {
        self.lines.flush(MAX_FLUSH);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// A writer that keeps what is written.
    #[derive(Clone, Default)]
    struct LogBuffer(Arc<Mutex<Vec<u8>>>);

    impl Write for LogBuffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Logs an event with this text as each value, and returns what is written.
    fn written(form: LineForm, text: &str) -> String {
        let written = LogBuffer::default();
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
    fn only_terminals_without_no_color_get_colours() {
        let table = [
            (LogFormat::Text, true, None, LineForm::Colours),
            (LogFormat::Text, true, Some(""), LineForm::Colours),
            (LogFormat::Text, true, Some("1"), LineForm::Text),
            (LogFormat::Text, false, None, LineForm::Text),
            (LogFormat::Json, true, None, LineForm::Json),
        ];
        for (format, is_terminal, no_color, wanted) in table {
            assert_eq!(form(format, || is_terminal, no_color.map(OsString::from)), wanted);
        }
    }

    #[test]
    fn an_event_is_one_line_without_control_characters() {
        let hostile = "in\nforged\r\u{1b}[2J\u{9b}2J\u{7}\0";
        let is_control = |letter: char| letter.is_control();
        let text = written(LineForm::Text, hostile);
        assert_eq!(text.matches(is_control).collect::<String>(), "\n", "{text}");
        assert!(text.ends_with('\n'));
        let json = written(LineForm::Json, hostile);
        assert_eq!(json.matches(is_control).collect::<String>(), "\n", "{json}");
        let object: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&object["message"], &object["text"]), (&hostile.into(), &hostile.into()));
    }

    #[test]
    fn the_only_escape_sequences_are_colours() {
        let text = written(LineForm::Colours, "in\nforged\r\u{1b}[2J\u{9b}2J");
        assert!(text.contains("\u{1b}[32m") && !text.contains("\u{1b}[2J"), "{text:?}");
        let controls: String = text.matches(|letter: char| letter.is_control()).collect();
        assert_eq!(controls.replace('\u{1b}', ""), "\n", "{text:?}");
    }
}
