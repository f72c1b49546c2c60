//! Checks the structure of this workspace. Edit the tables here when the structure changes.

use std::fs;
use std::path::{Path, PathBuf};

use tollgate_structure::{
    Cycle, StructureError, Workspace, layer_problems, module_cycles, type_definitions,
    type_name_problems, walk_problems,
};

/// The crates that each crate can depend on, apart from dev-dependencies. A row names only crates of rows above it.
#[rustfmt::skip]
const LAYERS: &[(&str, &[&str])] = &[
    // On the path of a decision, from the innermost outwards.
    ("tollgate-core",        &[]),
    ("tollgate-lease",       &["tollgate-core"]),
    ("tollgate-limiter",     &["tollgate-core", "tollgate-lease"]),
    ("tollgate-redis",       &["tollgate-core", "tollgate-limiter"]),
    ("tollgate-identity",    &["tollgate-core", "tollgate-limiter"]),
    ("tollgate-rules",       &["tollgate-core", "tollgate-limiter", "tollgate-identity"]),
    ("tollgate-http",        &["tollgate-core", "tollgate-limiter", "tollgate-identity", "tollgate-rules"]),
    ("tollgate-tower",       &["tollgate-core", "tollgate-limiter", "tollgate-identity", "tollgate-rules", "tollgate-http"]),
    ("tollgate",             &["tollgate-core", "tollgate-limiter", "tollgate-redis", "tollgate-identity", "tollgate-rules", "tollgate-http", "tollgate-tower"]),
    // Crates that are not part of the library. The listener does not depend on limits.
    ("tollgate-listener",    &[]),
    ("tollgate-importer",    &["tollgate-core", "tollgate-rules", "tollgate"]),
    ("tollgate-playground",  &["tollgate-core", "tollgate"]),
    ("tollgate-server",      &["tollgate-core", "tollgate", "tollgate-listener", "tollgate-importer", "tollgate-playground"]),
    // For tests, measurements and documents.
    ("tollgate-launcher",    &[]),
    ("tollgate-structure",   &[]),
    ("tollgate-conformance", &["tollgate-core", "tollgate-limiter"]),
    ("tollgate-simulator",   &["tollgate-core", "tollgate-lease"]),
    ("tollgate-pictures",    &["tollgate-core"]),
    ("tollgate-bench",       &["tollgate-core", "tollgate-redis", "tollgate", "tollgate-server", "tollgate-launcher", "tollgate-pictures"]),
];

#[test]
fn crates_depend_in_one_direction() {
    let workspace = workspace().unwrap();
    pass(&layer_problems(&workspace.packages, &workspace.dependencies, LAYERS));
}

#[test]
fn modules_have_no_cycle() {
    let workspace = workspace().unwrap();
    let cycles = workspace.roots.iter().flat_map(|root| module_cycles(&workspace, root).unwrap());
    let problem = |cycle: Cycle| {
        format!(
            "cycle of modules: remove one of these dependencies, for example by moving the code that both modules \
             need into a third module\n{cycle}"
        )
    };
    pass(&cycles.map(problem).collect::<Vec<_>>());
}

#[test]
fn type_names_are_unique() {
    let workspace = workspace().unwrap();
    let types: Vec<_> = workspace
        .roots
        .iter()
        .flat_map(|root| type_definitions(&workspace, root).unwrap())
        .collect();
    pass(&type_name_problems(&types));
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

#[test]
fn conditions_on_features_are_in_crate_roots_or_have_a_comment() {
    let root = workspace().unwrap().root;
    let mut problems = Vec::new();
    for directory in fs::read_dir(root.join("crates")).unwrap() {
        let source = directory.unwrap().path().join("src");
        for file in files_below(&source).into_iter().filter(|file| *file != source.join("lib.rs")) {
            let text = fs::read_to_string(&file).unwrap();
            if let Some(line) = condition_without_comment(&text) {
                let place = file.strip_prefix(&root).unwrap().display();
                problems.push(format!(
                    "{place}:{line}: a condition on a feature; move it to the root of the crate, or give the reason in a \
                     comment above the first condition of the file"
                ));
            }
        }
    }
    pass(&problems);
}

#[test]
fn condition_without_comment_is_found() {
    let text = "mod body;\n#[cfg(feature = \"axum\")]\nmod axum;";
    assert_eq!(condition_without_comment(text), Some(2));
    let text = "// The types of axum.\n#[cfg(feature = \"axum\")]\nmod axum;";
    assert_eq!(condition_without_comment(text), None);
}

/// Returns the line of the first condition on a feature, if it has no comment above it.
fn condition_without_comment(text: &str) -> Option<usize> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let is_condition = |line: &&str| line.starts_with("#[cfg") && line.contains("feature = ");
    let first = lines.iter().position(is_condition)?;
    let above = lines[..first].iter().rev().find(|line| !line.starts_with("#["));
    let has_comment = above.is_some_and(|line| line.starts_with("// "));
    (!has_comment).then_some(first + 1)
}

fn files_below(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let files = paths.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] });
    files.filter(|file| file.extension().is_some_and(|own| own == "rs")).collect()
}

fn workspace() -> Result<Workspace, StructureError> {
    Workspace::read(Path::new(env!("CARGO_MANIFEST_DIR")))
}

#[track_caller]
fn pass(problems: &[String]) {
    assert!(problems.is_empty(), "{}", problems.join("\n\n"));
}
