//! Whether some order of a history's requests explains their answers.

use std::fmt;

use tollgate_core::{Limit, LimitDecision, Verdict};

use super::RecordedRequest;
use super::search::{DeadEnd, Found, OrderStep, Search};

/// The most decisions of a search: about 5 s in a test build.
const MAX_DECISIONS: u64 = 1_000_000;

/// How many of the last placed requests an error shows.
const SHOWN: usize = 4;

/// An order of the requests of a history in which the limit gives each the answer that it got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// The requests in this order, and the losses of state between them. A request with an unknown outcome is included if
    /// it was charged.
    pub steps: Vec<OrderStep>,
}

impl Order {
    /// Returns how often the store lost state.
    pub fn losses(&self) -> usize {
        self.steps.iter().filter(|&&step| step == OrderStep::Loss).count()
    }
}

/// Why a history is not explained. The text says where an explanation stops, and what the limit would have answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unexplained {
    /// No order of the requests explains the answers: the store decided wrongly, or lost state more often than it may.
    NoOrder(String),
    /// The search was given up before it found an order or had tried all of them.
    Undecided(String),
}

impl fmt::Display for Unexplained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Unexplained::NoOrder(text) | Unexplained::Undecided(text)) = self;
        f.write_str(text)
    }
}

impl std::error::Error for Unexplained {}

/// Finds an order of the requests of one key that explains their answers.
///
/// In this order the limit gives each answered request exactly the answer that it got, beginning with a key that has
/// spent nothing (without the times in it if the [store's clock](RecordedRequest::at_us) decided), and no request comes before one that was answered before it began. Requests with unknown outcomes are
/// placed anywhere after they began, or left out. At most `most_losses` times, the key goes back to a state that it had
/// before.
///
/// The order of a history with few requests at a time is found in about one decision for each pair of requests that
/// overlap. In the worst case the search is exponential in the number of unknown outcomes. It is given up after a million
/// decisions.
pub fn explain(
    limit: &Limit,
    history: &[RecordedRequest],
    most_losses: usize,
) -> Result<Order, Unexplained> {
    explain_within(limit, history, most_losses, MAX_DECISIONS)
}

pub(super) fn explain_within(
    limit: &Limit,
    history: &[RecordedRequest],
    most_losses: usize,
    decisions: u64,
) -> Result<Order, Unexplained> {
    let failure = |dead_end: DeadEnd| Failure { limit, history, most_losses, dead_end };
    match Search::new(limit, history).run(most_losses, decisions) {
        Found::Order(steps) => Ok(Order { steps }),
        Found::Nothing(dead_end) => {
            let text =
                format!("no order of the requests explains the answers\n{}", failure(dead_end));
            Err(Unexplained::NoOrder(text))
        }
        Found::GivenUp(dead_end) => {
            let text = format!(
                "given up after {decisions} decisions, without an order of the requests; record fewer requests \
                 at a time, or fewer with unknown outcomes\n{}",
                failure(dead_end)
            );
            Err(Unexplained::Undecided(text))
        }
    }
}

/// The text that shows where the explanation of a history stops.
struct Failure<'h> {
    limit: &'h Limit,
    history: &'h [RecordedRequest],
    most_losses: usize,
    dead_end: DeadEnd,
}

impl fmt::Display for Failure<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { limit, history, most_losses, dead_end } = self;
        let answered = history.iter().filter(|request| request.answer.is_some()).count();
        let unknown = history.len() - answered;
        let is_answered = |step: &&OrderStep| matches!(step, OrderStep::Request(index) if history[*index].answer.is_some());
        let placed = dead_end.steps.iter().filter(is_answered).count();
        writeln!(
            f,
            "  {limit}: {answered} answered requests, {unknown} unknown outcomes, at most {most_losses} losses of state"
        )?;
        writeln!(f, "  {placed} answered requests can be put in order; the last steps are")?;
        for step in &dead_end.steps[dead_end.steps.len().saturating_sub(SHOWN)..] {
            match *step {
                OrderStep::Request(index) => writeln!(f, "    {}", self.request(index))?,
                OrderStep::Loss => writeln!(f, "    the store loses state")?,
            }
        }
        writeln!(f, "  then no answer is the limit's; the requests that could come next are")?;
        for &index in &dead_end.next {
            let decision = history[index].decide(limit, &mut dead_end.state.clone());
            writeln!(f, "    {}", self.request(index))?;
            writeln!(f, "      the limit would answer: {}", in_words(&decision))?;
        }
        Ok(())
    }
}

impl Failure<'_> {
    /// Describes a request, with times since the first request began.
    fn request(&self, index: usize) -> String {
        let RecordedRequest { began_us, at_us, cost, intent, answer } = self.history[index];
        let start_us = self.history.iter().map(|request| request.began_us).min().unwrap_or(0);
        let since = |at_us: u64| i128::from(at_us) - i128::from(start_us);
        let at = match at_us {
            Some(at_us) => format!("{} us", since(at_us)),
            None => "the store's time".to_owned(),
        };
        let times = format!("{intent:?} of {} at {at}", cost.units());
        match answer {
            Some(answer) => format!(
                "{times}, from {} us to {} us: {}",
                since(began_us),
                since(answer.ended_us),
                in_words(&answer.decision)
            ),
            None => format!("{times}, from {} us, outcome unknown", since(began_us)),
        }
    }
}

fn in_words(decision: &LimitDecision) -> String {
    let LimitDecision { verdict, limit, remaining, reset_after_us, first_back_us } = decision;
    let verdict = match verdict {
        Verdict::Allowed { delay_us: 0 } => "allowed".to_owned(),
        Verdict::Allowed { delay_us } => format!("allowed with a delay of {delay_us} us"),
        Verdict::Denied { retry } => match retry.after() {
            Some(wait) => format!("refused for {} us", wait.as_micros()),
            None => "refused for ever".to_owned(),
        },
    };
    let first =
        if *first_back_us > 0 { format!(", more in {first_back_us} us") } else { String::new() };
    format!("{verdict}, {remaining} of {limit} remain, all in {reset_after_us} us{first}")
}
