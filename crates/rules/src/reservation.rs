//! A reservation that rules have not decided yet.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tollgate_core::Cost;
use tollgate_limiter::{Answer, Error, JointHoldDecision, ReservationPart};

use super::check::RulesCheck;
use super::matched_rules::{MatchedRule, MatchedRules};
use super::rules_hold::RulesHold;
use super::ruling::Ruling;

/// A reservation that rules have not decided yet: await it, or decide it [`now`](Self::now).
///
/// Either all rules that apply admit the request, or nothing is charged or held. Rules with `reserve` in their cost, and
/// rules that spend a concurrency limit, set their units aside; the other rules are charged at once. The hold is in the
/// [`Ruling`].
///
/// ```
/// # use tollgate::Limiter;
/// # use tollgate::rules::{Attributes, Config, Rules};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let file = "
/// limits:
///   tokens: token-bucket capacity=10000 refill=10000/m
///   requests: fixed-window limit=60 window=1m
/// rules:
///   - name: tokens
///     domain: llm
///     key: [team]
///     limit: tokens
///     cost: { reserve: { attribute: estimated_tokens, default: 1000 } }
///   - { name: requests, domain: llm, key: [team], limit: requests }
/// ";
/// let rules = Rules::new(&Limiter::memory(), &Config::parse("rules.yaml", file)?)?;
/// let request = Attributes::new().with("team", "7").with("estimated_tokens", "4000");
/// let mut ruling = rules.reserve("llm", &request).now()?;
/// let Some(hold) = ruling.take_hold() else {
///     return Ok(()); // refused: `retry_after()` says when to try again
/// };
/// // The call used 1,250 tokens. The request was charged at once.
/// hold.settle_now(|_| 1_250)?;
/// # let left = |name: &str| rules.scope(name).unwrap().peek("team=7").now().unwrap().remaining();
/// # assert!(left("llm/tokens") >= 8_750);
/// # assert_eq!(left("llm/requests"), 59);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is reserved until this is awaited, or `now` is called"]
pub struct RulesReservation<'a> {
    check: RulesCheck<'a>,
    hold_for: Option<Duration>,
}

impl<'a> RulesCheck<'a> {
    /// Makes this a reservation: units of the rules that say so are set aside instead of charged.
    pub fn reserving(self) -> RulesReservation<'a> {
        RulesReservation { check: self, hold_for: None }
    }
}

impl<'a> RulesReservation<'a> {
    /// Sets the units that rules with `reserve` set aside, in place of the units that they give. At least 1. Concurrency
    /// limits are excluded.
    pub fn estimate(self, units: u64) -> RulesReservation<'a> {
        RulesReservation { check: self.check.with_estimate(Cost::new(units)), ..self }
    }

    /// Sets how long the units of every rule are held, in place of the times that rules and limits give.
    pub fn hold_for(self, time: Duration) -> RulesReservation<'a> {
        RulesReservation { hold_for: Some(time), ..self }
    }

    /// Decides without waiting, in memory.
    pub fn now(&self) -> Result<Ruling, Error> {
        let found = self.check.found()?;
        let decided = self.check.limiter().reserve_all_now(&self.parts(&found));
        self.ruling(found, decided)
    }

    /// Returns the parts, in the order of the rules; none if a rule blocks the request.
    fn parts<'f>(&self, found: &'f MatchedRules) -> Vec<ReservationPart<'f>> {
        if found.blocked_by.is_some() {
            return Vec::new();
        }
        let part = |matched: &'f MatchedRule| match matched.is_held {
            true => self.hold_of(matched, found),
            false => self.check.check_of(matched, found).map(ReservationPart::from),
        };
        found.matched.iter().filter_map(part).collect()
    }

    fn hold_of<'f>(
        &self,
        matched: &'f MatchedRule,
        found: &'f MatchedRules,
    ) -> Option<ReservationPart<'f>> {
        let (scope, key) = (matched.scope()?, &found.keys[matched.key.clone()]);
        let mut request = scope.reserve(key).cost(matched.units);
        if let Some(time) = self.hold_for.or_else(|| matched.rule.hold_for()) {
            request = request.hold_for(time);
        }
        Some(self.check.with_terms(request, matched).into())
    }

    fn ruling(
        &self,
        found: MatchedRules,
        decided: Result<JointHoldDecision, Error>,
    ) -> Result<Ruling, Error> {
        ruling(found, decided, self.hold_for)
    }
}

/// Makes the ruling on a reservation, with its hold.
fn ruling(
    found: MatchedRules,
    decided: Result<JointHoldDecision, Error>,
    hold_for: Option<Duration>,
) -> Result<Ruling, Error> {
    let (joint, hold) = decided
        .map(JointHoldDecision::into_parts)
        .map_or_else(|error| (Err(error), None), |(joint, hold)| (Ok(joint), hold));
    // A blocked request has no parts. A reservation without parts is admitted, so its empty hold is dropped here.
    let hold = hold.filter(|_| found.blocked_by.is_none());
    let hold = hold.map(|hold| RulesHold::new(hold, &found, hold_for));
    Ok(Ruling::of(found, joint)?.with_hold(hold))
}

impl<'a> IntoFuture for RulesReservation<'a> {
    type Output = Result<Ruling, Error>;
    type IntoFuture = ReservationAnswer;

    fn into_future(self) -> ReservationAnswer {
        let hold_for = self.hold_for;
        match self.check.found() {
            Ok(found) => {
                let pending = self.check.limiter().reserve_all(&self.parts(&found));
                ReservationAnswer { pending, found: Some(found), hold_for }
            }
            Err(error) => {
                let (pending, found) = (Answer::ready(Err(error)), Some(MatchedRules::new(0)));
                ReservationAnswer { pending, found, hold_for }
            }
        }
    }
}

/// The pending ruling of a [`RulesReservation`]; in memory it is ready at once.
#[derive(Debug)]
#[must_use = "the ruling comes when this is awaited"]
pub struct ReservationAnswer {
    pending: Answer<JointHoldDecision>,
    /// `None` once the ruling was returned.
    found: Option<MatchedRules>,
    hold_for: Option<Duration>,
}

impl Future for ReservationAnswer {
    type Output = Result<Ruling, Error>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let decided = ready!(Pin::new(&mut this.pending).poll(context));
        match this.found.take() {
            Some(found) => Poll::Ready(ruling(found, decided, this.hold_for)),
            None => Poll::Ready(Err(Error::AnswerTaken)),
        }
    }
}
