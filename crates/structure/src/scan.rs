//! Collects the definitions, imports and references of a module.

use std::collections::BTreeSet;

use proc_macro2::{Ident, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{
    Attribute, Field, ImplItem, Item, ItemUse, Meta, Path, Stmt, TraitItem, UseTree, Variant,
};

/// The definitions, imports and references of a module. Paths are as they are written, with imports not followed.
#[derive(Debug, Default)]
pub(crate) struct ModuleContents {
    /// The names of functions, types, traits, constants and macros.
    pub(crate) definitions: BTreeSet<String>,
    /// The structs, enums, unions, traits and type aliases among the definitions.
    pub(crate) types: Vec<TypeDefinition>,
    /// The names that `use` brings into scope.
    pub(crate) imports: Vec<ImportedName>,
    /// The paths of `use …::*`.
    pub(crate) globs: Vec<Vec<String>>,
    /// Every path in the text, including the paths of `use`.
    pub(crate) references: Vec<Reference>,
}

/// The definition of a type or a trait.
#[derive(Debug)]
pub(crate) struct TypeDefinition {
    pub(crate) name: String,
    pub(crate) line: usize,
}

/// A name that `use` brings into scope.
#[derive(Debug)]
pub(crate) struct ImportedName {
    pub(crate) name: String,
    pub(crate) path: Vec<String>,
}

/// A path in the text.
#[derive(Debug)]
pub(crate) struct Reference {
    pub(crate) path: Vec<String>,
    pub(crate) line: usize,
}

/// Adds the definitions, imports and references of `items`. Child modules and code that is compiled only for tests are
/// omitted.
pub(crate) fn items(items: &[Item], contents: &mut ModuleContents) {
    let mut scanner = Scanner { contents };
    for item in items.iter().filter(|item| !is_test_only(item_attributes(item))) {
        if let Some(name) = defined_name(item) {
            scanner.contents.definitions.insert(name.to_string());
            if is_type(item) {
                let line = name.span().start().line;
                scanner.contents.types.push(TypeDefinition { name: name.to_string(), line });
            }
        }
        scanner.visit_item(item);
    }
}

/// Whether one of these attributes is a `#[cfg(…)]` that holds only in tests: `test`, `doctest`, or an `all(…)` that
/// contains one of them.
pub(crate) fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) if list.path.is_ident("cfg") => {
            list.parse_args().is_ok_and(|meta| needs_test(&meta))
        }
        Meta::Path(path) => path.is_ident("test"),
        _ => false,
    })
}

fn needs_test(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test") || path.is_ident("doctest"),
        Meta::List(list) if list.path.is_ident("all") => {
            let parse = syn::punctuated::Punctuated::<Meta, syn::Token![,]>::parse_terminated;
            list.parse_args_with(parse).is_ok_and(|all| all.iter().any(needs_test))
        }
        _ => false,
    }
}

/// Visits the items of a module and collects its contents.
struct Scanner<'a> {
    contents: &'a mut ModuleContents,
}

