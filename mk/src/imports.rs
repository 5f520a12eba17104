//! Counts the import cycles among the files of each crate: `cargo mk check` wants none.
//!
//! A file that imports another one is above it. With a cycle there is no order in which to read, test or move the
//! files. Product code and tests count alike. A `mod` declaration is no import, so a parent may declare its children,
//! and a child may import from its parent. If the parent also uses that child, there is a cycle. `graph` says what
//! counts as an import.

mod graph;
mod reader;
mod resolve;
#[cfg(test)]
mod tests;
mod tokens;
mod tree;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;

use self::graph::Graph;
use self::reader::Source;
use crate::{paths, tools, ui};

/// Counts the cycles, and prints each with the imported names. Returns whether there is none.
pub fn check() -> Result<bool> {
    let root = paths::root();
    let source = |path: &Path| fs::read_to_string(root.join(path)).ok();
    let (mut files, mut cycles) = (BTreeSet::new(), 0);
    for targets in crates(&root)? {
        let graph = graph_of(&targets, &source)?;
        for text in shown(&graph) {
            cycles += 1;
            eprintln!("{text}");
        }
        files.extend(graph.files);
    }
    ui::step("imports", &format!("{} files, {cycles} cycles", files.len()));
    Ok(cycles == 0)
}

/// The root files of every crate's targets, relative to the repository.
fn crates(root: &Path) -> Result<Vec<Vec<PathBuf>>> {
    let said = tools::metadata(&["--no-deps"])?;
    let packages = said["packages"].as_array().context("cargo metadata names no packages")?;
    let file = |target: &Value| -> Option<PathBuf> {
        let path = Path::new(target["src_path"].as_str()?);
        Some(path.strip_prefix(root).unwrap_or(path).to_owned())
    };
    let targets =
        |package: &Value| -> Option<Vec<PathBuf>> { package["targets"].as_array()?.iter().map(file).collect() };
    packages.iter().map(|package| targets(package).context("a package without targets")).collect()
}

/// The graph of a crate with these targets.
fn graph_of(targets: &[PathBuf], source: Source) -> Result<Graph> {
    let mut graph = Graph::default();
    for root in targets {
        graph.add(&reader::read(root, source)?);
    }
    Ok(graph)
}

/// Each cycle in words.
fn shown(graph: &Graph) -> Vec<String> {
    let lines = |cycle: Vec<graph::Edge>| {
        let files: BTreeSet<_> = cycle.iter().map(|edge| edge.from).collect();
        let mut text = format!("import cycle of {} files:", files.len());
        for edge in cycle {
            let names: Vec<_> = edge.names.iter().map(String::as_str).collect();
            text += &format!("\n  {} -> {}: {}", edge.from.display(), edge.to.display(), names.join(", "));
        }
        text
    };
    graph.cycles().into_iter().map(lines).collect()
}
