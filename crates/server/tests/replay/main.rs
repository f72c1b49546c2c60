//! The command `tollgate replay`.

#![allow(clippy::unwrap_used)]

mod command;
mod redis;
mod tls;

use std::io::{Read, Write};
use std::process::Command;

use proptest::prelude::*;

use command::{
    BUCKET, WorkedTrace, assert_decides_each_line, examples, feed, replay, stderr, stdout, tollgate,
};

#[test]
fn prints_one_decision_a_line_as_documented() {
    let output = replay(BUCKET, b"at_us,key,cost\n0,a,1\n0,b,11\n500000,a,10\n");
    assert_eq!(
        stdout(&output),
        r#"{"at_us":0,"key":"a","cost":1,"allowed":true,"limit":10,"remaining":9,"retry_after_us":null,"reset_after_us":1000000,"delay_us":0}
{"at_us":0,"key":"b","cost":11,"allowed":false,"limit":10,"remaining":10,"retry_after_us":null,"reset_after_us":0,"delay_us":0}
{"at_us":500000,"key":"a","cost":10,"allowed":false,"limit":10,"remaining":9,"retry_after_us":500000,"reset_after_us":500000,"delay_us":0}
"#
    );
    assert!(
        stderr(&output).starts_with("requests: 3, allowed: 1, denied: 2, keys charged: 1, in ")
    );
    assert_eq!(stderr(&output).lines().count(), 1);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn concurrency_limit_is_an_error_because_each_line_is_a_check() {
    let output = replay("concurrency limit=2 for=60s", b"at_us,key\n0,a\n");
    assert_eq!((stdout(&output), output.status.code()), ("", Some(2)));
    let error = "error: --limit: a concurrency limit decides no checks, and each line is one\n";
    assert!(stderr(&output).starts_with(error), "{}", stderr(&output));
}

#[test]
fn reproduces_the_worked_examples() {
    for WorkedTrace { limit, trace, decisions } in examples() {
        assert_eq!(stdout(&replay(&limit, trace.as_bytes())), decisions, "{limit}");
    }
}

#[test]
fn reads_a_file_and_takes_its_flags_from_the_environment() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.csv");
    std::fs::write(&path, "at_us,key\n0,a\n").unwrap();
    let mut command = tollgate(&["replay", path.to_str().unwrap()]);
    command.env("TOLLGATE_LIMIT", BUCKET).env("TOLLGATE_STORE", "memory");
    let output = command.output().unwrap();
    assert!(stdout(&output).contains(r#""remaining":9"#), "{}", stderr(&output));
}

#[test]
fn replay_reads_common_csv_variants() {
    let trace = "\u{feff}\"at_us\", key,cost\r\n0,\"a,b\"\"c\",2\r\n\r\n 1 ,user:42, 3 \r\n2,é\u{0},\n3, spaced ";
    let output = replay(BUCKET, trace.as_bytes());
    let keys_and_costs: Vec<(String, u64)> = stdout(&output)
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|line| (line["key"].as_str().unwrap().to_owned(), line["cost"].as_u64().unwrap()))
        .collect();
    let expected = [("a,b\"c", 2), ("user:42", 3), ("é\0", 1), (" spaced ", 1)];
    assert_eq!(keys_and_costs, expected.map(|(key, cost)| (key.to_owned(), cost)));
}

#[test]
fn trace_may_step_back_in_time() {
    let output = replay(BUCKET, b"at_us,key,cost\n5000000,a,10\n4000000,a,1\n");
    assert!(
        stdout(&output)
            .contains(r#""allowed":false,"limit":10,"remaining":0,"retry_after_us":2000000"#)
    );
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn bad_trace_is_refused_at_its_first_bad_line() {
    let after = "\n9,after,1\n";
    let long = format!("0,{},1", "x".repeat(2_000_000));
    let bad: &[(&str, &[u8])] = &[
        ("zero cost", b"0,a,0"),
        ("negative cost", b"0,a,-1"),
        ("cost of 2^53", b"0,a,9007199254740992"),
        ("enormous cost", b"0,a,99999999999999999999999999"),
        ("fractional cost", b"0,a,1.5"),
        ("cost that is a word", b"0,a,one"),
        ("negative time", b"-1,a,1"),
        ("time after the end", b"9007199254740992,a,1"),
        ("fractional time", b"0.5,a,1"),
        ("no time", b",a,1"),
        ("no key", b"0,,1"),
        ("one column", b"0"),
        ("four columns", b"0,a,1,1"),
        ("many columns", b"0,a,1,1,1,1,1,1,1,1,1"),
        ("open quote", b"0,\"a,1"),
        ("text after a quote", b"0,\"a\"b,1"),
        ("backslash before a quote", b"0,\"a\\\"b\",1"),
        ("quote inside a column", b"0,a\"b,1"),
        ("byte order mark in the middle", b"\xef\xbb\xbf0,a,1"),
        ("binary junk", b"\x00\x01\xff\xfe\x80"),
        ("key that is not UTF-8", b"0,\xff\xfe,1"),
        ("terminal escapes", b"\x1b[31m,a,1"),
        ("long line", long.as_bytes()),
    ];
    let mut report = String::new();
    for (name, line) in bad {
        let trace = [b"at_us,key,cost\n0,first,1\n", *line, after.as_bytes()].concat();
        let output = replay(BUCKET, &trace);
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert_eq!(stdout(&output).lines().count(), 1, "{name}");
        assert!(stdout(&output).contains("first"), "{name}");
        report += &format!("{name}\n  {}", stderr(&output));
    }
    for (name, trace) in [
        ("empty", &b""[..]),
        ("blank", b"\n\n"),
        ("no header", b"0,a,1\n"),
        ("another header", b"time,key,cost\n0,a,1\n"),
        ("header with a column too many", b"at_us,key,cost,note\n0,a,1,x\n"),
        ("binary from the start", b"\x7fELF\x02\x01\x01\x00\x00"),
        ("three columns under a header of two", b"at_us,key\n0,a,1\n"),
    ] {
        let output = replay(BUCKET, trace);
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""), "{name}");
        report += &format!("{name}\n  {}", stderr(&output));
    }
    insta::assert_snapshot!(report);
}

#[test]
fn bad_flags_are_refused_with_a_remedy() {
    let mut report = String::new();
    for args in [
        &["replay", "-"][..],
        &["replay", "--limit", "gcra", "-"],
        &["replay", "--limit", "token-bucket capacity=10 refill=10/sec", "-"],
        &["replay", "--limit", BUCKET],
        &["replay", "--limit", BUCKET, "/no/such/trace.csv"],
        &["replay", "--limit", BUCKET, "/"],
        &["replay", "--limit", BUCKET, "--store", "memroy", "-"],
        &["replay", "--limit", BUCKET, "--store", "user:secret@localhost", "-"],
        &["replay", "--limit", BUCKET, "--store", "http://user:secret@localhost", "-"],
        &["replay", "--limit", BUCKET, "--store", "redis://user:secret@localhost/one", "-"],
        // Port 1 is closed.
        &["replay", "--limit", BUCKET, "--store", "redis://user:secret@127.0.0.1:1", "-"],
        &["replay", "--limit", BUCKET, "--store", "rediss://user:secret@127.0.0.1:1", "-"],
        &["replay", "--limit", BUCKET, "--store", "redis+unix:///no/such.sock?pass=secret", "-"],
    ] {
        let output = tollgate(args).output().unwrap();
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""), "{args:?}");
        assert!(!stderr(&output).contains("secret"));
        report +=
            &format!("tollgate {}\n{}\n", args.join(" ").replace("secret", "…"), stderr(&output));
    }
    insta::assert_snapshot!(report);
}

