//! Cycles between sibling modules.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use crate::error::StructureError;
use crate::metadata::{CrateRoot, Workspace};
use crate::module::{Modules, ReadFile, read_modules};
use crate::resolve::modules_of;

/// Sibling modules that all depend on each other, directly or through another of them.
#[derive(Clone, Debug)]
pub struct Cycle {
    /// The crate's [`CrateRoot::name`].
    pub crate_name: String,
    /// The parent of these modules: `crate`, or for example `crate::store::redis`.
    pub parent: String,
    /// The names of the modules.
    pub modules: BTreeSet<String>,
    /// The dependencies between these modules.
    pub edges: Vec<Edge>,
}

/// A dependency between two sibling modules, with one example.
#[derive(Clone, Debug)]
pub struct Edge {
    /// The module that has the references, in itself or in a descendant.
    pub from: String,
    /// The module that has the item or module to which they refer, in itself or in a descendant.
    pub to: String,
    /// The number of references.
    pub references: usize,
    /// The file of the first reference, relative to the workspace.
    pub file: PathBuf,
    /// The line of the first reference, from 1.
    pub line: usize,
    /// The first reference as it is written, with imports not followed: `super::shared::Shared`.
    pub path: String,
}

impl fmt::Display for Cycle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let modules: Vec<&str> = self.modules.iter().map(String::as_str).collect();
        write!(f, "{}: {}: {}", self.crate_name, self.parent, modules.join(", "))?;
        self.edges.iter().try_for_each(|edge| write!(f, "\n  {edge}"))
    }
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Edge { from, to, references, file, line, path } = self;
        write!(f, "{from} -> {to} ({references}): {}:{line} uses {path}", file.display())
    }
}

/// Returns the cycles between sibling modules of a crate of the workspace.
pub fn module_cycles(
    workspace: &Workspace,
    root: &CrateRoot,
) -> Result<Vec<Cycle>, StructureError> {
    let read_file = |path: &Path| fs::read_to_string(workspace.root.join(path));
    cycles_of(&root.name, &root.file, &read_file)
}

/// Returns the cycles between sibling modules of a crate whose files are read with `read_file`.
fn cycles_of(
    crate_name: &str,
    root_file: &Path,
    read_file: &ReadFile<'_>,
) -> Result<Vec<Cycle>, StructureError> {
    let modules = read_modules(root_file, read_file)?;
    let mut cycles = Vec::new();
    for (parent, edges) in edges_by_parent(&modules) {
        let graph = Graph::new(&edges);
        for component in graph.components() {
            let edges = edges
                .iter()
                .filter(|((from, to), _)| component.contains(from) && component.contains(to))
                .map(|(_, edge)| edge.clone())
                .collect();
            let crate_name = crate_name.to_owned();
            cycles.push(Cycle { crate_name, parent: parent.clone(), modules: component, edges });
        }
    }
    Ok(cycles)
}

/// The edges between siblings, by their names.
type Edges = BTreeMap<(String, String), Edge>;

/// Returns the edges between siblings, by the path of their parent.
///
/// A reference from `a::b` to `a::c::d` is an edge from `b` to `c` among the children of `a`. A reference to an
/// ancestor or to a descendant is not an edge.
fn edges_by_parent(modules: &Modules) -> BTreeMap<String, Edges> {
    let mut parents: BTreeMap<String, Edges> = BTreeMap::new();
    for (from, module) in modules {
        for reference in &module.contents.references {
            // One reference can refer to several modules below the same child. They count once.
            let targets = modules_of(modules, from, &reference.path);
            let siblings: BTreeSet<_> =
                targets.iter().filter_map(|to| siblings(from, to)).collect();
            for (parent, from, to) in siblings {
                let edges = parents.entry(path_text(parent)).or_default();
                let edge = edges.entry((from.clone(), to.clone())).or_insert_with(|| Edge {
                    from: from.clone(),
                    to: to.clone(),
                    references: 0,
                    file: module.file.clone(),
                    line: reference.line,
                    path: reference.path.join("::"),
                });
                edge.references += 1;
            }
        }
    }
    parents
}

/// Returns the closest common ancestor of two modules, and its children that contain them.
fn siblings<'a>(
    from: &'a [String],
    to: &'a [String],
) -> Option<(&'a [String], &'a String, &'a String)> {
    let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
    Some((&from[..common], from.get(common)?, to.get(common)?))
}

fn path_text(module: &[String]) -> String {
    ["crate"].into_iter().chain(module.iter().map(String::as_str)).collect::<Vec<_>>().join("::")
}

/// The direct dependencies of each module.
struct Graph<'a>(BTreeMap<&'a str, BTreeSet<&'a str>>);

impl<'a> Graph<'a> {
    fn new(edges: &'a Edges) -> Graph<'a> {
        let mut graph: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
        for (from, to) in edges.keys() {
            graph.entry(from).or_default().insert(to);
        }
        Graph(graph)
    }

    /// Returns the strongly connected components that have more than one module.
    fn components(&self) -> BTreeSet<BTreeSet<String>> {
        let reachable: BTreeMap<&str, BTreeSet<&str>> =
            self.0.keys().map(|&module| (module, self.reachable_from(module))).collect();
        let reaches =
            |from: &str, to: &str| reachable.get(from).is_some_and(|all| all.contains(to));
        reachable
            .iter()
            .map(|(module, all)| all.iter().filter(|other| reaches(other, module)))
            .map(|component| component.map(|&name| name.to_owned()).collect::<BTreeSet<_>>())
            .filter(|component| component.len() > 1)
            .collect()
    }

    fn reachable_from(&self, start: &'a str) -> BTreeSet<&'a str> {
        let mut reached = BTreeSet::new();
        let mut pending = vec![start];
        while let Some(module) = pending.pop() {
            for &next in self.0.get(module).into_iter().flatten() {
                if reached.insert(next) {
                    pending.push(next);
                }
            }
        }
        reached
    }
}

#[cfg(test)]
mod tests;
