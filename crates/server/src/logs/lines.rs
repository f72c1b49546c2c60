//! Writes log lines to standard error: a queue of bounded size, and a thread that writes its lines. Code that logs
//! never waits. A line is lost when the queue is full or the write fails; lost lines are counted, and the count is
//! logged as soon as a write succeeds again.

use std::borrow::Cow;
use std::fmt::{self, Write as _};
use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tracing_subscriber::fmt::MakeWriter;

/// The most bytes in the queue.
const MAX_WAITING_BYTES: usize = 1 << 20;

/// More than the length of the line that reports lost lines.
const MAX_REPORT_BYTES: usize = 1024;

/// The most bytes of a line that are written. Longer text is cut, and a longer JSON object is replaced.
const MAX_LINE_BYTES: usize = 64 << 10;

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineForm {
    Text,
    /// Text with the colours of a terminal.
    Colours,
    Json,
}

/// The queue of lines for standard error. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    queue: Arc<LineQueue>,
    form: LineForm,
}

#[derive(Debug, Default)]
struct LineQueue {
    state: Mutex<LineQueueState>,
    /// Notified when there are lines to write, and when all of them are written.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LineQueueState {
    waiting: Vec<u8>,
    /// Lines lost since the log last reported their number.
    unreported: u64,
    /// Lines lost since the start.
    lost: u64,
    is_writing: bool,
}

impl Lines {
    /// Starts a thread that writes lines to `to` until the process ends.
    pub(super) fn start(to: impl Write + Send + 'static, form: LineForm) -> io::Result<Lines> {
        let queue = Arc::<LineQueue>::default();
        let lines = Lines { queue: Arc::clone(&queue), form };
        std::thread::Builder::new()
            .name("tollgate-log".to_owned())
            .spawn(move || queue.write(to))?;
        Ok(lines)
    }

    /// Queues a line, which ends with a newline. The line is lost if the queue is full.
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

