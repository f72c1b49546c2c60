//! Rules on a Redis server, and when the server fails.

use std::time::Duration;

use tollgate::rules::{Attributes, Descriptor, Rules, Ruling};
use tollgate::{Error, Limiter, Redis};
use tollgate_launcher::{Flavour, Launch, Server};

use crate::setup::{EXAMPLE, attributes, config, refuser};

fn start(flavour: Flavour) -> Server {
    Launch::new(flavour).start().unwrap()
}

/// A limiter with a deadline of 30 s.
fn limiter_on(server: &Server) -> Limiter {
    let builder = Redis::at(&server.url()).unwrap();
    builder.deadline(Duration::from_secs(30)).build().unwrap()
}

fn decision_of(ruling: &Ruling, name: &str) -> (bool, u64) {
    let part = ruling.rules().find(|part| part.name().name() == name).unwrap();
    (part.is_allowed(), part.decision().unwrap().remaining())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn example_is_exact_for_two_processes_on_one_server() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        // With a long deadline, because the machine may be busy.
        let text = EXAMPLE.replace("deadline: 5ms", "deadline: 30s").replace("10ms", "30s");
        let processes = [(); 2].map(|()| Rules::new(&limiter_on(&server), &config(&text)).unwrap());
        let login = attributes(&[("method", "POST"), ("path", "/login"), ("ip", "203.0.113.9")]);
        let mut admitted = 0;
        for attempt in 0..8 {
            let ruling = processes[attempt % 2].check("api", &login).await.unwrap();
            assert!(!ruling.is_degraded());
            admitted += usize::from(ruling.is_allowed());
            if !ruling.is_allowed() {
                assert_eq!(refuser(&ruling).as_deref(), Some("login-attempts"));
                assert_eq!(decision_of(&ruling, "login-attempts"), (false, 0));
            }
        }
        assert_eq!(admitted, 5);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_limit_shares_spent_units_and_the_rules_failure_policy() {
    let mut server = start(Flavour::Redis);
    let text = "
defaults: { domain: api, deadline: 30s }
limits: { it: token-bucket capacity=8 refill=1/d }
rules: [{ name: it, key: [], limit: it, on_store_failure: closed }]
";
    let rules = Rules::new(&limiter_on(&server), &config(text)).unwrap();
    let day = Duration::from_secs(86_400);
    let remaining = async |descriptor: Descriptor<'static>| {
        let ruling = rules.check_each("api", &[descriptor]).await?;
        let own = ruling.rules().next().and_then(|part| part.decision());
        Ok::<_, Error>((ruling.is_allowed(), own.map(|own| own.remaining())))
    };
    let own = || Descriptor::new(Attributes::new());
    assert_eq!(remaining(own().cost(3)).await, Ok((true, Some(5))));
    assert_eq!(remaining(own().limited_to(20, day)).await, Ok((true, Some(16))));
    assert_eq!(remaining(own()).await, Ok((true, Some(3))));
    assert_eq!(remaining(own().limited_to(4, day)).await, Ok((false, Some(0))));
    server.kill();
    let failed = remaining(own().limited_to(20, day)).await;
    assert!(matches!(failed, Err(Error::Store(_))), "{failed:?}");
    // A limit of 0 units refuses without a request to the store.
    assert_eq!(remaining(own().limited_to(0, day)).await, Ok((false, None)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strictest_applying_rule_decides_when_the_server_is_down() {
    let mut server = start(Flavour::Redis);
    let text = "
defaults: { domain: api, deadline: 50ms }
limits: { it: fixed-window limit=8 window=366d }
rules:
  - { name: open, when: { open: { present: true } }, key: [], limit: it, on_store_failure: open }
  - { name: closed, when: { closed: { present: true } }, key: [], limit: it, on_store_failure: closed }
  - name: local
    when: { local: { present: true } }
    key: []
    limit: it
    on_store_failure: { local: { processes: 4 } }
  - { name: watching, key: [], limit: it, on_store_failure: closed, shadow: true }
";
    let limiter = Redis::at(&server.url()).unwrap().build().unwrap();
    let rules = Rules::new(&limiter, &config(text)).unwrap();
    server.kill();
    let check = async |of: &[&str]| {
        let request: Attributes<'_> = of.iter().map(|&name| (name, "")).collect();
        rules.check("api", &request).await
    };
    // A shadow rule alone never fails, under any policy.
    let watched = check(&[]).await.unwrap();
    assert!(watched.is_allowed() && watched.is_degraded());
    for _ in 0..20 {
        let open = check(&["open"]).await.unwrap();
        assert!(open.is_allowed() && open.is_degraded());
    }
    for strict in [&["closed"][..], &["open", "closed"], &["closed", "local"]] {
        assert!(matches!(check(strict).await, Err(Error::Store(_))), "{strict:?}");
    }
    let mut admitted = 0;
    for _ in 0..20 {
        admitted += usize::from(check(&["open", "local"]).await.unwrap().is_allowed());
    }
    assert_eq!(admitted, 2, "a quarter of 8");
    let counts = rules.counts();
    let of = |name: &str| counts.iter().find(|(rule, _)| rule.name() == name).unwrap().1;
    assert_eq!((of("closed").failed, of("open").failed, of("local").failed), (3, 1, 1));
    assert_eq!((of("open").degraded, of("watching").failed), (40, 0));
    // The outcomes of the degraded decisions.
    let degraded = |name: &str| {
        let counts = of(name);
        let parts =
            (counts.degraded_allowed, counts.degraded_denied, counts.degraded_shadow_denied);
        let all = (counts.allowed, counts.denied, counts.shadow_denied);
        assert_eq!(parts, all, "{name}: all decisions were made without the server");
        assert_eq!(counts.degraded, parts.0 + parts.1 + parts.2, "{name}");
        parts
    };
    // A request with `local` among its rules is decided on the share.
    assert_eq!((degraded("open"), degraded("local")), ((22, 18, 0), (2, 18, 0)));
    assert_eq!((degraded("closed"), degraded("watching")), ((0, 0, 0), (23, 0, 18)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn defaults_of_all_rules_apply_to_limits_by_name() {
    let mut server = start(Flavour::Redis);
    let text = "
defaults: { on_store_failure: closed, deadline: 50ms }
limits: { it: fixed-window limit=8 window=366d }
rules: []
";
    let rules =
        Rules::new(&Redis::at(&server.url()).unwrap().build().unwrap(), &config(text)).unwrap();
    server.kill();
    let answer = rules.limit("it").unwrap().check("a").await;
    assert!(matches!(answer, Err(Error::Store(_))), "{answer:?}");
}
