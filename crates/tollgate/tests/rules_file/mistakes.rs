//! Every mistake has its exact message.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::problems;
use crate::schema;

/// A text with a mistake, and whether an editor with the schema notices it.
pub(crate) struct Mistake {
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
    pub(crate) editor: Editor,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Editor {
    /// The schema refuses it.
    Sees,
    /// A schema cannot express it, or it is only a warning.
    Blind,
    /// It is not valid YAML.
    Syntax,
}
use Editor::{Blind, Sees, Syntax};

const fn mistake(name: &'static str, editor: Editor, text: &'static str) -> Mistake {
    Mistake { name, text, editor }
}

/// A rule, and a limit for it.
macro_rules! rule {
    ($rule:literal) => {
        concat!("limits: { free: token-bucket capacity=60 refill=1/s }\nrules:\n", $rule)
    };
}

macro_rules! limit {
    ($limit:literal) => {
        concat!("limits:\n  free: ", $limit, "\n")
    };
}

macro_rules! identity {
    ($identity:literal) => {
        concat!("limits: {}\nidentity: ", $identity, "\n")
    };
}

mod networks;

/// A token key.
macro_rules! key {
    ($($key:expr),+) => {
        concat!("limits: {}\nidentity:\n  jwt:\n    keys:\n      - ", $($key,)+ "\n")
    };
}

/// Settings for the verification of tokens, beside a valid key.
macro_rules! jwt {
    ($jwt:literal) => {
        concat!(
            "limits: {}\nidentity:\n  jwt:\n    keys: [{ algorithm: ES256, public_key: ",
            p256!(),
            " }]\n    ",
            $jwt,
            "\n"
        )
    };
}

/// A key without an id, and the dash of the next key.
macro_rules! and_another {
    () => {
        concat!("{ algorithm: ES256, public_key: ", p256!(), " }\n      - ")
    };
}

pub(crate) const MISTAKES: &[(&str, &[Mistake])] = &[
    ("yaml", YAML),
    ("file", FILE),
    ("limits", LIMITS),
    ("rules", RULES),
    ("when", WHEN),
    ("networks", networks::NETWORKS),
    ("keys", KEYS),
    ("costs", COSTS),
    ("holds", HOLDS),
    ("leases", LEASES),
    ("choices", CHOICES),
    ("replaces", REPLACES),
    ("retired domains", RETIRED_DOMAINS),
    ("tests", TESTS),
    ("api keys", API_KEYS),
    ("identity", IDENTITY),
    ("tokens", TOKENS),
    #[cfg(feature = "jwt")]
    ("public keys", PUBLIC_KEYS),
    ("warnings", WARNINGS),
];

const YAML: &[Mistake] = &[
    mistake("an open bracket", Syntax, "limits:\n  free: { algorithm: token-bucket\nrules: []\n"),
    mistake("an open bracket at the end", Syntax, "limits: { free: {"),
    mistake("a bracket too many", Syntax, "limits: {}}\n"),
    mistake("an open quote", Syntax, "limits: \"free\nrules: []\n"),
    mistake("a bracket that is not indented", Syntax, "rules: [\n]\n"),
    mistake("an unknown escape", Syntax, "limits: \"\\q\"\n"),
    mistake("a tab", Syntax, "limits:\n\tfree: x\n"),
    mistake("two colons", Syntax, "limits: free: x\n"),
    mistake("a list beside its field", Syntax, "rules: - name: a\n"),
    mistake("uneven indentation", Syntax, "limits:\n    free: a\n  pro: b\n"),
    mistake("an item among fields", Syntax, "limits:\n  free: a\n  - b\n"),
    mistake(
        "a glob without quotes",
        Syntax,
        rule!("  - { name: a, domain: d, when: { path: **/x }, key: [], limit: free }\n"),
    ),
    mistake(
        "a lone star",
        Syntax,
        rule!("  - { name: a, domain: d, when: { path: * }, key: [], limit: free }\n"),
    ),
    mistake("a reserved character", Syntax, "limits: @free\n"),
    mistake(
        "an alias and an anchor",
        Syntax,
        "limits:\n  free: &a token-bucket capacity=1 refill=1/s\n  pro: *a\n",
    ),
    mistake(
        "a merge key",
        Sees,
        "limits:\n  free: { <<: { algorithm: token-bucket }, capacity: 1, refill: 1/s }\n",
    ),
    mistake("a tag", Syntax, "limits:\n  free: !bucket token-bucket capacity=1 refill=1/s\n"),
    mistake("two documents", Syntax, "limits: {}\n---\nlimits: {}\n"),
    mistake(
        "a list as a name",
        Syntax,
        "limits:\n  ? [free]\n  : token-bucket capacity=1 refill=1/s\n",
    ),
    mistake("no name", Syntax, "limits:\n  : token-bucket capacity=1 refill=1/s\n"),
    mistake("nested too deep", Syntax, "limits: [[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]\n"),
    mistake("a NUL", Syntax, "limits:\n  free: a\0b\n"),
    mistake("a terminal escape", Syntax, "limits:\n  \u{1b}[31mred: a\n"),
    mistake("a tab under a value", Syntax, "limits:\n  free: a\n  \tpro: b\n"),
    mistake("a tab in a block of text", Syntax, "limits: |\n\tfree\n"),
    mistake("a tab in front of a value", Syntax, "limits:\n  free:\ttoken-bucket\n"),
    mistake("a quote in a quoted text", Syntax, "limits: 'it's'\n"),
    mistake("half of a surrogate pair", Syntax, "limits: \"\\ud800\"\n"),
    mistake("an escape without its digits", Syntax, "limits: \"\\u12\"\n"),
    mistake("an invalid block header", Syntax, "limits: |x\n  a\n"),
    mistake("a badly indented block of text", Syntax, "limits: |\n    \n  free\n"),
    mistake("a comment in a text", Syntax, "limits: a #x\n  b\n"),
    mistake("text after the end", Syntax, "limits: {}\n... x\n"),
    mistake("a dash for an item", Syntax, "limits: [-,]\n"),
    mistake("a question mark", Syntax, "limits: ? x\n"),
    mistake("no space before a bracket", Syntax, "limits: { a:[b] }\n"),
    mistake("a byte order mark further down", Syntax, "limits: {}\n\u{feff}rules: []\n"),
    mistake("a custom tag", Syntax, "limits: !foo!bar x\n"),
    mistake("a directive", Syntax, "%TAG ! x\n%TAG ! x\n---\nlimits: {}\n"),
    mistake(
        "a merge key in a rule is not a missing field",
        Sees,
        rule!("  - { <<: { name: a }, domain: d, limit: free }\n"),
    ),
];

const FILE: &[Mistake] = &[
    mistake(
        "fields whose names may and may not be shown",
        Sees,
        "limits: {}\nrate_limits: {}\nRates: {}\nsecret-1: pro\na_name_of_more_than_thirty_two_chars: 1\n",
    ),
    mistake(
        "invalid caller attributes",
        Sees,
        "limits: {}\ncaller_attributes: [tenant, 'a b', {}]\n",
    ),
    mistake("an empty file", Sees, ""),
    mistake("a file of comments", Sees, "# nothing\n"),
    mistake("only null", Sees, "~\n"),
    mistake("neither limits nor rules", Sees, "defaults: { deadline: 10ms }\n"),
    mistake("a text", Sees, "token-bucket capacity=60 refill=1/s\n"),
    mistake("a list", Sees, "- limits\n"),
    mistake("misspelt fields", Sees, "limit: {}\nRules: []\nlimits: {}\n"),
    mistake("a field of another tool", Sees, "limits: {}\ndescriptors: []\n"),
    mistake("a field twice", Syntax, "limits: {}\nrules: []\nlimits: {}\n"),
    mistake("empty fields", Sees, "limits:\nrules: ~\ndefaults: null\n"),
    mistake("lists and mappings swapped", Sees, "limits: []\nrules: {}\ndefaults: 10ms\n"),
    mistake(
        "bad defaults",
        Sees,
        "limits: {}\ndefaults: { domain: a/b, on_store_failure: opne, deadline: 10, burst: 1 }\n",
    ),
    mistake(
        "zero processes",
        Sees,
        "limits: {}\ndefaults: { on_store_failure: { local: { processes: 0 } } }\n",
    ),
    mistake(
        "too many processes",
        Sees,
        "limits: {}\ndefaults: { on_store_failure: { local: { processes: 4294967296 } } }\n",
    ),
    mistake(
        "local without processes",
        Sees,
        "limits: {}\ndefaults: { on_store_failure: { local: {} } }\n",
    ),
    mistake(
        "local with a number",
        Sees,
        "limits: {}\ndefaults: { on_store_failure: { local: 4 } }\n",
    ),
];

const LIMITS: &[Mistake] = &[
    mistake(
        "an unknown unit of a rate",
        Sees,
        "limits:\n  free:\n    algorithm: token-bucket\n    capacity: 60\n    refill: 10/sec\n",
    ),
    mistake(
        "a limit twice",
        Syntax,
        "limits:\n  login: fixed-window limit=1 window=1s\n  other: fixed-window limit=1 window=1s\n  login: fixed-window limit=1 window=1s\n",
    ),
    mistake(
        "reserved names",
        Sees,
        "limits: { allow: fixed-window limit=1 window=1s, block: fixed-window limit=1 window=1s }\n",
    ),
    mistake(
        "a name with a space",
        Sees,
        "limits: { \"per client\": fixed-window limit=1 window=1s }\n",
    ),
    mistake(
        "a name of 65 letters",
        Sees,
        "limits: { aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa: fixed-window limit=1 window=1s }\n",
    ),
    mistake("an empty limit", Sees, limit!("")),
    mistake("a list", Sees, limit!("[token-bucket]")),
    mistake("no algorithm", Sees, limit!("{ capacity: 60, refill: 1/s }")),
    mistake("an empty algorithm", Sees, limit!("{ algorithm: , capacity: 60, refill: 1/s }")),
    mistake(
        "a misspelt algorithm",
        Sees,
        limit!("{ algorithm: token_bucket, capacity: 60, refill: 1/s }"),
    ),
    mistake("an unknown algorithm", Sees, limit!("{ algorithm: gcra, limit: 60 }")),
    mistake(
        "a parameter of another algorithm",
        Sees,
        limit!("{ algorithm: token-bucket, limit: 60, window: 1s }"),
    ),
    mistake(
        "a misspelt parameter",
        Sees,
        limit!("{ algorithm: token-bucket, capcity: 60, refill: 1/s }"),
    ),
    mistake(
        "everything wrong at once",
        Sees,
        limit!("{ algorithm: leaky-bucket, capacity: -1, leak: 1, mode: queue }"),
    ),
    mistake("zeros", Sees, limit!("{ algorithm: fixed-window, limit: 0, window: 0s }")),
    mistake(
        "a window without a unit",
        Sees,
        limit!("{ algorithm: fixed-window, limit: 10, window: 60 }"),
    ),
    mistake(
        "a number with a sign",
        Blind,
        limit!("{ algorithm: fixed-window, limit: +5, window: 60s }"),
    ),
    mistake(
        "a number with an exponent",
        Blind,
        limit!("{ algorithm: fixed-window, limit: 1e3, window: 60s }"),
    ),
    mistake(
        "a number with a point",
        Sees,
        limit!("{ algorithm: fixed-window, limit: 10.5, window: 60s }"),
    ),
    mistake(
        "above the maximum of a log",
        Sees,
        limit!("{ algorithm: sliding-window-log, limit: 65537, window: 1s }"),
    ),
    mistake(
        "above the maximum of a concurrency limit",
        Sees,
        limit!("{ algorithm: concurrency, limit: 1025, for: 60s }"),
    ),
    mistake(
        "a concurrency limit with a window",
        Sees,
        limit!("{ algorithm: concurrency, limit: 10, window: 60s }"),
    ),
    mistake(
        "wrong numbers of a concurrency limit",
        Sees,
        limit!("{ algorithm: concurrency, limit: 0, for: 0s }"),
    ),
    mistake(
        "too long a hold time",
        Blind,
        limit!("{ algorithm: concurrency, limit: 10, for: 367d }"),
    ),
    mistake(
        "too long a window",
        Blind,
        limit!("{ algorithm: fixed-window, limit: 10, window: 400d }"),
    ),
    mistake(
        "a bucket that fills too slowly",
        Blind,
        limit!("{ algorithm: token-bucket, capacity: 1000000, refill: 1/d }"),
    ),
    mistake(
        "2^53",
        Sees,
        limit!("{ algorithm: token-bucket, capacity: 9007199254740992, refill: 1000000/s }"),
    ),
    mistake(
        "a list for a parameter",
        Sees,
        limit!("{ algorithm: token-bucket, capacity: [60], refill: 10/sec }"),
    ),
    mistake("a text with a wrong unit", Sees, limit!("token-bucket capacity=10 refill=10/sec")),
    mistake("a text without a parameter", Blind, limit!("token-bucket capacity=10")),
    mistake("a text with an unknown algorithm", Sees, limit!("gcra limit=10")),
    mistake("an empty text", Sees, limit!("''")),
    mistake(
        "a misspelt field for the algorithm",
        Sees,
        limit!("{ algoritm: token-bucket, capacity: 0, refil: 1/s }"),
    ),
    mistake(
        "a misspelt field with a wrong value",
        Sees,
        limit!("{ algoritm: token, capacity: 60 }"),
    ),
    mistake("an algorithm with a letter missing", Sees, limit!("{ algorithm: token-buckt }")),
    mistake("a text with a letter missing", Sees, limit!("token-buckt capacity=1 refill=1/s")),
    mistake("no spaces", Sees, limit!("{algorithm:token-bucket, capacity:60, refill:1/s}")),
    mistake("no spaces on lines", Sees, limit!("\n    algorithm:token-bucket\n    capacity:60")),
    mistake("no space", Sees, limit!("{ algorithm: token-bucket, capacity:60, refill: 1/s }")),
    mistake(
        "a refill in 0 s",
        Sees,
        limit!("{ algorithm: token-bucket, capacity: 60, refill: 1/0s }"),
    ),
    mistake(
        "an invalid limit is not compared with a cost",
        Sees,
        "limits: { free: { algorithm: token-bucket, capacity: [60], refill: 1/s } }\nrules:\n  - { name: a, domain: d, key: [], limit: free, cost: 10 }\n",
    ),
];

const RULES: &[Mistake] = &[
    mistake("an empty rule", Sees, rule!("  - {}\n")),
    mistake("a text", Sees, rule!("  - per-client\n")),
    mistake("an empty item", Sees, rule!("  -\n")),
    mistake(
        "misspelt fields",
        Sees,
        rule!("  - { nmae: a, domain: d, keys: [ip], limits: free, costs: 1, on_failure: open }\n"),
    ),
    mistake(
        "a name twice",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free }\n  - { name: a, domain: e, key: [], limit: free }\n  - { name: a, domain: d, key: [ip], limit: free }\n"
        ),
    ),
    mistake(
        "bad names",
        Sees,
        rule!(
            "  - { name: a b, domain: d e, key: [], limit: free }\n  - { name: '', domain: '', key: [], limit: free }\n"
        ),
    ),
    mistake(
        "an empty name and domain",
        Sees,
        rule!("  - { name: , domain: ~, key: [], limit: free }\n"),
    ),
    mistake("no domain", Blind, rule!("  - { name: a, key: [], limit: free }\n")),
    mistake(
        "a deadline too short",
        Blind,
        rule!("  - { name: a, domain: d, key: [], limit: free, deadline: 500us }\n"),
    ),
    mistake(
        "a deadline too long",
        Blind,
        rule!("  - { name: a, domain: d, key: [], limit: free, deadline: 2h }\n"),
    ),
    mistake(
        "a deadline with a wrong unit",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, deadline: 10msec }\n"),
    ),
    mistake(
        "an unknown failure policy",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, on_store_failure: deny }\n"),
    ),
    mistake(
        "shadow that is neither true nor false",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, shadow: yes }\n"),
    ),
];

