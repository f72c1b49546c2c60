//! Parses any bytes as a rules file and as a file of API keys. Parsing must not panic or hang, and the position of every
//! problem must be inside the file that the problem names. The rules of a valid file must be usable.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::Limiter;
use tollgate::rules::{Attributes, Config, Rules};

/// A file name that cannot be a path in a text, because texts have no NUL.
const FILE: &str = "\0";

fuzz_target!(|input: &[u8]| {
    // The bytes after the first 0xff are the file of keys. The byte 0xff is in no UTF-8 text.
    let (text, keys) = match input.iter().position(|&byte| byte == 0xff) {
        Some(at) => (&input[..at], &input[at + 1..]),
        None => (input, &input[..0]),
    };
    let problems = match Config::parse_with(FILE, text, |_| Ok(keys.to_vec())) {
        Ok(config) => {
            explain(&config);
            config.warnings().clone()
        }
        Err(problems) => problems,
    };
    // A problem can contain a path from the text, which can be as long as the text.
    assert!(problems.to_string().len() < 100 * (2_000 + input.len()));
    for problem in problems.iter() {
        let file = if problem.file() == FILE { text } else { keys };
        let (line, column) = (problem.line().unwrap_or(1), problem.column().unwrap_or(1));
        let lines = String::from_utf8_lossy(file).replace("\r\n", "\n").replace('\r', "\n");
        let length = lines.split('\n').nth(line as usize - 1).map(|line| line.chars().count());
        assert!(length.is_some_and(|length| column as usize <= length + 1), "{problem}");
    }
});

/// Checks that a valid file can be used.
fn explain(config: &Config) {
    let limiter = Limiter::builder().max_bytes(1 << 20).build();
    // A limiter has memory for a bounded number of limits, so it can refuse a valid file.
    let Ok(rules) = Rules::new(&limiter, config) else { return };
    let request = Attributes::new()
        .with("method", "POST")
        .with("path", "/login")
        .with("ip", "203.0.113.9")
        .claimed("api_key", "k_123");
    for domain in rules.domains() {
        let explained = rules.explain(&domain, &request);
        assert!(!explained.is_empty(), "{domain}");
    }
}
