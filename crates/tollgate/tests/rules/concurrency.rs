//! Rules with a concurrency limit, which checks cannot spend.

use std::time::Duration;

use tollgate::rules::Descriptor;
use tollgate::{Error, Limit};

use crate::setup::{Fixture, attributes, refuser};

const RULES: &str = "limits:
  jobs: concurrency limit=2 for=60s
  requests: fixed-window limit=5 window=1d
rules:
  - { name: jobs, domain: api, key: [ip], limit: jobs, when: { path: /jobs } }
  - { name: requests, domain: api, key: [ip], limit: requests }
";

const JOB: [(&str, &str); 2] = [("ip", "a"), ("path", "/jobs")];

#[test]
fn check_of_a_rule_with_a_concurrency_limit_is_an_error_that_says_to_reserve() {
    let rules = Fixture::new(RULES);
    let error = rules.rules.check("api", &attributes(&JOB)).now().unwrap_err();
    assert_eq!(error, Error::MustReserve { scope: "api/jobs".into() });
    let message = error.to_string();
    assert!(message.contains("`api/jobs`") && message.contains("reserve"), "{message}");
    // Requests to which the rule does not apply are decided, and nothing was charged.
    assert_eq!(rules.check(&[("ip", "a")]).remaining(), Some(4));
}

/// A shadow rule must not make a check fail.
#[test]
fn check_of_a_shadow_rule_with_a_concurrency_limit_is_a_peek() {
    let rules = Fixture::new(&RULES.replace("limit: jobs,", "limit: jobs, shadow: true,"));
    let would_refuse = || {
        let ruling = rules.check(&JOB);
        assert!(ruling.is_allowed());
        let mut parts = ruling.rules();
        !parts.find(|part| part.name().name() == "jobs").unwrap().is_allowed()
    };
    assert!(!would_refuse());
    let job = attributes(&JOB);
    let held: Vec<_> = (0..2).map(|_| rules.rules.reserve("api", &job).now().unwrap()).collect();
    assert!(would_refuse());
    drop(held);
    assert!(!would_refuse());
}

#[test]
fn peek_of_a_rule_with_a_concurrency_limit_answers_for_a_reservation() {
    let rules = Fixture::new(RULES);
    let peek = || {
        let job = Descriptor::new(attributes(&JOB)).peek();
        rules.rules.check_each("api", &[job]).now().unwrap()
    };
    assert_eq!((peek().is_allowed(), peek().remaining()), (true, Some(2)));
    let scope = rules.rules.limiter().scope("api/jobs", Limit::concurrent(2)).unwrap();
    let held = scope.reserve("ip=a").cost(2).now().unwrap().into_hold();
    assert_eq!(refuser(&peek()).as_deref(), Some("jobs"));
    assert_eq!(peek().retry_after(), Some(Duration::from_secs(60)));
    drop(held);
    assert_eq!(refuser(&peek()), None);
}
