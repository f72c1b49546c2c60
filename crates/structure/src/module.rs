//! The tree of modules of a crate.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use syn::{Attribute, Expr, ExprLit, Item, ItemMod, Lit, Meta};

use crate::error::StructureError;
use crate::scan::{self, Scanned, is_test_only};

/// The path of a module from the root of its crate: `["store", "redis"]` for `crate::store::redis`.
pub(crate) type ModulePath = Vec<String>;

/// A module without its child modules: what it defines, imports and refers to.
#[derive(Debug, Default)]
pub(crate) struct Module {
    pub(crate) file: PathBuf,
    pub(crate) children: BTreeSet<String>,
    pub(crate) scanned: Scanned,
}

/// The modules of a crate, without those compiled for tests only.
pub(crate) type Modules = BTreeMap<ModulePath, Module>;

/// Reads the text of a file: from the disk, or from a test's table.
pub(crate) type ReadFile<'a> = dyn Fn(&Path) -> io::Result<String> + 'a;

/// Reads all modules of the crate that starts with `root_file`.
pub(crate) fn read_modules(
    root_file: &Path,
    read_file: &ReadFile<'_>,
) -> Result<Modules, StructureError> {
    let mut reader = Reader { read_file, modules: Modules::new() };
    let text = read_file(root_file)
        .map_err(|source| StructureError::Read { path: root_file.to_owned(), source })?;
    let directory = root_file.parent().unwrap_or(Path::new(""));
    reader.file(&text, ModuleFile { path: Vec::new(), file: root_file, directory })?;
    Ok(reader.modules)
}

/// Where a module is: in the tree, in which file, and in which directory its children are.
struct ModuleFile<'a> {
    path: ModulePath,
    file: &'a Path,
    directory: &'a Path,
}

struct Reader<'a> {
    read_file: &'a ReadFile<'a>,
    modules: Modules,
}

impl Reader<'_> {
    fn file(&mut self, text: &str, place: ModuleFile<'_>) -> Result<(), StructureError> {
        let file = syn::parse_file(text).map_err(|source| StructureError::Parse {
            path: place.file.to_owned(),
            line: source.span().start().line,
            source,
        })?;
        if is_test_only(&file.attrs) { Ok(()) } else { self.items(&file.items, place) }
    }

    fn items(&mut self, items: &[Item], place: ModuleFile<'_>) -> Result<(), StructureError> {
        // A module that two `cfg`s declare, each in its own way, is one module here.
        let module = self.modules.entry(place.path.clone()).or_default();
        place.file.clone_into(&mut module.file);
        scan::items(items, &mut module.scanned);
        for item in items {
            if let Item::Mod(item) = item
                && !is_test_only(&item.attrs)
            {
                self.child(item, &place)?;
            }
        }
        Ok(())
    }

    fn child(&mut self, item: &ItemMod, parent: &ModuleFile<'_>) -> Result<(), StructureError> {
        let name = item.ident.to_string();
        let mut path = parent.path.clone();
        path.push(name.clone());
        if let Some(module) = self.modules.get_mut(&parent.path) {
            module.children.insert(name.clone());
        }
        let directory = parent.directory.join(&name);
        if let Some((_, items)) = &item.content {
            return self
                .items(items, ModuleFile { path, file: parent.file, directory: &directory });
        }
        let candidates = match path_attribute(&item.attrs) {
            Some(file) => vec![parent.file.with_file_name(file)],
            None => vec![directory.with_extension("rs"), directory.join("mod.rs")],
        };
        for file in candidates {
            match (self.read_file)(&file) {
                Ok(text) => {
                    return self
                        .file(&text, ModuleFile { path, file: &file, directory: &directory });
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(StructureError::Read { path: file, source }),
            }
        }
        Err(StructureError::NoFile { path: parent.file.to_owned(), name })
    }
}

/// The file that `#[path = "…"]` names.
fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    })
}
