//! The mistakes in a medium's configurations that do not depend on the machine, so that a person reads them when the medium is made and not
//! at a server's boot.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use config::Sha256;

use super::content::{CONFIG, PREVIOUS};
use crate::disk::seed;

/// Reads the configurations among these boot modules by the hypervisor's own code. Returns a sentence for each wrong value, each module that is
/// missing, and each one whose SHA-256 is not that of `[[module]]`. The boot alone can judge cores, memory and NICs.
///
/// - `machines`: a folder with configurations of single machines. A sentence calls such a file `machines/NAME`.
pub fn mistakes(modules: &[(String, PathBuf)], machines: Option<&Path>) -> Result<Vec<String>> {
    let mut configs: Vec<(String, PathBuf)> = Vec::new();
    configs.extend(modules.iter().filter(|(name, _)| [CONFIG, PREVIOUS].contains(&name.as_str())).cloned());
    if let Some(folder) = machines.filter(|folder| folder.is_dir()) {
        configs.extend(of_machines(folder)?);
    }
    let names: Vec<&str> = modules.iter().map(|(name, _)| name.as_str()).collect();
    // A module may be a large disk, so each one that a configuration has a sum for is read once.
    let mut hashes: Vec<(&str, Sha256)> = Vec::new();
    let mut found = Vec::new();
    for (name, path) in configs {
        let text = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let mut parsed = config::parse(&name, &text);
        parsed.mistakes.extend(config::check_modules(&mut parsed.config, &names));
        for (name, path) in modules {
            let has_sum = parsed.config.modules.iter().any(|module| module.name == *name);
            if has_sum && !hashes.iter().any(|(known, _)| known == name) {
                hashes.push((name, Sha256(seed::sha256(path)?)));
            }
        }
        let hash_of = |name: &str| hashes.iter().find(|(of, _)| *of == name).map(|&(_, hash)| hash);
        parsed.mistakes.extend(config::check_hashes(&mut parsed.config, hash_of));
        found.extend(parsed.mistakes.iter().map(ToString::to_string));
    }
    Ok(found)
}

/// The machines' own configurations in a folder, by name.
fn of_machines(folder: &Path) -> Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).filter(|name| name.ends_with(".toml"));
        if let Some(name) = name {
            found.push((format!("machines/{name}"), path.clone()));
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;

    #[test]
    fn a_module_that_is_not_there_is_named_with_the_line_of_each_configuration_that_needs_it() {
        let folder = env::temp_dir().join(format!("mk-mistakes-{}", std::process::id()));
        let machines = folder.join("machines");
        fs::create_dir_all(&machines).unwrap();
        let guest = "[[guest]]\nname = \"a\"\nvcpus = 1\nmemory = \"64M\"\nkernel = \"vmlinuz\"\n";
        let module = |name: &str, text: &str| {
            fs::write(folder.join(name), text).unwrap();
            (name.to_owned(), folder.join(name))
        };
        let modules = [
            module(CONFIG, &format!("{guest}initrd = \"initrd\"\n")),
            module(PREVIOUS, guest),
            module("vmlinuz", "a kernel"),
        ];
        let own = guest.replace("vmlinuz", "other");
        fs::write(machines.join("52-54.toml"), &own).unwrap();
        fs::write(
            machines.join("52-54.previous.toml"),
            format!("[[module]]\nname = \"vmlinuz\"\nsha256 = \"{}\"\n{guest}", "0".repeat(64)),
        )
        .unwrap();
        fs::write(machines.join("notes"), "no configuration").unwrap();

        let found = mistakes(&modules, None).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("sidecore.toml:6:10: \"initrd\": no boot module `initrd`"), "{found:?}");

        let found = mistakes(&modules, Some(&machines)).unwrap();
        let starts = ["sidecore.toml:6:", "machines/52-54.previous.toml:3:", "machines/52-54.toml:5:"];
        assert_eq!(found.len(), starts.len(), "{found:?}");
        assert!(found.iter().zip(starts).all(|(said, start)| said.starts_with(start)), "{found:?}");
        assert!(found[1].contains("has the SHA-256"), "{found:?}");
        fs::remove_dir_all(folder).unwrap();
    }
}
