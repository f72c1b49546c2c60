//! Finds the modules that a path leads to.

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

/// Returns the modules that `path`, written in the module `from`, leads to:
/// every module that the path names, and the module that defines the item at its end.
///
/// `crate::Limiter`, which the root re-exports from `limiter`, leads to the root and to `limiter`.
/// A name may stand for a module and a function at once, so all meanings are followed.
pub(crate) fn modules_of(
    modules: &Modules,
    from: &[String],
    path: &[String],
) -> BTreeSet<ModulePath> {
    let mut resolver = Resolver { modules, in_progress: Vec::new() };
    let mut passed = BTreeSet::new();
    let ends = resolver.resolve(from, path, &mut passed);
    // A module alone is no expression and no type: `key` is then a variable, also beside a module `key`.
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

struct Resolver<'a> {
    modules: &'a Modules,
    /// The names being looked up, so that imports of each other end.
    in_progress: Vec<(ModulePath, String)>,
}

impl Resolver<'_> {
    /// Returns what the whole path stands for, and adds the modules on the way to `passed`. Nothing: another crate.
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
                    // A variant or an associated function: where its type is.
                    next.insert(meaning);
                    continue;
                };
                if index > 0 {
                    passed.insert(module.clone());
                }
                let found = self.step(&module, name);
                if found.is_empty() && index > 0 {
                    // A macro defines it, or it is not visible to the scan in another way.
                    next.insert(Meaning::Item(module));
                }
                next.extend(found);
            }
            meanings = next;
        }
        meanings
    }

    fn step(&mut self, module: &[String], name: &str) -> BTreeSet<Meaning> {
        let target = match name {
            "crate" => Vec::new(),
            "self" => module.to_vec(),
            "super" => module[..module.len().saturating_sub(1)].to_vec(),
            _ => return self.look_up(module, name),
        };
        BTreeSet::from([Meaning::Module(target)])
    }

    /// Returns what `name` stands for in `module`: a definition, a child module or an import; otherwise through globs.
    fn look_up(&mut self, path: &[String], name: &str) -> BTreeSet<Meaning> {
        let mut meanings = BTreeSet::new();
        let key = (path.to_vec(), name.to_owned());
        let Some(module) = self.modules.get(path) else { return meanings };
        if self.in_progress.contains(&key) {
            return meanings;
        }
        self.in_progress.push(key);
        if module.scanned.definitions.contains(name) {
            meanings.insert(Meaning::Item(path.to_vec()));
        }
        if module.children.contains(name) {
            let child = path.iter().cloned().chain([name.to_owned()]).collect();
            meanings.insert(Meaning::Module(child));
        }
        for import in module.scanned.imports.iter().filter(|import| import.name == name) {
            let found = self.resolve(path, &import.path, &mut BTreeSet::new());
            if found.is_empty() {
                meanings.insert(Meaning::Foreign);
            }
            meanings.extend(found);
        }
        if meanings.is_empty() {
            for glob in &module.scanned.globs {
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
