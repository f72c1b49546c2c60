//! The rules choose what envoyproxy/ratelimit would, and hostile files end in errors.

use std::collections::HashMap;
use std::fmt::Write;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;
use tollgate::Limiter;
use tollgate::rules::{Attributes, Config, Rules};

use super::{ImportResult, ImportSource, import};

/// Returns the rules of files, and the problems reported.
fn imported(files: &[&str]) -> (Option<String>, String) {
    let source = |(at, text): (usize, &&str)| {
        let name = format!("{}.yaml", char::from(b'a' + u8::try_from(at).unwrap()));
        ImportSource::read(name, text.as_bytes())
    };
    let sources: Vec<ImportSource> = files.iter().enumerate().map(source).collect();
    let ImportResult { yaml, problems } = import(&sources);
    (yaml, problems.iter().map(|problems| format!("{problems}\n")).collect())
}

/// A descriptor of a configuration.
#[derive(Clone, Debug)]
struct YamlNode {
    key: &'static str,
    value: &'static str,
    has_limit: bool,
    is_shared: bool,
    below: Vec<YamlNode>,
}

impl YamlNode {
    /// The key under which envoyproxy/ratelimit stores it.
    fn joined(&self) -> String {
        if self.value.is_empty() { self.key.into() } else { format!("{}_{}", self.key, self.value) }
    }
}

fn level(depth: u32) -> BoxedStrategy<Vec<YamlNode>> {
    let below = if depth == 0 { Just(Vec::new()).boxed() } else { level(depth - 1) };
    let value = select(vec!["", "", "x", "xy", "xyz", "y", "*", "x*", "xy*", "xyz*"]);
    let node = (select(vec!["k", "l"]), value, any::<bool>(), any::<bool>(), below);
    let node = node.prop_map(|(key, value, has_limit, is_shared, below)| YamlNode {
        key,
        value,
        has_limit,
        is_shared: is_shared && value.ends_with('*'),
        below,
    });
    let unique = |nodes: Vec<YamlNode>| {
        let mut kept: Vec<YamlNode> = Vec::new();
        for node in nodes {
            if kept.iter().all(|other| other.joined() != node.joined()) {
                kept.push(node);
            }
        }
        kept
    };
    vec(node, 0..6).prop_map(unique).boxed()
}

/// Writes a configuration in which each limit is named after the path of its descriptor.
fn written(nodes: &[YamlNode], path: &str, indent: usize, into: &mut String) {
    for node in nodes {
        let path = format!("{path}/{}", node.joined());
        let pad = " ".repeat(indent);
        writeln!(into, "{pad}- key: {}", node.key).unwrap();
        if !node.value.is_empty() {
            writeln!(into, "{pad}  value: \"{}\"", node.value).unwrap();
        }
        if node.is_shared {
            writeln!(into, "{pad}  share_threshold: true").unwrap();
        }
        if node.has_limit {
            let name = number_of(&path);
            let limit = format!("{{ unit: hour, requests_per_unit: 5, name: n{name} }}");
            writeln!(into, "{pad}  rate_limit: {limit}").unwrap();
        }
        if !node.below.is_empty() {
            writeln!(into, "{pad}  descriptors:").unwrap();
            written(&node.below, &path, indent + 4, into);
        }
    }
}

/// Returns a name without stars and slashes.
fn number_of(path: &str) -> String {
    path.bytes().map(|byte| format!("{byte:02x}")).collect()
}

type Entries = Vec<(&'static str, &'static str)>;

/// Finds a limit as envoyproxy/ratelimit does: its path, and its counter.
fn looked_up(nodes: &[YamlNode], entries: &Entries) -> Option<(String, Vec<String>)> {
    let mut level = nodes;
    let mut path = String::new();
    let mut counter = Vec::new();
    let mut found = None;
    for (at, (key, value)) in entries.iter().enumerate() {
        let by_name: HashMap<String, &YamlNode> =
            level.iter().map(|node| (node.joined(), node)).collect();
        let joined = format!("{key}_{value}");
        let star = level.iter().find(|node| {
            let name = node.joined();
            name.ends_with('*') && joined.starts_with(name.strip_suffix('*').unwrap())
        });
        let exact = by_name.get(&joined).copied();
        let node = exact.or(star).or_else(|| by_name.get(*key).copied())?;
        path = format!("{path}/{}", node.joined());
        let is_shared = exact.is_none() && node.is_shared;
        counter.push(if is_shared { node.joined() } else { joined });
        if node.has_limit && at + 1 == entries.len() {
            found = Some((number_of(&path), counter.clone()));
        }
        level = &node.below;
    }
    found
}

