//! The way to standard error: a queue of bounded size, and a thread that writes it. Code that logs never
//! waits. A line is lost when the queue is full or the write fails; lost lines are counted, and the count is
//! logged as soon as a write succeeds again.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::MakeWriter;

/// The most that waits to be written.
const MAX_WAITING_BYTES: usize = 1 << 20;

/// More than the line takes that reports lost lines.
const MAX_REPORT_BYTES: usize = 1024;

/// The most that is written of one line.
const MAX_LINE_BYTES: usize = 64 << 10;

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Text,
    /// Text with the colours of a terminal.
    Colours,
    Json,
}

/// Lines on their way. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    queue: Arc<Queue>,
    form: Form,
}

#[derive(Debug, Default)]
struct Queue {
    state: Mutex<State>,
    /// There is something to be written, or everything is.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    /// Lines lost since the log last reported their number.
    unreported: u64,
    /// Lines lost since the start.
    lost: u64,
    is_writing: bool,
}

impl Lines {
    /// With a thread that writes them, for as long as the process lives.
    pub(super) fn start(to: impl Write + Send + 'static, form: Form) -> io::Result<Lines> {
        let queue = Arc::<Queue>::default();
        let lines = Lines { queue: Arc::clone(&queue), form };
        std::thread::Builder::new()
            .name("tollgate-log".to_owned())
            .spawn(move || queue.write(to))?;
        Ok(lines)
    }

    /// Takes a line, which ends with a newline, if there is room.
    pub(super) fn push(&self, line: &str) {
        let line = clean(line, self.form);
        let mut state = self.queue.state.lock();
        if state.waiting.len() + line.len() > MAX_WAITING_BYTES {
            state.lose(1);
            return;
        }
        state.waiting.extend_from_slice(line.as_bytes());
        drop(state);
        self.queue.changed.notify_all();
    }

    /// Returns how many lines were lost since the start.
    pub(super) fn lost(&self) -> u64 {
        self.queue.state.lock().lost
    }

    /// Waits until everything is written, but no longer than that.
    pub(super) fn flush(&self, max: Duration) {
        let until = Instant::now() + max;
        let mut state = self.queue.state.lock();
        while state.is_writing || !state.waiting.is_empty() {
            if self.queue.changed.wait_until(&mut state, until).timed_out() {
                return;
            }
        }
    }
}

impl Queue {
    /// Writes lines for as long as the process lives. A write that fails is not repeated: its lines are lost, and
    /// the server keeps serving.
    fn write(&self, mut to: impl Write) {
        let mut batch = Vec::new();
        let mut is_mid_line = false;
        loop {
            batch.clear();
            self.take(&mut batch);
            // The rest of a line that was written in part is lost; the next line does not continue it.
            let is_at_start = !is_mid_line || write_until_error(&mut to, b"\n") == 1;
            let written = if is_at_start { write_until_error(&mut to, &batch) } else { 0 };
            // OK because no more is written than there is.
            is_mid_line = batch[..written].last().map_or(!is_at_start, |byte| *byte != b'\n');
            let rest = &batch[written..];
            let lost = rest.iter().filter(|byte| **byte == b'\n').count();
            if let Some(lost) = self.settle(lost as u64, rest.is_empty()) {
                tracing::warn!(
                    lost,
                    "log lines were lost: standard error is read too slowly, or writing to it failed"
                );
            }
        }
    }

    /// Waits until there are lines to write, and moves them to `batch`.
    fn take(&self, batch: &mut Vec<u8>) {
        let mut state = self.state.lock();
        state.is_writing = false;
        self.changed.notify_all();
        while state.waiting.is_empty() {
            self.changed.wait(&mut state);
        }
        state.is_writing = true;
        std::mem::swap(&mut state.waiting, batch);
    }

