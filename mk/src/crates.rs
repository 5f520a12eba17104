//! Looks at the crates that are built, for `cargo mk check`: licences, versions that were withdrawn ("yanked"), two
//! versions of one crate in the hypervisor, and the list of what runs in root mode in SECURITY.md, with its size.
//!
//! It works without a network. What it knows of withdrawn versions is what cargo has last seen of the registry.

mod index;
mod package;
mod size;
mod trusted;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use serde_json::Value;
use spdx::{Expression, ParseMode};

use self::package::Package;
use crate::{image, paths, tools, ui};

/// Licences that may be used (names of SPDX).
const LICENCES: [&str; 10] =
    ["0BSD", "MIT", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MPL-2.0", "Unicode-3.0", "Unlicense", "Zlib"];

/// Crates that may have another licence, the licence, and why. None of them may run in root mode.
const EXCEPTIONS: [(&str, &str, &str); 2] = [
    (
        "inferno",
        "CDDL-1.0",
        "draws flame graphs for sidecore-trace, which runs on the operator's machine; the licence concerns its own files only",
    ),
    (
        "libbz2-rs-sys",
        "bzip2-1.0.6",
        "unpacks kernels for sidecore-trace, which runs on the operator's machine; the licence is that of bzip2, and asks for no more \
         than BSD's",
    ),
];

/// Crates that are in the hypervisor twice, and why.
const TWICE: [(&str, &str); 1] =
    [("spin", "0.9 comes with lazy_static, which acpi_tables and others still want; the rest uses 0.12")];

/// Checks all crates. Prints what is wrong. `update`: writes the list in SECURITY.md anew. Returns whether nothing is wrong.
pub fn check(update: bool) -> Result<bool> {
    let host = Graph::of("x86_64-unknown-linux-gnu")?;
    let bare = Graph::of(image::TARGET)?;
    let all: BTreeSet<&Package> = host.packages.values().chain(bare.packages.values()).collect();
    let mut wrong: Vec<String> = all.iter().filter_map(|package| licence_fault(package)).collect();
    let linked = tools::tree("sidecore", image::TARGET)?;
    let root = bare.root_mode(|package| linked.contains(&(package.name.clone(), package.version.clone())))?;
    wrong.extend(doubles(&root, &TWICE));
    wrong.extend(root.iter().filter(|package| is_exception(package)).map(|package| {
        format!("{} runs in root mode, where its licence {} may not be used", package.name, package.licence)
    }));
    let index = index::Index::of_cargo();
    let mut unknown = Vec::new();
    for package in all.iter().filter(|package| !package.own) {
        match index.is_yanked(&package.name, &package.version) {
            Some(true) => wrong.push(format!("{} {} was withdrawn by its authors", package.name, package.version)),
            Some(false) => {}
            None => unknown.push(format!("{} {}", package.name, package.version)),
        }
    }
    if let Some(first) = unknown.first() {
        wrong.push(format!(
            "cargo's index does not have {} of the crates, {first} among them, so nobody can tell whether they were withdrawn: `cargo fetch` \
             asks the registry",
            unknown.len(),
        ));
    }
    let place = paths::root().join("SECURITY.md");
    let text = fs::read_to_string(&place).with_context(|| format!("cannot read {}", place.display()))?;
    let size = size::Size::of(&fs::read(image::hypervisor()?)?, &root)?;
    if update {
        fs::write(&place, size::replaced(&trusted::replaced(&text, &root)?, size)?)?;
    } else {
        wrong.extend(trusted::fault(&text, &root));
        wrong.extend(size::fault(&text, size));
    }
    for text in &wrong {
        ui::error(text);
    }
    ui::step("crates", &format!("{} crates, {} in root mode, {} faults", all.len(), root.len(), wrong.len()));
    Ok(wrong.is_empty())
}

/// What is wrong with a package's licence.
fn licence_fault(package: &Package) -> Option<String> {
    let Package { name, version, licence, .. } = package;
    if licence.is_empty() {
        return Some(format!("{name} {version} names no licence"));
    }
    let Ok(expression) = Expression::parse_mode(licence, ParseMode::LAX) else {
        return Some(format!("{name} {version}: `{licence}` is no licence of SPDX"));
    };
    let allowed = expression.evaluate(|wanted| wanted.license.id().is_some_and(|id| LICENCES.contains(&id.name)));
    (!allowed && !is_exception(package))
        .then(|| format!("{name} {version}: the licence {licence} is not among those that may be used"))
}

/// Whether a package may have its licence although no other package may.
fn is_exception(package: &Package) -> bool {
    EXCEPTIONS.iter().any(|(name, licence, _)| package.name == *name && package.licence == *licence)
}

/// The crates that are there in several versions, but for those of `allowed`, and those of `allowed` that are there once.
fn doubles(packages: &BTreeSet<Package>, allowed: &[(&str, &str)]) -> Vec<String> {
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        versions.entry(&package.name).or_default().push(&package.version);
    }
    let is_allowed = |name: &str| allowed.iter().any(|(of, _)| *of == name);
    let of_several = |(name, list): (&&str, &Vec<&str>)| {
        (list.len() > 1 && !is_allowed(name))
            .then(|| format!("the hypervisor has {name} in the versions {}", list.join(" and ")))
    };
    let several = versions.iter().filter_map(of_several);
    let single = |(name, _): &&(&str, &str)| versions.get(name).is_none_or(|list| list.len() < 2);
    let stale = allowed
        .iter()
        .filter(single)
        .map(|(name, _)| format!("{name} is no longer there twice: take it out of the list"));
    several.chain(stale).collect()
}

