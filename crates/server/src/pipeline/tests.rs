//! What the pipeline promises to every front end.

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

/// Reloads between the moment that a request takes its snapshot and the decision; the new rules have another domain.
#[tokio::test]
async fn a_request_is_decided_by_one_version_of_the_rules() {
    let pipeline = parts::tests::in_memory(&rules("api", "user")).api.pipeline;
    let now = pipeline.snapshot();
    let config = Config::parse("rules.yaml", rules("web", "ip")).unwrap();
    pipeline.rules.rules().replace(&config).unwrap();
    let send =
        || pipeline.send_description(&now, Some("api".into()), described("a"), Terms::default());
    let first = pipeline.ruling(send().unwrap()).await.unwrap();
    assert_eq!((first.is_allowed(), first.generation()), (true, 1));
    assert_eq!(first.rules().next().unwrap().key(), b"user=a");
    assert!(!pipeline.ruling(send().unwrap()).await.unwrap().is_allowed());

    let subject = Subject::Rules { domain: Some("api".into()), description: described("a") };
    let request = DecisionRequest { subject, terms: Terms::default() };
    assert_eq!(pipeline.send(request).unwrap_err(), NoDecider::UnknownDomain("api".into()));
}

#[tokio::test]
async fn a_request_names_a_limit_or_domain_that_exists() {
    let pipeline = parts::tests::in_memory(&rules("api", "user")).api.pipeline;
    let none = |subject| {
        let request = DecisionRequest { subject, terms: Terms::default() };
        pipeline.send(request).err()
    };
    let limit = |name| Subject::Limit { name: Cow::Borrowed(name), key: "a".into() };
    assert_eq!(none(limit("one")), None);
    assert_eq!(none(limit("two")), Some(NoDecider::UnknownLimit("two".into())));
    let by = |domain| Subject::Rules { domain, description: described("a") };
    assert_eq!(none(by(None)), None, "there is one domain");
    assert_eq!(none(by(Some("web".into()))), Some(NoDecider::UnknownDomain("web".into())));
    let pipeline = parts::tests::in_memory("rules: []").api.pipeline;
    let request = DecisionRequest { subject: by(None), terms: Terms::default() };
    assert_eq!(pipeline.send(request).unwrap_err(), NoDecider::NoOnlyDomain);
}

#[tokio::test]
async fn every_way_to_decide_is_accounted_for() {
    let api = parts::tests::in_memory(&rules("api", "user")).api;
    let pipeline = &api.pipeline;
    let decide = |subject| pipeline.decide(DecisionRequest { subject, terms: Terms::default() });
    for is_allowed in [true, false] {
        let by_limit = Subject::Limit { name: "one".into(), key: "a".into() };
        let PipelineAnswer::Limit { decision, receipt } = decide(by_limit).await.unwrap() else {
            panic!("a limit decides it")
        };
        assert_eq!((decision.is_allowed(), receipt.is_some()), (is_allowed, is_allowed));
        let by_rules = Subject::Rules { domain: None, description: described("b") };
        let PipelineAnswer::Rules { ruling, receipt } = decide(by_rules).await.unwrap() else {
            panic!("rules decide it")
        };
        assert_eq!((ruling.is_allowed(), receipt.is_some()), (is_allowed, is_allowed));
    }
    // As authorize and Envoy do.
    let now = pipeline.snapshot();
    let attributes = described("b").into_attributes(&now);
    let ruling = pipeline.ruling(pipeline.send_check(now.check("api", &attributes))).await;
    assert!(!ruling.unwrap().is_allowed());

    let counts = api.rules.limit("one").unwrap().tally.counts();
    assert_eq!((counts.allowed, counts.denied), (1, 1));
    let most = api.refused.most(9);
    let refused: Vec<_> = most.iter().map(|own| (&*own.by, &*own.key, own.times)).collect();
    assert_eq!(refused, [("api/each", &b"user=b"[..], 2), ("one", b"a", 1)]);
}
