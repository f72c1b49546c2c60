//! `GET /openapi.json`, and whether the server behaves as it describes.

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use serde_json::{Value, json};

use crate::server::{ServerProcess, body_of};

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let server = ServerProcess::start(&[]);
    body_of(server.get("/openapi.json").send().unwrap())
});

/// Panics if an answer does not match its schema in the document.
pub(crate) fn assert_valid(schema: &str, answer: &Value) {
    let of = format!("#/components/schemas/{schema}");
    let schema = json!({"$ref": of, "components": DOCUMENT["components"]});
    let validator = jsonschema::validator_for(&schema).unwrap();
    let wrong: Vec<_> = validator.iter_errors(answer).map(|error| error.to_string()).collect();
    assert!(wrong.is_empty(), "{of}: {answer}: {wrong:?}");
}

#[test]
fn document_lists_every_path() {
    let document = &*DOCUMENT;
    assert_eq!(document["openapi"], "3.1.0");
    assert_eq!(document["info"]["title"], "Tollgate");
    for (path, methods) in [
        ("/v1/check", &["post"][..]),
        ("/v1/check/batch", &["post"]),
        ("/v1/reserve", &["post"]),
        ("/v1/reserve/batch", &["post"]),
        ("/v1/settle", &["post"]),
        ("/v1/settle/batch", &["post"]),
        ("/v1/extend", &["post"]),
        ("/v1/extend/batch", &["post"]),
        ("/v1/authorize", &["get", "post"]),
        ("/v1/authorize/{domain}", &["get", "post"]),
        ("/v1/authorize/{domain}/{settings}", &["get", "post"]),
        ("/v1/limits", &["get"]),
        ("/v1/limits/{name}", &["get"]),
        ("/v1/limits/{name}/keys/{key}", &["get", "delete"]),
        ("/v1/limits/{name}/keys/", &["get", "delete"]),
        ("/v1/operations", &["get"]),
        ("/api/rate-limit/{algorithm}", &["post"]),
        ("/api/rate-limit/{algorithm}/burst", &["post"]),
        ("/api/rate-limit/{algorithm}/reserve", &["post"]),
        ("/api/rate-limit/{algorithm}/settle", &["post"]),
        ("/api/rate-limit/reset", &["post"]),
        ("/api/rate-limit/state", &["post"]),
        ("/api/rate-limit/compare", &["post"]),
        ("/openapi.json", &["get"]),
    ] {
        let own: Vec<_> = document["paths"][path].as_object().unwrap().keys().collect();
        assert_eq!(own.len(), methods.len(), "{path}");
        for method in methods {
            let operation = &document["paths"][path][method];
            assert!(operation["summary"].is_string(), "{method} {path}");
            let responses = operation["responses"].as_object().unwrap();
            for (status, response) in responses.iter().filter(|(status, _)| status.starts_with('4'))
            {
                let content = &response["content"]["application/problem+json"]["schema"]["$ref"];
                let is_refusal =
                    path.starts_with("/v1/authorize") && !["400", "404"].contains(&&**status);
                let want = if is_refusal { "RefusalProblem" } else { "Problem" };
                assert_eq!(
                    *content,
                    format!("#/components/schemas/{want}"),
                    "{method} {path} {status}"
                );
            }
        }
    }
    let scheme = &document["components"]["securitySchemes"]["operator"];
    assert_eq!((&scheme["type"], &scheme["scheme"]), (&json!("http"), &json!("bearer")));
    let keys = &document["paths"]["/v1/limits/{name}/keys/{key}"]["delete"];
    assert_eq!(keys["security"], json!([{"operator": []}]));
    assert!(keys["responses"]["401"]["headers"]["WWW-Authenticate"].is_object());
    assert!(keys["responses"]["503"]["headers"]["Retry-After"].is_object());
}

