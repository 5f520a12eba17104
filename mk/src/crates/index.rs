//! Reads what cargo has kept of the registries' indexes: a file for each crate, with a JSON object for each version. Its
//! form is cargo's own. Whatever is not understood counts as not known.

use std::path::PathBuf;
use std::{env, fs};

use serde_json::Value;

/// The folders with these files, one for each registry.
pub struct Index {
    folders: Vec<PathBuf>,
}

impl Index {
    /// The index that cargo has. Without one nothing is known.
    pub fn of_cargo() -> Self {
        let home = env::var_os("CARGO_HOME").map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".cargo")));
        let registries = home.and_then(|home| fs::read_dir(home.join("registry/index")).ok());
        let folders = registries.into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path().join(".cache")));
        Self { folders: folders.collect() }
    }

    /// Whether a version of a crate was withdrawn, as far as is known.
    pub fn is_yanked(&self, name: &str, version: &str) -> Option<bool> {
        let file = file_of(name)?;
        let known = self.folders.iter().filter_map(|folder| yanked_in(&fs::read(folder.join(&file)).ok()?, version));
        // Where two registries are known, one is enough.
        known.reduce(|one, other| one || other)
    }
}

/// The file of a crate, below an index (cargo's book, "Index files").
fn file_of(name: &str) -> Option<PathBuf> {
    let name = name.to_lowercase();
    let folder = match name.len() {
        0 => return None,
        1 => "1".into(),
        2 => "2".into(),
        3 => format!("3/{}", name.get(..1)?),
        _ => format!("{}/{}", name.get(..2)?, name.get(2..4)?),
    };
    Some(PathBuf::from(folder).join(name))
}

/// Looks for the version among the objects of a file, which are between bytes of zero.
fn yanked_in(file: &[u8], version: &str) -> Option<bool> {
    let objects = file.split(|byte| *byte == 0).filter(|part| part.starts_with(b"{"));
    let objects = objects.filter_map(|part| serde_json::from_slice::<Value>(part).ok());
    objects.filter(|object| object["vers"] == version).find_map(|object| object["yanked"].as_bool())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_has_its_file_by_its_name() {
        let file = |name| file_of(name).map(|path| path.display().to_string());
        assert_eq!(file("a").as_deref(), Some("1/a"));
        assert_eq!(file("cc").as_deref(), Some("2/cc"));
        assert_eq!(file("log").as_deref(), Some("3/l/log"));
        assert_eq!(file("Serde").as_deref(), Some("se/rd/serde"));
        assert_eq!((file(""), file("aä")), (None, Some("3/a/aä".into())));
    }

    #[test]
    fn a_withdrawn_version_is_found() {
        let file = b"\x03\x02\0\0\0etag: x\x001.0.0\0{\"vers\":\"1.0.0\",\"yanked\":true}\x001.0.1\0{\"vers\":\"1.0.1\",\"yanked\":false}\0{oops\0";
        assert_eq!(yanked_in(file, "1.0.0"), Some(true));
        assert_eq!(yanked_in(file, "1.0.1"), Some(false));
        assert_eq!(yanked_in(file, "1.0.2"), None);
        assert_eq!(yanked_in(b"", "1.0.0"), None);
    }

    #[test]
    fn cargos_own_files_are_understood() {
        // This crate was built with serde_json, so cargo has read its file, unless it works without an index.
        let index = Index::of_cargo();
        let has_file = index.folders.iter().any(|folder| folder.join("se/rd/serde_json").is_file());
        assert_eq!(index.is_yanked("serde_json", "1.0.0"), has_file.then_some(false));
    }
}
