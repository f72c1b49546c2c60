//! The index finds the same rules as trying every rule of the file.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::Arc;

use ipnet::IpNet;
use proptest::prelude::*;
use proptest::sample::select;
use tollgate_core::{Cost, Limit};
use tollgate_limiter::Limiter;

use crate::attributes::TrustLevel;
use crate::config::{
    Condition, Config, Costs, KeyPart, LeaseSettings, LimitChoice, LimitConfig, Replacement,
    Requirement, RuleConfig, Spend,
};
use crate::networks::{NetworkMap, NetworkSet, Networks};
use crate::pattern::Pattern;
use crate::{Attributes, Rules, Ruling};

const ATTRIBUTES: [&str; 6] = ["method", "path", "ip", "api_key", "tier", "header.x"];

/// A request in the terms of the file: each attribute's value and how far it is trusted.
type ModelRequest = HashMap<&'static str, (String, TrustLevel)>;

fn applies(rule: &RuleConfig, request: &ModelRequest) -> bool {
    let holds = |condition: &Condition| {
        let value = request.get(&*condition.attribute);
        let value = value.filter(|(_, trust)| *trust != TrustLevel::Claimed);
        match &condition.wanted {
            Requirement::AnyOf(patterns) => {
                value.is_some_and(|(value, _)| patterns.iter().any(|own| own.matches(value)))
            }
            Requirement::NoneOf(patterns) => {
                value.is_some_and(|(value, _)| !patterns.iter().any(|own| own.matches(value)))
            }
            Requirement::Present => value.is_some(),
            Requirement::Absent => value.is_none(),
        }
    };
    let is_known = |name: &str| {
        request.get(name).is_some_and(|(_, trust)| match trust {
            TrustLevel::Known => true,
            // Keys contain such a method as `other`.
            TrustLevel::Said => name == "method",
            TrustLevel::Claimed => false,
        })
    };
    let has_key = |part: &KeyPart| part.first_of.iter().any(|name| is_known(name));
    rule.when.iter().all(holds) && rule.key.iter().all(has_key)
}

/// Returns the rules that no other replaces, of rules that apply to a set of attributes.
fn left<'r>(applying: &[(usize, &'r RuleConfig)]) -> Vec<(usize, &'r RuleConfig)> {
    let replaces = |rule: &RuleConfig, other: &RuleConfig| {
        let is_named = match &rule.replaces {
            Replacement::Named(names) => names.contains(&other.name),
            Replacement::All => other.replaces != Replacement::All,
        };
        is_named && (other.is_shadow || !rule.is_shadow)
    };
    let is_left =
        |(_, own): &&(usize, &RuleConfig)| !applying.iter().any(|(_, rule)| replaces(rule, own));
    applying.iter().filter(is_left).copied().collect()
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        select(&["POST", "/v1/a", "/v1/b/c", "pro", "k1", "k2"][..]).prop_map(str::to_owned),
        select(&["192.0.2.1", "192.0.2.9", "192.0.3.1", "2001:db8::1", "2001:db8::/56"][..])
            .prop_map(str::to_owned),
        "[a/]{0,4}"
    ]
}

/// Networks that lie within each other, some of them in a set.
fn networks() -> impl Strategy<Value = Networks> {
    const EACH: [&str; 7] = [
        "192.0.2.1/32",
        "192.0.2.0/29",
        "192.0.2.0/24",
        "192.0.0.0/16",
        "0.0.0.0/0",
        "2001:db8::1/128",
        "2001:db8::/32",
    ];
    let network = select(&EACH[..]).prop_map(|text| text.parse::<IpNet>().unwrap());
    let set = prop::collection::vec(network.clone(), 0..4).prop_map(|networks| {
        let networks = networks.into_iter().map(|network| (network, ())).collect();
        let networks = NetworkMap::new(networks, |(), ()| {});
        Networks::Set(Arc::new(NetworkSet { name: "set".into(), networks }))
    });
    prop_oneof![network.prop_map(Networks::One), set]
}

fn pattern() -> impl Strategy<Value = Pattern> {
    prop_oneof![
        value().prop_map(|text| Pattern::Exact(text.into())),
        value().prop_map(|text| Pattern::Prefix(text.into())),
        "[a/*]{1,4}".prop_map(|text| Pattern::of(&text)),
        networks().prop_map(Pattern::In),
        select(&["/v1/**", "/v1/*", "**", "/*/a", "**/b/c", "/*/b/**"][..]).prop_map(Pattern::of),
    ]
}

fn wanted() -> impl Strategy<Value = Requirement> {
    prop_oneof![
        4 => prop::collection::vec(pattern(), 1..4).prop_map(Requirement::AnyOf),
        // Enough patterns to be looked up in a table.
        1 => prop::collection::vec(pattern(), 9..14).prop_map(Requirement::AnyOf),
        2 => prop::collection::vec(pattern(), 1..4).prop_map(Requirement::NoneOf),
        1 => prop::collection::vec(pattern(), 9..14).prop_map(Requirement::NoneOf),
        1 => Just(Requirement::Present),
        1 => Just(Requirement::Absent),
    ]
}

