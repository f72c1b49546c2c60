//! Files on disk: the configuration, and the files that it names.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;
use tollgate::rules::Config;

struct Directory(TempDir);

impl Directory {
    fn with(files: &[(&str, &[u8])]) -> Directory {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        Directory(directory)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The problems of a file, without the directory's path.
    fn problems(&self, name: &str) -> String {
        let problems = match Config::load(self.path(name)) {
            Ok(config) => config.warnings().to_string(),
            Err(problems) => problems.to_string(),
        };
        problems.replace(&format!("{}/", self.0.path().display()), "")
    }
}

const LIMITS: &[u8] = b"limits: {}\napi_keys: { secret-1: pro }\napi_keys_file: keys.yaml\n";

#[test]
fn api_keys_are_read_from_a_second_file() {
    let files: &[(&str, &[u8])] = &[("limits.yaml", LIMITS), ("keys.yaml", b"secret-2: free\n")];
    let directory = Directory::with(files);
    let config = Config::load(directory.path("limits.yaml")).unwrap();
    let together = "limits: {}\napi_keys: { secret-1: pro, secret-2: free }\n";
    assert_eq!(config, Config::parse("limits.yaml", together).unwrap());
}

#[test]
fn problems_name_the_file_they_are_in() {
    let mut report = String::new();
    for (name, files) in [
        ("no such file", &[][..]),
        ("not UTF-8", &[("limits.yaml", &b"limits: {}\n# \xff\n"[..])]),
        ("no file of keys", &[("limits.yaml", LIMITS)]),
        ("keys that are not UTF-8", &[("limits.yaml", LIMITS), ("keys.yaml", b"a: b\n\n\xff")]),
        ("no keys", &[("limits.yaml", LIMITS), ("keys.yaml", b"")]),
        ("a list of keys", &[("limits.yaml", LIMITS), ("keys.yaml", b"- secret\n")]),
        ("a key in both", &[("limits.yaml", LIMITS), ("keys.yaml", b"a: b\nsecret-1: free\n")]),
        ("no YAML", &[("limits.yaml", LIMITS), ("keys.yaml", b"a: b\nsecret-1: {\n")]),
        (
            "both wrong",
            &[("limits.yaml", &[b"rules: {}\n", LIMITS].concat()), ("keys.yaml", b"a: b c\n")],
        ),
    ] {
        let problems = Directory::with(files).problems("limits.yaml");
        assert!(!problems.contains("secret"), "{problems}");
        report += &format!("# {name}\n{problems}\n\n");
    }
    insta::assert_snapshot!(report);
}

const BLOCKING: &[u8] = b"networks: { blocked: { file: blocked.txt } }
rules: [{ name: a, domain: d, when: { ip: { networks: blocked } }, key: [], limit: block }]
";

#[test]
fn networks_are_read_from_a_second_file() {
    let networks = "\u{feff}# all of them\r\n\n198.51.100.0/24 # one\r\n\t192.0.2.7;two\n198.51.100.0/24\n2001:db8::/32";
    let files = [("limits.yaml", BLOCKING), ("blocked.txt", networks.as_bytes())];
    let config = Config::load(Directory::with(&files).path("limits.yaml")).unwrap();
    let text = str::from_utf8(BLOCKING).unwrap();
    let listed =
        text.replace("{ file: blocked.txt }", "[192.0.2.7, 198.51.100.0/24, 2001:db8::/32]");
    assert_eq!(config, Config::parse("limits.yaml", listed).unwrap());
}

#[test]
fn errors_in_a_file_of_networks_have_its_line() {
    let mut report = String::new();
    for (name, networks) in [
        ("no file", None),
        ("empty", Some(&b"# nothing yet\n"[..])),
        ("not UTF-8", Some(b"10.0.0.0/8\n \xff\n")),
        (
            "no networks",
            Some(b"10.0.0.0/8\n  300.1.1.1 # bad\n\n10.0.0.1/24\n10.0.0.0/33\nexample.com"),
        ),
        ("two on a line", Some(b"10.0.0.0/8 11.0.0.0/8\n10.0.0.0/8,\n")),
        ("YAML", Some(b"- 10.0.0.0/8\n")),
        ("a file of something else", Some(b"secret-1: pro\n5ec2e7\n")),
    ] {
        let networks = networks.map(|networks| ("blocked.txt", networks));
        let files: Vec<(&str, &[u8])> =
            networks.into_iter().chain([("limits.yaml", BLOCKING)]).collect();
        let problems = Directory::with(&files).problems("limits.yaml");
        assert!(!problems.contains("secret") && !problems.contains("5ec2e7"), "{problems}");
        report += &format!("# {name}\n{problems}\n\n");
    }
    insta::assert_snapshot!(report);
}

#[test]
fn files_of_networks_are_bounded() {
    let problems = |networks: Vec<u8>| {
        let files = [("limits.yaml", BLOCKING), ("blocked.txt", &networks)];
        Directory::with(&files).problems("limits.yaml")
    };
    assert_eq!(problems(b"10.0.0.0/8\n".repeat(500_000)), "0 warnings");
    let many = problems(b"10.0.0.0/8\n".repeat(500_001));
    assert!(many.contains("limits.yaml:1:22: more than 500000 networks in all sets"), "{many}");
    let large = problems(vec![b'#'; (16 << 20) + 1]);
    assert!(large.contains("`blocked.txt` cannot be read: it is larger than 16 MiB"), "{large}");
    let sets: String = (0..65).map(|set| format!("  s{set}: [10.0.0.0/8]\n")).collect();
    let sets = Config::parse("limits.yaml", format!("limits: {{}}\nnetworks:\n{sets}"));
    let sets = sets.unwrap_err().to_string();
    assert!(sets.contains("65 sets of networks, above the maximum of 64"), "{sets}");
}

/// A configuration with token keys in files.
const TOKENS: &[u8] = b"limits: {}
identity:
  jwt:
    keys:
      - { algorithm: HS256, secret_file: hush.txt }
      - { algorithm: RS256, public_key_file: rsa.pem }
";
const SECRET: &[u8] = b"hush-hush-hush-hush-hush-hush-hu";
const PEM: &[u8] = concat!(rsa!("\n"), "hush\n").as_bytes();

#[test]
fn token_keys_are_read_from_files() {
    let secrets = [SECRET, b"\n"].concat();
    let directory =
        Directory::with(&[("limits.yaml", TOKENS), ("hush.txt", &secrets), ("rsa.pem", PEM)]);
    assert_eq!(directory.problems("limits.yaml"), "0 warnings");
    let from_pipe = Config::read("a pipe", TOKENS, directory.0.path()).unwrap();
    assert_eq!(from_pipe, Config::load(directory.path("limits.yaml")).unwrap());
    fs::write(directory.path("hush.txt"), [SECRET, b"!"].concat()).unwrap();
    assert_ne!(from_pipe, Config::load(directory.path("limits.yaml")).unwrap());
}

#[test]
fn problems_of_a_key_file_point_to_its_name() {
    let large = vec![b'h'; (64 << 10) + 1];
    let mut report = String::new();
    for (name, files) in [
        ("no files", &[][..]),
        ("a short secret", &[("hush.txt", &SECRET[1..]), ("rsa.pem", PEM)]),
        (
            "a line end is no part of the secret",
            &[("hush.txt", b"hush-hush-hush-hush-hush-hush-h\r\n"), ("rsa.pem", PEM)],
        ),
        ("each in the other's place", &[("hush.txt", PEM), ("rsa.pem", SECRET)]),
        (
            "a PEM after an empty line",
            &[("hush.txt", b"\n-----BEGIN EC PRIVATE KEY-----\nhush"), ("rsa.pem", PEM)],
        ),
        (
            "a PEM after some text",
            &[("hush.txt", b"hush-hush-hush-hush-hush-hush-hush\n-----BEGIN "), ("rsa.pem", PEM)],
        ),
        ("a private key", &[("hush.txt", SECRET), ("rsa.pem", b"-----BEGIN PRIVATE KEY-----\n")]),
        ("too large", &[("hush.txt", &large), ("rsa.pem", &large)]),
        ("empty", &[("hush.txt", b""), ("rsa.pem", b"")]),
        ("not UTF-8", &[("hush.txt", &[0xff; 32]), ("rsa.pem", &[0xff; 32])]),
    ] {
        let files = [files, &[("limits.yaml", TOKENS)]].concat();
        let problems = Directory::with(&files).problems("limits.yaml");
        assert!(!problems.contains("hush"), "{problems}");
        report += &format!("# {name}\n{problems}\n\n");
    }
    insta::assert_snapshot!(report);
}

#[cfg(feature = "jwt")]
#[test]
fn broken_key_file_is_reported_where_it_is_named() {
    let cut = PEM.split_at(PEM.len() / 2).0;
    let files: [(&str, &[u8]); 3] =
        [("limits.yaml", TOKENS), ("hush.txt", SECRET), ("rsa.pem", cut)];
    let problems = Directory::with(&files).problems("limits.yaml");
    let expected =
        "error: limits.yaml:6:46: `public_key_file` has a PEM that is damaged, or more than one\n";
    assert!(problems.starts_with(expected), "{problems}");
}

/// A configuration with this number of ES256 and RS256 keys without ids, and one with an id.
fn nameless([es256, rs256]: [usize; 2]) -> String {
    let es256 = concat!("      - { algorithm: ES256, public_key: ", p256!(), " }\n").repeat(es256);
    let rs256 = concat!("      - { algorithm: RS256, public_key: ", rsa!(), " }\n").repeat(rs256);
    let named = concat!("      - { algorithm: ES256, id: a, public_key: ", p256!(), " }\n");
    format!("limits: {{}}\nidentity:\n  jwt:\n    keys:\n{named}{es256}{rs256}")
}

#[test]
fn eight_keys_of_an_algorithm_may_have_no_id() {
    assert!(Config::parse("limits.yaml", nameless([8, 8])).is_ok());
    for (keys, lines) in
        [([9, 0], &[14][..]), ([0, 9], &[14]), ([20, 8], &[14]), ([12, 20], &[14, 26])]
    {
        let problems = Config::parse("limits.yaml", nameless(keys)).unwrap_err();
        let found: Vec<_> = problems.errors().filter_map(|problem| problem.line()).collect();
        assert_eq!(found, lines, "{keys:?}");
    }
}

#[test]
fn trusted_networks_headers_and_keys_are_bounded() {
    let net = |place: usize| format!("10.{}.{}.0/24", place >> 8, place & 255);
    let header = |place| format!("x-{place}");
    let key = |place| format!("{{ algorithm: ES256, id: {place}, public_key: {} }}", p256!());
    let list =
        |count, item: &dyn Fn(usize) -> String| (0..count).map(item).collect::<Vec<_>>().join(", ");
    let text = |[nets, headers, keys]: [usize; 3]| {
        let (nets, headers, keys) = (list(nets, &net), list(headers, &header), list(keys, &key));
        format!(
            "limits: {{}}\nidentity:\n  trusted_proxies: [{nets}]\n  trusted_headers: [{headers}]\n  jwt: {{ keys: [{keys}] }}\n"
        )
    };
    assert!(Config::parse("limits.yaml", text([4_096, 64, 64])).is_ok());
    let problems = Config::parse("limits.yaml", text([4_097, 65, 65])).unwrap_err();
    let messages: Vec<&str> = problems.errors().map(|problem| problem.message()).collect();
    let expected = [
        "4097 networks, above the maximum of 4096",
        "65 headers, above the maximum of 64",
        "65 keys, above the maximum of 64",
    ];
    assert_eq!(messages, expected);
}

#[test]
fn excluded_values_and_replaced_rules_are_bounded() {
    let list = |count: usize| (0..count).map(|at| format!("r{at}")).collect::<Vec<_>>().join(", ");
    let text = |values, replaced| {
        let others: String = (0..1_001)
            .map(|at| format!("  - {{ name: r{at}, domain: d, key: [], limit: allow }}\n"))
            .collect();
        let (values, replaced) = (list(values), list(replaced));
        format!(
            "rules:\n  - {{ name: a, domain: d, key: [], limit: allow, when: {{ x: {{ none_of: [{values}] }} }}, replaces: [{replaced}] }}\n{others}"
        )
    };
    assert!(Config::parse("limits.yaml", text(10_000, 1_000)).is_ok());
    let problems = Config::parse("limits.yaml", text(10_001, 1_001)).unwrap_err();
    let messages: Vec<&str> = problems.errors().map(|problem| problem.message()).collect();
    let expected =
        ["10001 values, above the maximum of 10000", "1001 rules, above the maximum of 1000"];
    assert_eq!(messages, expected);
}

#[test]
fn tests_and_attributes_are_bounded() {
    let list = |count: usize, item: &dyn Fn(usize) -> String| {
        (0..count).map(item).collect::<Vec<_>>().join(", ")
    };
    let text = |[tests, sent, declared]: [usize; 3]| {
        let test = |at| format!("{{ name: t{at}, expect: {{ a: allow }} }}");
        let sent = list(sent, &|at| format!("x{at}: 1"));
        let most = format!("{{ name: most, attributes: {{ {sent} }}, expect: {{ a: allow }} }}");
        let (tests, declared) = (list(tests - 1, &test), list(declared, &|at| format!("x{at}")));
        format!(
            "caller_attributes: [{declared}]\nrules: [{{ name: a, domain: d, key: [], limit: allow }}]\n\
             tests: [{most}, {tests}]\n"
        )
    };
    let config = Config::parse("limits.yaml", text([1_000, 256, 256])).unwrap();
    assert_eq!(config.tests(), 1_000);
    for (counts, expected) in [
        ([1_001, 256, 256], "1001 tests, above the maximum of 1000"),
        ([1_000, 257, 256], "a test of more than 256 attributes"),
        ([1_000, 256, 257], "257 attributes, above the maximum of 256"),
    ] {
        let problems = Config::parse("limits.yaml", text(counts)).unwrap_err();
        let messages: Vec<&str> = problems.errors().map(|problem| problem.message()).collect();
        assert_eq!(messages, [expected]);
    }
}

/// Comparing every pair of rules would take too long.
#[test]
fn missing_key_warning_compares_rules_that_share_a_condition() {
    let warnings = |others: usize, condition: &dyn Fn(usize) -> String| {
        let other = |at| {
            let when = condition(at);
            format!("  - {{ name: r{at}, domain: d, when: {{ {when} }}, key: [ip], limit: a }}\n")
        };
        let others: String = (0..others).map(other).collect();
        let text = format!(
            "limits: {{ a: fixed-window limit=1 window=1s }}\nrules:\n\
             \x20 - {{ name: by-key, domain: d, when: {{ path: /7 }}, key: [api_key], limit: a }}\n{others}"
        );
        Config::parse("limits.yaml", text).unwrap().warnings().iter().count()
    };
    assert_eq!(warnings(7, &|at| format!("path: /{at}")), 1);
    assert_eq!(warnings(3_000, &|at| format!("path: /{}", at + 8)), 1);
    assert_eq!(warnings(3_000, &|at| format!("path: /{at}")), 0, "one rule has the same path");
    assert_eq!(warnings(1_000, &|at| format!("path: /7, tenant: t{at}")), 1);
    assert_eq!(warnings(1_001, &|at| format!("path: /7, tenant: t{at}")), 0, "too many");
}

#[test]
fn id_of_a_key_has_at_most_256_characters() {
    let text = |length| {
        let id = "é".repeat(length);
        format!(
            "limits: {{}}\nidentity: {{ jwt: {{ keys: [{{ algorithm: ES256, id: {id}, public_key: {} }}] }} }}",
            p256!()
        )
    };
    assert!(Config::parse("limits.yaml", text(256)).is_ok());
    assert!(Config::parse("limits.yaml", text(257)).is_err());
}

#[test]
fn oversized_file_from_a_custom_reader_is_refused() {
    let read = |_: &std::path::Path| Ok(vec![b'h'; (64 << 10) + 1]);
    let problems = Config::parse_with("limits.yaml", TOKENS, read).unwrap_err().to_string();
    let expected = "limits.yaml:5:42: `secret_file` cannot be read: it is larger than 64 KiB\n  \
                    name the file of the key alone\n";
    assert!(problems.contains(expected), "{problems}");
}

#[test]
fn directory_in_place_of_a_file_is_an_error() {
    let directory = Directory::with(&[]);
    fs::create_dir(directory.path("limits.yaml")).unwrap();
    let expected = "error: limits.yaml: cannot be read: it is a directory\n  \
                    name a YAML file of limits and rules\n1 error";
    assert_eq!(directory.problems("limits.yaml"), expected);
}

#[cfg(unix)]
#[test]
fn pipe_is_refused_before_it_is_opened() {
    let directory = Directory::with(&[("limits.yaml", LIMITS)]);
    for name in ["keys.yaml", "pipe.yaml"] {
        let made = Command::new("mkfifo").arg(directory.path(name)).status().unwrap();
        assert!(made.success());
    }
    let expected = "error: pipe.yaml: cannot be read: it is not a regular file\n  \
                    name a YAML file of limits and rules\n1 error";
    assert_eq!(directory.problems("pipe.yaml"), expected);
    let expected = "error: limits.yaml:3:16: `keys.yaml` cannot be read: it is not a regular file\n  \
         name a file of keys and tiers, relative to this one\n1 error";
    assert_eq!(directory.problems("limits.yaml"), expected);
}

#[test]
fn config_read_from_a_pipe_finds_files_in_the_given_directory() {
    let directory = Directory::with(&[("keys.yaml", b"secret-2: free\n")]);
    let config = Config::read("a pipe", LIMITS, directory.0.path()).unwrap();
    let together = "limits: {}\napi_keys: { secret-1: pro, secret-2: free }\n";
    assert_eq!(config, Config::parse("limits.yaml", together).unwrap());
    let endless = Config::read("a pipe", std::io::repeat(b' '), directory.0.path()).unwrap_err();
    assert!(endless.to_string().starts_with("error: a pipe:1:1: larger than 4 MiB\n"));
}

#[test]
fn file_that_names_itself_is_an_error() {
    let text = "limits: {}\napi_keys_file: ./limits.yaml\n";
    let directory = Directory::with(&[("limits.yaml", text.as_bytes())]);
    let expected = "error: limits.yaml:2:16: `./limits.yaml` cannot be read: it is this file\n  \
                    name a file of keys and tiers, relative to this one\n1 error";
    assert_eq!(directory.problems("limits.yaml"), expected);
}

#[test]
fn oversized_files_are_refused() {
    let large = |mib: usize| [b"limits: {}\n#".as_slice(), &vec![b'x'; mib << 20]].concat();
    let directory = Directory::with(&[("limits.yaml", &large(4))]);
    assert!(directory.problems("limits.yaml").contains("larger than 4 MiB"));
    let directory = Directory::with(&[("limits.yaml", LIMITS), ("keys.yaml", &large(16))]);
    let problems = directory.problems("limits.yaml");
    let expected = "limits.yaml:3:16: `keys.yaml` cannot be read: it is larger than 16 MiB\n  \
                    keep only the keys that need a tier\n";
    assert!(problems.contains(expected), "{problems}");
}

#[test]
fn oversized_text_and_too_many_items_are_refused() {
    let refused = |text: &str| Config::parse("limits.yaml", text).unwrap_err().to_string();
    assert!(refused(&" ".repeat((4 << 20) + 1)).contains("larger than 4 MiB"));
    let items = "- a\n".repeat(1_000_001);
    assert!(refused(&items).contains("1000001:3: more than 1000000 texts"), "{}", refused(&items));
    let rule = |place| format!("  - {{ name: r{place}, domain: d, key: [], limit: a }}\n");
    let rules: String = (0..32_769).map(rule).collect();
    let text = format!("limits: {{ a: fixed-window limit=1 window=1s }}\nrules:\n{rules}");
    assert!(refused(&text).contains("32771:5: more than 32768 rules"), "{}", refused(&text));
}

#[test]
fn first_100_problems_are_listed_and_all_are_counted() {
    let text: String = (0..5_000).map(|place| format!("x{place}: 1\n")).collect();
    let problems = Config::parse("limits.yaml", &text).unwrap_err();
    let printed = problems.to_string();
    assert_eq!(printed.lines().count(), 2 * 100 + 2);
    assert!(printed.ends_with("\nand 4901 more\n5001 errors"), "{printed}");
    assert_eq!(problems.iter().count(), 1_000);
}

#[test]
fn warnings_never_hide_an_error() {
    let warned: String = (0..2_000)
        .map(|place| format!("  - {{ name: r{place}, domain: d, key: [header.a], limit: a }}\n"))
        .collect();
    let limits = "limits: { a: fixed-window limit=1 window=1s }";
    let text =
        format!("{limits}\nrules:\n{warned}  - {{ name: last, domain: d, key: [], limit: b }}\n");
    let problems = Config::parse("limits.yaml", &text).unwrap_err();
    assert_eq!((problems.errors().count(), problems.warnings().count()), (1, 1_000));
    let printed = problems.to_string();
    assert!(printed.contains("error: limits.yaml:2003:46: there is no limit `b`"), "{printed}");
    assert!(printed.ends_with("\nand 1901 more\n1 error, 2000 warnings"), "{printed}");
    assert_eq!(printed.lines().count(), 2 * 100 + 2);
}

#[test]
fn misspelt_field_is_not_reported_as_missing_too() {
    let rule = |place| format!("  - {{ nmae: r{place}, domain: d, key: [], limit: allow }}\n");
    let rules: String = (0..5_000).map(rule).collect();
    let problems = Config::parse("limits.yaml", format!("rules:\n{rules}")).unwrap_err();
    assert!(problems.to_string().ends_with("\n5000 errors"), "{problems}");
}

#[test]
fn misspelt_limit_is_found_among_thousands() {
    let limit = |place| format!("  limit-{place}: fixed-window limit=1 window=1s\n");
    let limits: String = (0..5_000).map(limit).collect();
    for (name, meant) in [("lmiit-4999", "limit-4999"), ("blok", "block")] {
        let rule = format!("  - {{ name: a, domain: d, key: [], limit: {name} }}");
        let text = format!("limits:\n{limits}rules:\n{rule}\n");
        let problems = Config::parse("limits.yaml", &text).unwrap_err();
        let problem = problems.errors().next().unwrap();
        assert_eq!(problem.remedy(), format!("did you mean `{meant}`?"));
    }
}

#[test]
fn api_key_has_at_most_1024_bytes() {
    let text = |bytes| format!("limits: {{}}\napi_keys:\n  {}: pro\n", "k".repeat(bytes));
    assert!(Config::parse("limits.yaml", text(1_024)).is_ok());
    assert!(Config::parse("limits.yaml", text(1_025)).is_err());
    let quoted = format!("{{limits: {{}}, api_keys: {{{}: pro}}}}", "k".repeat(1_025));
    let problems = Config::parse("limits.yaml", quoted).unwrap_err().to_string();
    assert!(problems.contains("an API key that is empty or too long\n  use 1 to 1024 bytes"));
}

#[test]
fn overlong_parameter_is_reported_itself() {
    let digits = "1".repeat(1_025);
    let text =
        format!("limits: {{ a: {{ algorithm: fixed-window, limit: {digits}, window: 0s }} }}");
    let expected = "error: limits.yaml:1:48: `limit` is 1025 bytes long\n  use a shorter one\n\
                    error: limits.yaml:1:1083: `window` is zero\n  use a value above zero\n2 errors";
    assert_eq!(Config::parse("limits.yaml", text).unwrap_err().to_string(), expected);
}

#[test]
fn debug_output_shows_no_key() {
    let text = "limits: {}\napi_keys: { secret: pro }\nrules:\n  - { name: a, domain: d, key: [api_key], limit: allow, overrides: [{ key: { api_key: secret }, limit: block }] }\n";
    let config = Config::parse("limits.yaml", text).unwrap();
    assert_eq!(
        format!("{config:?}"),
        "Config { limits: 0, rules: 1, api_keys: 1, warnings: 1, .. }"
    );
}
