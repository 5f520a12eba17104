//! The targets and the files that each tests: `tests/fuzz/targets.tsv`.

use std::fs;

use anyhow::{Context as _, Result};

use crate::paths;

/// A target.
#[derive(Debug, PartialEq, Eq)]
pub struct Target {
    /// Its name: `fuzz-NAME` is its program.
    pub name: String,
    /// Files and folders of the repository under test.
    pub files: Vec<String>,
    /// Files and folders among these that are not under test: the harness itself.
    pub without: Vec<String>,
}

/// All targets.
pub fn all() -> Result<Vec<Target>> {
    let path = paths::root().join("tests/fuzz/targets.tsv");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("a line of {} has no files", path.display()))
}

fn parse(text: &str) -> Option<Vec<Target>> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (name, files) = line.split_once('\t')?;
            let (without, under): (Vec<&str>, _) = files.split(' ').partition(|file| file.starts_with('!'));
            let files = under.into_iter().map(String::from).collect();
            let without = without.into_iter().map(|file| file[1..].to_owned()).collect();
            Some(Target { name: name.into(), files, without })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_name_and_its_files() {
        let elf = Target { name: "elf".into(), files: vec!["a.rs".into(), "b".into()], without: vec!["b/c".into()] };
        assert_eq!(parse("# comment\nelf\ta.rs b !b/c\n"), Some(vec![elf]));
        assert_eq!(parse("elf a.rs\n"), None);
    }

    #[test]
    fn the_list_names_each_program_and_files_that_exist() {
        let all = all().unwrap();
        for file in all.iter().flat_map(|target| target.files.iter().chain(&target.without)) {
            assert!(paths::root().join(file).exists(), "{file}");
        }
        let listed: Vec<_> = all.iter().map(|target| format!("fuzz-{}.rs", target.name)).collect();
        let folder = fs::read_dir(paths::root().join("tests/fuzz/src/bin")).unwrap();
        let mut programs: Vec<_> = folder.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        programs.sort();
        assert_eq!(listed, programs);
    }
}