impl Scanner<'_> {
    fn add_reference(&mut self, path: Vec<String>, line: usize) {
        self.contents.references.push(Reference { path, line });
    }

    fn use_tree(&mut self, tree: &UseTree, mut prefix: Vec<String>) {
        match tree {
            UseTree::Path(tree) => {
                prefix.push(tree.ident.to_string());
                self.use_tree(&tree.tree, prefix);
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.use_tree(tree, prefix.clone());
                }
            }
            UseTree::Glob(glob) => {
                self.add_reference(prefix.clone(), glob.star_token.spans[0].start().line);
                self.contents.globs.push(prefix);
            }
            UseTree::Name(name) => self.import(prefix, &name.ident, &name.ident),
            UseTree::Rename(rename) => self.import(prefix, &rename.ident, &rename.rename),
        }
    }

    fn import(&mut self, mut path: Vec<String>, ident: &Ident, name: &Ident) {
        let mut name = name.to_string();
        if ident != "self" {
            path.push(ident.to_string());
        } else if name == "self" {
            // `use a::b::{self}` brings in `b`.
            name = path.last().cloned().unwrap_or_default();
        }
        self.add_reference(path.clone(), ident.span().start().line);
        self.contents.imports.push(ImportedName { name, path });
    }

    /// Collects `a::b` and longer paths from the tokens of a macro call, whose meaning only the macro knows.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<Ident> = Vec::new();
        let mut colons = 0;
        // Whether the path comes after `::` at the start, as in `::http::…`, or after `>::`.
        let mut is_global = false;
        for token in tokens {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ':' => {
                    colons += 1;
                    continue;
                }
                TokenTree::Ident(ident) if colons == 2 && !path.is_empty() => path.push(ident),
                TokenTree::Ident(ident) => {
                    self.token_path(&mut path, is_global);
                    is_global = colons == 2;
                    path.push(ident);
                }
                TokenTree::Group(group) => {
                    // An import inside a macro, `a::b::{c, d}`, counts as `a::b`.
                    self.token_path(&mut path, is_global);
                    self.tokens(group.stream());
                }
                _ => self.token_path(&mut path, is_global),
            }
            colons = 0;
        }
        self.token_path(&mut path, is_global);
    }

    fn token_path(&mut self, path: &mut Vec<Ident>, is_global: bool) {
        let path = std::mem::take(path);
        if let ([first, _, ..], false) = (path.as_slice(), is_global) {
            let line = first.span().start().line;
            self.add_reference(path.iter().map(Ident::to_string).collect(), line);
        }
    }
}

impl<'ast> Visit<'ast> for Scanner<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        // A child module is scanned separately.
        let skip = matches!(item, Item::Mod(_)) || is_test_only(item_attributes(item));
        if !skip {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        // `use ::http::…` names another crate, even if there is a module `http`.
        if item.leading_colon.is_none() {
            self.use_tree(&item.tree, Vec::new());
        }
    }

    fn visit_path(&mut self, path: &'ast Path) {
        if let (None, Some(first)) = (&path.leading_colon, path.segments.first()) {
            let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.add_reference(names, first.ident.span().start().line);
        }
        visit::visit_path(self, path);
    }

    fn visit_token_stream(&mut self, tokens: &'ast TokenStream) {
        self.tokens(tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        // Doc comments are also attributes, and `#[doc(…)]` has no references.
        if !attribute.path().is_ident("doc") {
            visit::visit_attribute(self, attribute);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = match item {
            ImplItem::Const(item) => &item.attrs,
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            ImplItem::Macro(item) => &item.attrs,
            _ => return visit::visit_impl_item(self, item),
        };
        if !is_test_only(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        let attributes = match item {
            TraitItem::Const(item) => &item.attrs,
            TraitItem::Fn(item) => &item.attrs,
            TraitItem::Type(item) => &item.attrs,
            TraitItem::Macro(item) => &item.attrs,
            _ => return visit::visit_trait_item(self, item),
        };
        if !is_test_only(attributes) {
            visit::visit_trait_item(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast Field) {
        if !is_test_only(&field.attrs) {
            visit::visit_field(self, field);
        }
    }

    fn visit_variant(&mut self, variant: &'ast Variant) {
        if !is_test_only(&variant.attrs) {
            visit::visit_variant(self, variant);
        }
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        let skip = match statement {
            Stmt::Local(local) => is_test_only(&local.attrs),
            Stmt::Macro(invocation) => is_test_only(&invocation.attrs),
            _ => false,
        };
        if !skip {
            visit::visit_stmt(self, statement);
        }
    }
}

fn defined_name(item: &Item) -> Option<&Ident> {
    match item {
        Item::Const(item) => Some(&item.ident),
        Item::Enum(item) => Some(&item.ident),
        Item::Fn(item) => Some(&item.sig.ident),
        Item::Macro(item) => item.ident.as_ref(),
        Item::Static(item) => Some(&item.ident),
        Item::Struct(item) => Some(&item.ident),
        Item::Trait(item) => Some(&item.ident),
        Item::TraitAlias(item) => Some(&item.ident),
        Item::Type(item) => Some(&item.ident),
        Item::Union(item) => Some(&item.ident),
        _ => None,
    }
}

fn is_type(item: &Item) -> bool {
    matches!(
        item,
        Item::Enum(_) | Item::Struct(_) | Item::Trait(_) | Item::Type(_) | Item::Union(_)
    )
}

fn item_attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
