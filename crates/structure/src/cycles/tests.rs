//! Tests of cycles in small crates of a few lines each.

use std::io;

use super::*;

/// Returns the cycles of the crate with these files, each as `parent: module, module`.
fn cycles(files: &[(&str, &str)]) -> Vec<String> {
    find(files).iter().map(|cycle| format!("{}: {}", cycle.parent, names(cycle))).collect()
}

fn find(files: &[(&str, &str)]) -> Vec<Cycle> {
    let read_file = |path: &Path| {
        let file = files.iter().find(|(name, _)| Path::new(name) == path);
        file.map(|(_, text)| (*text).to_owned()).ok_or(io::ErrorKind::NotFound.into())
    };
    cycles_of("planted", Path::new("src/lib.rs"), &read_file).unwrap()
}

fn names(cycle: &Cycle) -> String {
    cycle.modules.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}

/// Returns the cycles of a crate with the modules `a` and `b`, of which `b` uses `a`.
fn cycles_when_b_uses_a(a: &str) -> Vec<String> {
    let b = "use crate::a::A; pub struct B(A); pub fn b() {}";
    cycles(&[
        ("src/lib.rs", "mod a; mod b; pub use a::A; pub use b::B;"),
        ("src/a.rs", a),
        ("src/b.rs", b),
    ])
}

const CYCLE: [&str; 1] = ["crate: a, b"];
const NONE: [&str; 0] = [];

#[test]
fn clean_crate_has_no_cycle() {
    assert_eq!(cycles_when_b_uses_a("pub struct A;"), NONE);
}

#[test]
fn cycle_of_two_modules_is_found_with_its_references() {
    let found = find(&[
        ("src/lib.rs", "mod a;\nmod b;"),
        ("src/a.rs", "use crate::b::B;\npub struct A;"),
        ("src/b.rs", "pub struct B;\n\nuse super::a;\nfn f(a: a::A) {}"),
    ]);
    assert_eq!(found.len(), 1);
    assert_eq!(
        found[0].to_string(),
        "planted: crate: a, b\n  \
         a -> b (1): src/a.rs:1 uses crate::b::B\n  \
         b -> a (2): src/b.rs:3 uses super::a"
    );
}

#[test]
fn cycle_of_three_modules_does_not_include_other_modules() {
    let files = [
        ("src/lib.rs", "mod a; mod b; mod c; mod above; mod below;"),
        ("src/a.rs", "use crate::b::B;"),
        ("src/b.rs", "use crate::c::C; pub struct B;"),
        ("src/c.rs", "use crate::{a, below}; pub struct C;"),
        ("src/above.rs", "use crate::a;"),
        ("src/below.rs", ""),
    ];
    assert_eq!(cycles(&files), ["crate: a, b, c"]);
}

#[test]
fn re_export_at_the_root_counts_as_the_module_that_defines_the_item() {
    assert_eq!(cycles_when_b_uses_a("pub struct A; fn f(b: crate::B) {}"), CYCLE);
    assert_eq!(cycles_when_b_uses_a("use super::B as Other; pub struct A;"), CYCLE);
}

#[test]
fn re_export_of_a_sibling_also_counts_as_that_sibling() {
    let files = [
        ("src/lib.rs", "mod a; mod b; mod c;"),
        ("src/a.rs", "pub struct A; use crate::c::B;"),
        ("src/b.rs", "pub struct B;"),
        ("src/c.rs", "pub use crate::b::B; use crate::a::A;"),
    ];
    assert_eq!(cycles(&files), ["crate: a, c"]);
}

#[test]
fn items_of_the_common_parent_do_not_count() {
    assert_eq!(
        cycles(&[
            ("src/lib.rs", "mod a; mod b; pub struct Shared;"),
            ("src/a.rs", "use crate::b::B; use crate::Shared;"),
            ("src/b.rs", "use super::Shared; pub struct B;"),
        ]),
        NONE
    );
}

#[test]
fn super_super_is_resolved_from_a_nested_module() {
    let files = [
        ("src/lib.rs", "mod a; mod b;"),
        ("src/a.rs", "mod inner; pub struct A;"),
        ("src/a/inner.rs", "use super::super::b::B;"),
        ("src/b.rs", "pub mod deep; pub struct B;"),
        ("src/b/deep.rs", "fn f() { let a = super::super::a::A; }"),
    ];
    assert_eq!(cycles(&files), CYCLE);
}