const WHEN: &[Mistake] = &[
    mistake(
        "a text",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, when: /login }\n"),
    ),
    mistake("empty", Sees, rule!("  - { name: a, domain: d, key: [], limit: free, when: }\n")),
    mistake(
        "an empty value",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, when: { path: } }\n"),
    ),
    mistake(
        "a null in a list",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, when: { path: [/a, null] } }\n"),
    ),
    mistake(
        "an empty list",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, when: { path: [] } }\n"),
    ),
    mistake(
        "an empty any_of",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, when: { path: { any_of: [] } } }\n"),
    ),
    mistake(
        "any_of a text",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, when: { path: { any_of: /a } } }\n"),
    ),
    mistake(
        "an empty none_of",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, when: { path: { none_of: [] } } }\n"
        ),
    ),
    mistake(
        "none_of a text",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, when: { path: { none_of: /a } } }\n"
        ),
    ),
    mistake(
        "none_of every value",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, when: { path: { none_of: [/a, '**'] } } }\n"
        ),
    ),
    mistake(
        "none_of and any_of",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, when: { path: { none_of: [/a], any_of: [/b] } } }\n"
        ),
    ),
    mistake(
        "none_of none_of",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, when: { path: { none_of: [{ none_of: [/a] }] } } }\n"
        ),
    ),
    mistake(
        "none_of a path without a slash",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, when: { path: { none_of: [health] } } }\n"
        ),
    ),
    mistake(
        "a misspelt condition",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, when: { path: { perfix: /a } } }\n"),
    ),
    mistake(
        "an empty condition",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, when: { path: {} } }\n"),
    ),
    mistake(
        "two conditions",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, when: { path: { prefix: /a, glob: /b* } } }\n"
        ),
    ),
    mistake(
        "present with another condition",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, when: { path: { present: false, exact: /a } } }\n"
        ),
    ),
    mistake(
        "present in a list",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, when: { path: [/a, { present: false }] } }\n"
        ),
    ),
    mistake(
        "present that is neither true nor false",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, when: { path: { present: maybe } } }\n"
        ),
    ),
    mistake(
        "a list in a list",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, when: { path: [[/a]] } }\n"),
    ),
    mistake(
        "an empty prefix",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, when: { path: { prefix: '' } } }\n"),
    ),
    mistake(
        "a prefix with a star",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, when: { path: { prefix: /v1/* } } }\n"
        ),
    ),
    mistake(
        "an attribute with a space",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, when: { \"user agent\": curl } }\n"),
    ),
    mistake(
        "an attribute twice",
        Syntax,
        rule!("  - { name: a, domain: d, key: [], limit: free, when: { path: /a, path: /b } }\n"),
    ),
    mistake(
        "an attribute of the key that must be absent",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [ip], limit: free, when: { ip: { present: false } } }\n"
        ),
    ),
    mistake(
        "a value in place of a condition",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, when: { api_key: { secret-1: true } } }\n"
        ),
    ),
];

const KEYS: &[Mistake] = &[
    mistake("no key", Sees, rule!("  - { name: a, domain: d, limit: free }\n")),
    mistake("a text", Sees, rule!("  - { name: a, domain: d, key: ip, limit: free }\n")),
    mistake("empty", Sees, rule!("  - { name: a, domain: d, key: , limit: free }\n")),
    mistake(
        "an attribute twice",
        Blind,
        rule!("  - { name: a, domain: d, key: [ip, { first_of: [api_key, ip] }], limit: free }\n"),
    ),
    mistake(
        "first_of nothing",
        Sees,
        rule!("  - { name: a, domain: d, key: [{ first_of: [] }], limit: free }\n"),
    ),
    mistake(
        "first_of a text",
        Sees,
        rule!("  - { name: a, domain: d, key: [{ first_of: ip }], limit: free }\n"),
    ),
    mistake(
        "a misspelt first_of",
        Sees,
        rule!("  - { name: a, domain: d, key: [{ firstof: [ip] }], limit: free }\n"),
    ),
    mistake(
        "an empty mapping",
        Sees,
        rule!("  - { name: a, domain: d, key: [{}], limit: free }\n"),
    ),
    mistake(
        "a list in a list",
        Sees,
        rule!("  - { name: a, domain: d, key: [[ip]], limit: free }\n"),
    ),
    mistake(
        "an attribute with a space",
        Sees,
        rule!("  - { name: a, domain: d, key: [user agent], limit: free }\n"),
    ),
    mistake(
        "seventeen attributes",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q], limit: free }\n"
        ),
    ),
];

const COSTS: &[Mistake] = &[
    mistake("zero", Sees, rule!("  - { name: a, domain: d, key: [], limit: free, cost: 0 }\n")),
    mistake(
        "a fraction",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, cost: 1.5 }\n"),
    ),
    mistake(
        "negative",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, cost: -1 }\n"),
    ),
    mistake(
        "2^53",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, cost: 9007199254740992 }\n"),
    ),
    mistake("a list", Sees, rule!("  - { name: a, domain: d, key: [], limit: free, cost: [1] }\n")),
    mistake("empty", Sees, rule!("  - { name: a, domain: d, key: [], limit: free, cost: }\n")),
    mistake(
        "no routes",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, cost: { reports: 10, defualt: 1, POST: 2, \"POST /a b\": 3 } }\n"
        ),
    ),
    mistake(
        "invalid methods",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, cost: { \"post /a\": 10, \"* /a\": 1 } }\n"
        ),
    ),
    mistake(
        "a route twice",
        Syntax,
        rule!("  - { name: a, domain: d, key: [], limit: free, cost: { /a: 10, \"/a\": 1 } }\n"),
    ),
    mistake(
        "invalid costs of routes",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, cost: { /a: 0, /b: ten, default: } }\n"
        ),
    ),
    mistake(
        "an empty method",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, cost: { \" /reports\": 10 } }\n"),
    ),
    mistake(
        "two methods",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, cost: { \"POST,GET /x\": 10 } }\n"),
    ),
    mistake(
        "an attribute without a default",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, cost: { attribute: tokens } }\n"),
    ),
    mistake(
        "an attribute that no request has",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, cost: { reserve: { attribute: header.x-tokens, default: 5 } } }\n  - { name: b, domain: d, key: [], limit: free, cost: { attribute: client_ip, default: 5 } }\n"
        ),
    ),
    mistake(
        "an attribute that is not a name",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, cost: { attribute: [b], default: 1 } }\n"
        ),
    ),
];

const HOLDS: &[Mistake] = &[
    mistake(
        "nothing to reserve",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, cost: { reserve: } }\n"),
    ),
    mistake(
        "reserved units that are not units",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, cost: { reserve: 0 } }\n  - { name: b, domain: d, key: [], limit: free, cost: { reserve: [1] } }\n  - { name: c, domain: d, key: [], limit: free, cost: { reserve: { reserve: 1 } } }\n"
        ),
    ),
    mistake(
        "a misspelt reserve",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, cost: { reserv: 10 } }\n"),
    ),
    mistake(
        "costs beside reserve",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, cost: { reserve: 10, default: 1, /a: 5 } }\n"
        ),
    ),
    mistake(
        "a time without units that are held",
        Blind,
        rule!("  - { name: a, domain: d, key: [], limit: free, cost: 5, hold_for: 30s }\n"),
    ),
    mistake(
        "times that are no hold times",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, cost: { reserve: 5 }, hold_for: 367d }\n  - { name: b, domain: d, key: [], limit: free, cost: { reserve: 5 }, hold_for: 30 }\n"
        ),
    ),
    mistake(
        "units of a shaping bucket",
        Blind,
        "limits: { slow: leaky-bucket capacity=9 leak=1/s mode=shaping, fast: token-bucket capacity=9 refill=1/s }\nrules:\n  - { name: a, domain: d, key: [], limit: { by: tier, tiers: { free: slow }, default: fast }, cost: { reserve: 5 } }\n",
    ),
    mistake(
        "more than the limit",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, cost: { reserve: { attribute: tokens, default: 1000 } } }\n"
        ),
    ),
];

/// A leased rule of a limit.
macro_rules! leased {
    ($limit:literal, $rule:literal) => {
        concat!(
            "limits:\n  it: ",
            $limit,
            "\nrules:\n  - { name: a, domain: d, key: [], limit: it, ",
            $rule,
            " }\n"
        )
    };
}

const LEASES: &[Mistake] = &[
    mistake(
        "an unknown mode",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, mode: lease }\n"),
    ),
    mistake(
        "a mode of leaky buckets in a rule",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: free, mode: shaping }\n"),
    ),
    mistake(
        "an unknown mode of a limit and of the defaults",
        Sees,
        "defaults: { mode: fast }\nlimits: { a: { algorithm: fixed-window, limit: 9, window: 1m, mode: policing } }\n",
    ),
    mistake(
        "an unknown mode of a leaky bucket",
        Sees,
        "limits: { a: { algorithm: leaky-bucket, capacity: 9, leak: 1/s, mode: lease } }\n",
    ),
    mistake(
        "a mode of a concurrency limit",
        Sees,
        "limits: { a: { algorithm: concurrency, limit: 9, for: 1m, mode: leased } }\n",
    ),
    mistake(
        "a lease that is no mapping, and unknown fields",
        Sees,
        "defaults: { lease: 1s }\nlimits: {}\nrules: [{ lease: { max-share: 10%, during: 1s } }]\n",
    ),
    mistake(
        "shares that are none",
        Sees,
        leased!(
            "{ algorithm: fixed-window, limit: 900, window: 1m, lease: { max_share: 25 } }",
            "mode: leased, lease: { max_share: 101% }"
        ),
    ),
    mistake(
        "a share of zero, and a share with a fraction",
        Sees,
        leased!(
            "{ algorithm: fixed-window, limit: 900, window: 1m, lease: { max_share: 0% } }",
            "mode: leased, lease: { max_share: 2.5% }"
        ),
    ),
    mistake(
        "leases that are too short and too long",
        Blind,
        leased!(
            "{ algorithm: fixed-window, limit: 900, window: 1m, lease: { for: 99ms } }",
            "mode: leased, lease: { for: 2h }"
        ),
    ),
    mistake(
        "paces that are too short and too long",
        Blind,
        leased!(
            "{ algorithm: fixed-window, limit: 900, window: 1m, lease: { pace: 99us } }",
            "mode: leased, lease: { pace: 101ms }"
        ),
    ),
    mistake(
        "a lease that is too short for its pace",
        Blind,
        leased!(
            "fixed-window limit=900 window=1m",
            "mode: leased, lease: { for: 1s, pace: 200ms }"
        ),
    ),
    mistake(
        "a lease with a wrong unit",
        Sees,
        leased!("fixed-window limit=900 window=1m", "mode: leased, lease: { for: 1sec }"),
    ),
    mistake(
        "a lease without a leased mode",
        Blind,
        leased!("fixed-window limit=900 window=1m", "lease: { for: 1s }"),
    ),
    mistake(
        "a lease of a strict rule",
        Blind,
        concat!(
            "defaults: { mode: leased }\n",
            leased!("fixed-window limit=900 window=1m", "mode: strict, lease: { for: 1s }")
        ),
    ),
    mistake(
        "the limit on invalid tokens, leased",
        Blind,
        jwt!("verifications: { algorithm: fixed-window, limit: 9, window: 1m, mode: leased }"),
    ),
    mistake(
        "a leased rule of a shaping bucket",
        Blind,
        leased!("leaky-bucket capacity=900 leak=10/s mode=shaping", "mode: leased"),
    ),
    mistake(
        "a leased rule of a concurrency limit",
        Blind,
        leased!("concurrency limit=900 for=1m", "mode: leased"),
    ),
    mistake(
        "a leased rule that reserves",
        Blind,
        leased!("fixed-window limit=900 window=1m", "mode: leased, cost: { reserve: 10 }"),
    ),
    mistake(
        "a leased rule of a limit that is too small for its share",
        Blind,
        leased!("fixed-window limit=19 window=1m", "mode: leased, lease: { max_share: 5% }"),
    ),
    mistake(
        "a leased rule of limits that recover too soon",
        Blind,
        leased!("token-bucket capacity=1999 refill=10000/s", "mode: leased"),
    ),
    mistake(
        "a leased limit that recovers too soon, with its own pace",
        Blind,
        leased!(
            "{ algorithm: fixed-window, limit: 9, window: 1s, mode: leased, lease: { pace: 51ms } }",
            "mode: strict"
        ),
    ),
    mistake(
        "a leased rule without a limit",
        Blind,
        "rules: [{ name: a, domain: d, key: [], limit: allow, mode: leased }]\n",
    ),
];

const CHOICES: &[Mistake] = &[
    mistake("no limit", Sees, rule!("  - { name: a, domain: d, key: [] }\n")),
    mistake("a misspelt limit", Blind, rule!("  - { name: a, domain: d, key: [], limit: fre }\n")),
    mistake("an unknown limit", Blind, rule!("  - { name: a, domain: d, key: [], limit: gold }\n")),
    mistake(
        "an inline limit as a text",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: token-bucket capacity=1 refill=1/s }\n"),
    ),
    mistake(
        "an inline limit as a mapping",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: { algorithm: token-bucket, capacity: 1, refill: 1/s } }\n"
        ),
    ),
    mistake(
        "an invalid limit is not reported as unknown",
        Sees,
        "limits: { free: gcra }\nrules:\n  - { name: a, domain: d, key: [], limit: free }\n",
    ),
    mistake(
        "limits under a misspelt field are not reported as unknown",
        Sees,
        "limit: { free: fixed-window limit=1 window=1s }\nrules:\n  - { name: a, domain: d, key: [], limit: free }\n",
    ),
    mistake(
        "tiers without by",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: { tiers: { pro: free }, default: free } }\n"
        ),
    ),
    mistake(
        "by without tiers",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: { by: tier, default: free } }\n"),
    ),
    mistake(
        "no default",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: { by: tier, tiers: { pro: free } } }\n"),
    ),
    mistake(
        "empty tiers",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: { by: tier, tiers: {}, default: free } }\n"
        ),
    ),
    mistake(
        "tiers with unknown limits",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [], limit: { by: tier, tiers: { pro: gold, basic: alow }, default: ferr } }\n"
        ),
    ),
    mistake(
        "an invalid tier name",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: { by: tier, tiers: { \"p r o\": free }, default: free } }\n"
        ),
    ),
    mistake("a list", Sees, rule!("  - { name: a, domain: d, key: [], limit: [free] }\n")),
    mistake(
        "overrides of an empty key",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, overrides: [{ key: { ip: 192.0.2.1 }, limit: block }] }\n"
        ),
    ),
    mistake(
        "an override of an attribute that is not in the key",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [ip], limit: free, overrides: [{ key: { api_key: secret }, limit: block }] }\n"
        ),
    ),
    mistake(
        "an override with name and value swapped",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [api_key], limit: free, overrides: [{ key: { secret: api_key }, limit: block }] }\n"
        ),
    ),
    mistake(
        "an override without a part",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [ip, { first_of: [user, api_key] }], limit: free, overrides: [{ key: { ip: 192.0.2.1 }, limit: block }] }\n"
        ),
    ),
    mistake(
        "an override with a part twice",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [{ first_of: [api_key, ip] }], limit: free, overrides: [{ key: { api_key: secret, ip: 192.0.2.1 }, limit: block }] }\n"
        ),
    ),
    mistake(
        "the same override twice",
        Blind,
        rule!(
            "  - name: a\n    domain: d\n    key: [api_key]\n    limit: free\n    overrides:\n      - { key: { api_key: secret }, limit: block }\n      - { key: { api_key: secret }, limit: allow }\n"
        ),
    ),
    mistake(
        "invalid fields of an override",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [ip], limit: free, overrides: [{ keys: { ip: 192.0.2.1 } }, { key: ip, limit: free }, block] }\n"
        ),
    ),
    mistake(
        "an override's empty value",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [ip], limit: free, overrides: [{ key: { ip: }, limit: gold }] }\n"
        ),
    ),
    mistake(
        "an override without its key",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [ip], limit: free, overrides: [{ secret-1: block }] }\n"
        ),
    ),
];

const API_KEYS: &[Mistake] = &[
    mistake("a list", Sees, "limits: {}\napi_keys: [secret]\n"),
    mistake("not indented", Sees, "limits: {}\napi_keys:\nsecret-1: pro\nsecret-2: pro\n"),
    mistake("a key twice", Syntax, "limits: {}\napi_keys:\n  secret: pro\n  secret: free\n"),
    mistake(
        "an invalid tier name",
        Sees,
        "limits: {}\napi_keys:\n  pro: \"secret key\"\n  secret: [pro]\n  secret2:\n",
    ),
    mistake("an empty key", Sees, "limits: {}\napi_keys:\n  \"\": pro\n"),
    mistake("a file where none is read", Blind, "limits: {}\napi_keys_file: keys.yaml\n"),
    mistake("an empty file name", Sees, "limits: {}\napi_keys_file:\n"),
    mistake("only keys", Sees, "secret-1: pro\nsecret-2: free\n"),
    mistake("one key not indented", Sees, "limits: {}\napi_keys:\n  a: pro\nsecret-1: pro\n"),
    mistake("misspelt and not indented", Sees, "limits: {}\napikeys:\nsecret-1: pro\n"),
    mistake(
        "keys in a rule",
        Sees,
        rule!(
            "  - name: a\n    domain: d\n    key: []\n    limit: free\n    api_keys:\n    secret-1: pro\n"
        ),
    ),
    mistake("the file itself", Blind, "limits: {}\napi_keys_file: ./limits.yaml\n"),
];

const IDENTITY: &[Mistake] = &[
    mistake("a text", Sees, identity!("10.0.0.0/8")),
    mistake("empty", Sees, identity!("")),
    mistake(
        "a misspelt field is not reported as missing",
        Sees,
        identity!("{ trusted_proxys: [10.0.0.0/8], forwarding_header: forwarded }"),
    ),
    mistake("a proxy that is not in a list", Sees, identity!("{ trusted_proxies: 10.0.0.0/8 }")),
    mistake("no proxies", Sees, identity!("{ trusted_proxies: [] }")),
    mistake(
        "invalid networks",
        Sees,
        identity!(
            "{ trusted_proxies: [proxy.example, 10.0.0, 10.0.0.0/255.0.0.0, \"fe80::1%eth0\", '', [10.0.0.0/8], ~] }"
        ),
    ),
    mistake(
        "too many bits",
        Blind,
        identity!("{ trusted_proxies: [10.0.0.0/33, \"2001:db8::/129\"] }"),
    ),
    mistake(
        "bits after the prefix",
        Blind,
        identity!("{ trusted_proxies: [10.1.2.3/8, \"2001:db8::1/32\"] }"),
    ),
    mistake("every IPv4 address", Blind, identity!("{ trusted_proxies: [10.0.0.0/8, 0.0.0.0/0] }")),
    mistake(
        "every address, in halves",
        Blind,
        identity!("{ trusted_proxies: [0.0.0.0/1, \"8000::/1\", \"::/1\", 128.0.0.0/1] }"),
    ),
    mistake(
        "every IPv4 address, mapped to IPv6",
        Blind,
        identity!("{ trusted_proxies: [\"::ffff:0:0/96\"] }"),
    ),
    mistake(
        "nearly every address",
        Blind,
        identity!("{ trusted_proxies: [0.0.0.0/1, 128.0.0.0/2, \"2000::/4\"] }"),
    ),
    mistake(
        "headers without trusted proxies",
        Sees,
        identity!("{ forwarding_header: x-real-ip, trusted_headers: [x-tenant] }"),
    ),
    mistake(
        "an unknown forwarding header",
        Sees,
        identity!("{ trusted_proxies: [10.0.0.0/8], forwarding_header: cf-connecting-ip }"),
    ),
    mistake(
        "a forwarding header in capitals",
        Sees,
        identity!("{ trusted_proxies: [10.0.0.0/8], forwarding_header: X-Forwarded-For }"),
    ),
    mistake(
        "several forwarding headers",
        Sees,
        identity!("{ trusted_proxies: [10.0.0.0/8], forwarding_header: [forwarded, x-real-ip] }"),
    ),
    mistake(
        "invalid headers",
        Sees,
        identity!(
            "{ trusted_proxies: [10.0.0.0/8], trusted_headers: [x tenant, \"x:y\", '', [a]], api_key_header: \"Authorization: Bearer\" }"
        ),
    ),
    mistake(
        "a header that is not in a list",
        Sees,
        identity!("{ trusted_proxies: [10.0.0.0/8], trusted_headers: x-tenant }"),
    ),
    mistake(
        "a header twice",
        Blind,
        identity!("{ trusted_proxies: [10.0.0.0/8], trusted_headers: [x-tenant, X-Tenant] }"),
    ),
    mistake(
        "an API key in place of its header",
        Sees,
        identity!("{ api_key_header: \"x-api-key: secret\" }"),
    ),
    mistake("a prefix of 0 bits", Sees, identity!("{ ipv6_prefix: 0 }")),
    mistake("a prefix that is too long", Sees, identity!("{ ipv6_prefix: 129 }")),
    mistake("a prefix that is far too long", Sees, identity!("{ ipv6_prefix: \"312\" }")),
    mistake("a prefix with its slash", Sees, identity!("{ ipv6_prefix: /56 }")),
];

const TOKENS: &[Mistake] = &[
    mistake("a text", Sees, identity!("{ jwt: HS256 }")),
    mistake(
        "an invalid section is not reported as missing",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [jwt.sub], limit: free }\nidentity: { jwt: { keys: [] } }\n"
        ),
    ),
    mistake(
        "a misspelt section is not reported as missing",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [jwt.sub], limit: free }\nidentity: { jwts: { keys: [] } }\n"
        ),
    ),
    mistake("no keys", Sees, identity!("{ jwt: { issuer: https://issuer.example } }")),
    mistake("an empty list of keys", Sees, identity!("{ jwt: { keys: [] } }")),
    mistake(
        "a key that is not in a list",
        Sees,
        identity!("{ jwt: { keys: { algorithm: HS256 } } }"),
    ),
    mistake("a key that is a text", Sees, key!("hush.pem")),
    mistake("no algorithm", Sees, key!("{ public_key: ", p256!(), " }")),
    mistake("no signature", Sees, key!("{ algorithm: none, secret_env: HUSH }")),
    mistake("no signature in capitals", Sees, key!("{ algorithm: nOnE, secret_env: HUSH }")),
    mistake("another algorithm", Sees, key!("{ algorithm: HS512, secret_env: HUSH }")),
    mistake("a similar algorithm", Sees, key!("{ algorithm: PS256, secret_env: HUSH }")),
    mistake("an algorithm in lower case", Sees, key!("{ algorithm: hs256, secret_env: HUSH }")),
    mistake("an unknown algorithm", Sees, key!("{ algorithm: sha256, secret_env: HUSH }")),
    mistake("neither algorithm nor key", Sees, key!("{ id: a }")),
    mistake("no secret", Sees, key!("{ algorithm: HS256 }")),
    mistake("no public key", Sees, key!("{ algorithm: RS256 }")),
    mistake(
        "a misspelt key is not reported as missing",
        Sees,
        key!("{ algorithm: RS256, public_keyfile: a }"),
    ),
    mistake(
        "a secret in the file",
        Sees,
        key!("{ algorithm: HS256, secret: hush-hush-hush-hush-hush-hush-hu }"),
    ),
    mistake("two secrets", Sees, key!("{ algorithm: HS256, secret_env: HUSH, secret_file: hush }")),
    mistake(
        "two public keys",
        Sees,
        key!("{ algorithm: ES256, public_key: ", p256!(), ", public_key_file: hush }"),
    ),
    mistake("a public key for HS256", Sees, key!("{ algorithm: HS256, public_key_file: hush }")),
    mistake("a secret for RS256", Sees, key!("{ algorithm: RS256, secret_file: hush }")),
    mistake("a secret for ES256", Sees, key!("{ algorithm: ES256, secret_env: HUSH }")),
    mistake("a secret for EdDSA", Sees, key!("{ algorithm: EdDSA, secret_env: HUSH }")),
    mistake(
        "a variable that is not set",
        Blind,
        key!("{ algorithm: HS256, secret_env: TOLLGATE_HUSH_WHICH_NOBODY_SETS }"),
    ),
    mistake(
        "a secret in place of a variable",
        Sees,
        key!("{ algorithm: HS256, secret_env: hush/hush+hush= }"),
    ),
    mistake(
        "a variable that begins with a digit",
        Sees,
        key!("{ algorithm: HS256, secret_env: \"1hush\" }"),
    ),
    mistake(
        "a file where none is read",
        Blind,
        key!("{ algorithm: HS256, secret_file: hush.txt }"),
    ),
    mistake(
        "a public file where none is read",
        Blind,
        key!("{ algorithm: RS256, public_key_file: hush.pem }"),
    ),
    mistake("the file itself", Blind, key!("{ algorithm: HS256, secret_file: ./limits.yaml }")),
    mistake("an empty file name", Sees, key!("{ algorithm: HS256, secret_file: '' }")),
    mistake("an empty variable", Sees, key!("{ algorithm: HS256, secret_env: }")),
    mistake(
        "a private key",
        Sees,
        key!("{ algorithm: RS256, public_key: \"-----BEGIN RSA PRIVATE KEY-----\\nhush\\n\" }"),
    ),
    mistake(
        "a private key after the public one",
        Sees,
        key!(
            "{ algorithm: ES256, public_key: \"-----BEGIN PUBLIC KEY-----\\na\\n-----END PUBLIC KEY-----\\n-----BEGIN PRIVATE KEY-----\\nhush\\n\" }"
        ),
    ),
    mistake(
        "a certificate",
        Sees,
        key!("{ algorithm: RS256, public_key: \"-----BEGIN CERTIFICATE-----\\nhush\\n\" }"),
    ),
    mistake(
        "an RSA key for ES256",
        Blind,
        key!("{ algorithm: ES256, public_key: \"-----BEGIN RSA PUBLIC KEY-----\\nhush\\n\" }"),
    ),
    mistake("no PEM", Sees, key!("{ algorithm: ES256, public_key: hush }")),
    mistake(
        "a folded PEM",
        Sees,
        key!(
            "algorithm: ES256\n        public_key:\n          -----BEGIN PUBLIC KEY-----\n          hush\n          -----END PUBLIC KEY-----"
        ),
    ),
    mistake("an empty block", Sees, key!("algorithm: ES256\n        public_key: |")),
    mistake(
        "an id twice",
        Blind,
        key!(
            "{ algorithm: ES256, id: 1, public_key: ",
            p256!(),
            " }\n      - { algorithm: RS256, id: 1, public_key: ",
            rsa!(),
            " }"
        ),
    ),
    mistake(
        "an id twice, one of an invalid key",
        Sees,
        key!(
            "{ algorithm: ES256, id: 1, public_key: ",
            p256!(),
            " }\n      - { algorithm: RS256, id: 1, public_key: hush }"
        ),
    ),
    mistake("an empty id", Sees, key!("{ algorithm: HS256, id: '', secret_env: HUSH }")),
    mistake(
        "nine keys without ids",
        Blind,
        key!(
            and_another!(),
            and_another!(),
            and_another!(),
            and_another!(),
            and_another!(),
            and_another!(),
            and_another!(),
            and_another!(),
            "{ algorithm: ES256, public_key: ",
            p256!(),
            " }"
        ),
    ),
    mistake("a key set that is a text", Sees, jwt!("jwks: https://hush.example/keys")),
    mistake("a key set without a source", Sees, jwt!("jwks: { max_age: 1m }")),
    mistake(
        "a key set with two sources",
        Sees,
        jwt!("jwks: { file: hush.json, url: 'https://hush.example' }"),
    ),
    mistake("a misspelt field of a key set", Sees, jwt!("jwks: { uri: 'https://hush.example' }")),
    mistake("an empty file of a key set", Sees, jwt!("jwks: { file: '' }")),
    mistake("a file of a key set where none is read", Blind, jwt!("jwks: { file: hush.json }")),
    mistake("an age for a file", Sees, jwt!("jwks: { file: hush.json, max_age: 1m }")),
    mistake("no URL", Sees, jwt!("jwks: { url: hush.example/keys }")),
    mistake("a URL of a file", Sees, jwt!("jwks: { url: 'file:///hush' }")),
    mistake("a URL without a host", Sees, jwt!("jwks: { url: 'https:///hush' }")),
    mistake("a URL with a password", Sees, jwt!("jwks: { url: 'https://ada:hush@a.example/' }")),
    mistake("a URL with a fragment", Sees, jwt!("jwks: { url: 'https://a.example/#hush' }")),
    mistake(
        "an age that is too short and one that is too long",
        Blind,
        jwt!("jwks: { url: 'https://a.example', max_age: 1s, max_stale: 31d }"),
    ),
    mistake("an age above a day", Blind, jwt!("jwks: { url: 'https://a.example', max_age: 25h }")),
    mistake(
        "keys that are stale before they are old",
        Blind,
        jwt!("jwks: { url: 'https://a.example', max_age: 1h, max_stale: 10m }"),
    ),
    mistake(
        "a time that is too short",
        Blind,
        jwt!("jwks: { url: 'https://a.example', max_stale: 9m }"),
    ),
    mistake(
        "an empty issuer and a list of audiences",
        Sees,
        jwt!("issuer: ''\n    audience: [a, b]"),
    ),
    mistake("a leeway that is too long", Blind, jwt!("leeway: 2h")),
    mistake("a leeway without a unit", Sees, jwt!("leeway: 30")),
    mistake("a misspelt value of invalid", Sees, jwt!("invalid: unauthorised")),
    mistake("an unknown value of invalid", Sees, jwt!("invalid: 401")),
    mistake("verifications as a list", Sees, jwt!("verifications: [20]")),
    mistake("verifications of an unknown algorithm", Sees, jwt!("verifications: gcra 20/s")),
    mistake(
        "verifications without a refill",
        Sees,
        jwt!("verifications: { algorithm: token-bucket, capacity: 20 }"),
    ),
];

/// Mistakes within a key, which need the feature `jwt` to be noticed.
#[cfg(feature = "jwt")]
const PUBLIC_KEYS: &[Mistake] = &[
    mistake(
        "an RSA key of 1024 bits",
        Blind,
        key!(
            "{ algorithm: RS256, public_key: \"",
            pem!(
                "PUBLIC KEY",
                "\\n",
                "MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDDiK6Lgh7m0AGlDfk3dq4MEGDF",
                "z4pnkbBCPygdSPW9QNRzIUooJu9L1uaGNNPO630O6aEb91tAr+0lRY2rYAJkVNpk",
                "98wERUW1D9WAEgnXys5qVCkEZtTCaOyoB3QAuNRMq0CCClBwCH++8Rl4jGSYQW/m",
                "sHn5AJC8Y0kJIB9OiwIDAQAB"
            ),
            "\" }"
        ),
    ),
    mistake(
        "a key on P-384",
        Blind,
        key!(
            "{ algorithm: ES256, public_key: \"",
            pem!(
                "PUBLIC KEY",
                "\\n",
                "MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAEYBdoRIe39mMdhZPkhQUdUFE5HmdiDI0W",
                "jXkPQ2km5pLBifxq9NDD4AwVLnfemoWNu7JbtF7UJEumt9yA6tJr0Ak2uFBfo6ZY",
                "mEVCTcpo0dXQdje/j2kkhCbscGgX4uZ4"
            ),
            "\" }"
        ),
    ),
    mistake(
        "a key with half of its point",
        Blind,
        key!(
            "{ algorithm: ES256, public_key: \"",
            pem!(
                "PUBLIC KEY",
                "\\n",
                "MDkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDIgADSm9x/UBCIVhyICC9zvZEkS6zyX5h",
                "6Jt8ESi/0ILGZyA="
            ),
            "\" }"
        ),
    ),
    mistake("an RSA key for ES256", Blind, key!("{ algorithm: ES256, public_key: ", rsa!(), " }")),
    mistake("an RSA key for EdDSA", Blind, key!("{ algorithm: EdDSA, public_key: ", rsa!(), " }")),
    mistake(
        "a key on P-256 for ES384",
        Blind,
        key!("{ algorithm: ES384, public_key: ", p256!(), " }"),
    ),
    mistake(
        "a key on P-256 for RS256",
        Blind,
        key!("{ algorithm: RS256, public_key: ", p256!(), " }"),
    ),
    mistake(
        "a key that cannot sign",
        Blind,
        key!(
            "{ algorithm: RS256, public_key: \"",
            pem!(
                "PUBLIC KEY",
                "\\n",
                "MCowBQYDK2VuAyEAmxZKbJULO5UVBWZS0wVXnDKCmks5ymXd9K9e8uzXrGk="
            ),
            "\" }"
        ),
    ),
    mistake(
        "a truncated PEM",
        Blind,
        key!(
            "{ algorithm: ES256, public_key: \"-----BEGIN PUBLIC KEY-----\\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAESm9x/UBCIVhyICC9zvZEkS6zyX5h\\n\" }"
        ),
    ),
    mistake(
        "a key with a missing line",
        Blind,
        key!(
            "{ algorithm: ES256, public_key: \"",
            pem!(
                "PUBLIC KEY",
                "\\n",
                "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAESm9x/UBCIVhyICC9zvZEkS6zyX5h"
            ),
            "\" }"
        ),
    ),
    mistake(
        "two keys in one",
        Blind,
        key!("{ algorithm: ES256, public_key: \"", p256!("\\n"), p256!("\\n"), "\" }"),
    ),
];

const WARNINGS: &[Mistake] = &[
    mistake(
        "a key set that is not encrypted",
        Blind,
        identity!("{ jwt: { jwks: { url: 'http://127.0.0.1.example/keys' } } }"),
    ),
    mistake(
        "a key set that is not encrypted, at an address",
        Blind,
        identity!("{ jwt: { jwks: { url: 'http://192.0.2.1:8080/keys' } } }"),
    ),
    mistake(
        "a limit that no rule spends",
        Blind,
        "limits: { free: fixed-window limit=1 window=1s, pro: fixed-window limit=9 window=1s }\nrules:\n  - { name: a, domain: d, key: [], limit: free }\n",
    ),
    mistake(
        "keys of headers that are not trusted",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [header.x-user, { first_of: [header.x-a, ip] }], limit: free }\n  - { name: b, domain: d, key: [{ first_of: [header.x-a, header.x-b] }], limit: free }\n"
        ),
    ),
    mistake(
        "a key of a header that is not in the trusted list",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [ip, header.x-user], limit: free }\nidentity: { trusted_proxies: [10.0.0.0/8], trusted_headers: [x-tenant] }\n"
        ),
    ),
    mistake(
        "tiers by a header that is not trusted",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [ip], limit: { by: header.x-plan, tiers: { pro: free }, default: free } }\n"
        ),
    ),
    mistake(
        "claims without verified tokens",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [{ first_of: [jwt.sub, ip] }], limit: free }\n  - { name: b, domain: d, key: [ip], when: { jwt.plan: pro }, limit: free }\n  - { name: c, domain: d, key: [ip], limit: { by: jwt.plan, tiers: { pro: free }, default: free } }\n  - { name: d, domain: d, key: [ip], limit: free }\nidentity: {}\n"
        ),
    ),
    mistake(
        "claims without an identity section",
        Blind,
        rule!("  - { name: a, domain: d, key: [jwt.sub], limit: free }\n"),
    ),
    mistake(
        "a key that may be missing",
        Blind,
        rule!(
            "  - { name: a, domain: d, when: { path: /v1/** }, key: [ip, api_key], limit: free }\n"
        ),
    ),
    mistake(
        "a key of several attributes that may all be missing",
        Blind,
        concat!(
            "limits: { free: token-bucket capacity=60 refill=1/s }\nrules:\n",
            "  - { name: a, domain: d, key: [{ first_of: [jwt.sub, header.x-user, api_key] }], limit: free }\n",
            "identity: { trusted_proxies: [10.0.0.0/8], trusted_headers: [x-user], jwt: { keys: [{ algorithm: ES256, public_key: ",
            p256!(),
            " }] } }\n"
        ),
    ),
    mistake(
        "keys that may be missing beside rules that do not limit the rest",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [api_key], limit: free }\n  - { name: all, domain: d, key: [], limit: free }\n  - { name: shadow, domain: d, key: [ip], limit: free, shadow: true }\n  - { name: elsewhere, domain: e, key: [ip], limit: free }\n  - { name: some, domain: d, when: { path: /a }, key: [ip], limit: free }\n  - { name: nothing, domain: d, key: [ip], limit: allow }\n"
        ),
    ),
    mistake(
        "a tier that no rule names",
        Blind,
        "limits: { free: fixed-window limit=1 window=1s }\nrules:\n  - { name: a, domain: d, key: [], limit: { by: tier, tiers: { pro: free, basic: free }, default: free } }\napi_keys: { secret: pro, secret2: secret3, secret4: secret3 }\n",
    ),
    mistake(
        "a tier where no rule has tiers",
        Blind,
        rule!("  - { name: a, domain: d, key: [], limit: free }\napi_keys: { secret: pro }\n"),
    ),
    mistake(
        "a cost above the limit",
        Blind,
        "limits: { login: sliding-window-log limit=5 window=15m }\nrules:\n  - { name: a, domain: d, key: [], limit: login, cost: { /a: 10 } }\n",
    ),
    mistake(
        "an error and a warning",
        Blind,
        rule!("  - { name: a, domain: d, key: [header.x-user], limit: gold }\n"),
    ),
    mistake(
        "a method in lower case",
        Blind,
        rule!("  - { name: a, domain: d, key: [], limit: free, when: { method: [GET, post] } }\n"),
    ),
    mistake(
        "paths without a slash",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, when: { path: login } }\n  - { name: b, domain: d, key: [], limit: free, when: { path: [/a, { prefix: v1/ }, 'v2/**', '**/x'] } }\n"
        ),
    ),
    mistake(
        "paths with a query",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, when: { path: [/a, '/login?x=1'] }, cost: { \"POST /reports?all\": 5 } }\n"
        ),
    ),
    mistake(
        "attributes under names of other tools",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [client_ip, { first_of: [remote_addr, ip] }], limit: { by: x-plan, tiers: { pro: free }, default: free }, when: { user_agent: curl, host: a, claims.sub: b } }\n"
        ),
    ),
    mistake(
        "misspelt attributes",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [IP, { first_of: [api-key, zip] }], limit: { by: Tier, tiers: { pro: free }, default: free }, when: { mehtod: POST, header.X-Debug: 1 } }\n"
        ),
    ),
];

