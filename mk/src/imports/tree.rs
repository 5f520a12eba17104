//! The modules of one target and the names in them, as `reader` finds them and `resolve` looks them up.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;

/// Index into `Tree::modules`. The root is 0.
pub type ModuleId = usize;

/// One target: a library, a program, a test or a benchmark.
#[derive(Default)]
pub struct Tree {
    pub modules: Vec<Module>,
    /// `macro_rules!` by name, with the modules that define it: they are found by text order, not by path.
    pub macros: HashMap<String, Vec<ModuleId>>,
}

/// A module, in a file of its own or inline.
#[derive(Default)]
pub struct Module {
    pub file: PathBuf,
    /// `None` for the root.
    pub parent: Option<ModuleId>,
    /// By name. Several if `#[cfg]` chooses one of them.
    pub children: HashMap<String, Vec<ModuleId>>,
    /// By name: whether the item is visible outside the module.
    pub items: BTreeMap<String, bool>,
    /// Variants of the enums among the items, for `use Enum::*`.
    pub variants: HashMap<String, HashSet<String>>,
    /// Words in invocations of macros that define items: they may be items too.
    pub generated: HashSet<String>,
    pub imports: Vec<Import>,
    /// Paths in the module's code.
    pub paths: Vec<Vec<String>>,
    /// Macros that the module calls by their name alone.
    pub calls: Vec<String>,
}

/// One name, or one `*`, of a `use`.
pub struct Import {
    pub path: Vec<String>,
    /// The name that it gets here. `None` for `*`.
    pub name: Option<String>,
    /// `pub use`, also with a restricted visibility.
    pub public: bool,
}

impl Tree {
    /// Whether `module` is `ancestor` or inside it.
    pub fn is_inside(&self, module: ModuleId, ancestor: ModuleId) -> bool {
        std::iter::successors(Some(module), |&at| self.modules[at].parent).any(|at| at == ancestor)
    }
}
