//! Cycles that are known and still to be removed.

use std::collections::BTreeSet;

use crate::cycles::Cycle;

/// Returns how the cycles found differ from those known, as messages for a person.
///
/// `known` has a row for each known cycle: crate, parent module, modules. The two must be equal, so that a new
/// cycle fails the test, and a row is removed together with its cycle.
pub fn cycle_problems(found: &[Cycle], known: &[(&str, &str, &[&str])]) -> Vec<String> {
    let is_row = |cycle: &Cycle, &(crate_name, parent, modules): &(&str, &str, &[&str])| {
        let modules: BTreeSet<String> = modules.iter().map(|&name| name.to_owned()).collect();
        cycle.crate_name == crate_name && cycle.parent == parent && cycle.modules == modules
    };
    let new = found.iter().filter(|cycle| !known.iter().any(|row| is_row(cycle, row)));
    let gone = known.iter().filter(|row| !found.iter().any(|cycle| is_row(cycle, row)));
    let new = new.map(|cycle| {
        format!(
            "new cycle of modules: remove one of these dependencies, for example by moving what both modules need \
             into a module of its own\n{cycle}"
        )
    });
    let gone = gone.map(|(crate_name, parent, modules)| {
        format!(
            "KNOWN_CYCLES: in `{crate_name}`, the modules {} of `{parent}` are no longer exactly one cycle; \
             remove the row, or shorten it to what is left",
            modules.join(", ")
        )
    });
    new.chain(gone).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cycle(modules: &[&str]) -> Cycle {
        Cycle {
            crate_name: "tollgate".to_owned(),
            parent: "crate".to_owned(),
            modules: modules.iter().map(|&name| name.to_owned()).collect(),
            edges: Vec::new(),
        }
    }

    #[test]
    fn known_cycle_is_no_problem() {
        let known: &[(&str, &str, &[&str])] = &[("tollgate", "crate", &["http", "rules"])];
        assert_eq!(cycle_problems(&[cycle(&["rules", "http"])], known), [""; 0]);
    }

    #[test]
    fn new_cycle_is_a_problem() {
        let problems = cycle_problems(&[cycle(&["http", "rules"])], &[]);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].starts_with("new cycle of modules"), "{problems:?}");
    }

    #[test]
    fn known_cycle_that_is_gone_is_a_problem() {
        let problems = cycle_problems(&[], &[("tollgate", "crate", &["http", "rules"])]);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("remove the row"), "{problems:?}");
    }

    #[test]
    fn known_cycle_that_grew_is_a_problem() {
        let known: &[(&str, &str, &[&str])] = &[("tollgate", "crate", &["http", "rules"])];
        assert_eq!(cycle_problems(&[cycle(&["http", "rules", "tower"])], known).len(), 2);
    }
}
