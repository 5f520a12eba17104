//! The files of a medium, and the identifiers that follow from them.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use crate::disk::fat::Entry;
use crate::disk::seed::{self, Seed};

/// The configuration. It is in the medium's root folder, where a person looks for it.
pub const CONFIG: &str = "sidecore.toml";
/// The configuration that is taken if that one does not come to run.
pub const PREVIOUS: &str = "previous.toml";

/// GRUB's command that loads the configuration from the medium.
pub const CONFIG_OF_MEDIUM: &str = "module2 /sidecore.toml sidecore.toml";

/// The files of a medium.
pub struct Content {
    /// The files.
    pub files: Vec<Entry>,
    /// The date of all files in seconds since 1970.
    pub date: u64,
}

impl Content {
    /// The files of a server.
    ///
    /// - `kernel`: the hypervisor.
    /// - `modules`: names and files of its boot modules.
    /// - `load_config`: GRUB's commands that load the configuration, if it is among the modules. They come last. A word `PREVIOUS` in
    ///   them is replaced by the command that loads `previous.toml`, if that is among the modules. Without it that is a module like
    ///   the others.
    /// - `menu`: makes GRUB's menu from its lines for the modules.
    /// - `work`: a folder for what is needed meanwhile.
    pub fn new(
        kernel: &Path,
        modules: &[(String, PathBuf)],
        load_config: &str,
        menu: impl FnOnce(&str) -> Result<String>,
        work: &Path,
    ) -> Result<Self> {
        check_names(modules.iter().map(|(name, _)| name.as_str()))?;
        let mut files = vec![Entry { path: "sidecore".to_owned(), source: kernel.to_owned() }];
        let mut lines = String::new();
        let mut load_previous = String::new();
        for (name, source) in modules.iter().filter(|(name, _)| name != CONFIG) {
            let path = format!("modules/{name}");
            let line = format!("module2 /{path} {name}");
            if name == PREVIOUS && load_config.contains("PREVIOUS") {
                load_previous = line;
            } else {
                lines.push_str(&format!("{line}\n    "));
            }
            files.push(Entry { path, source: source.clone() });
        }
        if let Some((name, source)) = modules.iter().find(|(name, _)| name == CONFIG) {
            lines.push_str(&load_config.replace("PREVIOUS", &load_previous));
            files.push(Entry { path: name.clone(), source: source.clone() });
        }
        let menu_file = work.join("grub.cfg");
        fs::write(&menu_file, menu(&lines)?).with_context(|| format!("cannot write {}", menu_file.display()))?;
        files.push(Entry { path: "boot/grub/grub.cfg".to_owned(), source: menu_file });
        Self::of(files)
    }

    /// These files.
    pub fn of(files: Vec<Entry>) -> Result<Self> {
        Ok(Self { files, date: seed::date()? })
    }

    /// Identifiers from a hash of the files' paths and contents, and of the date.
    pub fn seed(&self) -> Result<Seed> {
        let mut seed = Seed::new();
        seed.add(self.date.to_string());
        for file in &self.files {
            seed.add(&file.path);
            seed.add_file(&file.source)?;
        }
        Ok(seed)
    }
}

/// The boot modules in a folder: its files, by their names. One of them is `sidecore.toml`, unless there is another
/// configuration (`configured`), which then takes its place.
pub fn folder(folder: &Path, configured: bool) -> Result<Vec<(String, PathBuf)>> {
    let mut modules = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let name = name.with_context(|| format!("{} has a name that is no UTF-8", path.display()))?.to_owned();
        ensure!(path.is_file(), "{} is no file; --modules takes a folder with nothing but files", path.display());
        if name != CONFIG || !configured {
            modules.push((name, path));
        }
    }
    modules.sort();
    if !configured && !modules.iter().any(|(name, _)| name == CONFIG) {
        bail!("{} has no {CONFIG}: put one there, or name one by --config", folder.display());
    }
    Ok(modules)
}

