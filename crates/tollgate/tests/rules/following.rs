//! Rules that follow their file.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate::Limiter;
use tollgate::rules::{Attributes, RulesFile, Status};

use crate::log::Log;

/// Long enough for any machine: a test that reaches it has failed. Well below the interval of polling, so that
/// the test fails if only polling notices a change.
const PATIENCE: Duration = Duration::from_secs(8);

fn text(limit: u64) -> String {
    format!(
        "limits: {{ it: fixed-window limit={limit} window=1d }}\n\
         rules: [{{ name: it, domain: api, key: [], limit: it }}]\n"
    )
}

fn size(file: &RulesFile) -> u64 {
    file.rules().limit("it").unwrap().limit().size()
}

/// Waits until `is_so` returns true for the file's status.
fn until(file: &RulesFile, what: &str, is_so: impl Fn(&Status) -> bool) -> Status {
    let began = Instant::now();
    loop {
        let status = file.status();
        if is_so(&status) {
            return status;
        }
        assert!(began.elapsed() < PATIENCE, "not in time: {what}: {status:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn until_size(file: &RulesFile, wanted: u64) {
    let began = Instant::now();
    while size(file) != wanted {
        assert!(began.elapsed() < PATIENCE, "{} instead of {wanted}", size(file));
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn open(path: &Path) -> RulesFile {
    RulesFile::open(&Limiter::memory(), path).unwrap()
}

#[test]
fn file_with_failing_tests_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    let tested = |limit, expected| {
        text(limit) + &format!("tests: [{{ name: all, expect: {{ it: {expected} }} }}]\n")
    };
    fs::write(&path, tested(1, "it")).unwrap();
    let file = open(&path);
    assert_eq!(size(&file), 1);
    fs::write(&path, tested(2, "block")).unwrap();
    let message = file.reload().unwrap_err().to_string();
    assert!(
        message.contains("test `all`: rule `it` should spend `block`, and spends `it`"),
        "{message}"
    );
    assert_eq!((size(&file), file.status().failures), (1, 1));
    assert!(file.status().problem.unwrap().contains("rules.yaml:3:"));
    fs::write(&path, tested(2, "it")).unwrap();
    assert!(file.reload().is_ok());
    assert_eq!((size(&file), file.status().problem), (2, None));
}

#[test]
fn rewritten_or_replaced_file_is_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    fs::write(&path, text(1)).unwrap();
    let file = open(&path);
    let _following = file.follow().unwrap();
    fs::write(&path, text(2)).unwrap();
    until_size(&file, 2);
    // Editors and configuration management replace a file by a rename.
    let other = directory.path().join("rules.yaml.tmp");
    fs::write(&other, text(3)).unwrap();
    fs::rename(&other, &path).unwrap();
    until_size(&file, 3);
    let status = file.status();
    assert_eq!((status.generation, status.reloads, status.failures), (3, 2, 0));
    assert_eq!(file.rules().generation(), 3);
}

/// In a mounted ConfigMap the file is a link into `..data`, which is a link to a directory. An update replaces that link
/// in a single rename.
#[test]
fn mounted_configmap_is_read_again_when_its_link_is_swapped() {
    let directory = tempfile::tempdir().unwrap();
    let mount = directory.path();
    let publish = |name: &str, limit: u64| {
        fs::create_dir(mount.join(name)).unwrap();
        fs::write(mount.join(name).join("rules.yaml"), text(limit)).unwrap();
        symlink(name, mount.join("..data_tmp")).unwrap();
        fs::rename(mount.join("..data_tmp"), mount.join("..data")).unwrap();
    };
    publish("..2026_01", 1);
    symlink("..data/rules.yaml", mount.join("rules.yaml")).unwrap();
    let file = open(&mount.join("rules.yaml"));
    let _following = file.follow().unwrap();
    publish("..2026_02", 2);
    until_size(&file, 2);
    fs::remove_dir_all(mount.join("..2026_01")).unwrap();
    publish("..2026_03", 3);
    until_size(&file, 3);
}

/// `current` is a link to the directory of a release.
#[test]
fn file_is_read_again_when_a_directory_link_in_its_path_is_swapped() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    for (release, limit) in [("one", 1), ("two", 2)] {
        fs::create_dir(root.join(release)).unwrap();
        fs::write(root.join(release).join("rules.yaml"), text(limit)).unwrap();
    }
    symlink("one", root.join("current")).unwrap();
    let file = open(&root.join("current").join("rules.yaml"));
    let _following = file.follow().unwrap();
    symlink("two", root.join("next")).unwrap();
    fs::rename(root.join("next"), root.join("current")).unwrap();
    until_size(&file, 2);
    fs::write(root.join("two").join("rules.yaml"), text(3)).unwrap();
    until_size(&file, 3);
}

/// The file is a link whose target is behind another link, in other directories.
#[test]
fn file_is_read_again_when_a_link_behind_a_link_is_swapped() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    for (release, limit) in [("releases/one", 1), ("releases/two", 2)] {
        fs::create_dir_all(root.join(release)).unwrap();
        fs::write(root.join(release).join("rules.yaml"), text(limit)).unwrap();
    }
    fs::create_dir(root.join("etc")).unwrap();
    symlink("one", root.join("releases/current")).unwrap();
    symlink("../releases/current/rules.yaml", root.join("etc/rules.yaml")).unwrap();
    let file = open(&root.join("etc/rules.yaml"));
    let _following = file.follow().unwrap();
    symlink("two", root.join("releases/next")).unwrap();
    fs::rename(root.join("releases/next"), root.join("releases/current")).unwrap();
    until_size(&file, 2);
}

