//! `GET /`: the page and its files.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;

use flate2::read::GzDecoder;
use reqwest::Method;
use serde_json::json;

use crate::check::problem;
use crate::server::{ServerProcess, body_of};

/// Returns the files to which a file of the page refers: `src="…"`, `href="…"`, `from "./…"`, `import("./…")`.
fn referred(path: &str, text: &str) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for (before, is_relative) in [
        ("src=\"", false),
        ("href=\"", false),
        ("from \"", true),
        ("import \"", true),
        ("import(\"", true),
    ] {
        for part in text.split(before).skip(1) {
            let to = part.split('"').next().unwrap();
            match to.strip_prefix("./") {
                Some(name) if is_relative => all.insert(format!("/page/{name}")),
                None if to.starts_with('/') => all.insert(to.to_owned()),
                None if to.starts_with('#') => false,
                _ => panic!("{path} refers to {to}"),
            };
        }
    }
    all
}

/// Returns every file of the page, by its path.
fn files(server: &ServerProcess) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let mut next = BTreeSet::from(["/".to_owned()]);
    while let Some(path) = next.pop_first() {
        let response = server.get(&path).send().unwrap();
        assert_eq!(response.status(), 200, "{path}");
        let text = response.text().unwrap();
        let is_of_the_page = path == "/" || path.starts_with("/page/");
        if is_of_the_page {
            next.extend(referred(&path, &text).into_iter().filter(|to| !files.contains_key(to)));
            files.insert(path, text);
        }
    }
    files
}

#[test]
fn page_serves_every_file_and_is_small() {
    let server = ServerProcess::start(&[]);
    let files = files(&server);
    assert!(files.contains_key("/page/main.js") && files.contains_key("/page/style.css"));
    let directory = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/web")).unwrap();
    let names = directory.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let paths: BTreeSet<_> = names
        .map(|name| if name == "index.html" { "/".to_owned() } else { format!("/page/{name}") })
        .collect();
    assert_eq!(
        files.keys().cloned().collect::<BTreeSet<_>>(),
        paths,
        "the page refers to every file"
    );
    let bytes: usize = files.values().map(String::len).sum();
    assert!(bytes < 150_000, "{bytes}");
    for (path, text) in &files {
        // SVG's namespace is a name, not an address that the page loads.
        let text = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!text.contains("http:") && !text.contains("https:"), "{path} names another host");
    }
    let html = &files["/"];
    let is_handler = |rest: &str| rest.trim_start_matches(char::is_alphabetic).starts_with('=');
    assert!(!html.split(" on").skip(1).any(is_handler), "{html}");
    assert!(!html.contains("<style") && !html.contains(" style="), "{html}");
    assert_eq!(
        html.matches("<script").count(),
        html.matches("<script type=\"module\" src=").count()
    );
}

#[test]
fn files_are_served_with_cache_compression_and_type() {
    let server = ServerProcess::start(&[]);
    for (path, text) in files(&server) {
        let content_type = match path.rsplit('.').next().unwrap() {
            "/" => "text/html; charset=utf-8",
            "css" => "text/css; charset=utf-8",
            "js" => "text/javascript; charset=utf-8",
            "svg" => "image/svg+xml",
            _ => panic!("{path}"),
        };
        let plain = server.get(&path).send().unwrap();
        let headers = plain.headers().clone();
        assert_eq!(headers["content-type"], content_type, "{path}");
        assert_eq!(headers["content-length"], text.len().to_string(), "{path}");
        assert!(!headers.contains_key("content-encoding"), "{path}");

        let zipped = server.get(&path).header("accept-encoding", "br, gzip").send().unwrap();
        assert_eq!(zipped.headers()["content-encoding"], "gzip", "{path}");
        let bytes = zipped.bytes().unwrap();
        let mut unzipped = String::new();
        GzDecoder::new(&bytes[..]).read_to_string(&mut unzipped).unwrap();
        assert_eq!(unzipped, text, "{path}");

        let head = server.request(Method::HEAD, &path).send().unwrap();
        let without_date = |headers: &reqwest::header::HeaderMap| {
            let mut headers = headers.clone();
            headers.remove("date");
            headers
        };
        assert_eq!(without_date(head.headers()), without_date(&headers), "{path}");

        let tag = headers["etag"].clone();
        let known = server.get(&path).header("if-none-match", &tag).send().unwrap();
        assert_eq!((known.status().as_u16(), &known.headers()["etag"]), (304, &tag), "{path}");
        let other = server.get(&path).header("if-none-match", "\"other\"").send().unwrap();
        assert_eq!(other.status(), 200, "{path}");

        for answer in [&headers, known.headers()] {
            assert_eq!(answer["vary"], "accept-encoding", "{path}");
            assert_eq!(answer["cache-control"], "no-cache", "{path}");
            assert_eq!(answer["x-content-type-options"], "nosniff", "{path}");
            assert_eq!(answer["referrer-policy"], "no-referrer", "{path}");
            let policy = answer["content-security-policy"].to_str().unwrap();
            for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"] {
                assert!(policy.contains(part), "{policy}");
            }
            assert!(!policy.contains("unsafe") && !policy.contains('*'), "{policy}");
        }
        assert_eq!(known.text().unwrap(), "", "{path}");
        let (status, _) = problem(server.request(Method::POST, &path).send().unwrap());
        assert_eq!(status, 405, "{path}");
    }
    for path in [
        "/page/",
        "/page/x",
        "/page/main.js/",
        "/page/../Cargo.toml",
        "/page/%2e%2e/a",
        "/index.html",
    ] {
        assert_eq!(problem(server.get(path).send().unwrap()).0, 404, "{path}");
    }
}

#[test]
fn server_json_lists_the_views_that_a_client_can_see() {
    let views = |server: &ServerProcess, headers: &[(&str, &str)]| {
        let request = server.get("/page/server.json");
        let request = headers.iter().fold(request, |own, (name, value)| own.header(*name, *value));
        let response = request.send().unwrap();
        assert_eq!(
            (response.status().as_u16(), &response.headers()["cache-control"]),
            (200, &"no-store".parse().unwrap())
        );
        body_of(response)
    };
    let open = ServerProcess::start(&[]);
    assert_eq!(
        views(&open, &[]),
        json!({"playground": true, "holds": true, "operations": "yes", "store": "memory"})
    );
    for stranger in [("x-forwarded-for", "203.0.113.9"), ("host", "rebound.example")] {
        assert_eq!(views(&open, &[stranger])["operations"], "no", "{stranger:?}");
    }
    let closed = ServerProcess::start(&["--no-playground", "--operator-token", "0123456789abcdef"]);
    let want = json!({
        "playground": false, "holds": false, "operations": "token", "store": "memory",
    });
    assert_eq!(views(&closed, &[]), want);
    assert_eq!(views(&closed, &[("x-forwarded-for", "203.0.113.9")]), want);
}