/// Returns attributes as the gRPC service makes them.
fn attributes(entries: &Entries) -> Attributes<'static> {
    let mut attributes = Attributes::new();
    for (at, (key, value)) in entries.iter().enumerate() {
        let before = entries.iter().take(at).filter(|(other, _)| other == key).count();
        let name = if before == 0 { (*key).into() } else { format!("{key}#{}", before + 1) };
        attributes = attributes.with(name, *value);
    }
    let keys: Vec<&str> = entries.iter().map(|(key, _)| *key).collect();
    attributes.with("descriptor_keys", keys.join(","))
}

fn entries() -> impl Strategy<Value = Entries> {
    // No entry has a star: envoyproxy/ratelimit matches an entry that is written exactly like a value with a
    // star to that value, whatever the order.
    let value = select(vec!["", "x", "xy", "xyz", "xyzw", "y", "z"]);
    vec((select(vec!["k", "l"]), value), 1..5)
}

proptest! {
    #[test]
    fn descriptors_are_limited_by_the_rule_that_envoyproxy_ratelimit_chooses(
        nodes in level(2),
        asked in vec(entries(), 30),
    ) {
        let mut yaml = String::from("domain: d\ndescriptors:\n");
        written(&nodes, "", 2, &mut yaml);
        let (rules, problems) = imported(&[&yaml]);
        let rules = rules.ok_or_else(|| TestCaseError::fail(problems))?;
        let config = Config::parse("rules.yaml", &rules).unwrap();
        prop_assert_eq!(config.warnings().to_string(), "0 warnings");
        let rules = Rules::new(&Limiter::memory(), &config).unwrap();
        let mut counters: HashMap<(String, Vec<String>), Vec<u8>> = HashMap::new();
        for entries in &asked {
            let attributes = attributes(entries);
            let ruling = rules.check("d", &attributes).now().unwrap();
            let applied: Vec<_> = ruling.rules().collect();
            let wanted = looked_up(&nodes, entries);
            let names: Vec<&str> = applied.iter().map(|part| part.name().name()).collect();
            let name = wanted.as_ref().map(|(number, _)| format!("n{number}"));
            prop_assert_eq!(names, name.as_deref().into_iter().collect::<Vec<_>>(), "{:?}", entries);
            if let (Some(counter), Some(part)) = (wanted, applied.first()) {
                let key = counters.entry(counter).or_insert_with(|| part.key().to_vec());
                prop_assert_eq!(&**key, part.key(), "one counter there is one here");
            }
        }
        let mut keys: Vec<_> = counters.iter().map(|((rule, _), key)| (rule, key)).collect();
        let count = keys.len();
        keys.sort();
        keys.dedup();
        prop_assert_eq!(keys.len(), count, "two counters there are two here");
    }

    #[test]
    fn import_never_panics(text in "[a-z:*&{}\\[\\],\"'#|>%@` \n-]{0,200}") {
        let (rules, problems) = imported(&[&text]);
        prop_assert!(rules.is_some() || problems.contains("error"), "{}", problems);
    }

    #[test]
    fn keys_and_values_are_distinguished(
        key in "[^\\pC ]{1,20}",
        value in any::<String>(),
        other in any::<String>(),
    ) {
        let quoted = |text: &str| serde_json::to_string(text).unwrap().replace('\u{7f}', "\\u007f");
        let yaml = format!(
            "domain: d\ndescriptors: [{{ key: {}, value: {}, rate_limit: {{ unit: day, requests_per_unit: 1 }} }}]",
            quoted(&key), quoted(&value),
        );
        // Values with a star match more, and an empty value matches all.
        prop_assume!(!value.contains('*') && !value.is_empty());
        let (Some(rules), _) = imported(&[&yaml]) else { return Ok(()) };
        let config = Config::parse("rules.yaml", &rules).unwrap();
        let rules = Rules::new(&Limiter::memory(), &config).unwrap();
        let keys = key.replace('\\', "\\\\").replace(',', "\\,");
        for (asked, is_limited) in [(&value, true), (&other, other == value)] {
            let attributes = Attributes::new().with(&*key, &**asked).with("descriptor_keys", &*keys);
            let applied = rules.check("d", &attributes).now().unwrap().rules().count();
            prop_assert_eq!(applied == 1, is_limited, "{:?}", rules);
        }
    }
}

