//! The example file, end to end.

use std::time::Duration;

use tollgate::rules::{Attributes, Counts};

use crate::setup::{EXAMPLE, Fixture, refuser};

const LOGIN: [(&str, &str); 3] = [("method", "POST"), ("path", "/login"), ("ip", "203.0.113.9")];

#[test]
fn example_admits_five_logins_in_a_quarter_of_an_hour() {
    let example = Fixture::new(EXAMPLE);
    assert_eq!(example.admitted(5, &LOGIN), 5);
    let refused = example.check(&LOGIN);
    assert_eq!(refuser(&refused).as_deref(), Some("login-attempts"));
    assert_eq!(refused.retry_after(), Some(Duration::from_secs(15 * 60)));
    // The refused request charged nothing to the other rules.
    let spent: Vec<_> = refused.rules().map(|part| part.decision().unwrap().remaining()).collect();
    assert_eq!(spent, [0, 55, 995]);
    // Another address is another key, and another path is not a login.
    let other = [LOGIN[0], LOGIN[1], ("ip", "203.0.113.10")];
    assert!(example.check(&other).is_allowed());
    assert!(example.check(&[LOGIN[0], ("path", "/logout"), LOGIN[2]]).is_allowed());
    example.clock.advance(Duration::from_secs(15 * 60));
    assert!(example.check(&LOGIN).is_allowed());
}

#[test]
fn example_tiers_have_their_limits_and_reports_cost_ten() {
    let example = Fixture::new(EXAMPLE);
    for (tier, size) in [("free", 60), ("pro", 600), ("enterprise", 6000), ("unheard-of", 60)] {
        let request = [("api_key", tier), ("tier", tier), ("ip", "203.0.113.9")];
        let ruling = example.check(&request);
        let part = ruling.rules().next().unwrap();
        assert_eq!((part.name().to_string().as_str(), part.cost()), ("api/per-client", 1));
        assert_eq!(part.decision().unwrap().limit(), size, "{tier}");
        assert_eq!(part.key(), format!("api_key={tier}").as_bytes());
        let report = [request[0], request[1], ("method", "POST"), ("path", "/reports")];
        let ruling = example.check(&report);
        assert_eq!(ruling.rules().next().unwrap().decision().unwrap().remaining(), size - 11);
    }
}

#[test]
fn shadow_rule_counts_the_whole_service_and_refuses_no_request() {
    let example = Fixture::new(EXAMPLE);
    for client in 0..1_001 {
        let key = format!("k{client}");
        assert!(example.check(&[("api_key", &key)]).is_allowed());
    }
    let watched = example.check(&[("api_key", "one-more")]);
    assert!(watched.is_allowed());
    let service = watched.rules().last().unwrap();
    assert_eq!(service.name().name(), "whole-service");
    assert!(service.is_shadow() && !service.is_allowed());
    // Requests that the shadow rule would have refused are not charged to it, nor requests that other rules refuse.
    assert_eq!(service.decision().unwrap().remaining(), 0);
    let counts = example.rules.counts();
    let of = |name: &str| counts.iter().find(|(rule, _)| rule.name() == name).unwrap().1;
    let Counts { allowed, denied, shadow_denied, .. } = of("whole-service");
    assert_eq!((allowed, denied, shadow_denied), (1_000, 0, 2));
    assert_eq!(of("per-client").allowed, 1_002);
}

/// Claimed attributes give a client neither its own bucket nor a better tier.
#[test]
fn clients_with_invented_keys_and_tiers_are_limited_by_address() {
    let example = Fixture::new(EXAMPLE);
    let mut admitted = 0;
    for client in 0..100 {
        let request = Attributes::new()
            .with("ip", "203.0.113.9")
            .claimed("api_key", format!("invented-{client}"))
            .claimed("tier", "enterprise");
        let ruling = example.rules.check("api", &request).now().unwrap();
        assert_eq!(ruling.rules().next().unwrap().key(), b"ip=203.0.113.9");
        admitted += u64::from(ruling.is_allowed());
    }
    assert_eq!(admitted, 60);
}

#[tokio::test]
async fn awaited_checks_decide_reset_and_refund() {
    let example = Fixture::new(EXAMPLE);
    let request = LOGIN.iter().copied().collect();
    for _ in 0..5 {
        assert!(example.rules.check("api", &request).await.unwrap().is_allowed());
    }
    let refused = example.rules.check("api", &request).await.unwrap();
    assert_eq!(refuser(&refused).as_deref(), Some("login-attempts"));
    // After a successful login, forget the attempts.
    let attempts = refused.refused_by().unwrap();
    attempts.scope().unwrap().reset(attempts.key()).await.unwrap();
    let allowed = example.rules.check("api", &request).await.unwrap();
    assert!(allowed.is_allowed());
    assert_eq!(allowed.refund().await.unwrap(), 3, "one unit of each rule");
    assert_eq!(
        example
            .rules
            .check("api", &request)
            .await
            .unwrap()
            .rules()
            .next()
            .unwrap()
            .decision()
            .unwrap()
            .remaining(),
        4
    );
}
