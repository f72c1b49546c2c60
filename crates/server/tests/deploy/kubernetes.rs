//! The Kubernetes manifest: three pods.

use serde_json::{Value, json};
use tollgate_launcher::{Flavour, Launch};

use crate::docker::{exposed, runs_as_user};
use crate::files::{
    KUBERNETES, assert_valid, is_any_decided_without_store, kubernetes, run, seconds, text,
    tollgate, tool, yaml,
};
use crate::server::ServerProcess;

fn resource(kind: &str) -> &'static Value {
    let found = kubernetes().iter().find(|it| it["kind"] == kind);
    found.unwrap_or_else(|| panic!("no {kind}"))
}

/// Returns a Service by its name.
fn service(name: &str) -> &'static Value {
    let is_wanted = |it: &&Value| it["kind"] == "Service" && it["metadata"]["name"] == name;
    kubernetes().iter().find(is_wanted).unwrap_or_else(|| panic!("no Service {name}"))
}

fn container() -> &'static Value {
    &resource("Deployment")["spec"]["template"]["spec"]["containers"][0]
}

fn environment() -> Vec<(String, String)> {
    let container = container();
    let own = container["env"].as_array().unwrap().iter();
    let own = own.map(|it| (it["name"].clone(), it["value"].clone()));
    let secret = resource("Secret");
    assert_eq!(container["envFrom"][0]["secretRef"]["name"], secret["metadata"]["name"]);
    let secret = secret["stringData"].as_object().unwrap().clone();
    let secret = secret.into_iter().map(|(name, value)| (json!(name), value));
    own.chain(secret)
        .map(|(name, value)| {
            (name.as_str().unwrap().to_owned(), value.as_str().unwrap().to_owned())
        })
        .collect()
}

fn variable(name: &str) -> String {
    environment().into_iter().find(|(each, _)| each == name).unwrap().1
}

#[test]
fn manifest_matches_the_schemas_of_kubernetes() {
    run(tool("kubernetes-validate").args(["--strict", "--quiet", KUBERNETES]));
}

#[test]
fn rules_are_valid_and_at_the_path_of_the_server() {
    let rules = resource("ConfigMap");
    let (directory, file) = variable("TOLLGATE_CONFIG")
        .rsplit_once('/')
        .map(|(d, f)| (d.to_owned(), f.to_owned()))
        .unwrap();
    assert_valid(rules["data"][file].as_str().unwrap());
    let mount = &container()["volumeMounts"][0];
    assert_eq!(mount["mountPath"], directory);
    assert!(mount.get("subPath").is_none(), "a subPath mount is never updated");
    let volume = &resource("Deployment")["spec"]["template"]["spec"]["volumes"][0];
    assert_eq!(volume["name"], mount["name"]);
    assert_eq!(volume["configMap"]["name"], rules["metadata"]["name"]);
}

#[test]
fn ports_of_listener_container_and_service_agree() {
    let container = container();
    let ports = container["ports"].as_array().unwrap();
    let numbers = ports.iter().map(|port| port["containerPort"].as_u64().unwrap() as u16);
    assert_eq!(numbers.collect::<Vec<_>>(), exposed());
    let listen = ["TOLLGATE_LISTEN", "TOLLGATE_GRPC_LISTEN"].map(variable);
    assert_eq!(
        listen.to_vec(),
        exposed().iter().map(|port| format!("[::]:{port}")).collect::<Vec<_>>()
    );
    for (name, at_container) in ["tollgate", "tollgate-grpc"].into_iter().zip(ports) {
        let [at_service] = &service(name)["spec"]["ports"].as_array().unwrap()[..] else {
            panic!("{name}")
        };
        assert_eq!(at_service["targetPort"], at_container["name"]);
        assert_eq!(at_service["port"], at_container["containerPort"]);
    }
    for probe in ["readinessProbe", "livenessProbe"] {
        assert_eq!(container[probe]["httpGet"]["port"], ports[0]["name"]);
    }
}