/// The packages for a target, and what needs what to run.
struct Graph {
    packages: BTreeMap<String, Package>,
    needs: BTreeMap<String, Vec<String>>,
}

impl Graph {
    fn of(target: &str) -> Result<Self> {
        let said = tools::metadata(&["--locked", "--filter-platform", target])?;
        Self::read(&said).context("cargo metadata has another form than expected")
    }

    /// Reads what `cargo metadata` prints.
    fn read(said: &Value) -> Option<Self> {
        let packages = said["packages"].as_array()?.iter().map(package).collect::<Option<_>>()?;
        let needs = said["resolve"]["nodes"].as_array()?.iter().map(needs).collect::<Option<_>>()?;
        Some(Self { packages, needs })
    }

    /// The packages that are linked into the hypervisor. `linked`: whether a package is needed with the features that the hypervisor asks
    /// for. The graph also has what other members of the workspace ask for.
    fn root_mode(&self, linked: impl Fn(&Package) -> bool) -> Result<BTreeSet<Package>> {
        let is_kernel = |(_, package): &(&String, &Package)| package.own && package.name == "sidecore";
        let (kernel, _) = self.packages.iter().find(is_kernel).context("there is no package sidecore")?;
        let (mut found, mut next) = (BTreeSet::new(), vec![kernel]);
        let mut seen = BTreeSet::new();
        while let Some(id) = next.pop() {
            let Some(package) = self.packages.get(id).filter(|package| !package.is_macro && linked(package)) else {
                continue;
            };
            if seen.insert(id) {
                found.insert(package.clone());
                next.extend(self.needs.get(id).into_iter().flatten());
            }
        }
        Ok(found)
    }
}

fn package(said: &Value) -> Option<(String, Package)> {
    let text = |key: &str| said[key].as_str().map(str::to_owned);
    let kinds = |target: &Value| target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|k| k == "proc-macro"));
    let package = Package {
        name: text("name")?,
        version: text("version")?,
        licence: text("license").unwrap_or_default(),
        own: said["source"].is_null(),
        is_macro: said["targets"].as_array()?.iter().any(kinds),
        folder: PathBuf::from(text("manifest_path")?).parent()?.to_owned(),
    };
    Some((text("id")?, package))
}