/// Two rules of one domain and one of another, for tests to name.
macro_rules! test {
    ($test:literal) => {
        concat!(
            "limits: { free: fixed-window limit=60 window=1m, pro: fixed-window limit=600 window=1m }\nrules:\n",
            "  - { name: logins, domain: api, when: { method: POST, path: /login }, key: [ip], limit: free }\n",
            "  - name: per-client\n    domain: api\n    key: [{ first_of: [api_key, ip] }]\n",
            "    limit: { by: tier, tiers: { pro: pro, banned: block }, default: free }\n",
            "    cost: { \"POST /reports\": 10 }\n",
            "  - { name: partners, domain: web, when: { partner: acme }, key: [ip], limit: allow }\n",
            "api_keys: { secret-1: pro, secret-2: banned }\ntests:\n",
            $test
        )
    };
}

const TESTS: &[Mistake] = &[
    mistake("no list", Sees, test!("  a: b\n")),
    mistake("no mapping", Sees, test!("  - a\n")),
    mistake("an empty test", Sees, test!("  - {}\n")),
    mistake(
        "an unknown field",
        Sees,
        test!("  - { name: a, domain: web, request: {}, expect: {} }\n"),
    ),
    mistake("no domain where there are two", Blind, test!("  - { name: a, expect: {} }\n")),
    mistake("an unknown domain", Blind, test!("  - { name: a, domain: apo, expect: {} }\n")),
    mistake(
        "unknown names",
        Blind,
        test!(
            "  - { name: a, domain: api, expect: { per-clent: free, logins: fre, partners: allow } }\n"
        ),
    ),
    mistake(
        "invalid values",
        Sees,
        test!(
            "  - { name: a, domain: api, attributes: [ip], said: { x: [] }, claims: { ' ': b }, expect: { logins: { cost: 0 }, per-client: [] } }\n"
        ),
    ),
    mistake(
        "a key of another rule",
        Blind,
        test!("  - { name: a, domain: api, expect: { logins: { key: { api_key: secret-1 } } } }\n"),
    ),
    mistake(
        "a rule that should apply and does not",
        Blind,
        test!(
            "  - { name: a GET, domain: api, attributes: { method: GET, path: /login, ip: 192.0.2.1 }, expect: { logins: free, per-client: free } }\n"
        ),
    ),
    mistake(
        "a rule that should not apply and does",
        Blind,
        test!("  - { name: an address, domain: api, attributes: { ip: 192.0.2.1 }, expect: {} }\n"),
    ),
    mistake(
        "another limit, cost and key",
        Blind,
        test!(
            "  - name: a report of an unknown key\n    domain: api\n    attributes: { method: POST, path: /reports, ip: 192.0.2.1 }\n    claims: { api_key: secret-3 }\n    expect: { per-client: { limit: pro, cost: 1, key: { api_key: secret-3 } } }\n"
        ),
    ),
    mistake(
        "other units that are reserved",
        Blind,
        test!(
            "  - { name: a, domain: api, claims: { api_key: secret-1 }, expect: { per-client: { reserve: 5 } } }\n"
        ),
    ),
    mistake(
        "another value in a key, and a limit instead of a refusal",
        Blind,
        test!(
            "  - { name: a, domain: api, claims: { api_key: secret-1 }, expect: { per-client: { limit: block, key: { api_key: secret-2 } } } }\n"
        ),
    ),
    mistake(
        "a value that is not shown",
        Blind,
        test!(
            "  - { name: a, domain: web, attributes: { partner: secret-4, ip: 192.0.2.1 }, expect: { partners: allow } }\n"
        ),
    ),
];