#[test]
fn selectors_match_the_pods() {
    let deployment = resource("Deployment");
    let labels = &deployment["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&deployment["spec"]["selector"]["matchLabels"], labels);
    let namespace = &resource("Namespace")["metadata"]["name"];
    for name in ["tollgate", "tollgate-grpc"] {
        assert_eq!(&service(name)["spec"]["selector"], labels, "{name}");
        assert_eq!(&service(name)["metadata"]["namespace"], namespace, "{name}");
    }
    assert_eq!(&resource("PodDisruptionBudget")["spec"]["selector"]["matchLabels"], labels);
    for spread in
        deployment["spec"]["template"]["spec"]["topologySpreadConstraints"].as_array().unwrap()
    {
        assert_eq!(&spread["labelSelector"]["matchLabels"], labels);
    }
    for kind in ["ConfigMap", "Secret", "Deployment", "PodDisruptionBudget"] {
        assert_eq!(&resource(kind)["metadata"]["namespace"], namespace, "{kind}");
    }
}

/// With a cluster IP, Envoy would send every request over its single connection to one pod.
#[test]
fn service_for_grpc_is_headless() {
    assert_eq!(service("tollgate-grpc")["spec"]["clusterIP"], "None");
    assert!(service("tollgate")["spec"].get("clusterIP").is_none());
    let guide = text("docs/guide/gateways.md");
    assert!(guide.contains("address: tollgate-grpc.tollgate.svc.cluster.local, port_value: 8081"));
}

#[test]
fn stopped_pod_has_time_to_drain_while_another_replaces_it() {
    let deployment = &resource("Deployment")["spec"];
    let grace_s = deployment["template"]["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap();
    let delay_s = seconds(&variable("TOLLGATE_DRAIN_DELAY"));
    assert!(grace_s > delay_s + seconds(&variable("TOLLGATE_DRAIN_TIMEOUT")));
    assert_eq!(deployment["strategy"]["rollingUpdate"]["maxUnavailable"], 0);
    let probe = &container()["readinessProbe"];
    let unready_s =
        probe["periodSeconds"].as_u64().unwrap() * probe["failureThreshold"].as_u64().unwrap();
    assert!(delay_s > unready_s, "probes must fail before the server closes");
}

#[test]
fn pod_has_the_least_privileges() {
    let pod = &resource("Deployment")["spec"]["template"]["spec"];
    assert_eq!(pod["automountServiceAccountToken"], false);
    assert_eq!(pod["enableServiceLinks"], false, "Kubernetes would set TOLLGATE_PORT");
    assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
    assert!(runs_as_user(&pod["securityContext"]["runAsUser"].to_string()), "as in the image");
    assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    let context = &container()["securityContext"];
    assert_eq!(context["allowPrivilegeEscalation"], false);
    assert_eq!(context["readOnlyRootFilesystem"], true);
    assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
    assert!(container()["resources"]["limits"].get("cpu").is_none());
    assert_eq!(container()["image"], concat!("tollgate:", env!("CARGO_PKG_VERSION")));
}

fn rules() -> &'static str {
    resource("ConfigMap")["data"]["rules.yaml"].as_str().unwrap()
}

/// Starts a server with the variables of the pods, except for the path of the rules, the placeholder secrets and the store.
fn server(store: &str) -> ServerProcess {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    std::fs::write(&path, rules()).unwrap();
    let mut environment = environment();
    for (name, value) in &mut environment {
        match name.as_str() {
            "TOLLGATE_CONFIG" => *value = path.display().to_string(),
            "TOLLGATE_STORE" => *value = store.to_owned(),
            "TOLLGATE_OPERATOR_TOKEN" | "TOLLGATE_RECEIPT_SECRET" => {
                *value = RANDOM_SECRET.to_owned()
            }
            _ => {}
        }
    }
    let variables: Vec<_> = environment.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
    ServerProcess::start_with(&[], &variables)
}

/// A secret such as `openssl rand -hex 32` makes.
const RANDOM_SECRET: &str = "8f2e1c4a6b0d9e7f3a5c8b1d4e6f0a2c7b9d1e3f5a8c0b2d4e6f8a1c3b5d7e9f";

#[test]
fn no_pod_starts_with_the_placeholder_secrets() {
    let secrets = ["TOLLGATE_OPERATOR_TOKEN", "TOLLGATE_RECEIPT_SECRET"];
    for changed in [None, Some(secrets[0]), Some(secrets[1])] {
        let mut serve = tollgate(&["serve"]);
        serve.envs(secrets.map(|name| (name, variable(name))));
        serve.envs(changed.map(|name| (name, RANDOM_SECRET)));
        // If the server accepted the secrets, it would end because of this path, with another message.
        serve.env("TOLLGATE_CONFIG", "/nowhere/rules.yaml");
        let output = serve.output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(errors.contains("too easily guessed"), "{changed:?}: {errors}");
    }
}

/// If pods were not ready, the Service would answer no request during an outage of the store.
#[test]
fn pods_are_ready_without_the_store_if_rules_are_decided_without_it() {
    assert!(is_any_decided_without_store(rules()));
    let mut redis = Launch::new(Flavour::Redis).start().unwrap();
    redis.kill();
    let server = server(&redis.url());
    let ready = server.get(container()["readinessProbe"]["httpGet"]["path"].as_str().unwrap());
    let ready = ready.send().unwrap();
    assert_eq!(ready.status(), 200);
    assert!(ready.text().unwrap().contains("unreachable"));
    let decision = server.check(r#"{"domain":"api","attributes":{"ip":"203.0.113.9"}}"#);
    assert_eq!((&decision["allowed"], &decision["degraded"]), (&json!(true), &json!(true)));
}

/// Returns an optional resource, which is in comments of the manifest.
fn optional(kind: &str) -> String {
    let text = text(KUBERNETES);
    let documents = text.split("# ---\n").skip(1).map(|document| {
        let lines = document.lines().map_while(|line| line.strip_prefix('#'));
        // The explanation of the next resource is not YAML.
        let lines = lines.take_while(|line| !line.starts_with(" With "));
        lines.map(|line| format!("{}\n", line.strip_prefix(' ').unwrap_or(line))).collect()
    });
    let found = documents.into_iter().find(|it: &String| it.contains(&format!("kind: {kind}\n")));
    found.unwrap_or_else(|| panic!("no {kind}"))
}

#[test]
fn network_policy_admits_services_and_prometheus() {
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(&file, optional("NetworkPolicy")).unwrap();
    let path = file.path().to_str().unwrap();
    run(tool("kubernetes-validate").args(["--strict", "--quiet", path]));
    let policy = &yaml(path)[0];
    let labels = &resource("Deployment")["spec"]["template"]["metadata"]["labels"];
    assert_eq!(&policy["spec"]["podSelector"]["matchLabels"], labels);
    assert_eq!(policy["metadata"]["namespace"], resource("Namespace")["metadata"]["name"]);
    let ports = container()["ports"].as_array().unwrap().iter();
    let ports: Vec<_> = ports.map(|port| json!({ "port": port["name"] })).collect();
    let [services, prometheus] = &policy["spec"]["ingress"].as_array().unwrap()[..] else {
        panic!("{policy}")
    };
    assert_eq!(services["ports"], json!(ports));
    assert_eq!(prometheus["ports"], json!(ports[..1]));
    for from in [services, prometheus] {
        assert!(from["from"][0]["namespaceSelector"]["matchLabels"].is_object(), "{from}");
    }
    assert!(optional("ServiceMonitor").contains("port: http, path: /metrics"));
}

#[test]
fn server_accepts_the_environment_of_the_pods() {
    let decision = server("memory").check(r#"{"limit":"login","key":"user:42"}"#);
    assert_eq!(decision["remaining"], 4);
}

#[test]
fn server_has_the_paths_of_probes_and_prometheus() {
    let server = server("memory");
    let probes = ["readinessProbe", "livenessProbe"].map(|probe| &container()[probe]["httpGet"]);
    let paths = probes.map(|get| get["path"].as_str().unwrap());
    for path in paths.into_iter().chain(["/metrics"]) {
        assert_eq!(server.get(path).send().unwrap().status(), 200, "{path}");
    }
    assert!(text(KUBERNETES).contains("path: /metrics"));
}
