//! The rule that crates depend on each other in one direction.

use std::collections::BTreeMap;

/// A dependency of one crate of the workspace on another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// The crate that has the dependency.
    pub from: String,
    /// The crate that it depends on.
    pub to: String,
}

/// Returns the problems with the dependencies between `packages`, as messages for a person.
///
/// `layers` has a row for each crate: its name, and the crates that it may depend on. A row may name only
/// crates of rows above it, so the table itself has no cycle. Rows of crates that do not exist are allowed.
pub fn layer_problems(
    packages: &[String],
    dependencies: &[Dependency],
    layers: &[(&str, &[&str])],
) -> Vec<String> {
    let mut problems = Vec::new();
    let mut rows: BTreeMap<&str, &[&str]> = BTreeMap::new();
    for &(name, allowed) in layers {
        for below in allowed.iter().filter(|below| !rows.contains_key(*below)) {
            problems.push(format!(
                "LAYERS: the row of `{name}` names `{below}`, which has no row above it; \
                 move the rows, or correct the name"
            ));
        }
        if rows.insert(name, allowed).is_some() {
            problems.push(format!("LAYERS: `{name}` has two rows; remove one"));
        }
    }
    for name in packages.iter().filter(|name| !rows.contains_key(name.as_str())) {
        problems.push(format!(
            "`{name}` is not in LAYERS; add a row with the crates that it may depend on"
        ));
    }
    for Dependency { from, to } in dependencies {
        if rows.get(from.as_str()).is_some_and(|allowed| !allowed.contains(&to.as_str())) {
            problems.push(format!(
                "`{from}` depends on `{to}`, which LAYERS does not allow; move the code that needs it, \
                 or add `{to}` to the row of `{from}` if this direction is right"
            ));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYERS: &[(&str, &[&str])] = &[("core", &[]), ("limiter", &["core"])];

    fn problems(dependencies: &[(&str, &str)]) -> Vec<String> {
        let packages = ["core".to_owned(), "limiter".to_owned()];
        let dependencies: Vec<_> = dependencies
            .iter()
            .map(|&(from, to)| Dependency { from: from.to_owned(), to: to.to_owned() })
            .collect();
        layer_problems(&packages, &dependencies, LAYERS)
    }

    #[test]
    fn dependency_in_the_right_direction_is_allowed() {
        assert_eq!(problems(&[("limiter", "core")]), [""; 0]);
    }

    #[test]
    fn dependency_in_the_wrong_direction_is_found() {
        let problems = problems(&[("limiter", "core"), ("core", "limiter")]);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].starts_with("`core` depends on `limiter`"), "{problems:?}");
    }

    #[test]
    fn crate_without_a_row_is_found() {
        let problems = layer_problems(&["new".to_owned()], &[], LAYERS);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("add a row"), "{problems:?}");
    }

    #[test]
    fn table_with_a_cycle_is_found() {
        let problems = layer_problems(&[], &[], &[("a", &["b"]), ("b", &["a"])]);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("no row above"), "{problems:?}");
    }
}
