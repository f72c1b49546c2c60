//! This workspace keeps to its structure. The tables here are meant to be edited.

use std::fs;
use std::path::Path;

use tollgate_structure::{
    StructureError, Workspace, cycle_problems, layer_problems, module_cycles, walk_problems,
};

/// The crates that each crate may depend on, dev-dependencies aside. A row names only crates of rows above it.
#[rustfmt::skip]
const LAYERS: &[(&str, &[&str])] = &[
    // On the path of a decision, from the innermost outwards.
    ("tollgate-core",        &[]),
    ("tollgate-limiter",     &["tollgate-core"]),
    ("tollgate-redis",       &["tollgate-core", "tollgate-limiter"]),
    ("tollgate-rules",       &["tollgate-core", "tollgate-limiter"]),
    ("tollgate-http",        &["tollgate-core", "tollgate-limiter", "tollgate-rules"]),
    ("tollgate-tower",       &["tollgate-core", "tollgate-limiter", "tollgate-rules", "tollgate-http"]),
    ("tollgate",             &["tollgate-core", "tollgate-limiter", "tollgate-redis", "tollgate-rules", "tollgate-http", "tollgate-tower"]),
    // Beside it. The listener knows nothing of limits.
    ("tollgate-listener",    &[]),
    ("tollgate-importer",    &["tollgate-core", "tollgate-rules", "tollgate-http", "tollgate"]),
    ("tollgate-playground",  &["tollgate-core", "tollgate"]),
    ("tollgate-simulation",  &["tollgate-core", "tollgate"]),
    ("tollgate-server",      &["tollgate-core", "tollgate", "tollgate-listener", "tollgate-importer", "tollgate-playground", "tollgate-simulation"]),
    // For tests, measurements and documents.
    ("tollgate-launcher",    &[]),
    ("tollgate-structure",   &[]),
    ("tollgate-conformance", &["tollgate-core", "tollgate-limiter"]),
    ("tollgate-pictures",    &["tollgate-core"]),
    ("tollgate-bench",       &["tollgate-core", "tollgate-limiter", "tollgate-redis", "tollgate-rules", "tollgate-http", "tollgate-tower", "tollgate", "tollgate-listener", "tollgate-server", "tollgate-launcher", "tollgate-pictures"]),
];

/// The cycles between sibling modules that are still to be removed: crate, parent module, modules.
/// `cargo run -p tollgate-structure` lists them with their references. Rows are only removed or shortened.
#[rustfmt::skip]
const KNOWN_CYCLES: &[(&str, &str, &[&str])] = &[
    ("tollgate-bench/instructions", "crate", &["peer", "work"]),
    ("tollgate", "crate", &["acquire", "answer", "check", "limiter", "scope", "store", "together"]),
    ("tollgate", "crate", &["http", "rules"]),
    ("tollgate", "crate::http", &["head", "identity", "tokens"]),
    ("tollgate", "crate::rules", &["check", "ruling"]),
    ("tollgate", "crate::rules", &["index", "limited", "plan"]),
    ("tollgate", "crate::rules", &["problem", "yaml"]),
    ("tollgate", "crate::store::memory", &["identity", "logs", "scopes", "slot"]),
    ("tollgate", "crate::store::memory", &["known", "together"]),
    ("tollgate", "crate::store::memory", &["reclaim", "shard"]),
    ("tollgate", "crate::store::memory", &["regions", "table"]),
    ("tollgate", "crate::tower::pace", &["layer", "service"]),
    ("tollgate", "crate::tower::rate_limit", &["admission", "charge", "decide"]),
    ("tollgate-core", "crate", &["algorithm", "decision", "limit"]),
    ("tollgate-core", "crate::limit", &["error", "range", "rate", "text", "time"]),
    ("tollgate-launcher", "crate", &["clock", "launch", "server"]),
    ("tollgate-launcher", "crate::proxy", &["faults", "line"]),
    ("tollgate-server", "crate", &["budget", "http", "listener", "logs", "metrics", "probe", "refused", "served", "traces"]),
    ("tollgate-server", "crate::grpc", &["calls", "routed"]),
    ("tollgate-server", "crate::grpc::rate_limit", &["answer", "status"]),
    ("tollgate-server", "crate::http", &["authorize", "batch", "check", "openapi"]),
    ("tollgate-server", "crate::listener", &["connection", "wire"]),
];

#[test]
fn crates_depend_in_one_direction() {
    let workspace = workspace().unwrap();
    pass(&layer_problems(&workspace.packages, &workspace.dependencies, LAYERS));
}

#[test]
fn modules_have_no_cycle_that_is_not_known() {
    let workspace = workspace().unwrap();
    let cycles: Vec<_> =
        workspace.roots.iter().flat_map(|root| module_cycles(&workspace, root).unwrap()).collect();
    pass(&cycle_problems(&cycles, KNOWN_CYCLES));
}

#[test]
fn walks_are_short_and_name_files_that_exist() {
    let root = workspace().unwrap().root;
    let text = fs::read_to_string(root.join("ARCHITECTURE.md")).expect(
        "there must be an ARCHITECTURE.md with at least four sections `### Walk: …` at the root",
    );
    let problems = walk_problems(&text, &|path| root.join(path).is_file());
    pass(&problems.iter().map(|problem| format!("ARCHITECTURE.md: {problem}")).collect::<Vec<_>>());
}

fn workspace() -> Result<Workspace, StructureError> {
    Workspace::read(Path::new(env!("CARGO_MANIFEST_DIR")))
}

#[track_caller]
fn pass(problems: &[String]) {
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}
