//! The guarantees of the pipeline to every front end.

use std::borrow::Cow;

use tollgate::rules::Config;

use super::*;
use crate::parts;
use crate::trust::{Description, Pairs};

fn rules(domain: &str, attribute: &str) -> String {
    format!(
        "limits: {{ one: fixed-window limit=1 window=1d }}\n\
         rules: [{{ name: each, domain: {domain}, key: [{attribute}], limit: one }}]"
    )
}

fn described(user: &str) -> Description<'_> {
    let attributes = Pairs(vec![("user".into(), user.into())]);
    Description::new(attributes, Pairs::default(), Pairs::default()).unwrap()
}

/// The rules are reloaded after a request has taken its snapshot and before it is decided. The new rules have another
/// domain.
#[tokio::test]
async fn request_is_decided_on_one_snapshot_when_the_rules_are_reloaded() {
    let pipeline = parts::tests::in_memory(&rules("api", "user")).api.pipeline;
    let snapshot = pipeline.snapshot();
    let config = Config::parse("rules.yaml", rules("web", "ip")).unwrap();
    pipeline.rules.rules().replace(&config).unwrap();
    let send = || {
        pipeline.send_description(&snapshot, Some("api".into()), described("a"), Terms::default())
    };
    let first = pipeline.ruling(ProxiedRuling::Check(send().unwrap())).await.unwrap();
    assert_eq!((first.is_allowed(), first.generation()), (true, 1));
    assert_eq!(first.rules().next().unwrap().key(), b"user=a");
    assert!(!pipeline.ruling(ProxiedRuling::Check(send().unwrap())).await.unwrap().is_allowed());

    let target = DecisionTarget::Rules { domain: Some("api".into()), description: described("a") };
    let request = DecisionRequest { target, terms: Terms::default() };
    assert_eq!(pipeline.send(request).unwrap_err(), UnknownTarget::Domain("api".into()));
}

#[tokio::test]
async fn request_for_an_unknown_limit_or_domain_is_refused() {
    let pipeline = parts::tests::in_memory(&rules("api", "user")).api.pipeline;
    let error = |target| {
        let request = DecisionRequest { target, terms: Terms::default() };
        pipeline.send(request).err()
    };
    let limit = |name| DecisionTarget::Limit { name: Cow::Borrowed(name), key: "a".into() };
    assert_eq!(error(limit("one")), None);
    assert_eq!(error(limit("two")), Some(UnknownTarget::Limit("two".into())));
    let by = |domain| DecisionTarget::Rules { domain, description: described("a") };
    assert_eq!(error(by(None)), None, "the rules have one domain");
    assert_eq!(error(by(Some("web".into()))), Some(UnknownTarget::Domain("web".into())));
    let pipeline = parts::tests::in_memory("rules: []").api.pipeline;
    let request = DecisionRequest { target: by(None), terms: Terms::default() };
    assert_eq!(pipeline.send(request).unwrap_err(), UnknownTarget::DomainNotGiven);
}

#[tokio::test]
async fn every_kind_of_decision_is_recorded() {
    let api = parts::tests::in_memory(&rules("api", "user")).api;
    let pipeline = &api.pipeline;
    let decide = |target| pipeline.decide(DecisionRequest { target, terms: Terms::default() });
    for is_allowed in [true, false] {
        let by_limit = DecisionTarget::Limit { name: "one".into(), key: "a".into() };
        let PipelineAnswer::Limit { decision, receipt } = decide(by_limit).await.unwrap() else {
            panic!("expected the answer of a limit")
        };
        assert_eq!((decision.is_allowed(), receipt.is_some()), (is_allowed, is_allowed));
        let by_rules = DecisionTarget::Rules { domain: None, description: described("b") };
        let PipelineAnswer::Rules { ruling, receipt } = decide(by_rules).await.unwrap() else {
            panic!("expected a ruling")
        };
        assert_eq!((ruling.is_allowed(), receipt.is_some()), (is_allowed, is_allowed));
    }
    // The authorize endpoint and the Envoy service send checks like this.
    let snapshot = pipeline.snapshot();
    let attributes = described("b").into_attributes(&snapshot);
    let ruling = pipeline.ruling(pipeline.send_proxied(snapshot.check("api", &attributes))).await;
    assert!(!ruling.unwrap().is_allowed());

    let counts = api.rules.limit("one").unwrap().tally.counts();
    assert_eq!((counts.allowed, counts.denied), (1, 1));
    let most = api.refused.most(9);
    let refused: Vec<_> = most.iter().map(|own| (&*own.by, &*own.key, own.times)).collect();
    assert_eq!(refused, [("api/each", &b"user=b"[..], 2), ("one", b"a", 1)]);
}
