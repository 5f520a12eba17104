//! Reads the files of a target into a `Tree`.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprLit, Ident, Item, ItemMod, ItemUse, Lit, Macro, Meta, PatIdent, UseTree, Visibility};

use super::tokens;
use super::tree::{Import, Module, ModuleId, Tree};

/// Gives the text of a file. `None`: there is no such file.
pub type Source<'a> = &'a dyn Fn(&Path) -> Option<String>;

/// Reads the target whose root is the file `root`.
pub fn read(root: &Path, source: Source) -> Result<Tree> {
    let mut tree = Tree::default();
    let folder = root.parent().unwrap_or(Path::new("")).to_owned();
    read_file(&mut tree, source, root, None, folder)?;
    Ok(tree)
}

/// `children`: the folder of the files of its modules.
fn read_file(
    tree: &mut Tree,
    source: Source,
    file: &Path,
    parent: Option<ModuleId>,
    children: PathBuf,
) -> Result<ModuleId> {
    let text = source(file).with_context(|| format!("no file {}", file.display()))?;
    let syntax = syn::parse_file(&text).with_context(|| format!("cannot parse {}", file.display()))?;
    let module = add(tree, file, parent);
    let sources = file.parent().unwrap_or(Path::new("")).to_owned();
    let mut reader = Reader { tree, source, module, children, sources, result: Ok(()) };
    reader.visit_file(&syntax);
    reader.result?;
    Ok(module)
}

fn add(tree: &mut Tree, file: &Path, parent: Option<ModuleId>) -> ModuleId {
    tree.modules.push(Module { file: file.to_owned(), parent, ..Module::default() });
    tree.modules.len() - 1
}

struct Reader<'a> {
    tree: &'a mut Tree,
    source: Source<'a>,
    module: ModuleId,
    /// Where the files of the module's modules are.
    children: PathBuf,
    /// What a `#[path]` in the module is relative to.
    sources: PathBuf,
    result: Result<()>,
}

