//! Reservations by rules: units that are set aside for a request, and settled when it ends.

use std::time::Duration;

use tollgate::rules::{Attributes, Config, Rules, RulesHold, Ruling};
use tollgate::store::{
    Call, Charge, CheckRequest, JointRequest, KeyState, RemoteStore, SettleRequest, Wake,
};
use tollgate::{
    Answer, Decision, EndedHold, Error, Health, HoldSettlement, JointDecision, Limiter, StoreError,
};
use tollgate_core::{ChargeReceipt, SettleAnswer};

use crate::setup::{Fixture, NOON_US, attributes, config, refuser};

const S: u64 = 1_000_000;

/// The limits of an LLM gateway: tokens and requests a minute, calls at the same time, and a budget for a month.
const LLM: &str = "limits:
  tokens: token-bucket capacity=10000 refill=10000/m
  requests: fixed-window limit=5 window=1m
  running: concurrency limit=2 for=5m
  month: fixed-window limit=50000 window=30d
rules:
  - name: tokens
    domain: api
    key: [team]
    limit: tokens
    cost: { reserve: { attribute: estimated_tokens, \"POST /embeddings\": 200, default: 1000 } }
    hold_for: 30s
  - { name: requests, domain: api, key: [team], limit: requests }
  - { name: running, domain: api, key: [team], limit: running }
  - name: month
    domain: api
    key: []
    limit: month
    cost: { reserve: { attribute: estimated_tokens, default: 1000 } }
";

const CALL: [(&str, &str); 2] = [("team", "7"), ("estimated_tokens", "4000")];

impl Fixture {
    fn reserve(&self, request: &[(&str, &str)]) -> Ruling {
        self.rules.reserve("api", &attributes(request)).now().unwrap()
    }

    fn hold(&self, request: &[(&str, &str)]) -> RulesHold {
        self.reserve(request).take_hold().unwrap()
    }

    /// Returns what remains of a rule for a key.
    fn left(&self, rule: &str, key: &str) -> u64 {
        let scope = self.rules.scope(&format!("api/{rule}")).unwrap();
        scope.peek(key).now().unwrap().remaining()
    }

    /// Returns what remains of the four limits of [`LLM`].
    fn left_of_all(&self) -> [u64; 4] {
        let left = |rule| self.left(rule, "team=7");
        [left("tokens"), left("requests"), left("running"), self.left("month", "")]
    }
}

fn charged(settled: &[HoldSettlement]) -> Vec<u64> {
    settled.iter().map(HoldSettlement::charged_units).collect()
}

fn names(hold: &RulesHold) -> Vec<&str> {
    hold.rules().map(|rule| rule.name().name()).collect()
}

#[test]
fn reservation_holds_units_of_rules_that_reserve_and_charges_the_others() {
    let rules = Fixture::new(LLM);
    let mut ruling = rules.reserve(&CALL);
    assert!(ruling.is_allowed() && ruling.is_charged());
    assert_eq!(
        (ruling.limit(), ruling.remaining()),
        (Some(2), Some(1)),
        "the tightest is `running`"
    );
    assert_eq!(rules.left_of_all(), [6_000, 4, 1, 46_000]);
    let hold = ruling.take_hold().unwrap();
    assert!(ruling.hold().is_none());
    assert_eq!(names(&hold), ["tokens", "running", "month"]);
    let held: Vec<_> =
        hold.rules().map(|rule| (rule.units(), rule.hold_for(), rule.attribute())).collect();
    let seconds = Duration::from_secs;
    let tokens = Some("estimated_tokens");
    let expected =
        [(4_000, seconds(30), tokens), (1, seconds(300), None), (4_000, seconds(60), tokens)];
    assert_eq!(held, expected);
    assert_eq!(hold.hold_for(), Some(seconds(30)));
    let settled = hold.settle_now(|_| 1_250).unwrap();
    assert_eq!(charged(&settled), [1_250, 0, 1_250], "nothing is charged to a concurrency limit");
    assert_eq!(rules.left_of_all(), [8_750, 4, 2, 48_750]);
}

#[test]
fn refused_reservation_holds_and_charges_nothing() {
    let rules = Fixture::new(LLM);
    let holds = [rules.hold(&CALL), rules.hold(&CALL)];
    for (request, name) in
        [(&CALL[..], "tokens"), (&[("team", "7"), ("estimated_tokens", "1")], "running")]
    {
        let before = rules.left_of_all();
        let mut refused = rules.reserve(request);
        assert_eq!(
            (refuser(&refused).as_deref(), refused.take_hold().is_none()),
            (Some("running"), true)
        );
        assert_eq!(rules.left_of_all(), before, "{name}");
    }
    for hold in holds {
        hold.release_now().unwrap();
    }
    assert_eq!(rules.left_of_all(), [10_000, 3, 2, 50_000], "requests were charged at once");
    // The estimate does not fit.
    let refused = rules.reserve(&[("team", "7"), ("estimated_tokens", "10001")]);
    assert_eq!((refuser(&refused).as_deref(), refused.retry_after()), (Some("tokens"), None));
    assert_eq!(rules.left_of_all(), [10_000, 3, 2, 50_000]);
}

#[test]
fn units_come_from_the_attribute_the_route_or_the_default() {
    let rules = Fixture::new(LLM);
    let units = |request: &[(&str, &str)]| {
        let hold = rules.hold(&[&[("team", "7")], request].concat());
        let units = hold.rules().next().unwrap().units();
        hold.release_now().unwrap();
        rules.rules.scope("api/requests").unwrap().reset_now("team=7").unwrap();
        units
    };
    assert_eq!(units(&[]), 1_000);
    assert_eq!(units(&[("estimated_tokens", "17")]), 17);
    assert_eq!(units(&[("estimated_tokens", "0")]), 1, "a cost is at least 1");
    for unusable in ["", "many", "-1", "1.5", "9007199254740992", "99999999999999999999"] {
        assert_eq!(units(&[("estimated_tokens", unusable)]), 1_000, "{unusable}");
    }
    assert_eq!(units(&[("method", "POST"), ("path", "/embeddings")]), 200);
    let route = [("method", "POST"), ("path", "/embeddings"), ("estimated_tokens", "17")];
    assert_eq!(units(&route), 17);
    // A client's own word is not enough: it would choose what it pays.
    let request = Attributes::new().with("team", "7").said("estimated_tokens", "1");
    let mut said = rules.rules.reserve("api", &request).now().unwrap();
    assert_eq!(said.take_hold().unwrap().rules().next().unwrap().units(), 1_000);
}

#[test]
fn caller_sets_the_estimate_and_the_time_of_every_rule() {
    let rules = Fixture::new(LLM);
    let request = attributes(&CALL);
    let reservation = rules.rules.reserve("api", &request).estimate(300);
    let mut ruling = reservation.hold_for(Duration::from_secs(7)).now().unwrap();
    assert_eq!(rules.left_of_all(), [9_700, 4, 1, 49_700], "a place is not an estimate");
    let hold = ruling.take_hold().unwrap();
    for rule in hold.rules() {
        assert_eq!(rule.hold_for(), Duration::from_secs(7));
        assert_eq!(rule.hold().expires_at_us(), NOON_US + 7 * S);
    }
    hold.release_now().unwrap();
    // A cost is for every limit that counts units of the request.
    let mut ruling = rules.rules.check("api", &request).cost(2).reserving().now().unwrap();
    assert_eq!(rules.left_of_all(), [9_998, 2, 1, 49_998]);
    ruling.take_hold().unwrap().release_now().unwrap();
    assert!(matches!(rules.rules.reserve("api", &request).estimate(0).now(), Err(Error::Cost(_))));
    let no_time = rules.rules.reserve("api", &request).hold_for(Duration::ZERO).now();
    assert!(matches!(no_time, Err(Error::Hold(_))));
    assert_eq!(rules.left_of_all(), [10_000, 2, 2, 50_000]);
}

#[test]
fn rules_are_settled_by_their_attribute_or_name() {
    let rules = Fixture::new(
        "limits: { tokens: fixed-window limit=100 window=1h, bytes: fixed-window limit=100 window=1h }
rules:
  - { name: tokens, domain: api, key: [], limit: tokens, cost: { reserve: { attribute: tokens, default: 50 } } }
  - { name: bytes, domain: api, key: [], limit: bytes, cost: { reserve: { attribute: bytes, default: 60 } } }
  - { name: calls, domain: api, key: [], limit: tokens, cost: { reserve: 1 } }
",
    );
    let hold = rules.hold(&[]);
    let in_part = |so_far: [u64; 2]| {
        move |rule: tollgate::rules::HeldRule<'_>| match rule.attribute() {
            Some("tokens") => so_far[0],
            Some("bytes") => so_far[1],
            _ => rule.units(),
        }
    };
    let answer = hold.settle_part(in_part([5, 7]));
    assert_eq!(format!("{answer:?}").matches("charged_units").count(), 3);
    assert_eq!(rules.left("tokens", ""), 50, "the rest stays held");
    let settled = hold
        .settle_now(|rule| match rule.name().name() {
            "tokens" => 12,
            "bytes" => 34,
            _ => 1,
        })
        .unwrap();
    assert_eq!(charged(&settled), [7, 27, 0]);
    let left = ["tokens", "bytes", "calls"].map(|rule| rules.left(rule, ""));
    assert_eq!(left, [88, 66, 99]);
}

#[test]
fn renewal_moves_each_expiry_by_the_time_of_its_rule() {
    let rules = Fixture::new(LLM);
    let hold = rules.hold(&CALL);
    rules.clock.set_us(NOON_US + 20 * S);
    drop(hold.renew());
    let expiries = |hold: &RulesHold| -> Vec<u64> {
        hold.rules().map(|rule| (rule.hold().expires_at_us() - NOON_US) / S).collect()
    };
    assert_eq!(expiries(&hold), [50, 320, 80]);
    let more =
        |rule: tollgate::rules::HeldRule<'_>| if rule.attribute().is_some() { 2_000 } else { 0 };
    assert!(hold.extend_now(more).unwrap().is_granted());
    assert_eq!(rules.left("tokens", "team=7"), 4_000);
    let refused = hold.extend_now(|rule| 3 * more(rule)).unwrap();
    assert!(!refused.is_granted() && refused.retry_after().is_some());
    assert_eq!(rules.left("month", ""), 44_000, "none was extended");
    // The crash of the caller: each part ends at its own time.
    drop(
        hold.into_joint()
            .into_holds()
            .into_iter()
            .map(tollgate::Hold::into_reference)
            .collect::<Vec<_>>(),
    );
    rules.clock.set_us(NOON_US + 20 * S + 300 * S);
    assert_eq!(rules.left("running", "team=7"), 2);
    assert_eq!(rules.left("month", ""), 44_000, "charged in full");
}

#[test]
fn dropped_ruling_releases_places_and_leaves_units_to_expire() {
    let rules = Fixture::new(LLM);
    drop(rules.reserve(&CALL));
    assert_eq!(rules.left_of_all(), [6_000, 4, 2, 46_000]);
}

#[test]
fn check_charges_the_units_that_a_reservation_would_hold() {
    let rules = Fixture::new(
        &LLM.replace("  - { name: running, domain: api, key: [team], limit: running }\n", ""),
    );
    let ruling = rules.check(&CALL);
    assert!(ruling.is_allowed() && ruling.hold().is_none());
    assert_eq!((rules.left("tokens", "team=7"), rules.left("month", "")), (6_000, 46_000));
    // It can be refunded, as any charge.
    ruling.give_back();
    assert_eq!((rules.left("tokens", "team=7"), rules.left("month", "")), (10_000, 50_000));
}

#[test]
fn shadow_reservation_refuses_nothing_and_holds_what_fits() {
    let rules = Fixture::new(&LLM.replace("limit: running }", "limit: running, shadow: true }"));
    let small = [("team", "7"), ("estimated_tokens", "10")];
    let holds: Vec<RulesHold> = (0..3).map(|_| rules.hold(&small)).collect();
    assert_eq!(names(&holds[1]), ["tokens", "running", "month"]);
    assert!(holds[1].rules().nth(1).unwrap().is_shadow());
    assert_eq!(names(&holds[2]), ["tokens", "month"], "no place was left, and none was needed");
    let refused = |name: &str| {
        let counts = rules.rules.counts().into_iter().find(|(rule, _)| rule.name() == name);
        counts.map(|(_, counts)| (counts.allowed, counts.denied, counts.shadow_denied)).unwrap()
    };
    assert_eq!((refused("running"), refused("tokens")), ((2, 0, 1), (3, 0, 0)));
}

#[test]
fn tiers_overrides_and_replaced_rules_decide_what_is_held() {
    let rules = Fixture::new(
        "limits:
  running: concurrency limit=1 for=5m
  tokens: fixed-window limit=100 window=1h
rules:
  - name: clients
    domain: api
    key: [client]
    limit: { by: tier, tiers: { jobs: running, gold: allow, banned: block }, default: tokens }
    cost: { reserve: 5 }
    overrides: [{ key: { client: partner }, limit: allow }]
  - { name: small, domain: api, when: { size: small }, key: [client], limit: tokens, replaces: [clients] }
  - { name: few, domain: api, when: { tier: few }, key: [client], limit: { by: tier, tiers: { few: running }, default: tokens }, replaces: all }
",
    );
    let held = |request: &[(&str, &str)]| {
        let mut ruling = rules.reserve(&[&[("client", "a")], request].concat());
        ruling.take_hold().map(|hold| hold.rules().map(|rule| rule.units()).collect::<Vec<_>>())
    };
    assert_eq!(held(&[]), Some(vec![5]));
    assert_eq!(held(&[("tier", "jobs")]), None, "5 places do not fit one");
    assert_eq!(held(&[("tier", "gold")]), Some(vec![]));
    assert_eq!(held(&[("client", "partner")]), Some(vec![]));
    assert_eq!(held(&[("size", "small")]), Some(vec![]), "`small` charges at once");
    assert_eq!(held(&[("tier", "few")]), Some(vec![1]), "a place is held without `reserve`");
    let mut blocked = rules.reserve(&[("client", "a"), ("tier", "banned")]);
    assert!(blocked.is_blocked() && blocked.take_hold().is_none());
    let nowhere = rules.rules.reserve("no domain", &Attributes::new()).now().unwrap().take_hold();
    assert!(nowhere.unwrap().is_empty());
}

#[test]
fn sets_of_attributes_with_one_key_share_a_hold_with_the_units_added() {
    let rules = Fixture::new(LLM);
    let sets = [attributes(&CALL), attributes(&[("team", "7"), ("estimated_tokens", "100")])];
    let mut ruling = rules.rules.check_sets("api", &sets).reserving().now().unwrap();
    assert_eq!(rules.left_of_all(), [5_900, 3, 0, 45_900]);
    let hold = ruling.take_hold().unwrap();
    assert_eq!(names(&hold), ["tokens", "running", "month", "tokens", "running", "month"]);
    // Each set with what it used.
    let mut used = [400, 0, 400, 50, 0, 50].into_iter();
    assert_eq!(charged(&hold.settle_now(|_| used.next().unwrap()).unwrap()), [450, 0, 450]);
    assert_eq!(rules.left_of_all(), [9_550, 3, 2, 49_550]);
}

#[test]
fn holds_outlive_the_rules_that_made_them() {
    let rules = Fixture::new(LLM);
    let hold = rules.hold(&CALL);
    rules.rules.replace(&config(&LLM.replace("capacity=10000", "capacity=20000"))).unwrap();
    assert_eq!(rules.left("tokens", "team=7"), 16_000);
    assert_eq!(charged(&hold.settle_now(|_| 1_000).unwrap()), [1_000, 0, 1_000]);
    assert_eq!(rules.left("tokens", "team=7"), 19_000);
}

#[test]
fn hold_is_made_again_from_the_rules_name_and_its_key() {
    let rules = Fixture::new(LLM);
    let hold = rules.hold(&CALL);
    let kept: Vec<_> = hold
        .rules()
        .map(|rule| (rule.name().to_string(), rule.hold().key().to_vec(), rule.hold().reference()))
        .collect();
    hold.into_joint().into_holds().into_iter().for_each(|hold| _ = hold.into_reference());
    let again = || {
        let hold = |(name, key, own): &(String, Vec<u8>, _)| {
            rules.rules.scope(name).unwrap().hold(key, *own).unwrap()
        };
        tollgate::JointHold::of(kept.iter().map(hold).collect()).unwrap()
    };
    assert_eq!(charged(&again().settle_now(|_| 700).unwrap()), [700, 0, 700]);
    for late in again().settle_now(|_| 700).unwrap() {
        assert_eq!(late.ended(), Some(EndedHold::Unknown));
    }
    assert_eq!(rules.left_of_all(), [9_300, 4, 2, 49_300]);
}

#[test]
fn explanation_says_what_a_reservation_holds() {
    let rules = Fixture::new(LLM);
    let effects: Vec<_> = rules
        .rules
        .explain("api", &attributes(&CALL))
        .into_iter()
        .map(|rule| {
            let effect = rule.outcome.unwrap();
            (effect.cost, effect.cost_attribute, effect.hold_for)
        })
        .collect();
    let tokens = || Some("estimated_tokens".to_owned());
    let seconds = |seconds| Some(Duration::from_secs(seconds));
    let expected = [
        (4_000, tokens(), seconds(30)),
        (1, None, None),
        (1, None, seconds(300)),
        (4_000, tokens(), seconds(60)),
    ];
    assert_eq!(effects, expected);
    let plain = rules.rules.explain("api", &attributes(&[("team", "7")]));
    assert_eq!(plain[0].outcome.as_ref().unwrap().cost_attribute, None, "the default is used");
}

#[test]
fn notes_name_every_rule_that_holds_units() {
    let config = config(LLM);
    assert!(config.warnings().is_empty());
    let notes: Vec<(u32, String)> =
        config.notes().map(|note| (note.line().unwrap(), note.remedy().to_owned())).collect();
    let remedy = |at_proxies: String| format!("if they use domain `api`, {at_proxies}");
    let charged = |time: &str| {
        remedy(format!(
            "the units are charged at once there, or held for {time} if a concurrency limit applies too"
        ))
    };
    let held = remedy("each hold lasts 5m there".to_owned());
    assert_eq!(notes, [(11, charged("30s")), (14, held), (19, charged("1m"))]);
    assert_eq!(Config::parse("r.yaml", "limits: {}").unwrap().notes().count(), 0);
}

/// A store with holds that always fails.
#[derive(Debug)]
struct DownStore;

fn down<T>() -> Answer<T> {
    Answer::ready(Err(StoreError::unreachable("down", "connection refused").into()))
}

impl RemoteStore for DownStore {
    fn check(&self, _: CheckRequest) -> Answer<Decision> {
        down()
    }

    fn check_all(&self, _: JointRequest) -> Answer<JointDecision> {
        down()
    }

    fn refund(&self, _: Charge, _: ChargeReceipt, _: Call, _: Wake) -> Answer<u64> {
        down()
    }

    fn reset(&self, _: Charge, _: Call, _: Wake) -> Answer<()> {
        down()
    }

    fn state(&self, _: Charge, _: Call) -> Answer<KeyState> {
        down()
    }

    fn has_holds(&self) -> bool {
        true
    }

    fn settle(&self, _: SettleRequest) -> Answer<Vec<SettleAnswer>> {
        down()
    }

    fn health(&self) -> Health {
        Health::new(Vec::new(), Vec::new(), None)
    }
}

#[tokio::test]
async fn strictest_policy_of_the_rules_decides_a_reservation_when_the_store_fails() {
    let limiter = || Limiter::builder().store(|_| Ok(DownStore)).unwrap().build();
    let with = |policy: &str| {
        let text = LLM
            .replace("limit: running }", &format!("limit: running, on_store_failure: {policy} }}"));
        Rules::new(&limiter(), &config(&text)).unwrap()
    };
    let request = attributes(&CALL);
    let open = with("open");
    for _ in 0..3 {
        let mut ruling = open.reserve("api", &request).await.unwrap();
        assert!(ruling.is_allowed() && ruling.is_degraded());
        let hold = ruling.take_hold().unwrap();
        assert_eq!(names(&hold), ["tokens", "running", "month"]);
        assert!(hold.settle(|_| 5).await.unwrap().iter().all(HoldSettlement::is_degraded));
    }
    let counts = &open.counts()[0].1;
    assert_eq!((counts.degraded_allowed, counts.failed), (3, 0));
    // Local: on the share of this process, for all rules of the request.
    let local = with("local");
    let reserve = async || local.reserve("api", &request).await.unwrap().take_hold();
    let first = reserve().await.unwrap();
    let second = reserve().await.unwrap();
    assert!(reserve().await.is_none(), "two places");
    assert!(second.release().await.unwrap().iter().all(HoldSettlement::is_degraded));
    drop(reserve().await.unwrap());
    assert!(first.settle(|_| 5).await.is_ok());
    let closed = with("closed");
    assert!(matches!(closed.reserve("api", &request).await, Err(Error::Store(_))));
    assert_eq!(closed.counts()[0].1.failed, 1);
}
