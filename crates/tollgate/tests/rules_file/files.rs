//! Files on disk: the one that is named, and the one it names.

use std::fs;
use std::path::PathBuf;

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

    /// What is wrong with a file, without the directory's name.
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
fn keys_are_read_from_a_file_beside() {
    let files: &[(&str, &[u8])] = &[("limits.yaml", LIMITS), ("keys.yaml", b"secret-2: free\n")];
    let directory = Directory::with(files);
    let config = Config::load(directory.path("limits.yaml")).unwrap();
    let together = "limits: {}\napi_keys: { secret-1: pro, secret-2: free }\n";
    assert_eq!(config, Config::parse("limits.yaml", together).unwrap());
}

#[test]
fn what_is_wrong_with_either_file_names_it() {
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

#[test]
fn a_directory_is_no_file() {
    let directory = Directory::with(&[]);
    fs::create_dir(directory.path("limits.yaml")).unwrap();
    let expected = "error: limits.yaml: cannot be read: it is a directory\n  \
                    name a YAML file of limits and rules\n1 error";
    assert_eq!(directory.problems("limits.yaml"), expected);
}

#[test]
fn files_that_are_too_large_are_refused() {
    let large = |mib: usize| [b"limits: {}\n#".as_slice(), &vec![b'x'; mib << 20]].concat();
    let directory = Directory::with(&[("limits.yaml", &large(4))]);
    assert!(directory.problems("limits.yaml").contains("larger than 4 MiB"));
    let directory = Directory::with(&[("limits.yaml", LIMITS), ("keys.yaml", &large(16))]);
    let problems = directory.problems("limits.yaml");
    assert!(
        problems.contains("limits.yaml:3:16: `keys.yaml` cannot be read: it is larger than 16 MiB")
    );
}

#[test]
fn a_text_that_is_too_large_or_has_too_much_in_it_is_refused() {
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
fn a_hundred_problems_are_listed_and_all_are_counted() {
    let text: String = (0..5_000).map(|place| format!("x{place}: 1\n")).collect();
    let problems = Config::parse("limits.yaml", &text).unwrap_err();
    let printed = problems.to_string();
    assert_eq!(printed.lines().count(), 2 * 100 + 2);
    assert!(printed.ends_with("\nand 4901 more\n5001 errors"), "{printed}");
    assert_eq!(problems.iter().count(), 1_000);
}