/// A package, and those that it needs to run: not those for its tests or its build.
fn needs(node: &Value) -> Option<(String, Vec<String>)> {
    let normal =
        |dep: &&Value| dep["dep_kinds"].as_array().is_some_and(|kinds| kinds.iter().any(|k| k["kind"].is_null()));
    let ids = node["deps"].as_array()?.iter().filter(normal).map(|dep| dep["pkg"].as_str().map(str::to_owned));
    Some((node["id"].as_str()?.to_owned(), ids.collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(name: &str, version: &str, licence: &str) -> Package {
        let (name, version, licence) = (name.into(), version.into(), licence.into());
        Package { name, version, licence, own: false, is_macro: false, folder: PathBuf::new() }
    }

    #[test]
    fn a_licence_is_there_and_may_be_used() {
        let fault = |licence| licence_fault(&package("a", "1.0.0", licence));
        for good in
            ["MIT", "MIT/Apache-2.0", "Apache-2.0 / MIT", "GPL-3.0 OR MIT", "(MIT OR Apache-2.0) AND Unicode-3.0"]
        {
            assert_eq!(fault(good), None, "{good}");
        }
        for bad in ["", "GPL-3.0-only", "MIT AND GPL-3.0-only", "ours"] {
            assert!(fault(bad).is_some(), "{bad}");
        }
    }

    #[test]
    fn an_exception_is_for_one_crate_and_one_licence() {
        for (name, licence, _) in EXCEPTIONS {
            assert_eq!(licence_fault(&package(name, "1.0.0", licence)), None);
            assert!(licence_fault(&package("another", "1.0.0", licence)).is_some());
            assert!(licence_fault(&package(name, "1.0.0", "GPL-3.0-only")).is_some());
        }
    }

    #[test]
    fn two_versions_are_a_fault_unless_there_is_a_reason() {
        let of = |versions: &[&str]| versions.iter().map(|version| package("a", version, "MIT")).collect();
        assert!(doubles(&of(&["1.0.0"]), &[]).is_empty());
        assert_eq!(doubles(&of(&["1.0.0", "2.0.0"]), &[]).len(), 1);
        assert!(doubles(&of(&["1.0.0", "2.0.0"]), &[("a", "why")]).is_empty());
        assert_eq!(doubles(&of(&["1.0.0"]), &[("a", "why")]).len(), 1, "a reason that is not needed any more");
    }

    #[test]
    fn macros_tests_and_build_scripts_do_not_run_in_root_mode() {
        let one = |id: &str, kind: &str, source: Value| {
            json!({"id": id, "name": id, "version": "1.0.0", "license": "MIT", "source": source,
                   "manifest_path": "/x/Cargo.toml", "targets": [{"kind": [kind]}]})
        };
        let dep = |id: &str, kind: Value| json!({"pkg": id, "dep_kinds": [{"kind": kind}]});
        let (none, registry) = (Value::Null, Value::from("registry"));
        let said = json!({
            "packages": [one("sidecore", "bin", none.clone()), one("lib", "lib", registry.clone()),
                         one("derive", "proc-macro", registry.clone()), one("syn", "lib", registry.clone()),
                         one("proptest", "lib", registry.clone()), one("cc", "lib", registry)],
            "resolve": {"nodes": [
                {"id": "sidecore", "deps": [dep("lib", none.clone()), dep("proptest", "dev".into()), dep("cc", "build".into())]},
                {"id": "lib", "deps": [dep("derive", none.clone()), dep("sidecore", none.clone())]},
                {"id": "derive", "deps": [dep("syn", none)]},
                {"id": "syn", "deps": []}, {"id": "proptest", "deps": []}, {"id": "cc", "deps": []}]}
        });
        let graph = Graph::read(&said).unwrap();
        let names: Vec<_> = graph.root_mode(|_| true).unwrap().into_iter().map(|package| package.name).collect();
        assert_eq!(names, ["lib", "sidecore"]);
        let alone = graph.root_mode(|package| package.name != "lib").unwrap();
        assert_eq!(alone.len(), 1, "a package that the hypervisor does not ask for is not in it");
    }
}
