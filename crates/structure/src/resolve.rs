//! Finds the modules that a path refers to.

use std::collections::BTreeSet;

use crate::module::{ModulePath, Modules};

/// The meaning of a name in a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Meaning {
    /// A module of this crate.
    Module(ModulePath),
    /// An item that this module of this crate defines.
    Item(ModulePath),
    /// Something in another crate.
    Foreign,
}

/// Returns the modules that `path` refers to when it is written in the module `from`: every module that the path names,
/// and the module that defines the item at its end.
///
/// `crate::Limiter`, which the root re-exports from `limiter`, refers to the root and to `limiter`. A name can mean a
/// module and a function at the same time, so all its meanings are followed.
pub(crate) fn modules_of(
    modules: &Modules,
    from: &[String],
    path: &[String],
) -> BTreeSet<ModulePath> {
    let mut resolver = Resolver { modules, in_progress: Vec::new() };
    let mut passed = BTreeSet::new();
    let ends = resolver.resolve(from, path, &mut passed);
    // The name of a module alone is neither an expression nor a type, so `key` alone is a variable, even if there is a
    // module `key`.
    let is_bare = path.len() == 1;
    for end in ends {
        match end {
            Meaning::Module(module) if !is_bare => passed.insert(module),
            Meaning::Item(module) => passed.insert(module),
            Meaning::Module(_) | Meaning::Foreign => continue,
        };
    }
    passed
}

/// Resolves paths.
struct Resolver<'a> {
    modules: &'a Modules,
    /// The names that are being looked up. They end the recursion of imports that import each other.
    in_progress: Vec<(ModulePath, String)>,
}

impl Resolver<'_> {
    /// Returns the meanings of the whole path, and adds the modules on its way to `passed`. An empty result means that the
    /// path is in another crate.
    fn resolve(
        &mut self,
        from: &[String],
        path: &[String],
        passed: &mut BTreeSet<ModulePath>,
    ) -> BTreeSet<Meaning> {
        let mut meanings = BTreeSet::from([Meaning::Module(from.to_vec())]);
        for (index, name) in path.iter().enumerate() {
            let mut next = BTreeSet::new();
            for meaning in meanings {
                let Meaning::Module(module) = meaning else {
                    // The name is a variant or an associated function, which belongs to the module of its type.
                    next.insert(meaning);
                    continue;
                };
                if index > 0 {
                    passed.insert(module.clone());
                }
                let found = self.step(&module, name);
                if found.is_empty() && index > 0 {
                    // The scan did not see the definition, for example because a macro makes it.
                    next.insert(Meaning::Item(module));
                }
                next.extend(found);
            }
            meanings = next;
        }
        meanings
    }

    /// Returns the meanings of one name of a path.
    fn step(&mut self, module: &[String], name: &str) -> BTreeSet<Meaning> {
        let target = match name {
            "crate" => Vec::new(),
            "self" => module.to_vec(),
            "super" => module[..module.len().saturating_sub(1)].to_vec(),
            _ => return self.look_up(module, name),
        };
        BTreeSet::from([Meaning::Module(target)])
    }

    /// Returns the meanings of `name` in a module: as a definition, as a child module, as an import, and if there are none,
    /// through globs.
    fn look_up(&mut self, path: &[String], name: &str) -> BTreeSet<Meaning> {
        let mut meanings = BTreeSet::new();
        let key = (path.to_vec(), name.to_owned());
        let Some(module) = self.modules.get(path) else { return meanings };
        if self.in_progress.contains(&key) {
            return meanings;
        }
        self.in_progress.push(key);
        if module.contents.definitions.contains(name) {
            meanings.insert(Meaning::Item(path.to_vec()));
        }
        if module.children.contains(name) {
            let child = path.iter().cloned().chain([name.to_owned()]).collect();
            meanings.insert(Meaning::Module(child));
        }
        for import in module.contents.imports.iter().filter(|import| import.name == name) {
            let found = self.resolve(path, &import.path, &mut BTreeSet::new());
            if found.is_empty() {
                meanings.insert(Meaning::Foreign);
            }
            meanings.extend(found);
        }
        if meanings.is_empty() {
            for glob in &module.contents.globs {
                for source in self.resolve(path, glob, &mut BTreeSet::new()) {
                    if let Meaning::Module(source) = source {
                        meanings.extend(self.look_up(&source, name));
                    }
                }
            }
        }
        self.in_progress.pop();
        meanings
    }
}
