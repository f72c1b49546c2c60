//! The rule that each name of a type or trait is used once in the workspace.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::StructureError;
use crate::metadata::{CrateRoot, Workspace};
use crate::module::read_modules;

/// The name that every crate can use once, for its errors.
const ONCE_PER_CRATE: &str = "Error";

/// The definition of a struct, enum, union, trait or type alias outside tests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedType {
    /// The name.
    pub name: String,
    /// The directory of its package, relative to the workspace.
    pub package: PathBuf,
    /// The file, relative to the workspace.
    pub file: PathBuf,
    /// The line of the definition.
    pub line: usize,
}

impl fmt::Display for NamedType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.file.display(), self.line)
    }
}

/// Returns the types that a crate of the workspace defines, without types that are compiled only for tests.
pub fn type_definitions(
    workspace: &Workspace,
    root: &CrateRoot,
) -> Result<Vec<NamedType>, StructureError> {
    let read_file = |path: &Path| fs::read_to_string(workspace.root.join(path));
    let modules = read_modules(&root.file, &read_file)?;
    let of_module = modules.values().flat_map(|module| {
        module.contents.types.iter().map(|definition| NamedType {
            name: definition.name.clone(),
            package: root.directory.clone(),
            file: module.file.clone(),
            line: definition.line,
        })
    });
    Ok(of_module.collect())
}

/// Returns the names that several types share, as messages for a person.
///
/// `known` lists the names that are still to be made unique. The two must agree, so that a new duplicate fails the
/// test, and a name is removed from the list together with its duplicate.
pub fn type_name_problems(types: &[NamedType], known: &[&str]) -> Vec<String> {
    let mut by_name: BTreeMap<&str, BTreeSet<&NamedType>> = BTreeMap::new();
    for named in types {
        by_name.entry(&named.name).or_default().insert(named);
    }
    by_name.retain(|name, named| is_shared(name, named));
    let new = by_name.iter().filter(|(name, _)| !known.contains(name)).map(|(name, named)| {
        let places: Vec<String> = named.iter().map(ToString::to_string).collect();
        format!(
            "several types are called `{name}`: rename all but one of them; use the terms of docs/glossary.md\n  {}",
            places.join("\n  ")
        )
    });
    let gone = known.iter().filter(|name| !by_name.contains_key(*name));
    let gone = gone.map(|name| {
        format!("KNOWN_DUPLICATES: `{name}` is no longer used twice; remove it from the list")
    });
    new.chain(gone).collect()
}

fn is_shared(name: &str, named: &BTreeSet<&NamedType>) -> bool {
    let packages: BTreeSet<&Path> = named.iter().map(|named| named.package.as_path()).collect();
    let allowed = if name == ONCE_PER_CRATE { packages.len() } else { 1 };
    named.len() > allowed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str, package: &str, line: usize) -> NamedType {
        let file = Path::new(package).join("src/lib.rs");
        NamedType { name: name.to_owned(), package: package.into(), file, line }
    }

    #[test]
    fn name_of_two_types_is_reported_with_both_places() {
        let types = [named("Place", "a", 3), named("Place", "b", 7), named("Other", "b", 9)];
        let problems = type_name_problems(&types, &[]);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("`Place`"), "{problems:?}");
        assert!(problems[0].contains("a/src/lib.rs:3\n  b/src/lib.rs:7"), "{problems:?}");
    }

    #[test]
    fn known_duplicate_is_accepted_until_it_is_gone() {
        let types = [named("Place", "a", 3), named("Place", "b", 7)];
        assert_eq!(type_name_problems(&types, &["Place"]), [""; 0]);
        let problems = type_name_problems(&types[..1], &["Place"]);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].contains("remove it from the list"), "{problems:?}");
    }

    #[test]
    fn error_is_allowed_once_in_each_crate() {
        let once = [named("Error", "a", 3), named("Error", "b", 7)];
        assert_eq!(type_name_problems(&once, &[]), [""; 0]);
        let twice = [named("Error", "a", 3), named("Error", "a", 7)];
        assert_eq!(type_name_problems(&twice, &[]).len(), 1);
    }

    #[test]
    fn definition_in_a_file_of_two_roots_counts_once() {
        let types = [named("Place", "a", 3), named("Place", "a", 3)];
        assert_eq!(type_name_problems(&types, &[]), [""; 0]);
    }
}