const REPLACES: &[Mistake] = &[
    mistake(
        "itself",
        Blind,
        rule!("  - { name: a, domain: d, key: [], limit: free, replaces: [a] }\n"),
    ),
    mistake(
        "an unknown rule",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, replaces: [per-clent] }\n  - { name: per-client, domain: d, key: [], limit: free, replaces: [] }\n"
        ),
    ),
    mistake(
        "a misspelt name of itself",
        Blind,
        rule!("  - { name: per-client, domain: d, key: [], limit: free, replaces: [per-clent] }\n"),
    ),
    mistake(
        "a rule of another domain",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, replaces: [b] }\n  - { name: b, domain: e, key: [], limit: free, replaces: [] }\n"
        ),
    ),
    mistake(
        "each other",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, replaces: [b] }\n  - { name: b, domain: d, key: [], limit: free, replaces: [a] }\n"
        ),
    ),
    mistake(
        "a cycle among other rules",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, replaces: [b, c] }\n  - { name: b, domain: d, key: [], limit: free, replaces: [c] }\n  - { name: c, domain: d, key: [], limit: free, replaces: [d, e] }\n  - { name: d, domain: d, key: [], limit: free, replaces: [b] }\n  - { name: e, domain: d, key: [], limit: free, replaces: [] }\n"
        ),
    ),
    mistake(
        "a large cycle",
        Blind,
        rule!(
            "  - { name: r0, domain: d, key: [], limit: free, replaces: [r1] }\n  - { name: r1, domain: d, key: [], limit: free, replaces: [r2] }\n  - { name: r2, domain: d, key: [], limit: free, replaces: [r3] }\n  - { name: r3, domain: d, key: [], limit: free, replaces: [r4] }\n  - { name: r4, domain: d, key: [], limit: free, replaces: [r5] }\n  - { name: r5, domain: d, key: [], limit: free, replaces: [r6] }\n  - { name: r6, domain: d, key: [], limit: free, replaces: [r7] }\n  - { name: r7, domain: d, key: [], limit: free, replaces: [r0] }\n"
        ),
    ),
    mistake(
        "twice",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, replaces: [b, c, b] }\n  - { name: b, domain: d, key: [], limit: free, replaces: [] }\n  - { name: c, domain: d, key: [], limit: free, replaces: [] }\n"
        ),
    ),
    mistake(
        "a text",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, replaces: b }\n  - { name: b, domain: d, key: [], limit: free, replaces: [] }\n"
        ),
    ),
    mistake(
        "no name",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, replaces: [b, 'b c', ~, [b]] }\n  - { name: b, domain: d, key: [], limit: free, replaces: [] }\n"
        ),
    ),
    mistake(
        "a rule with an invalid name is not reported as missing",
        Sees,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, replaces: [b] }\n  - { name: [b], domain: d, key: [], limit: free, replaces: [] }\n"
        ),
    ),
    mistake(
        "a rule that replaces all",
        Blind,
        rule!(
            "  - { name: a, domain: d, key: [], limit: free, replaces: [b] }\n  - { name: b, domain: d, key: [], limit: allow, replaces: all }\n"
        ),
    ),
    mistake(
        "all in a list, where no rule has that name",
        Blind,
        rule!("  - { name: a, domain: d, key: [], limit: allow, replaces: [all] }\n"),
    ),
    mistake(
        "all in another case",
        Sees,
        rule!("  - { name: a, domain: d, key: [], limit: allow, replaces: All }\n"),
    ),
];

