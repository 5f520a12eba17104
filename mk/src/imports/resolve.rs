//! Finds the file that defines what a path names. A re-export is followed to the definition.

use std::collections::HashSet;
use std::path::Path;

use super::tree::{Import, ModuleId, Tree};

/// What a path names.
#[derive(Clone, Debug, PartialEq)]
pub enum Found {
    /// A module.
    Module(ModuleId),
    /// An item of a module, by its name there.
    Item(ModuleId, String),
    /// An item of another crate, by an import of this one.
    Outside,
}

/// The lookups under way: imports may name each other in a circle.
type Seen = HashSet<(ModuleId, String)>;

impl Tree {
    /// What `path` means in the module `from`. `None`: something outside of the crate, or a local name.
    pub fn resolve(&self, from: ModuleId, path: &[String]) -> Option<Found> {
        self.follow(from, path, &mut Seen::new())
    }

    /// What a macro's bare name means in the module `from`.
    pub fn resolve_macro(&self, from: ModuleId, name: &str) -> Option<Found> {
        let textual = || match self.macros.get(name)?.as_slice() {
            [only] => Some(Found::Item(*only, name.to_owned())),
            _ => None,
        };
        self.resolve(from, &[name.to_owned()]).or_else(textual)
    }

    /// Whether the module `from` sees `name` through a `*` import of `of`.
    pub fn gives(&self, of: ModuleId, name: &str, from: ModuleId) -> bool {
        self.lookup(of, name, Some(from), false, &mut Seen::new()).is_some()
    }

    /// The file of a module.
    pub fn file(&self, module: ModuleId) -> &Path {
        &self.modules[module].file
    }

    fn follow(&self, from: ModuleId, path: &[String], seen: &mut Seen) -> Option<Found> {
        let (first, mut rest) = path.split_first()?;
        let mut found = match first.as_str() {
            "crate" => Found::Module(0),
            "self" => Found::Module(from),
            "super" => Found::Module(self.modules[from].parent?),
            name => self.lookup(from, name, None, !rest.is_empty(), seen)?,
        };
        while let (Found::Module(module), Some((name, after))) = (&found, rest.split_first()) {
            let module = *module;
            found = match name.as_str() {
                "super" => Found::Module(self.modules[module].parent?),
                // A name that is not seen is one that a macro defines.
                name => self
                    .lookup(module, name, None, !after.is_empty(), seen)
                    .unwrap_or_else(|| Found::Item(module, name.to_owned())),
            };
            rest = after;
        }
        Some(found)
    }

    /// `glob`: the module whose `*` import asks, which sees only what is visible to it.
    fn lookup(
        &self,
        module: ModuleId,
        name: &str,
        glob: Option<ModuleId>,
        more: bool,
        seen: &mut Seen,
    ) -> Option<Found> {
        if !seen.insert((module, name.to_owned())) {
            return None;
        }
        let here = &self.modules[module];
        let private = glob.is_none_or(|from| self.is_inside(from, module));
        let item = || {
            let visible = *here.items.get(name)?;
            (private || visible).then(|| Found::Item(module, name.to_owned()))
        };
        let child = || here.children.get(name).map(|modules| Found::Module(modules[0]));
        let own = if more { child().or_else(item) } else { item().or_else(child) };
        own.or_else(|| self.imported(module, name, private, seen))
            .or_else(|| here.generated.contains(name).then(|| Found::Item(module, name.to_owned())))
    }

    fn imported(&self, module: ModuleId, name: &str, private: bool, seen: &mut Seen) -> Option<Found> {
        let here = &self.modules[module];
        let visible = |import: &&Import| private || import.public;
        let mut imports = here.imports.iter().filter(visible);
        let globs = imports.clone().filter(|import| import.name.is_none());
        if let Some(import) = imports.find(|import| import.name.as_deref() == Some(name)) {
            return Some(self.follow(module, &import.path, seen).unwrap_or(Found::Outside));
        }
        for import in globs {
            match self.follow(module, &import.path, &mut seen.clone()) {
                Some(Found::Module(of)) => {
                    if let Some(found) = self.lookup(of, name, Some(module), false, seen) {
                        return Some(found);
                    }
                }
                Some(Found::Item(of, item)) => {
                    let variants = self.modules[of].variants.get(&item);
                    if variants.is_some_and(|variants| variants.contains(name)) {
                        return Some(Found::Item(of, item));
                    }
                }
                Some(Found::Outside) | None => {}
            }
        }
        None
    }
}