    /// Counts the lines that a write lost. Returns how many losses to report now: none after a write that failed or
    /// while the queue is full, because the report would be lost too.
    fn settle(&self, lost: u64, is_written: bool) -> Option<u64> {
        let mut state = self.state.lock();
        state.lose(lost);
        let is_full = state.waiting.len() + MAX_REPORT_BYTES > MAX_WAITING_BYTES;
        if !is_written || is_full || state.unreported == 0 {
            return None;
        }
        Some(std::mem::take(&mut state.unreported))
    }
}

impl State {
    fn lose(&mut self, lines: u64) {
        // OK because a process never logs 2^64 lines.
        self.lost += lines;
        self.unreported += lines;
    }
}

/// Writes until all bytes are written or a write fails. Returns how many bytes were written.
fn write_until_error(to: &mut impl Write, bytes: &[u8]) -> usize {
    let mut written = 0;
    while let Some(rest) = bytes.get(written..).filter(|rest| !rest.is_empty()) {
        match to.write(rest) {
            Ok(0) => break,
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    // Standard error has no buffer: what was written is out, whatever this returns.
    let _ = to.flush();
    written
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = &'a Lines;

    fn make_writer(&'a self) -> &'a Lines {
        self
    }
}

/// An event is written at once.
impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(&String::from_utf8_lossy(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// One line of bounded length, in which nothing moves a terminal's cursor. The formatter leaves newlines
/// in values as they are, and JSON may have the controls beyond ASCII.
fn clean(line: &str, form: Form) -> Cow<'_, str> {
    let body = line.strip_suffix('\n').unwrap_or(line);
    let is_too_long = body.len() > MAX_LINE_BYTES;
    if is_too_long && form == Form::Json {
        let (why, bytes) = ("a line is left out: it is too long", body.len());
        let object = format!("{{\"level\":\"WARN\",\"message\":\"{why}\",\"bytes\":{bytes}}}\n");
        return Cow::Owned(object);
    }
    // Those of the formatter are colours; `Harmless` escapes those in values.
    let is_harmless = |letter| !is_unsafe(letter) || (letter == '\x1b' && form == Form::Colours);
    if !is_too_long && body.chars().all(is_harmless) {
        return Cow::Borrowed(line);
    }
    let mut cleaned = String::with_capacity(body.len().min(MAX_LINE_BYTES) + 64);
    for letter in body.chars() {
        if cleaned.len() >= MAX_LINE_BYTES && form != Form::Json {
            cleaned.push('…');
            break;
        }
        match form {
            _ if is_harmless(letter) => cleaned.push(letter),
            // All of them have four digits, and are within a string.
            Form::Json => cleaned.push_str(&format!("\\u{:04x}", u32::from(letter))),
            Form::Text | Form::Colours => cleaned.extend(letter.escape_default()),
        }
    }
    cleaned.push('\n');
    Cow::Owned(cleaned)
}

/// A value as it shows itself, but for what is unsafe.
pub(super) struct Harmless<'a>(pub(super) &'a dyn fmt::Debug);

impl fmt::Display for Harmless<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{:?}", self.0)
    }
}

struct Escaping<'a, 'f>(&'a mut fmt::Formatter<'f>);

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|letter| {
            if is_unsafe(letter) {
                write!(self.0, "{}", letter.escape_default())
            } else {
                self.0.write_char(letter)
            }
        })
    }
}