const RETIRED_DOMAINS: &[Mistake] = &[
    mistake("a text", Sees, "limits: {}\nretired_domains: web\n"),
    mistake("no name", Sees, "limits: {}\nretired_domains: [a b, '', web/api]\n"),
    mistake("twice", Sees, "limits: {}\nretired_domains: [web, web]\n"),
    mistake(
        "a retired domain with rules",
        Blind,
        rule!("  - { name: a, domain: d, key: [], limit: free }\nretired_domains: [web, d]\n"),
    ),
];

#[test]
fn every_mistake_has_its_line_message_and_remedy() {
    for (group, mistakes) in MISTAKES {
        let mut report = String::new();
        for Mistake { name, text, .. } in *mistakes {
            let text_shown: String =
                text.lines().map(|line| format!("    {}\n", line.escape_debug())).collect();
            let found = problems(text);
            assert!(!found.is_empty(), "{group}: {name}");
            report += &format!("# {name}\n{text_shown}{found}\n\n");
        }
        let report = report.replace("\\\"", "\"").replace("\\'", "'");
        insta::assert_snapshot!(group.replace(' ', "_"), report);
    }
}

#[test]
fn no_secret_is_in_any_message() {
    for (group, mistakes) in MISTAKES {
        // Messages about tokens contain the word `secret`.
        let secret = if *group == "tokens" { "hush" } else { "secret" };
        for Mistake { name, text, .. } in *mistakes {
            let message = problems(text).to_string().to_lowercase();
            assert!(!message.contains(secret), "{name}: {message}");
        }
    }
}

