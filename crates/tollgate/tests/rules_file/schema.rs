//! The schema refuses what the parser refuses, as far as a schema can express it.

use std::sync::LazyLock;

use jsonschema::Validator;
use serde_json::Value;
use tollgate::rules::Config;

use crate::{problems, tree};

static VALIDATOR: LazyLock<Validator> = LazyLock::new(|| {
    let schema: Value = serde_json::from_str(Config::schema()).unwrap();
    jsonschema::validator_for(&schema).unwrap()
});

/// Whether an editor with the schema accepts the text.
pub(crate) fn accepts(text: &str) -> bool {
    VALIDATOR.is_valid(&tree::json(text))
}

#[test]
fn schema_is_valid() {
    let schema: Value = serde_json::from_str(Config::schema()).unwrap();
    assert!(jsonschema::meta::is_valid(&schema));
}

/// Each mapping of known fields, by its name in the schema, and a text with an unknown field in it.
const UNKNOWN: &[(&str, &str)] = &[
    ("", "limits: {}\nunheard-of: 1"),
    ("defaults", "defaults: { unheard-of: 1 }"),
    ("on_store_failure", "defaults: { on_store_failure: { unheard-of: 1 } }"),
    ("local", "defaults: { on_store_failure: { local: { unheard-of: 1 } } }"),
    ("lease", "defaults: { lease: { unheard-of: 1 } }"),
    ("fixed-window", "limits: { a: { algorithm: fixed-window, unheard-of: 1 } }"),
    ("sliding-window-log", "limits: { a: { algorithm: sliding-window-log, unheard-of: 1 } }"),
    (
        "sliding-window-counter",
        "limits: { a: { algorithm: sliding-window-counter, unheard-of: 1 } }",
    ),
    ("token-bucket", "limits: { a: { algorithm: token-bucket, unheard-of: 1 } }"),
    ("leaky-bucket", "limits: { a: { algorithm: leaky-bucket, unheard-of: 1 } }"),
    ("concurrency", "limits: { a: { algorithm: concurrency, unheard-of: 1 } }"),
    ("network_set", "networks: { a: { unheard-of: 1 } }"),
    ("identity", "identity: { unheard-of: 1 }"),
    ("jwt", "identity: { jwt: { unheard-of: 1 } }"),
    ("jwks", "identity: { jwt: { jwks: { unheard-of: 1 } } }"),
    ("jwt_key", "identity: { jwt: { keys: [{ unheard-of: 1 }] } }"),
    ("rule", "rules: [{ unheard-of: 1 }]"),
    ("condition", "rules: [{ when: { a: { unheard-of: 1 } } }]"),
    ("pattern", "rules: [{ when: { a: [{ unheard-of: 1 }] } }]"),
    ("part", "rules: [{ key: [{ unheard-of: 1 }] }]"),
    ("choice", "rules: [{ limit: { unheard-of: 1 } }]"),
    ("override", "rules: [{ overrides: [{ unheard-of: 1 }] }]"),
    ("test", "limits: {}\ntests: [{ unheard-of: 1 }]"),
    (
        "expected",
        "rules: [{ name: a, domain: d, key: [], limit: allow }]\ntests: [{ name: t, expect: { a: { unheard-of: 1 } } }]",
    ),
    ("in_networks", "rules: [{ overrides: [{ key: { ip: { unheard-of: 1 } } }] }]"),
];

/// The fields of a definition and of its alternative forms.
fn fields(definition: &Value) -> Vec<&str> {
    let forms = definition["anyOf"].as_array().into_iter().flatten().chain([definition]);
    let fields = forms.filter_map(|form| form["properties"].as_object());
    let mut names: Vec<&str> = fields.flatten().map(|(name, _)| name.as_str()).collect();
    names.sort_unstable();
    names
}

#[test]
fn schema_has_exactly_the_fields_that_are_read() {
    let schema: Value = serde_json::from_str(Config::schema()).unwrap();
    for (definition, text) in UNKNOWN {
        let definition = match *definition {
            "" => &schema,
            name => &schema["definitions"][name],
        };
        let found = problems(text);
        let problem = found.iter().find(|it| it.message().ends_with("no such field")).unwrap();
        // "use `a`, `b` or `c`"
        let mut read: Vec<&str> = problem.remedy().split('`').skip(1).step_by(2).collect();
        read.sort_unstable();
        assert_eq!(fields(definition), read, "{text}");
    }
    let definitions = schema["definitions"].as_object().unwrap();
    let with_fields = definitions.values().filter(|it| !fields(it).is_empty()).count();
    assert_eq!(with_fields, UNKNOWN.len() - 1, "a definition is not in the table");
}

#[test]
fn schema_mappings_accept_no_unknown_fields() {
    fn walk(node: &Value) {
        if node["properties"].is_object() && node["type"] == "object" {
            assert_eq!(node["additionalProperties"], false, "{node}");
        }
        node.as_object().into_iter().flatten().for_each(|(_, inner)| walk(inner));
        node.as_array().into_iter().flatten().for_each(walk);
    }
    walk(&serde_json::from_str(Config::schema()).unwrap());
}

#[test]
fn every_example_in_the_schema_is_valid() {
    let schema: Value = serde_json::from_str(Config::schema()).unwrap();
    let mut checked = 0;
    for (name, definition) in schema["definitions"].as_object().unwrap() {
        let one = serde_json::json!({
            "$ref": format!("#/definitions/{name}"),
            "definitions": schema["definitions"],
        });
        let validator = jsonschema::draft7::new(&one).unwrap();
        for example in definition["examples"].as_array().into_iter().flatten() {
            assert!(validator.is_valid(example), "{name}: {example}");
            checked += 1;
        }
    }
    assert!(checked > 20, "{checked}");
}
