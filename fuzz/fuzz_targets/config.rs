//! Any file of limits and rules, and any file of API keys, is answered: no panic, no hang, and every
//! problem lies in the file it names.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tollgate::rules::Config;

fuzz_target!(|input: &[u8]| {
    // What follows the first byte 0xff, which is in no text, is the file of keys.
    let (text, keys) = match input.iter().position(|&byte| byte == 0xff) {
        Some(at) => (&input[..at], &input[at + 1..]),
        None => (input, &input[..0]),
    };
    let problems = match Config::parse_with("limits.yaml", text, |_| Ok(keys.to_vec())) {
        Ok(config) => config.warnings().clone(),
        Err(problems) => problems,
    };
    // A path in the text may be as long as the text.
    assert!(problems.to_string().len() < 100 * (2_000 + input.len()));
    for problem in problems.iter() {
        let of = if problem.file() == "limits.yaml" { text } else { keys };
        let (line, column) = (problem.line().unwrap_or(1), problem.column().unwrap_or(1));
        let lines = String::from_utf8_lossy(of).replace("\r\n", "\n").replace('\r', "\n");
        let length = lines.split('\n').nth(line as usize - 1).map(|line| line.chars().count());
        assert!(length.is_some_and(|length| column as usize <= length + 1), "{problem}");
    }
});