#[test]
fn mistake_names_are_unique() {
    let mut seen = BTreeMap::new();
    for (group, mistakes) in MISTAKES {
        for Mistake { name, .. } in *mistakes {
            assert!(seen.insert((group, name), ()).is_none(), "{group}: {name}");
        }
    }
    assert!(seen.len() >= 60, "{}", seen.len());
}

#[test]
fn schema_refuses_the_mistakes_that_it_can_express() {
    let all = MISTAKES.iter().flat_map(|(_, mistakes)| *mistakes);
    let differs =
        |it: &&Mistake| it.editor != Syntax && schema::accepts(it.text) == (it.editor == Sees);
    let differing: Vec<&str> = all.filter(differs).map(|it| it.name).collect();
    assert!(differing.is_empty(), "{differing:#?}");
}

/// Writes the mistakes into the directory `FUZZ_SEEDS`, for `make fuzz`.
#[test]
fn mistakes_are_seeds_for_the_fuzzer() {
    let Some(directory) = std::env::var_os("FUZZ_SEEDS").map(PathBuf::from) else { return };
    for (group, mistakes) in MISTAKES {
        for Mistake { name, text, .. } in *mistakes {
            std::fs::write(directory.join(format!("{group}: {name}")), text).unwrap();
        }
    }
}