#[test]
fn hostile_files_are_rejected_quickly() {
    let deep = "descriptors: [{ key: a, ".repeat(40) + &"}]".repeat(40);
    let limit = "rate_limit: { unit: day, requests_per_unit: 1 }";
    let many = |item: &dyn Fn(usize) -> String, count: usize| -> String {
        (0..count).map(|at| format!("- {}\n", item(at))).collect()
    };
    // Each of many limits would have to exclude each of many values.
    let values = many(&|at| format!("{{ key: a, value: v{at} }}"), 9_000);
    let below = many(&|at| format!("{{ key: b{at}, {limit} }}"), 9_000);
    let below: String = below.lines().map(|line| format!("  {line}\n")).collect();
    let square = format!("{values}- key: a\n  descriptors:\n{below}");
    for (descriptors, problem) in [
        (format!(" [{{ key: a, {deep} }}]"), "nested more than 36 deep"),
        (format!("\n{square}"), "the rules made of it are larger than 4 MiB"),
        (
            format!("\n{}", many(&|at| format!("{{ key: a, value: v{at}* }}"), 1_001)),
            "more than 1000 values with a star",
        ),
        (
            format!(
                "\n{}- {{ key: a, {limit} }}\n",
                many(&|at| format!("{{ key: a, value: v{at} }}"), 10_001)
            ),
            "more than 10000 values on its level",
        ),
        (" &all [*all]".into(), "anchors are not supported"),
        (format!(" {}", "x".repeat(5 << 20)), "larger than 4 MiB"),
        (" { key: a }".into(), "`descriptors` must be a list"),
        (" [a, [b], ~]".into(), "a descriptor must be a mapping"),
    ] {
        let (rules, problems) = imported(&[&format!("domain: d\ndescriptors:{descriptors}")]);
        assert_eq!(rules, None, "{problem}");
        assert!(problems.contains(problem), "{problem}: {}", &problems[..problems.len().min(500)]);
    }
}

#[test]
fn shadow_limit_replaces_only_shadow_limits() {
    let limit = |key: &str, more: &str| {
        format!("- {{ key: {key}, shadow_mode: {more}, unit: day, requests_per_unit: 1 }} }}\n")
    };
    let yaml = format!(
        "domain: d\ndescriptors:\n{}{}{}",
        limit("a", "false, rate_limit: { name: x"),
        limit("b", "true, rate_limit: { name: x"),
        limit("c", "true, rate_limit: { replaces: [{ name: x }]"),
    );
    let (rules, problems) = imported(&[&yaml]);
    assert!(rules.unwrap().ends_with("shadow: true\n    replaces: [x-2]\n"));
    assert!(problems.contains("a shadow rule does not replace an enforced rule"), "{problems}");
}

#[test]
fn circle_of_replaced_limits_is_broken() {
    let limit = |key: &str, name: &str, replaces: &str| {
        format!(
            "- {{ key: {key}, rate_limit: {{ unit: day, requests_per_unit: 1, name: {name}, replaces: [{replaces}] }} }}\n"
        )
    };
    let yaml = format!(
        "domain: d\ndescriptors:\n{}{}{}{}",
        limit("a", "one", "{ name: two }, { name: two }"),
        limit("b", "two", "{ name: three }"),
        limit("c", "two", ""),
        limit("e", "three", "{ name: one }, { name: nobody }"),
    );
    let (rules, problems) = imported(&[&yaml]);
    let rules = rules.unwrap();
    let replaced: Vec<&str> = rules.lines().filter(|line| line.contains("replaces")).collect();
    assert_eq!(replaced, ["    replaces: [two, two-2]", "    replaces: [three]"]);
    let lines: Vec<&str> = problems.lines().collect();
    let [circle, _, nobody, _, count] = lines[..] else { panic!("{problems}") };
    assert!(circle.contains("a.yaml:6:") && circle.contains("limits that replace each other"));
    assert!(nobody.ends_with("no limit of the domain is called `nobody`"), "{nobody}");
    assert_eq!(count, "2 warnings");
}

/// Returns a descriptor with a limit.
fn limited(key: &str, value: &str) -> String {
    format!(
        "- {{ key: '{key}', value: '{value}', rate_limit: {{ unit: day, requests_per_unit: 1 }} }}\n"
    )
}

