//! Which file imports from which, and the cycles among them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use petgraph::algo::tarjan_scc;
use petgraph::graphmap::DiGraphMap;

use super::resolve::Found;
use super::tree::{ModuleId, Tree};

/// The files of a crate, and for each pair of them the names that the first takes from the second.
#[derive(Default)]
pub struct Graph {
    pub files: BTreeSet<PathBuf>,
    edges: BTreeMap<(PathBuf, PathBuf), BTreeSet<String>>,
}

/// One edge of a cycle.
pub struct Edge<'a> {
    pub from: &'a Path,
    pub to: &'a Path,
    pub names: &'a BTreeSet<String>,
}

impl Graph {
    /// Adds the files of a target and their imports.
    ///
    /// A private `use` of an item is an import. A `pub use` hands a name on: it counts only if the file's own code names it.
    /// A `use` of a module counts by the paths that begin with it, and a `*` by the names that come through it.
    pub fn add(&mut self, tree: &Tree) {
        for (id, module) in tree.modules.iter().enumerate() {
            self.files.insert(module.file.clone());
            for import in module.imports.iter().filter(|import| !import.public) {
                match (tree.resolve(id, &import.path), &import.name) {
                    (Some(Found::Module(of)), None) if !uses_any(tree, id, of) => self.edge(tree, id, of, "*"),
                    (Some(Found::Item(of, name)), _) => self.edge(tree, id, of, &name),
                    _ => {}
                }
            }
            let paths = module.paths.iter().filter_map(|path| tree.resolve(id, path));
            let calls = module.calls.iter().filter_map(|name| tree.resolve_macro(id, name));
            for found in paths.chain(calls) {
                if let Found::Item(of, name) = found {
                    self.edge(tree, id, of, &name);
                }
            }
        }
    }

    fn edge(&mut self, tree: &Tree, from: ModuleId, to: ModuleId, name: &str) {
        let (from, to) = (tree.file(from), tree.file(to));
        if from != to {
            self.edges.entry((from.to_owned(), to.to_owned())).or_default().insert(name.to_owned());
        }
    }

    /// The cycles: of each, the edges between its files.
    pub fn cycles(&self) -> Vec<Vec<Edge<'_>>> {
        let graph: DiGraphMap<&Path, ()> = self.edges.keys().map(|(from, to)| (from.as_path(), to.as_path())).collect();
        let mut cycles: Vec<_> = tarjan_scc(&graph).into_iter().filter(|files| files.len() > 1).collect();
        cycles.sort_by_key(|files| files.iter().min().copied());
        cycles.into_iter().map(|files| self.within(&files)).collect()
    }

    fn within(&self, files: &[&Path]) -> Vec<Edge<'_>> {
        let inside = |file: &Path| files.contains(&file);
        let edges = self.edges.iter().filter(|((from, to), _)| inside(from) && inside(to));
        edges.map(|((from, to), names)| Edge { from, to, names }).collect()
    }
}

/// Whether code of `module` names something that its `*` import of `of` gives.
fn uses_any(tree: &Tree, id: ModuleId, of: ModuleId) -> bool {
    let module = &tree.modules[id];
    let firsts = module.paths.iter().filter_map(|path| path.first()).chain(&module.calls);
    firsts.into_iter().any(|first| tree.gives(of, first, id))
}