impl Reader<'_> {
    fn here(&mut self) -> &mut Module {
        &mut self.tree.modules[self.module]
    }

    fn item(&mut self, name: &Ident, visibility: &Visibility) {
        let visible = !matches!(visibility, Visibility::Inherited);
        *self.here().items.entry(name.to_string()).or_default() |= visible;
    }

    fn inline(&mut self, name: &Ident, path: Option<String>, items: &[Item]) -> ModuleId {
        let (file, outer) = (self.here().file.clone(), self.module);
        let module = add(self.tree, &file, Some(outer));
        let folder = path.map_or_else(|| self.children.join(name.to_string()), |path| self.sources.join(path));
        let (children, sources) =
            (std::mem::replace(&mut self.children, folder.clone()), std::mem::replace(&mut self.sources, folder));
        self.module = module;
        for item in items {
            self.visit_item(item);
        }
        (self.module, self.children, self.sources) = (outer, children, sources);
        module
    }

    fn in_file(&mut self, name: &Ident, path: Option<String>) -> Result<ModuleId> {
        let name = name.to_string();
        let own = self.children.join(format!("{name}.rs"));
        // The modules of a file that `#[path]` names are beside it, as those of a `mod.rs` are.
        let (file, children) = match path {
            Some(path) => {
                let file = tidy(&self.sources.join(path));
                let folder = file.parent().unwrap_or(Path::new("")).to_owned();
                (file, folder)
            }
            None if (self.source)(&own).is_some() => (own, self.children.join(name)),
            None => (self.children.join(&name).join("mod.rs"), self.children.join(name)),
        };
        let outer = self.module;
        read_file(self.tree, self.source, &file, Some(outer), children)
    }

    fn import(&mut self, tree: &UseTree, prefix: &[String], public: bool) {
        let with = |name: &Ident| [prefix, &[name.to_string()]].concat();
        let mut push =
            |path: Vec<String>, name: Option<String>| self.here().imports.push(Import { path, name, public });
        match tree {
            UseTree::Path(path) => self.import(&path.tree, &with(&path.ident), public),
            UseTree::Name(name) if name.ident == "self" => push(prefix.to_vec(), prefix.last().cloned()),
            UseTree::Name(name) => push(with(&name.ident), Some(name.ident.to_string())),
            UseTree::Rename(rename) if rename.ident == "self" => push(prefix.to_vec(), Some(rename.rename.to_string())),
            UseTree::Rename(rename) => push(with(&rename.ident), Some(rename.rename.to_string())),
            UseTree::Glob(_) => push(prefix.to_vec(), None),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.import(tree, prefix, public)),
        }
    }

    fn tokens(&mut self, stream: &proc_macro2::TokenStream) {
        let paths = tokens::paths(stream.clone());
        self.here().paths.extend(paths);
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        match item {
            Item::Const(item) => self.item(&item.ident, &item.vis),
            Item::Enum(item) => {
                self.item(&item.ident, &item.vis);
                let variants = item.variants.iter().map(|variant| variant.ident.to_string()).collect();
                self.here().variants.insert(item.ident.to_string(), variants);
            }
            Item::Fn(item) => self.item(&item.sig.ident, &item.vis),
            Item::Static(item) => self.item(&item.ident, &item.vis),
            Item::Struct(item) => self.item(&item.ident, &item.vis),
            Item::Trait(item) => self.item(&item.ident, &item.vis),
            Item::TraitAlias(item) => self.item(&item.ident, &item.vis),
            Item::Type(item) => self.item(&item.ident, &item.vis),
            Item::Union(item) => self.item(&item.ident, &item.vis),
            Item::Macro(item) => match &item.ident {
                Some(name) => {
                    self.here().items.insert(name.to_string(), true);
                    let module = self.module;
                    self.tree.macros.entry(name.to_string()).or_default().push(module);
                }
                None => tokens::words(item.mac.tokens.clone(), &mut self.here().generated),
            },
            _ => {}
        }
        visit::visit_item(self, item);
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if self.result.is_err() {
            return;
        }
        item.attrs.iter().for_each(|attribute| self.visit_attribute(attribute));
        let path = item.attrs.iter().find_map(path_attribute);
        let module = match &item.content {
            Some((_, items)) => self.inline(&item.ident, path, items),
            None => match self.in_file(&item.ident, path) {
                Ok(module) => module,
                Err(error) => {
                    self.result = Err(error);
                    return;
                }
            },
        };
        self.here().children.entry(item.ident.to_string()).or_default().push(module);
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if item.leading_colon.is_none() {
            self.import(&item.tree, &[], !matches!(item.vis, Visibility::Inherited));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let names = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
            self.here().paths.push(names);
        }
        visit::visit_path(self, path);
    }

    /// A constant in a pattern looks like a new variable.
    fn visit_pat_ident(&mut self, pattern: &'ast PatIdent) {
        let name = pattern.ident.to_string();
        if name.starts_with(char::is_uppercase) {
            self.here().paths.push(vec![name]);
        }
        visit::visit_pat_ident(self, pattern);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        match call.path.get_ident() {
            Some(name) => self.here().calls.push(name.to_string()),
            None => self.visit_path(&call.path),
        }
        self.tokens(&call.tokens);
    }

    /// An attribute may name a function, also in a string. A single word is rather the attribute's own.
    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        match &attribute.meta {
            Meta::List(list) => {
                let paths = tokens::paths(list.tokens.clone());
                self.here().paths.extend(paths.into_iter().filter(|path| path.len() > 1));
            }
            Meta::Path(_) | Meta::NameValue(_) => {}
        }
    }

    /// `pub(in crate::a)` imports nothing.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

/// The file that `#[path = "..."]` names.
fn path_attribute(attribute: &Attribute) -> Option<String> {
    match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}

/// Without `..`, so that a file has one name.
fn tidy(path: &Path) -> PathBuf {
    path.components().fold(PathBuf::new(), |mut tidy, part| {
        match part {
            std::path::Component::ParentDir if tidy.file_name().is_some() => _ = tidy.pop(),
            part => tidy.push(part),
        }
        tidy
    })
}