/// Controls, other ends of lines, and what turns the direction of writing.
fn is_unsafe(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    #[test]
    fn nothing_in_a_line_moves_the_cursor() {
        let hostile = "a\nb\r\u{1b}[2J\u{7}\0\t\u{9b}\u{2028}\u{202e}é\n";
        let harmless = "a\\nb\\r\\u{1b}[2J\\u{7}\\u{0}\\t\\u{9b}\\u{2028}\\u{202e}é\n";
        assert_eq!(clean(hostile, Form::Text), harmless);
        // There the formatter writes ESC itself.
        assert_eq!(clean(hostile, Form::Colours), harmless.replace("\\u{1b}", "\u{1b}"));
        assert_eq!(clean("as it is\n", Form::Text), "as it is\n");
    }

    #[test]
    fn a_line_is_of_bounded_length() {
        let long = format!("{}\n", "é".repeat(MAX_LINE_BYTES));
        let cut = clean(&long, Form::Text);
        assert!(cut.len() < MAX_LINE_BYTES + 8 && cut.ends_with("é…\n"));
        let escaped = clean(&"\0".repeat(MAX_LINE_BYTES), Form::Text).into_owned();
        assert!(escaped.len() < MAX_LINE_BYTES + 16);
        let object: serde_json::Value = serde_json::from_str(&clean(&long, Form::Json)).unwrap();
        assert_eq!(object["bytes"], 2 * MAX_LINE_BYTES);
        let fits = format!("{}\n", "x".repeat(MAX_LINE_BYTES));
        assert_eq!(clean(&fits, Form::Json), fits);
        assert_eq!(clean(&fits, Form::Text), fits);
    }

    /// Writes when it is let, and says what.
    struct Gate {
        let_through: Receiver<()>,
        written: Sender<Vec<u8>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.let_through.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            self.written.send(bytes.to_vec()).map_err(|_| io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_log_that_nobody_reads_holds_nobody_up_and_counts_what_is_left_out() {
        let (gate, let_through) = channel();
        let (sender, written) = channel();
        let lines = Lines::start(Gate { let_through, written: sender }, Form::Text).unwrap();
        let line = format!("{}\n", "x".repeat(1023));
        for _ in 0..3_000 {
            lines.push(&line);
        }
        let begun = Instant::now();
        lines.flush(Duration::from_millis(10));
        assert!(begun.elapsed() < Duration::from_secs(5));
        {
            let state = lines.queue.state.lock();
            assert!(state.waiting.len() <= MAX_WAITING_BYTES);
            assert!(state.unreported >= 3_000 - 2 * 1024, "{}", state.unreported);
        }
        let mut bytes = 0;
        while bytes < MAX_WAITING_BYTES {
            gate.send(()).unwrap();
            let lines = written.recv_timeout(Duration::from_secs(10)).unwrap();
            bytes += lines.len();
        }
    }

    #[test]
    fn lines_of_failed_writes_are_counted_as_lost() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let lines = Lines::start(Closed, Form::Text).unwrap();
        for _ in 0..10 {
            lines.push("this line is lost\n");
            lines.flush(Duration::from_secs(60));
        }
        assert!(lines.queue.state.lock().waiting.is_empty());
        assert_eq!(lines.lost(), 10);
    }

    #[test]
    fn a_line_that_is_written_in_part_is_lost() {
        /// Takes this number of bytes, then fails.
        struct Filling(usize);
        impl Write for Filling {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let taken = bytes.len().min(self.0);
                self.0 -= taken;
                if taken == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        for (room, want) in [(0, 3), (1, 3), (3, 3), (4, 2), (7, 2), (8, 1), (11, 1), (12, 0)] {
            let lines = Lines::start(Filling(room), Form::Text).unwrap();
            for _ in 0..3 {
                lines.push("abc\n");
            }
            lines.flush(Duration::from_secs(60));
            assert_eq!(lines.lost(), want, "room for {room} bytes");
        }
    }

    #[test]
    fn losses_are_reported_once_and_only_after_a_write_that_succeeded() {
        let queue = Queue::default();
        assert_eq!(queue.settle(0, true), None);
        assert_eq!(queue.settle(3, false), None, "the report would be lost too");
        assert_eq!(queue.settle(1, false), None);
        queue.state.lock().waiting = vec![0; MAX_WAITING_BYTES];
        assert_eq!(queue.settle(0, true), None, "the queue has no room for the report");
        queue.state.lock().waiting.clear();
        assert_eq!(queue.settle(0, true), Some(4));
        assert_eq!(queue.settle(0, true), None);
        assert_eq!(queue.state.lock().lost, 4);
    }
}