prop_compose! {
    fn rule()(
        when in prop::collection::hash_map(select(&ATTRIBUTES[..]), wanted(), 0..4),
        key in prop::collection::vec(prop::sample::subsequence(&ATTRIBUTES[..], 1..3), 0..3),
        domain in select(&["one", "two"][..]),
        is_shadow in prop::bool::weighted(0.2),
        replaces in prop::option::weighted(0.3, prop::collection::vec(0..30_usize, 1..3)),
        replaces_all in prop::bool::weighted(0.02),
    ) -> RuleConfig {
        let when = when.into_iter();
        let part = |names: Vec<&str>| KeyPart { first_of: names.into_iter().map(Into::into).collect() };
        RuleConfig {
            name: "".into(),
            domain: domain.into(),
            when: when.map(|(name, wanted)| Condition { attribute: name.into(), wanted }).collect(),
            key: key.into_iter().map(part).collect(),
            limit: LimitChoice { tiers: None, default: Spend::Limit(0) },
            cost: Costs { attribute: None, routes: Vec::new(), default: Cost::ONE, is_reserved: false },
            hold_for: None,
            is_shadow,
            on_store_failure: None,
            deadline: None,
            lease: LeaseSettings::default(),
            overrides: Vec::new(),
            replaces: match replaces_all {
                true => Replacement::All,
                false => Replacement::Named(
                    replaces.into_iter().flatten().map(|at| at.to_string().into()).collect(),
                ),
            },
        }
    }
}

fn attribute() -> impl Strategy<Value = (&'static str, String, TrustLevel)> {
    let trust = select(&[TrustLevel::Known, TrustLevel::Said, TrustLevel::Claimed][..]);
    let names = [&ATTRIBUTES[..], &["unheard-of"]].concat();
    (select(names), value(), trust)
}

/// Returns the request's attributes, with the tier that the file's table has for its API key.
fn model(request: &[(&'static str, String, TrustLevel)], config: &Config) -> ModelRequest {
    let mut model = ModelRequest::new();
    for (name, value, trust) in request {
        let is_better = model.get(name).is_none_or(|(_, earlier)| trust >= earlier);
        if is_better {
            model.insert(name, (value.clone(), *trust));
        }
    }
    let tier = model.get("api_key").and_then(|(key, _)| config.api_keys.get(&**key));
    if let Some(tier) = tier {
        model.entry("api_key").and_modify(|own| own.1 = TrustLevel::Known);
        let own = model.entry("tier").or_insert((String::new(), TrustLevel::Claimed));
        if own.1 != TrustLevel::Known {
            *own = (tier.to_string(), TrustLevel::Known);
        }
    }
    model
}

fn attributes<'a>(request: &'a [(&'static str, String, TrustLevel)]) -> Attributes<'a> {
    let with =
        |all: Attributes<'a>, (name, value, trust): &'a (&'static str, String, _)| match trust {
            TrustLevel::Known => all.with(*name, value),
            TrustLevel::Said => all.said(*name, value),
            TrustLevel::Claimed => all.claimed(*name, value),
        };
    request.iter().fold(Attributes::new(), with)
}

proptest! {
    #[test]
    fn index_finds_the_same_rules_as_trying_every_rule(
        mut rules in prop::collection::vec(rule(), 0..30),
        requests in prop::collection::vec(prop::collection::vec(attribute(), 0..7), 1..8),
        has_keys in any::<bool>(),
    ) {
        rules.iter_mut().enumerate().for_each(|(at, rule)| rule.name = at.to_string().into());
        let limit: Limit = "fixed-window limit=1000000 window=1d".parse().unwrap();
        let limits = vec![LimitConfig { name: "all".into(), limit, lease: LeaseSettings::default() }];
        let mut config = Config { limits, rules, ..Config::default() };
        if has_keys {
            config.api_keys = HashMap::from([("k1".into(), "pro".into())]);
        }
        let limiter = Limiter::builder().max_bytes(1 << 20).build();
        let made = Rules::new(&limiter, &config).unwrap();
        let attributes: Vec<Attributes<'_>> = requests.iter().map(|own| attributes(own)).collect();
        let models: Vec<ModelRequest> = requests.iter().map(|own| model(own, &config)).collect();
        for domain in ["one", "two", "three"] {
            let applying = |set: usize| {
                let model = &models[set];
                let own = move |rule: &&RuleConfig| *rule.domain == *domain && applies(rule, model);
                config.rules.iter().filter(own).map(move |rule| (set, rule))
            };
            let named = |(set, rule): (usize, &RuleConfig)| (set, format!("{domain}/{}", rule.name));
            let found = |ruling: &Ruling| -> Vec<(usize, String)> {
                ruling.rules().map(|part| (part.request(), part.name().to_string())).collect()
            };
            for (set, request) in attributes.iter().enumerate() {
                let wanted = left(&applying(set).collect::<Vec<_>>());
                let wanted: Vec<_> = wanted.into_iter().map(|(_, rule)| named((0, rule))).collect();
                prop_assert_eq!(&found(&made.check(domain, request).now().unwrap()), &wanted);
                let explained = made.explain(domain, request).into_iter();
                let explained = explained.filter(|rule| rule.outcome.is_ok());
                let explained: Vec<_> = explained.map(|rule| (0, rule.rule.to_string())).collect();
                prop_assert_eq!(explained, wanted);
            }
            let wanted = left(&(0..requests.len()).flat_map(applying).collect::<Vec<_>>());
            let wanted: Vec<_> = wanted.into_iter().map(named).collect();
            prop_assert_eq!(found(&made.check_sets(domain, &attributes).now().unwrap()), wanted);
        }
    }
}
