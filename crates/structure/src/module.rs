//! The tree of modules of a crate.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

use syn::{Attribute, Expr, ExprLit, Item, ItemMod, Lit, Meta};

use crate::error::StructureError;
use crate::scan::{self, ModuleContents, is_test_only};

/// The path of a module from the root of its crate: `["store", "redis"]` for `crate::store::redis`.
pub(crate) type ModulePath = Vec<String>;

/// A module: its file, the names of its children, and its own contents.
#[derive(Debug, Default)]
pub(crate) struct Module {
    pub(crate) file: PathBuf,
    pub(crate) children: BTreeSet<String>,
    pub(crate) contents: ModuleContents,
}

/// The modules of a crate, without modules that are compiled only for tests.
pub(crate) type Modules = BTreeMap<ModulePath, Module>;

/// A function that reads the text of a file, from the disk or from a table of a test.
pub(crate) type ReadFile<'a> = dyn Fn(&Path) -> io::Result<String> + 'a;

/// Reads all modules of the crate with this root file.
pub(crate) fn read_modules(
    root_file: &Path,
    read_file: &ReadFile<'_>,
) -> Result<Modules, StructureError> {
    let mut reader = ModuleReader { read_file, modules: Modules::new() };
    let text = read_file(root_file)
        .map_err(|source| StructureError::Read { path: root_file.to_owned(), source })?;
    let directory = root_file.parent().unwrap_or(Path::new(""));
    reader.read_text(&text, ModulePlace { path: Vec::new(), file: root_file, directory })?;
    Ok(reader.modules)
}

/// The place of a module: its path, its file, and the directory of its children.
struct ModulePlace<'a> {
    path: ModulePath,
    file: &'a Path,
    directory: &'a Path,
}

/// Reads modules into a tree.
struct ModuleReader<'a> {
    read_file: &'a ReadFile<'a>,
    modules: Modules,
}

impl ModuleReader<'_> {
    fn read_text(&mut self, text: &str, place: ModulePlace<'_>) -> Result<(), StructureError> {
        let file = syn::parse_file(text).map_err(|source| StructureError::Parse {
            path: place.file.to_owned(),
            line: source.span().start().line,
            source,
        })?;
        if is_test_only(&file.attrs) { Ok(()) } else { self.add(&file.items, place) }
    }

    fn add(&mut self, items: &[Item], place: ModulePlace<'_>) -> Result<(), StructureError> {
        // If two `cfg`s declare the same module, both declarations are one module here.
        let module = self.modules.entry(place.path.clone()).or_default();
        place.file.clone_into(&mut module.file);
        scan::items(items, &mut module.contents);
        for item in items {
            if let Item::Mod(item) = item
                && !is_test_only(&item.attrs)
            {
                self.read_child(item, &place)?;
            }
        }
        Ok(())
    }

    fn read_child(
        &mut self,
        item: &ItemMod,
        parent: &ModulePlace<'_>,
    ) -> Result<(), StructureError> {
        let name = item.ident.to_string();
        let mut path = parent.path.clone();
        path.push(name.clone());
        if let Some(module) = self.modules.get_mut(&parent.path) {
            module.children.insert(name.clone());
        }
        let directory = parent.directory.join(&name);
        if let Some((_, items)) = &item.content {
            return self.add(items, ModulePlace { path, file: parent.file, directory: &directory });
        }
        let candidates = match path_attribute(&item.attrs) {
            Some(file) => vec![parent.file.with_file_name(file)],
            None => vec![directory.with_extension("rs"), directory.join("mod.rs")],
        };
        for file in candidates {
            match (self.read_file)(&file) {
                Ok(text) => {
                    return self.read_text(
                        &text,
                        ModulePlace { path, file: &file, directory: &directory },
                    );
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(StructureError::Read { path: file, source }),
            }
        }
        Err(StructureError::NoFile { path: parent.file.to_owned(), name })
    }
}

/// Returns the file that `#[path = "…"]` names.
fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    })
}