#[test]
fn help_matches_its_snapshot() {
    let output = tollgate(&["replay", "--help"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    insta::assert_snapshot!("replay_help", stdout(&output));
}

#[test]
fn replay_decides_each_line_as_it_arrives() {
    assert_decides_each_line("memory");
}

#[test]
fn closed_output_ends_the_replay_quietly() {
    let mut child = tollgate(&["replay", "--limit", BUCKET, "-"]).spawn().unwrap();
    drop(child.stdout.take());
    let trace = [b"at_us,key\n".as_slice(), &b"0,a\n".repeat(50_000)].concat();
    let output = feed(child, &trace);
    assert_eq!((output.status.code(), stderr(&output)), (Some(0), ""));
}

/// `script` gives the command its own terminal.
#[test]
fn terminal_on_standard_error_shows_progress() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("trace.csv");
    std::fs::write(&path, [b"at_us,key\n".as_slice(), &b"0,a\n".repeat(50_000)].concat()).unwrap();
    let bin = env!("CARGO_BIN_EXE_tollgate");
    let replay = format!("{bin} replay --limit '{BUCKET}' {}", path.display());
    let watch = |redirect: &str| {
        let mut script = Command::new("script");
        script.args(["-qec", &format!("{replay} {redirect}"), "/dev/null"]);
        let output = script.output().expect("the test needs `script`, of the package bsdutils");
        String::from_utf8(output.stdout).unwrap()
    };
    let terminal = watch("> /dev/null");
    assert!(terminal.contains("B/s"), "no progress bar: {terminal}");
    assert!(terminal.contains("requests: 50000, allowed: 10"), "no summary: {terminal}");
    assert!(!watch("> /dev/null 2> /dev/null").contains("B/s"));
    // If decisions and the progress bar are on one terminal, every decision still has its own line.
    let both = watch("");
    let decisions =
        both.lines().filter(|line| line.contains("at_us") && line.trim_end().ends_with('}'));
    assert_eq!(decisions.count(), 50_000);
}

/// The trace is many times larger than the command's memory. `make soak` runs this test with 10 million lines.
#[test]
fn memory_is_bounded_by_the_keys_not_the_trace() {
    let lines = std::env::var("SOAK_LINES").map_or(300_000, |lines| lines.parse().unwrap());
    // Most of this is the unoptimized program itself.
    const MAX_RESIDENT_KIB: u64 = 24 * 1024;
    let mut child = tollgate(&["replay", "--limit", BUCKET, "-"]).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut decisions = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let (mut bytes, mut buffer) = (0, vec![0; 64 * 1024]);
        loop {
            match decisions.read(&mut buffer).unwrap() {
                0 => return bytes,
                read => bytes += read,
            }
        }
    });
    let padding = "x".repeat(100);
    stdin.write_all(b"at_us,key\n").unwrap();
    for at_us in 0..lines {
        writeln!(stdin, "{at_us},{padding}{}", at_us % 10).unwrap();
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    drop(stdin);
    assert!(child.wait().unwrap().success());
    assert!(reader.join().unwrap() > 2 * 1024 * MAX_RESIDENT_KIB as usize);
    assert!(peak_kib < MAX_RESIDENT_KIB, "{peak_kib} KiB resident");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// For any bytes the exit code is 0 or 2. With 2, the message has a line number.
    #[test]
    fn replay_does_not_panic_on_any_trace(
        has_header: bool,
        lines in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..40),
                "[0-9]{0,20},[a-c\"]{0,3},[0-9-]{0,20}".prop_map(String::into_bytes),
                "[0-9]{1,15},[a-c],[1-9]".prop_map(String::into_bytes),
            ],
            0..8,
        ),
    ) {
        let mut trace = if has_header { b"at_us,key,cost\n".to_vec() } else { Vec::new() };
        trace.extend(lines.join(&b'\n'));
        let output = replay("sliding-window-counter limit=3 window=10us", &trace);
        match output.status.code() {
            Some(0) => {}
            Some(2) => {
                let line = stderr(&output).strip_prefix("error: standard input:").unwrap();
                prop_assert!(line.starts_with(|first: char| first.is_ascii_digit()), "{line}");
            }
            other => prop_assert!(false, "{other:?}: {}", stderr(&output)),
        }
    }
}
