//! The record of requests as lines of text, which a process that is killed leaves behind.
//!
//! A caller writes a line before it sends a request, and another when the answer comes:
//!
//! ```text
//! begin 7 1700000000000000 1700000000000000 3 charge client 4
//! end 7 1700000000000250 allowed 0 10 7 3000000 0
//! ```
//!
//! | line | words |
//! |---|---|
//! | `begin` | number of the request, when it began, the time at which to decide (`-` for the store's), cost, `charge` or `peek`, key |
//! | `end` | number, when it ended, `allowed` and the delay or `refused` and the wait (`never` if none helps), limit, remaining, time until the reset, time until the first unit comes back |
//! | `unsent` | number: the request never reached the store |
//!
//! A request without an `end` or `unsent` has an unknown outcome. Text after the last line break is ignored: the process
//! was killed while it wrote it, and it writes the line `begin` before it sends the request.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io::{self, Write};
use std::str::{FromStr, SplitN};
use std::time::SystemTime;

use tollgate_core::{Cost, Intent, LimitDecision, Retry, Verdict};

use super::{RecordedAnswer, RecordedRequest};

/// Returns the machine's time, which all its processes share: microseconds since the Unix epoch.
pub fn now_us() -> u64 {
    let since_epoch = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    u64::try_from(since_epoch.as_micros()).unwrap_or(u64::MAX)
}

/// Writes the requests of one caller.
///
/// Each line is written with one call, so that tasks with a recorder each can append to one file.
#[derive(Debug)]
pub struct Recorder<W> {
    output: W,
    next: u64,
    step: u64,
}

impl<W: Write> Recorder<W> {
    /// Returns a recorder whose numbers are `first`, `first + step` and so on, so that several recorders of one output have
    /// different numbers.
    pub fn new(output: W, first: u64, step: u64) -> Recorder<W> {
        Recorder { output, next: first, step }
    }

    /// Writes that a request begins. Returns its number. The answer of `request` is not used. The key must not have
    /// line breaks.
    pub fn begin(&mut self, key: &str, request: &RecordedRequest) -> io::Result<u64> {
        let number = self.next;
        self.next += self.step;
        let RecordedRequest { began_us, at_us, cost, intent, .. } = request;
        let (cost, intent) = (cost.units(), intent_word(*intent));
        let at = at_us.map_or("-".to_owned(), |at_us| at_us.to_string());
        self.line(format_args!("begin {number} {began_us} {at} {cost} {intent} {key}"))?;
        Ok(number)
    }

    /// Writes the answer to a request.
    pub fn end(&mut self, number: u64, answer: &RecordedAnswer) -> io::Result<()> {
        let RecordedAnswer { ended_us, decision } = answer;
        let LimitDecision { verdict, limit, remaining, reset_after_us, first_back_us } = decision;
        let verdict = verdict_words(*verdict);
        self.line(format_args!(
            "end {number} {ended_us} {verdict} {limit} {remaining} {reset_after_us} {first_back_us}"
        ))
    }

    /// Writes that a request never reached the store, because a cache answered it or the process refused to send it.
    pub fn unsent(&mut self, number: u64) -> io::Result<()> {
        self.line(format_args!("unsent {number}"))
    }

    fn line(&mut self, text: fmt::Arguments<'_>) -> io::Result<()> {
        self.output.write_all(format!("{text}\n").as_bytes())
    }
}

/// The requests of each key, from the records of all callers.
#[derive(Clone, Debug, Default)]
pub struct Histories(pub BTreeMap<String, Vec<RecordedRequest>>);

/// A line that no [`Recorder`] writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordError {
    /// The number of the line in its record, from 1.
    pub line: usize,
    /// The line.
    pub text: String,
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: not a line of a record: {:?}", self.line, self.text)
    }
}

impl std::error::Error for RecordError {}

