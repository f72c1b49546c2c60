//! The compose file: two servers and a Redis.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

use crate::docker::exposed;
use crate::files::{
    COMPOSE, assert_valid, compose, is_any_decided_without_store, root, run, seconds, text, tool,
};
use crate::server::ServerProcess;

const RULES: &str = "examples/compose/rules/rules.yaml";

fn service(name: &str) -> Value {
    compose()["services"][name].clone()
}

/// Replaces `${NAME:-default}` with the default, and `$$` with `$`.
fn interpolated(text: &str) -> String {
    let mut parts = text.split("${");
    let mut out = parts.next().unwrap().to_owned();
    for part in parts {
        let (variable, rest) = part.split_once('}').unwrap();
        out += variable.split_once(":-").unwrap().1;
        out += rest;
    }
    out.replace("$$", "$")
}

fn environment(service: &Value) -> Vec<(String, String)> {
    let pairs = service["environment"].as_object().unwrap().iter();
    pairs.map(|(name, value)| (name.clone(), interpolated(value.as_str().unwrap()))).collect()
}

fn variable<'e>(environment: &'e [(String, String)], name: &str) -> &'e str {
    &environment.iter().find(|(each, _)| each == name).unwrap().1
}

#[test]
fn file_matches_the_compose_specification() {
    let args = ["--builtin-schema", "vendor.compose-spec", COMPOSE];
    run(tool("check-jsonschema").args(args));
}

#[test]
fn servers_differ_only_in_their_ports() {
    let [mut one, mut other] = ["tollgate-1", "tollgate-2"].map(service);
    for server in [&mut one, &mut other] {
        let ports = server["ports"].take();
        let inside = ports.as_array().unwrap().iter().map(|port| {
            let (outside, inside) = port.as_str().unwrap().rsplit_once(':').unwrap();
            assert!(
                outside.starts_with("127.0.0.1:"),
                "the port is open only to this machine: {outside}"
            );
            inside.parse().unwrap()
        });
        assert_eq!(inside.collect::<Vec<u16>>(), exposed());
    }
    assert_eq!(one, other);
    assert_eq!(one["depends_on"]["redis"]["condition"], "service_healthy");
    let build = root().join("examples/compose").join(one["build"].as_str().unwrap());
    assert!(build.join("Dockerfile").exists());
}

#[test]
fn rules_are_valid_and_at_the_path_of_the_server() {
    assert_valid(&text(RULES));
    let server = service("tollgate-1");
    let [volume] = &server["volumes"].as_array().unwrap()[..] else { panic!("one volume") };
    let [outside, inside, "ro"] = volume.as_str().unwrap().split(':').collect::<Vec<_>>()[..]
    else {
        panic!("{volume}")
    };
    let config = environment(&server);
    let file = variable(&config, "TOLLGATE_CONFIG").strip_prefix(inside).unwrap();
    assert!(root().join("examples/compose").join(outside).join(&file[1..]).exists());
}

#[test]
fn servers_are_ready_without_redis_when_rules_are_decided_without_it() {
    assert!(is_any_decided_without_store(&text(RULES)));
    assert_eq!(
        variable(&environment(&service("tollgate-1")), "TOLLGATE_READY_WITHOUT_STORE"),
        "true"
    );
}

#[test]
fn stopped_server_has_time_to_drain() {
    let server = service("tollgate-1");
    let environment = environment(&server);
    let drain = ["TOLLGATE_DRAIN_DELAY", "TOLLGATE_DRAIN_TIMEOUT"];
    let drain_s: u64 = drain.iter().map(|name| seconds(variable(&environment, name))).sum();
    assert!(seconds(server["stop_grace_period"].as_str().unwrap()) > drain_s);
}

/// The Redis of the file. It is started by the script of the file, on a Unix socket.
struct ComposeRedis {
    child: Child,
    directory: TempDir,
}

impl ComposeRedis {
    fn start() -> ComposeRedis {
        let redis = service("redis");
        assert_eq!(redis["entrypoint"], serde_json::json!(["sh", "-c"]));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().display();
        let script = interpolated(redis["command"][0].as_str().unwrap());
        let script = script.replace("/tmp/", &format!("{path}/"));
        let socket = format!(" --port 0 --unixsocket {path}/redis.sock --dir {path}");
        let child = Command::new("sh")
            .args(["-c", &format!("{}{socket}", script.trim_end())])
            .envs(environment(&redis))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        ComposeRedis { child, directory }
    }

    fn socket(&self) -> String {
        format!("{}/redis.sock", self.directory.path().display())
    }

    /// Runs the health check of the file.
    fn is_healthy(&self) -> bool {
        let check = service("redis")["healthcheck"]["test"][1].as_str().unwrap().to_owned();
        let check = check.replace("redis-cli", &format!("redis-cli -s {}", self.socket()));
        let mut sh = Command::new("sh");
        sh.args(["-c", &check]).stdout(Stdio::null()).stderr(Stdio::null());
        sh.status().unwrap().success()
    }
}

impl Drop for ComposeRedis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn both_servers_decide_on_the_redis_as_its_user() {
    let redis = ComposeRedis::start();
    let begun = Instant::now();
    while !redis.is_healthy() {
        assert!(begun.elapsed() < Duration::from_secs(10), "redis-server is not healthy");
        std::thread::yield_now();
    }
    // A longer deadline, because the machine can be busy with other tests, and the failure policy `closed`, so that a
    // failed store fails the test.
    let rules = text(RULES).replacen("failure: local", "failure: closed\n  deadline: 1s", 1);
    let path = redis.directory.path().join("rules.yaml");
    std::fs::write(&path, rules).unwrap();
    let mut environment = environment(&service("tollgate-1"));
    for (name, value) in &mut environment {
        match name.as_str() {
            "TOLLGATE_CONFIG" => *value = path.display().to_string(),
            "TOLLGATE_STORE" => {
                let from = value.strip_prefix("redis://").unwrap();
                let (user, password) = from.split_once('@').unwrap().0.split_once(':').unwrap();
                let socket = redis.socket();
                *value = format!("redis+unix://{socket}?user={user}&pass={password}");
            }
            _ => {}
        }
    }
    let variables: Vec<_> = environment.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    let servers = [(); 2].map(|()| ServerProcess::start_with(&[], &variables));
    let check = |server: &ServerProcess| server.check(r#"{"limit":"login","key":"user:42"}"#);
    let remaining = servers.each_ref().map(|server| check(server)["remaining"].clone());
    assert_eq!(remaining, [4, 3]);
}

#[test]
fn redis_user_has_only_the_documented_permissions() {
    let script = service("redis")["command"][0].as_str().unwrap().replace("$$REDIS_", "");
    let documented = text("docs/operate/redis.md");
    let user = documented.lines().find(|line| line.starts_with("user tollgate on")).unwrap();
    assert!(script.contains(&format!("\"{user}\"")), "{script}");
    for setting in ["--maxmemory-policy noeviction", "--appendonly no", "user default off"] {
        assert!(script.contains(setting), "{setting}");
    }
}
