//! Reading claims.

use super::*;

fn claims(json: &str) -> Arc<Claims> {
    let issuer = Issuer::Hs256(SECRET);
    let json = format!(r#"{{"exp":1700000100,{json}}}"#);
    at(&issuer.jwt(), &issuer.token_with(&json), NOW_US).unwrap()
}

fn asks(claims: &Claims, table: &[(&str, Option<&str>)]) {
    for (path, want) in table {
        assert_eq!(claims.get(path).as_deref(), *want, "{path}");
    }
}

#[test]
fn values_are_returned_as_text() {
    let claims = claims(
        r#""sub":"ada","n":7,"big":18446744073709551615,"minus":-1,"half":0.5,"yes":true,"no":false,
        "quote":"\"é\u0000","empty":"","nothing":null,"list":["a"],"object":{"a":"b"}"#,
    );
    let table = [
        ("sub", Some("ada")),
        ("n", Some("7")),
        ("big", Some("18446744073709551615")),
        ("minus", Some("-1")),
        ("half", Some("0.5")),
        ("yes", Some("true")),
        ("no", Some("false")),
        ("quote", Some("\"é\0")),
        ("empty", Some("")),
        ("exp", Some("1700000100")),
        ("nothing", None),
        ("list", None),
        ("object", None),
        ("absent", None),
        ("SUB", None),
        ("", None),
    ];
    asks(&claims, &table);
}

#[test]
fn dots_lead_into_objects() {
    let claims = claims(r#""realm":{"plan":"pro","deep":{"er":1},"list":["a"]},"sub":"ada""#);
    let table = [
        ("realm.plan", Some("pro")),
        ("realm.deep.er", Some("1")),
        ("realm.deep", None),
        ("realm.list", None),
        ("realm.list.0", None),
        ("realm.absent", None),
        ("realm.", None),
        (".realm", None),
        ("realm..plan", None),
        ("sub.plan", None),
        ("plan", None),
        ("...", None),
    ];
    asks(&claims, &table);
}

#[test]
fn a_name_with_dots_comes_first() {
    let claims = claims(
        r#""https://example.com/plan":"pro","https://example.com/app":{"tier":"gold","a.b":"c"},
        "a.b":"own","a":{"b":"inner","c":"d"},"x.y":null,"x":{"y":"hidden"},"p.q":{"r":1},"p":{"q":{"r":2,"s":3}}"#,
    );
    let table = [
        ("https://example.com/plan", Some("pro")),
        ("https://example.com/app.tier", Some("gold")),
        ("https://example.com/app.a.b", Some("c")),
        ("a.b", Some("own")),
        ("a.c", Some("d")),
        ("x.y", None),
        ("p.q.r", Some("1")),
        ("p.q.s", Some("3")),
    ];
    asks(&claims, &table);
}

#[test]
fn last_of_two_claims_of_one_name_counts() {
    let claims = claims(r#""sub":"eve","sub":"ada""#);
    assert_eq!(claims.get("sub").as_deref(), Some("ada"));
}

#[test]
fn lists_are_not_kept() {
    let claims = claims(r#""roles":["one","two"],"realm":{"roles":[{"three":"four"}]}"#);
    let kept = serde_json::to_string(claims.members()).unwrap();
    assert_eq!(kept, r#"{"exp":1700000100,"realm":{"roles":[]},"roles":[]}"#);
}

#[test]
fn debug_shows_only_names() {
    let claims = claims(r#""sub":"ada","realm":{"inner":"x"}"#);
    assert_eq!(format!("{claims:?}"), r#"Claims {"exp", "realm", "sub"}"#);
}