#[test]
fn bad_file_keeps_the_old_rules_and_is_reported() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    fs::write(&path, text(1)).unwrap();
    let file = open(&path);
    let _following = file.follow().unwrap();
    fs::write(&path, "limits: { it: fixed-window limit=2 window=1x }\n").unwrap();
    let status = until(&file, "refused", |status| status.failures > 0);
    let problem = status.problem.unwrap();
    assert!(problem.contains("rules.yaml:1:"), "{problem}");
    assert_eq!((status.generation, status.reloads, size(&file)), (1, 0, 1));
    fs::remove_file(&path).unwrap();
    let status = until(&file, "gone", |status| status.failures > 1);
    assert!(status.problem.unwrap().contains("rules.yaml"));
    assert!(file.rules().check("api", &Attributes::new()).now().unwrap().is_allowed());
    fs::write(&path, text(4)).unwrap();
    until_size(&file, 4);
    assert_eq!(file.status().problem, None);
}

#[test]
fn change_of_the_api_keys_file_reloads_the_rules() {
    let directory = tempfile::tempdir().unwrap();
    let (path, keys) = (directory.path().join("rules.yaml"), directory.path().join("keys.yaml"));
    let rules = "api_keys_file: keys.yaml
limits: { free: fixed-window limit=1 window=1d, pro: fixed-window limit=9 window=1d }
rules:
  - { name: it, domain: api, key: [api_key], limit: { by: tier, tiers: { pro: pro }, default: free } }
";
    fs::write(&path, rules).unwrap();
    fs::write(&keys, "k: free\n").unwrap();
    let file = open(&path);
    let _following = file.follow().unwrap();
    let request = Attributes::new().claimed("api_key", "k");
    let remaining = || file.rules().check("api", &request).now().unwrap().remaining();
    assert_eq!(remaining(), Some(0));
    let next = directory.path().join("next.yaml");
    fs::write(&next, "k: pro\n").unwrap();
    fs::rename(&next, &keys).unwrap();
    until(&file, "reloaded", |status| status.reloads == 1);
    assert_eq!(remaining(), Some(7), "spent units stay spent");
}

#[test]
fn change_of_a_file_of_networks_reloads_the_rules() {
    let directory = tempfile::tempdir().unwrap();
    let networks = directory.path().join("blocked.txt");
    let rules = "networks: { blocked: { file: blocked.txt } }
rules: [{ name: it, domain: api, when: { ip: { networks: blocked } }, key: [], limit: block }]
";
    fs::write(directory.path().join("rules.yaml"), rules).unwrap();
    fs::write(&networks, "192.0.2.0/24\n").unwrap();
    let file = open(&directory.path().join("rules.yaml"));
    let _following = file.follow().unwrap();
    let request = Attributes::new().with("ip", "198.51.100.7");
    let is_allowed = || file.rules().check("api", &request).now().unwrap().is_allowed();
    assert!(is_allowed());
    // Replaced at once: of a file that is written in place, a follower may read the empty beginning, which is valid too.
    let next = directory.path().join("next.txt");
    fs::write(&next, "192.0.2.0/24\n198.51.100.0/24\n").unwrap();
    fs::rename(&next, &networks).unwrap();
    until(&file, "reloaded", |status| status.reloads == 1);
    assert!(!is_allowed());
}

/// For file systems that report no changes.
#[test]
fn polled_file_is_read_again_when_it_differs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    fs::write(&path, text(1)).unwrap();
    let file = open(&path);
    let _following = file.poll_every(Duration::from_millis(5)).unwrap();
    for limit in 2..5 {
        fs::write(&path, text(limit)).unwrap();
        until_size(&file, limit);
    }
    // A poll during a write may read a part of the file, which is then a problem until the next poll.
    until(&file, "no problem", |status| status.reloads >= 3 && status.problem.is_none());
}

#[test]
fn reloads_and_refused_files_are_logged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    fs::write(&path, text(1)).unwrap();
    let file = open(&path);
    let log = Log::default();
    let lines = Arc::clone(&log.lines);
    tracing::subscriber::with_default(log, || {
        file.reload().unwrap();
        fs::write(&path, "limits: {}\nrule: []\n").unwrap();
        file.reload().unwrap_err();
    });
    let lines = lines.lock().unwrap();
    assert!(lines[0].starts_with("INFO rules reloaded"), "{lines:?}");
    assert!(lines[1].starts_with("ERROR rules not reloaded"), "{lines:?}");
    assert!(lines[1].contains("rules.yaml:2:1: the file has no field `rule`"), "{lines:?}");
    assert_eq!(lines.len(), 2);
}

#[test]
fn missing_file_is_an_error_when_opened() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("rules.yaml");
    let error = RulesFile::open(&Limiter::memory(), &missing).unwrap_err().to_string();
    assert!(error.contains("rules.yaml"), "{error}");
}

#[tokio::test]
async fn hangup_reads_an_unchanged_file_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    fs::write(&path, text(1)).unwrap();
    let file = open(&path);
    let _following = file.follow().unwrap().and_on_hangup().unwrap();
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::HUP).unwrap();
    let began = Instant::now();
    while file.status().reloads == 0 {
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!((file.status().generation, size(&file)), (2, 1));
}

#[test]
fn following_hangups_needs_a_runtime() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    fs::write(&path, text(1)).unwrap();
    assert!(open(&path).follow().unwrap().and_on_hangup().is_err());
}

#[test]
fn file_is_not_read_again_when_its_follower_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    fs::write(&path, text(1)).unwrap();
    let file = open(&path);
    drop(file.follow().unwrap());
    fs::write(&path, text(2)).unwrap();
    assert_eq!(size(&file), 1);
    assert_eq!(file.reload().unwrap(), 2);
    assert_eq!(size(&file), 2);
}