#[test]
fn nested_cycle_is_found_below_its_parent() {
    let files = [
        ("src/lib.rs", "mod store; mod user;"),
        ("src/user.rs", "use crate::store;"),
        ("src/store.rs", "pub mod redis;"),
        (
            "src/store/redis.rs",
            "mod node; mod shared { use super::node::Node; pub struct Shared; }",
        ),
        ("src/store/redis/node.rs", "use crate::store::redis::shared::Shared; pub struct Node;"),
    ];
    assert_eq!(cycles(&files), ["crate::store::redis: node, shared"]);
}

#[test]
fn references_of_every_kind_count() {
    let kinds = [
        "pub struct A(crate::b::B);",
        "pub struct A; impl From<crate::b::B> for A {}",
        "pub struct A; fn f() { crate::b::b() }",
        "pub struct A; fn f() { use crate::b::b; b() }",
        "pub struct A; fn f() { println!(\"{}\", crate::b::b()) }",
        "pub struct A; macro_rules! m { () => { $crate::b::b() } }",
        "pub struct A; wrap! { struct C { b: super::b::B } }",
        "#[derive_from(crate::b::B)] pub struct A;",
        "pub struct A; use crate::b::*;",
        "pub struct A; use super::*; fn f(b: B) {}",
        "pub struct A; use super::*; fn f() { b::b() }",
        "pub struct A; fn f(b: Vec<Option<crate::b::B>>) {}",
        "pub struct A; pub use crate::b::made_by_a_macro;",
    ];
    for a in kinds {
        assert_eq!(cycles_when_b_uses_a(a), CYCLE, "{a}");
    }
}

#[test]
fn tests_docs_variables_and_other_crates_do_not_count() {
    let kinds = [
        "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }",
        "pub struct A; #[cfg(test)] mod file_that_is_not_there;",
        "pub struct A; #[cfg(test)] use crate::b::B;",
        "pub struct A; #[cfg(all(test, feature = \"x\"))] fn f() { crate::b::b() }",
        "pub struct A; impl A { #[cfg(test)] fn f() { crate::b::b() } }",
        "/// See [`crate::b::B`].\npub struct A;",
        "pub struct A; use super::*; fn f(b: u8) -> u8 { b }",
        "pub struct A; use ::b::B; fn f() { ::b::b(); m!(::b::b()) }",
        "pub struct A; use b::B;",
    ];
    for a in kinds {
        assert_eq!(cycles_when_b_uses_a(a), NONE, "{a}");
    }
}

#[test]
fn features_and_code_outside_tests_count() {
    assert_eq!(
        cycles_when_b_uses_a("pub struct A; #[cfg(feature = \"x\")] use crate::b::B;"),
        CYCLE
    );
    assert_eq!(cycles_when_b_uses_a("pub struct A; #[cfg(not(test))] use crate::b::B;"), CYCLE);
    assert_eq!(
        cycles_when_b_uses_a("pub struct A; #[cfg(any(test, feature = \"x\"))] use crate::b::B;"),
        CYCLE
    );
}

#[test]
fn imports_of_each_other_do_not_loop_forever() {
    assert_eq!(
        cycles(&[
            ("src/lib.rs", "mod a; mod b;"),
            ("src/a.rs", "pub use crate::b::X; pub use crate::b::*;"),
            ("src/b.rs", "pub use crate::a::X; pub use crate::a::*;"),
        ]),
        CYCLE
    );
}

#[test]
fn module_without_a_file_is_an_error() {
    let read_file = |path: &Path| match path.to_str() {
        Some("src/lib.rs") => Ok("mod gone;".to_owned()),
        _ => Err(io::ErrorKind::NotFound.into()),
    };
    let error = cycles_of("planted", Path::new("src/lib.rs"), &read_file).unwrap_err();
    assert_eq!(error.to_string(), "src/lib.rs: no file found for `mod gone;`");
}

#[test]
fn reference_to_a_nested_module_counts_once() {
    let found = find(&[
        ("src/lib.rs", "mod a; mod b;"),
        ("src/a.rs", "use crate::b::deep::Deep; pub struct A;"),
        ("src/b.rs", "pub mod deep; use crate::a::A;"),
        ("src/b/deep.rs", "pub struct Deep;"),
    ]);
    assert_eq!(found[0].edges[0].references, 1);
}
