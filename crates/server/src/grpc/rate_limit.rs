//! Envoy's rate limit service: the rules decide what a proxy asks.
//!
//! - `counts`: how much it asks; `asked`: what; `lenient`: with bytes that are no text
//! - `answer`: what it is told; `status`: of each descriptor; `metadata`: for other filters

mod answer;
mod asked;
mod counts;
mod lenient;
mod metadata;
mod status;

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use prost::Message;
use tollgate::rules::{Config, Rules};
use tollgate::{Error, Limiter};

use crate::budget::Budget;
use crate::metrics::Metrics;
use crate::observe::Observer;
use crate::pipeline::Pipeline;

/// What Envoy counts in.
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);
const WEEK: Duration = Duration::from_secs(7 * 24 * 3_600);
const MONTH: Duration = Duration::from_secs(30 * 24 * 3_600);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3_600);

/// Whoever gives less time has this much: 3 ms of it are for the way back, and without the rest the store would not
/// be asked, so that a caller could choose to go unlimited.
const LEAST_TIME: Duration = Duration::from_millis(5);

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Became {
    Decided,
    /// The store failed, or too much applies to it, and nobody goes then.
    Undecided,
}

/// Envoy's rate limit service.
pub(crate) struct RateLimitService {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) observer: Arc<Observer>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) budget: Budget,
}

impl RateLimitService {
    /// Appends the answer to a message. An error is the caller's: it names the place, the problem and the remedy.
    pub(super) async fn answer(
        &self,
        message: &[u8],
        time_left: Option<Duration>,
        to: &mut Vec<u8>,
    ) -> Result<Became, String> {
        let request = decoded(message)?;
        let rules = self.pipeline.snapshot();
        let asked = asked::descriptors(&request, &rules)?;
        let mut check = rules.check_each(&request.domain, &asked);
        // Nobody holds a request for a while: what would have to wait is refused. Without such limits, what a caller
        // accepts is not asked: one limit alone is decided quicker then.
        if rules.is_shaping() {
            check = check.max_wait(Duration::ZERO);
        }
        if let Some(time) = time_left {
            check = check.within(time.max(LEAST_TIME));
        }
        match self.pipeline.ruling(self.pipeline.send_check(check)).await {
            Ok(ruling) => {
                let unmatched = answer::ruled(to, &ruling, asked.len());
                self.metrics.unmatched(unmatched);
                Ok(Became::Decided)
            }
            // The others a client can bring about, by a long header or by the numbers of its plan: it must not choose to
            // be told an error.
            Err(
                error @ (Error::Store(_)
                | Error::TooManyCharges { .. }
                | Error::TooMuchWork { .. }
                | Error::KeysTooLong { .. }
                | Error::LimitedTo { .. }
                | Error::TooManyLimits { .. }),
            ) => {
                answer::undecided(to, &error, asked.len());
                Ok(Became::Undecided)
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

fn decoded(message: &[u8]) -> Result<RateLimitRequest, String> {
    counts::check(message)?;
    // Nearly all are text, and read quicker so.
    let request = RateLimitRequest::decode(message).or_else(|_| lenient::decode(message));
    request.map_err(|error| {
        format!("no RateLimitRequest: {error}; send one of envoy.service.ratelimit.v3")
    })
}

/// Reads a message as far as rules would see it.
pub(crate) fn fuzz(message: &[u8]) -> Result<(), String> {
    let config = Config::parse("none", "rules: []").map_err(|problems| problems.to_string())?;
    let rules = Rules::new(&Limiter::memory(), &config).map_err(|error| error.to_string())?;
    asked::descriptors(&decoded(message)?, &rules.snapshot()).map(drop)
}