/// Checks that names of modules can stand in GRUB's menu and on FAT, which does not tell small letters from capitals.
fn check_names<'a>(names: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for name in names {
        let plain = name.chars().all(|c| c.is_ascii_alphanumeric() || "._-+".contains(c));
        ensure!(
            plain && !name.is_empty() && name.len() <= 100 && !name.ends_with('.'),
            "a boot module cannot be called {name:?}: a name has up to 100 letters, digits and `._-+`, and no dot at its end"
        );
        ensure!(
            seen.insert(name.to_ascii_lowercase()),
            "two boot modules are called {name:?}, or differ in capital letters only: rename one"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;

    /// An empty folder.
    fn empty(name: &str) -> PathBuf {
        let folder = env::temp_dir().join(format!("mk-media-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn content(folder: &Path, config: &str) -> Content {
        fs::write(folder.join("elf"), "the hypervisor").unwrap();
        fs::write(folder.join("config"), config).unwrap();
        let modules = [(CONFIG.to_owned(), folder.join("config")), ("vmlinuz".to_owned(), folder.join("elf"))];
        Content::new(&folder.join("elf"), &modules, CONFIG_OF_MEDIUM, |lines| Ok(format!("menu\n{lines}")), folder)
            .unwrap()
    }

    #[test]
    fn the_menu_names_each_module_where_it_is() {
        let folder = empty("menu");
        let content = content(&folder, "a");
        let paths: Vec<_> = content.files.iter().map(|file| file.path.as_str()).collect();
        assert_eq!(paths, ["sidecore", "modules/vmlinuz", "sidecore.toml", "boot/grub/grub.cfg"]);
        let menu = fs::read_to_string(&content.files[3].source).unwrap();
        assert_eq!(menu, "menu\nmodule2 /modules/vmlinuz vmlinuz\n    module2 /sidecore.toml sidecore.toml");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn previous_toml_is_loaded_where_the_commands_say() {
        let folder = empty("previous");
        let module = |name: &str| {
            let path = folder.join(name);
            fs::write(&path, "").unwrap();
            (name.to_owned(), path)
        };
        let menu_of = |modules: &[_], load: &str| {
            let menu = |lines: &str| Ok(lines.to_owned());
            let content = Content::new(&folder.join("elf"), modules, load, menu, &folder).unwrap();
            fs::read_to_string(&content.files.last().unwrap().source).unwrap()
        };
        let (config, previous) = (module(CONFIG), module(PREVIOUS));
        let (both, one) = ([config.clone(), previous], [config]);
        let line = "module2 /modules/previous.toml previous.toml";
        assert_eq!(menu_of(&both, "load"), format!("{line}\n    load"));
        assert_eq!(menu_of(&both, "load; PREVIOUS"), format!("load; {line}"));
        assert_eq!(menu_of(&one, "load; PREVIOUS"), "load; ");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn identifiers_depend_on_the_contents_and_not_on_the_folder() {
        let (here, there) = (empty("here"), empty("there"));
        let first = content(&here, "a").seed().unwrap().text();
        assert_eq!(first, content(&there, "a").seed().unwrap().text());
        assert_ne!(first, content(&there, "b").seed().unwrap().text());
        for folder in [here, there] {
            fs::remove_dir_all(folder).unwrap();
        }
    }

    #[test]
    fn a_folder_of_modules_needs_a_configuration_and_has_no_folders() {
        let place = empty("folder");
        fs::write(place.join("vmlinuz"), "").unwrap();
        let error = folder(&place, false).unwrap_err().to_string();
        assert!(error.contains("has no sidecore.toml"), "{error}");
        assert_eq!(folder(&place, true).unwrap(), [("vmlinuz".to_owned(), place.join("vmlinuz"))]);
        fs::write(place.join(CONFIG), "").unwrap();
        assert_eq!(folder(&place, false).unwrap().len(), 2);
        assert_eq!(folder(&place, true).unwrap().len(), 1);
        fs::create_dir(place.join("more")).unwrap();
        assert!(folder(&place, false).unwrap_err().to_string().contains("is no file"));
        fs::remove_dir_all(place).unwrap();
    }

    #[test]
    fn names_that_grub_or_fat_take_for_something_else_are_refused() {
        for bad in ["", "a b", "a;b", "a/b", "$a", "a.", "größe"] {
            assert!(check_names([bad].into_iter()).unwrap_err().to_string().contains("cannot be called"), "{bad}");
        }
        let error = check_names(["vmlinuz", "VMLINUZ"].into_iter()).unwrap_err().to_string();
        assert!(error.contains("\"VMLINUZ\""), "{error}");
        check_names(["initrd.gz", "a-b_c+1.2"].into_iter()).unwrap();
    }
}