impl Histories {
    /// Adds the record of one process. Requests without an answer have an unknown outcome.
    pub fn read(&mut self, record: &str) -> Result<(), RecordError> {
        let complete = record.rsplit_once('\n').map_or("", |(complete, _)| complete);
        let mut open = HashMap::<u64, (String, RecordedRequest)>::new();
        for (index, text) in complete.lines().enumerate() {
            let read = read_line(text).and_then(|line| self.add(&mut open, line));
            read.ok_or_else(|| RecordError { line: index + 1, text: text.to_owned() })?;
        }
        open.into_values().for_each(|(key, request)| self.keep(key, request));
        Ok(())
    }

    /// Adds one line of a record. Returns `None` if it does not fit the lines before it.
    fn add(
        &mut self,
        open: &mut HashMap<u64, (String, RecordedRequest)>,
        line: RecordLine,
    ) -> Option<()> {
        match line {
            RecordLine::Begin { number, key, request } => {
                return open.insert(number, (key, request)).is_none().then_some(());
            }
            RecordLine::End { number, answer } => {
                let (key, request) = open.remove(&number)?;
                self.keep(key, RecordedRequest { answer: Some(answer), ..request });
            }
            RecordLine::Unsent { number } => _ = open.remove(&number)?,
        }
        Some(())
    }

    fn keep(&mut self, key: String, request: RecordedRequest) {
        self.0.entry(key).or_default().push(request);
    }
}

enum RecordLine {
    Begin { number: u64, key: String, request: RecordedRequest },
    End { number: u64, answer: RecordedAnswer },
    Unsent { number: u64 },
}

/// Reads one line; `None` if it has another form.
fn read_line(text: &str) -> Option<RecordLine> {
    let (kind, rest) = text.split_once(' ')?;
    match kind {
        "begin" => {
            let mut words = rest.splitn(6, ' ');
            let number = number_in(&mut words)?;
            let began_us = number_in(&mut words)?;
            let at_us = match words.next()? {
                "-" => None,
                at_us => Some(at_us.parse().ok()?),
            };
            let cost = Cost::new(number_in(&mut words)?).ok()?;
            let intent = match words.next()? {
                "charge" => Intent::Charge,
                "peek" => Intent::Peek,
                _ => return None,
            };
            let request = RecordedRequest { began_us, at_us, cost, intent, answer: None };
            Some(RecordLine::Begin { number, key: words.next()?.to_owned(), request })
        }
        "end" => {
            let mut words = rest.splitn(8, ' ');
            let (number, ended_us) = (number_in(&mut words)?, number_in(&mut words)?);
            let decision = LimitDecision {
                verdict: read_verdict(words.next()?, words.next()?)?,
                limit: number_in(&mut words)?,
                remaining: number_in(&mut words)?,
                reset_after_us: number_in(&mut words)?,
                first_back_us: number_in(&mut words)?,
            };
            Some(RecordLine::End { number, answer: RecordedAnswer { ended_us, decision } })
        }
        "unsent" => Some(RecordLine::Unsent { number: rest.parse().ok()? }),
        _ => None,
    }
}

fn number_in(words: &mut SplitN<'_, char>) -> Option<u64> {
    u64::from_str(words.next()?).ok()
}

fn intent_word(intent: Intent) -> &'static str {
    match intent {
        Intent::Charge => "charge",
        Intent::Peek => "peek",
    }
}

fn verdict_words(verdict: Verdict) -> String {
    match verdict {
        Verdict::Allowed { delay_us } => format!("allowed {delay_us}"),
        Verdict::Denied { retry: Retry::AfterUs(wait_us) } => format!("refused {wait_us}"),
        Verdict::Denied { retry: Retry::Never } => "refused never".to_owned(),
    }
}

fn read_verdict(word: &str, time: &str) -> Option<Verdict> {
    match (word, time) {
        ("allowed", delay) => Some(Verdict::Allowed { delay_us: delay.parse().ok()? }),
        ("refused", "never") => Some(Verdict::Denied { retry: Retry::Never }),
        ("refused", wait) => Some(Verdict::Denied { retry: Retry::AfterUs(wait.parse().ok()?) }),
        _ => None,
    }
}