    /// Waits until all lines are written, at most for `max`.
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

impl LineQueue {
    /// Writes lines until the process ends. A failed write is not repeated: its lines are lost, and the server keeps
    /// serving.
    fn write(&self, mut to: impl Write) {
        let mut batch = Vec::new();
        let mut is_mid_line = false;
        loop {
            batch.clear();
            self.take(&mut batch);
            // The rest of a line that was written in part is lost; the next line does not continue it.
            let is_at_start = !is_mid_line || write_until_error(&mut to, b"\n") == 1;
            let written = if is_at_start { write_until_error(&mut to, &batch) } else { 0 };
            // OK because at most the whole batch is written.
            is_mid_line = batch[..written].last().map_or(!is_at_start, |byte| *byte != b'\n');
            let rest = &batch[written..];
            let lost = rest.iter().filter(|byte| **byte == b'\n').count();
            if let Some(lost) = self.count_lost(lost as u64, rest.is_empty()) {
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

    /// Counts the lines that a write lost. Returns how many lost lines to report now: none after a failed write or
    /// while the queue is full, because the report would be lost too.
    fn count_lost(&self, lost: u64, is_written: bool) -> Option<u64> {
        let mut state = self.state.lock();
        state.lose(lost);
        let is_full = state.waiting.len() + MAX_REPORT_BYTES > MAX_WAITING_BYTES;
        if !is_written || is_full || state.unreported == 0 {
            return None;
        }
        Some(std::mem::take(&mut state.unreported))
    }
}

impl LineQueueState {
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
    // The result is ignored, because standard error has no buffer: written bytes have left the process.
    let _ = to.flush();
    written
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = &'a Lines;

    fn make_writer(&'a self) -> &'a Lines {
        self
    }
}

/// The formatter writes each event with one call.
impl Write for &Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(&String::from_utf8_lossy(line));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns the line with bounded length and without control characters, which could move a terminal's cursor. The
/// formatter does not escape newlines in values, and JSON may contain control characters beyond ASCII.
fn clean(line: &str, form: LineForm) -> Cow<'_, str> {
    let body = line.strip_suffix('\n').unwrap_or(line);
    let is_too_long = body.len() > MAX_LINE_BYTES;
    if is_too_long && form == LineForm::Json {
        let (why, bytes) = ("a log line was left out because it is too long", body.len());
        let object = format!("{{\"level\":\"WARN\",\"message\":\"{why}\",\"bytes\":{bytes}}}\n");
        return Cow::Owned(object);
    }
    // An ESC is the formatter's colour: `EscapedValue` has escaped every ESC of a value.
    let is_harmless =
        |letter| !is_unsafe(letter) || (letter == '\x1b' && form == LineForm::Colours);
    if !is_too_long && body.chars().all(is_harmless) {
        return Cow::Borrowed(line);
    }
    let mut cleaned = String::with_capacity(body.len().min(MAX_LINE_BYTES) + 64);
    for letter in body.chars() {
        if cleaned.len() >= MAX_LINE_BYTES && form != LineForm::Json {
            cleaned.push('…');
            break;
        }
        match form {
            _ if is_harmless(letter) => cleaned.push(letter),
            // OK because every unsafe character is below U+10000, and JSON has them only in strings.
            LineForm::Json => cleaned.push_str(&format!("\\u{:04x}", u32::from(letter))),
            LineForm::Text | LineForm::Colours => cleaned.extend(letter.escape_default()),
        }
    }
    cleaned.push('\n');
    Cow::Owned(cleaned)
}

/// The debug form of a value, with unsafe characters escaped.
pub(super) struct EscapedValue<'a>(pub(super) &'a dyn fmt::Debug);

impl fmt::Display for EscapedValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(EscapingWriter(f), "{:?}", self.0)
    }
}

/// Escapes unsafe characters of what is written.
struct EscapingWriter<'a, 'f>(&'a mut fmt::Formatter<'f>);

impl fmt::Write for EscapingWriter<'_, '_> {
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

/// Returns whether a character is a control character, a line separator, or changes the direction of text.
fn is_unsafe(letter: char) -> bool {
    letter.is_control() || matches!(letter, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        let hostile = "a\nb\r\u{1b}[2J\u{7}\0\t\u{9b}\u{2028}\u{202e}é\n";
        let harmless = "a\\nb\\r\\u{1b}[2J\\u{7}\\u{0}\\t\\u{9b}\\u{2028}\\u{202e}é\n";
        assert_eq!(clean(hostile, LineForm::Text), harmless);
        // With colours, ESC is the formatter's own.
        assert_eq!(clean(hostile, LineForm::Colours), harmless.replace("\\u{1b}", "\u{1b}"));
        assert_eq!(clean("unchanged\n", LineForm::Text), "unchanged\n");
    }

    #[test]
    fn long_lines_are_cut_or_left_out() {
        let long = format!("{}\n", "é".repeat(MAX_LINE_BYTES));
        let cut = clean(&long, LineForm::Text);
        assert!(cut.len() < MAX_LINE_BYTES + 8 && cut.ends_with("é…\n"));
        let escaped = clean(&"\0".repeat(MAX_LINE_BYTES), LineForm::Text).into_owned();
        assert!(escaped.len() < MAX_LINE_BYTES + 16);
        let object: serde_json::Value =
            serde_json::from_str(&clean(&long, LineForm::Json)).unwrap();
        assert_eq!(object["bytes"], 2 * MAX_LINE_BYTES);
        let fits = format!("{}\n", "x".repeat(MAX_LINE_BYTES));
        assert_eq!(clean(&fits, LineForm::Json), fits);
        assert_eq!(clean(&fits, LineForm::Text), fits);
    }

    /// A writer whose writes wait until the test lets each of them through; it sends what it wrote.
    struct GatedWriter {
        permits: Receiver<()>,
        written: Sender<Vec<u8>>,
    }

    impl Write for GatedWriter {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.permits.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            self.written.send(bytes.to_vec()).map_err(|_| io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_unread_log_blocks_no_caller_and_counts_lost_lines() {
        let (gate, permits) = channel();
        let (sender, written) = channel();
        let lines = Lines::start(GatedWriter { permits, written: sender }, LineForm::Text).unwrap();
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
        struct ClosedWriter;
        impl Write for ClosedWriter {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let lines = Lines::start(ClosedWriter, LineForm::Text).unwrap();
        for _ in 0..10 {
            lines.push("this line is lost\n");
            lines.flush(Duration::from_secs(60));
        }
        assert!(lines.queue.state.lock().waiting.is_empty());
        assert_eq!(lines.lost(), 10);
    }

    #[test]
    fn partly_written_lines_are_counted_as_lost() {
        /// A writer that takes this number of bytes, then fails.
        struct FullDisk(usize);
        impl Write for FullDisk {
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
            let lines = Lines::start(FullDisk(room), LineForm::Text).unwrap();
            for _ in 0..3 {
                lines.push("abc\n");
            }
            lines.flush(Duration::from_secs(60));
            assert_eq!(lines.lost(), want, "room for {room} bytes");
        }
    }

    #[test]
    fn losses_are_reported_once_after_a_successful_write() {
        let queue = LineQueue::default();
        assert_eq!(queue.count_lost(0, true), None);
        assert_eq!(queue.count_lost(3, false), None, "the report would be lost too");
        assert_eq!(queue.count_lost(1, false), None);
        queue.state.lock().waiting = vec![0; MAX_WAITING_BYTES];
        assert_eq!(queue.count_lost(0, true), None, "the queue has no room for the report");
        queue.state.lock().waiting.clear();
        assert_eq!(queue.count_lost(0, true), Some(4));
        assert_eq!(queue.count_lost(0, true), None);
        assert_eq!(queue.state.lock().lost, 4);
    }
}