#[test]
fn unmatchable_ip_value_is_reported_with_the_matching_one() {
    let no_address = "use an address, or rename the entry in Envoy and here";
    let instead = |client: &str| Some(format!("use `{client}`, the form of that address in rules"));
    for (value, remedy) in [
        ("203.0.113.9", None),
        ("203.0.113.*", None),
        ("203.0.113.9*", None),
        ("unknown", None),
        ("2001:db8:12:3400::/56", None),
        ("2001:db8:12:3400::*", None),
        ("2001:db8:*", None),
        ("2001:db8::/5*", None),
        ("2001:db8:*::1", None),
        ("2001:db8:12:34ff::1", None),
        ("2001:db8:12:34ff::1*", instead("2001:db8:12:3400::/56")),
        ("2001:db8::", None),
        ("2001:db8::/32", instead("2001:db8::/56")),
        ("2001:DB8::/56", instead("2001:db8::/56")),
        ("::ffff:203.0.113.9", None),
        ("203.0.113.0/24", Some(no_address.into())),
        ("internal", Some(no_address.into())),
        ("", None),
    ] {
        let told = |key: &str| {
            let yaml = format!("domain: d\ndescriptors:\n{}", limited(key, value));
            let (rules, problems) = imported(&[&yaml]);
            assert!(rules.is_some(), "{problems}");
            problems
        };
        assert!(!told("remote_address").contains("`ip`"), "{value}");
        let problems = told("ip");
        assert!(problems.contains("a.yaml:3:3: `ip` is a client in rules"), "{problems}");
        let is = match value.strip_suffix('*') {
            Some(start) => format!("begins with `{start}`"),
            None => format!("is `{value}`"),
        };
        let never = problems.split_once(&format!("never matches: no client's `ip` {is}\n"));
        assert_eq!(problems.contains("never matches"), never.is_some(), "{problems}");
        let found = never.and_then(|(_, after)| after.lines().next());
        assert_eq!(found.map(str::trim_start), remedy.as_deref(), "{value}");
    }
}

#[test]
fn second_ip_of_a_descriptor_is_a_client_too() {
    let yaml = "domain: d\ndescriptors: [{ key: ip, descriptors: [{ key: ip, value: 'fe80::1', \
                rate_limit: { unit: day, requests_per_unit: 1 } }] }]";
    let (rules, problems) = imported(&[yaml]);
    assert!(rules.unwrap().contains("ip#2"));
    assert!(problems.contains("no client's `ip` is `fe80::1`\n  use `fe80::/56`"), "{problems}");
    assert_eq!(problems.matches("`ip` is a client in rules").count(), 1, "{problems}");
}

#[test]
fn a_key_with_a_star_at_its_end_needs_a_value() {
    let error = "error: a.yaml:3:10: a key that ends with a star, without a value";
    let remedy = "\n  write a descriptor for each key that is meant, without the star\n";
    for (key, value, is_refused) in [
        ("user*", "", true),
        ("*", "", true),
        ("user*", "a", false),
        ("user*", "a*", false),
        ("us*er", "", false),
        ("user", "*", false),
    ] {
        let yaml = format!("domain: d\ndescriptors:\n{}", limited(key, value));
        let (rules, problems) = imported(&[&yaml]);
        assert_eq!(rules.is_none(), is_refused, "{key} {value}: {problems}");
        assert_eq!(problems.starts_with(error), is_refused, "{key} {value}: {problems}");
        assert_eq!(problems.contains(remedy), is_refused, "{key} {value}: {problems}");
    }
}

#[test]
fn number_must_be_plain_digits() {
    let told = |field: &str, number: &str| {
        imported(&[&format!(
            "domain: d\ndescriptors: [{{ key: a, rate_limit: {{ unit: second, {field}: {number} }} }}]"
        )])
    };
    for number in ["10", "0", "4294967295"] {
        let (rules, problems) = told("requests_per_unit", number);
        assert!(rules.is_some(), "{problems}");
    }
    for number in ["010", "00", "0x10", "0o10", "0b10", "1_000"] {
        for field in ["requests_per_unit", "unit_multiplier"] {
            let (rules, problems) = told(field, number);
            assert_eq!(rules, None, "{number}");
            let said =
                format!("`{field}` is `{number}`\n  use digits alone, and no zero before them");
            assert!(problems.contains(&said), "{problems}");
        }
    }
}

#[test]
fn ambiguous_joined_keys_are_reported() {
    for (value, other, is_taken) in [
        ("id_5", "user_id", true),
        ("id_", "user_id", true),
        ("id_*", "user_id", true),
        ("id_5*", "user_id", true),
        ("id_*_5", "user_id", true),
        ("i*", "user_id", true),
        ("*", "user_id", true),
        ("ids", "user_id", false),
        ("5", "user_id", false),
        ("x*", "user_id", false),
        ("*", "users", false),
        ("*", "user", false),
    ] {
        let nodes = limited("user", value) + &limited(other, "");
        let (rules, problems) = imported(&[&format!("domain: d\ndescriptors:\n{nodes}")]);
        assert!(rules.is_some(), "{problems}");
        let said = format!(
            "a.yaml:3:3: envoyproxy/ratelimit joins a key and its value by `_`, and matches some entries `{other}`"
        );
        assert_eq!(problems.contains(&said), is_taken, "{value} {other}: {problems}");
    }
}
