//! Envoy's rate limit service, where rules decide.
//!
//! - `counts`: bounds the descriptors and entries of a message; `lenient`: decodes a message with invalid UTF-8
//! - `descriptors`: turns descriptors into attributes
//! - `answer`: writes the answer; `status`: the status of a descriptor; `metadata`: the metadata for Envoy's filters

mod answer;
mod counts;
mod descriptors;
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

/// The units of time that Envoy knows.
const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(24 * 3_600);
const WEEK: Duration = Duration::from_secs(7 * 24 * 3_600);
const MONTH: Duration = Duration::from_secs(30 * 24 * 3_600);
const YEAR: Duration = Duration::from_secs(365 * 24 * 3_600);

/// The shortest time for a decision, also for callers with a shorter timeout. The store has to answer 3 ms before this
/// time is over, so that there is time to return the answer. With 3 ms or less the store would not be queried at all,
/// so a caller could choose to be unlimited.
const LEAST_TIME: Duration = Duration::from_millis(5);

/// Whether a request was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallOutcome {
    Decided,
    /// The store failed, or the request exceeds a bound, such as the number of charges. The request is refused.
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
    /// Appends the answer to a message. Returns an error if the message is invalid; the error names the place, the
    /// problem and the remedy.
    pub(super) async fn answer(
        &self,
        message: &[u8],
        time_left: Option<Duration>,
        to: &mut Vec<u8>,
    ) -> Result<CallOutcome, String> {
        let request = decode(message)?;
        let rules = self.pipeline.snapshot();
        let descriptors = descriptors::descriptors(&request, &rules)?;
        let mut check = rules.check_each(&request.domain, &descriptors);
        // Envoy cannot hold a request back, so a request that a shaping limit would delay is refused. Without shaping
        // limits this is not set, because a single limit is decided faster then.
        if rules.is_shaping() {
            check = check.max_wait(Duration::ZERO);
        }
        if let Some(time) = time_left {
            check = check.within(time.max(LEAST_TIME));
        }
        match self.pipeline.ruling(self.pipeline.send_proxied(check)).await {
            Ok(ruling) => {
                let unmatched = answer::write_ruling(to, &ruling, descriptors.len());
                self.metrics.unmatched(unmatched);
                Ok(CallOutcome::Decided)
            }
            // Besides failures of the store, these are errors that a client can cause, by a long header or by the
            // numbers of its plan. They are answered with a refusal, because Envoy lets a request pass if the call fails.
            // A concurrency limit, which cannot be checked, is not among them: the pipeline reserves its places.
            Err(
                error @ (Error::Store(_)
                | Error::TooManyCharges { .. }
                | Error::TooMuchWork { .. }
                | Error::KeysTooLong { .. }
                | Error::LimitedTo { .. }
                | Error::TooManyLimits { .. }),
            ) => {
                answer::write_undecided(to, &error, descriptors.len());
                Ok(CallOutcome::Undecided)
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

fn decode(message: &[u8]) -> Result<RateLimitRequest, String> {
    counts::check(message)?;
    // Nearly all messages are valid UTF-8, and are decoded faster this way.
    let request = RateLimitRequest::decode(message).or_else(|_| lenient::decode(message));
    request.map_err(|error| {
        format!("not a RateLimitRequest: {error}; send one of envoy.service.ratelimit.v3")
    })
}

/// Decodes a message up to the attributes for the rules.
pub(crate) fn fuzz(message: &[u8]) -> Result<(), String> {
    let config = Config::parse("none", "rules: []").map_err(|problems| problems.to_string())?;
    let rules = Rules::new(&Limiter::memory(), &config).map_err(|error| error.to_string())?;
    descriptors::descriptors(&decode(message)?, &rules.snapshot()).map(drop)
}
