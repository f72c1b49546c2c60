//! Explanations of why rules apply or do not.

use tollgate::rules::{Attributes, RuleAction};

use crate::setup::{EXAMPLE, Fixture, attributes};

#[test]
fn explanation_says_what_each_rule_would_do_or_why_not() {
    let example = Fixture::new(EXAMPLE);
    let request =
        Attributes::new().with("method", "GET").with("path", "/login").claimed("api_key", "k");
    let explained: Vec<(String, String)> = example
        .rules
        .explain("api", &request)
        .into_iter()
        .map(|rule| {
            let why = match &rule.outcome {
                Ok(applied) => {
                    format!("{:?} costs {}, {}", applied.key, applied.cost, applied.because)
                }
                Err(why) => why.to_string(),
            };
            (rule.rule.name().to_owned(), why)
        })
        .collect();
    assert_eq!(
        explained,
        [
            ("login-attempts", "`method` is `GET`, not `POST`"),
            ("per-client", "there is no verified `api_key`"),
            ("whole-service", "\"\" costs 1, the rule's only limit"),
        ]
        .map(|(rule, why)| (rule.to_owned(), why.to_owned()))
    );
    let nothing = example.rules.explain("api", &Attributes::new());
    assert_eq!(nothing[0].outcome.as_ref().unwrap_err().to_string(), "there is no `method`");
    let why = nothing[1].outcome.as_ref().unwrap_err().to_string();
    assert_eq!(why, "there is no `api_key` or `ip` to make a key of");
    let pro = Attributes::new().with("ip", "i").with("tier", "pro");
    let pro = example.rules.explain("api", &pro).remove(1).outcome.unwrap();
    assert_eq!(pro.because.to_string(), "`tier` is `pro`");
    let RuleAction::Limit { name, limit } = pro.spends else { panic!("{pro:?}") };
    assert_eq!((name.as_str(), limit.size()), ("pro", 600));
    assert!(example.rules.explain("unheard-of", &request).is_empty());
    // Nothing was charged.
    assert_eq!(example.check(&[("ip", "i")]).remaining(), Some(59));
}

#[test]
fn explanation_names_excluded_values_and_the_replacing_rule() {
    let values: String = (0..20).map(|number| format!("u{number}, ")).collect();
    let fixture = Fixture::new(&format!(
        "limits: {{ it: fixed-window limit=3 window=1d }}
rules:
  - {{ name: others, domain: api, when: {{ user: {{ none_of: [{values}admin-*] }} }}, key: [], limit: it }}
  - {{ name: all, domain: api, key: [], limit: it }}
  - {{ name: some, domain: api, when: {{ user: u* }}, key: [], limit: it, replaces: [all, others] }}
",
    ));
    for (user, others, all) in [
        ("u7", "`user` is `u7`, which the rule excludes", "`some` replaces it"),
        ("u77", "`some` replaces it", "`some` replaces it"),
        (
            "admin-7",
            "`user` is `admin-7`, which the rule excludes: it matches `admin-*`",
            "applies",
        ),
        ("x", "applies", "applies"),
    ] {
        let explained = fixture.rules.explain("api", &attributes(&[("user", user)]));
        let why = explained.iter().map(|rule| match &rule.outcome {
            Ok(_) => "applies".to_owned(),
            Err(why) => why.to_string(),
        });
        assert_eq!(why.take(2).collect::<Vec<_>>(), [others, all], "{user}");
    }
}