#[test]
fn bodies_are_bounded_and_closed() {
    let schemas = &DOCUMENT["components"]["schemas"];
    for (name, schema) in schemas.as_object().unwrap() {
        if schema["type"] == "object" {
            assert_eq!(schema["additionalProperties"], false, "{name}");
        }
    }
    assert_eq!(schemas["BatchRequest"]["maxItems"], 1_000);
    assert_eq!(schemas["BatchRequest"]["minItems"], 1);
    let cost = &schemas["CheckLimit"]["properties"]["cost"];
    assert_eq!((&cost["minimum"], &cost["maximum"]), (&json!(1), &json!((1_u64 << 53) - 1)));
    assert_eq!(schemas["CheckRules"]["properties"]["attributes"]["maxProperties"], 64);
    assert_eq!(schemas["CheckRules"]["required"], json!(["domain"]));
    assert_eq!(schemas["CheckOnlyDomain"]["required"], json!(["attributes"]));
    assert_eq!(schemas["CheckLimit"]["required"], json!(["limit", "key"]));
}

#[test]
fn examples_match_their_schemas_and_work() {
    let server = ServerProcess::start(&[]);
    for (path, of) in [
        ("/v1/check", "CheckRequest"),
        ("/v1/check/batch", "BatchRequest"),
        ("/v1/reserve", "ReserveRequest"),
        ("/v1/reserve/batch", "ReserveRequests"),
    ] {
        let body = &DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"];
        let named = body["examples"].as_object().into_iter().flatten().map(|(_, it)| &it["value"]);
        let examples: Vec<_> = named.chain(body.get("example")).collect();
        assert!(!examples.is_empty(), "{path}");
        for example in examples {
            assert_valid(of, example);
            let response = server.post(path, example.to_string()).send().unwrap();
            assert_eq!(response.status(), 200, "{example}");
        }
    }
    for (path, of) in [
        ("/v1/check", "CheckAnswer"),
        ("/v1/reserve", "Reservation"),
        ("/v1/settle", "SettleAnswer"),
        ("/v1/extend", "ExtendAnswer"),
    ] {
        let responses = &DOCUMENT["paths"][path]["post"]["responses"];
        assert_valid(of, &responses["200"]["content"]["application/json"]["example"]);
    }
}

/// Turns off the checks of schemathesis that do not apply.
const SETTINGS: &str = r#"
# A key that was reset has spent nothing, and can still be read.
[checks]
use_after_free.enabled = false

# A proxy may ask with any method, also one that the document does not name.
[[operations]]
include-path-regex = "^/v1/authorize"
checks.unsupported_method.enabled = false

# What is wrong with one request of a batch is answered in its place.
[[operations]]
include-path-regex = "^/v1/[a-z]+/batch$"
checks.negative_data_rejection.enabled = false

# No schema can say which texts are receipts or holds.
[[operations]]
include-path-regex = "^/v1/(refund|settle|extend)$"
checks.positive_data_acceptance.enabled = false

# Nor that a shaping bucket cannot have holds.
[[operations]]
include-path = "/api/rate-limit/{algorithm}/reserve"
checks.positive_data_acceptance.enabled = false

# Nor that a list is in order.
[[operations]]
include-path = "/api/rate-limit/compare"
checks.positive_data_acceptance.enabled = false
"#;

/// Schemathesis checks that every request that the document allows is answered as described, and that every other request
/// is refused.
#[test]
fn schemathesis_finds_no_problem() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let st = root.join(".tools/schemathesis/bin/st");
    assert!(st.exists(), "{} is missing; run `make schemathesis`", st.display());
    let token = "0123456789abcdef0123456789abcdef";
    let server = ServerProcess::start(&["--operator-token", token]);
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("schemathesis.toml"), SETTINGS).unwrap();
    // One worker, because Python cannot parse its source in two threads at the same time.
    let output = Command::new(st)
        .current_dir(directory.path())
        .arg("run")
        .arg(format!("{}/openapi.json", server.url))
        .args(["--header", &format!("Authorization: Bearer {token}")])
        .args(["--seed", "1", "--max-examples", "25", "--workers", "1"])
        .args(["--generation-database", "none", "--warnings", "off", "--no-color"])
        .output()
        .unwrap();
    let (out, err) = (&output.stdout, &output.stderr);
    let report = [String::from_utf8_lossy(out), String::from_utf8_lossy(err)].concat();
    assert!(output.status.success(), "{report}\n{}", server.log());
    server.check(r#"{"limit":"free","key":"user:42"}"#);
}
