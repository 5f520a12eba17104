//! The list in SECURITY.md of what runs in root mode: written by `cargo mk check --update`, compared by `cargo mk check`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::package::Package;

const BEGIN: &str = "<!-- root mode: written by `cargo mk check --update` -->\n";
const END: &str = "<!-- end of root mode -->\n";

/// Writes the list anew.
pub fn replaced(text: &str, packages: &BTreeSet<Package>) -> Result<String> {
    let (before, _, after) = parts(text).context("SECURITY.md has no place for the list of what runs in root mode")?;
    Ok(format!("{before}{BEGIN}{}{END}{after}", table(packages)))
}

/// What is wrong with the list. Numbers of lines change with every commit and are not compared.
pub fn fault(text: &str, packages: &BTreeSet<Package>) -> Option<String> {
    let Some((_, list, _)) = parts(text) else {
        return Some("SECURITY.md has no list of what runs in root mode".into());
    };
    (without_lines(list) != without_lines(&table(packages)))
        .then(|| "SECURITY.md lists other crates than run in root mode: `cargo mk check --update` writes them".into())
}

fn parts(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (list, after) = rest.split_once(END)?;
    Some((before, list, after))
}

fn table(packages: &BTreeSet<Package>) -> String {
    let mut table = String::from("| crate | version | licence | lines of Rust |\n|---|---|---|---|\n");
    let own = packages.iter().filter(|package| package.own);
    let others = packages.iter().filter(|package| !package.own);
    for package in own.chain(others) {
        let version = if package.own { "ours" } else { &package.version };
        let lines = lines_below(&package.folder.join("src"));
        table.push_str(&format!("| {} | {version} | {} | {lines} |\n", package.name, package.licence));
    }
    table
}

/// The rows without their last cell.
fn without_lines(table: &str) -> Vec<&str> {
    table.lines().map(|line| line.rsplit_once("| ").map_or(line, |(row, _)| row)).collect()
}

/// Lines in the Rust files in a folder and below it. Tests in files of their own are left out.
fn lines_below(folder: &Path) -> usize {
    sum_below(folder, &|text| text.lines().count())
}

/// The sum of what `count` says of each Rust file in a folder and below it. Tests in files of their own are left out.
pub fn sum_below(folder: &Path, count: &dyn Fn(&str) -> usize) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    let of = |path: &Path| -> usize {
        let name = path.file_stem().unwrap_or_default();
        if name == "tests" {
            0
        } else if path.is_dir() {
            sum_below(path, count)
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            fs::read_to_string(path).map_or(0, |text| count(&text))
        } else {
            0
        }
    };
    entries.map(|entry| of(&entry.path())).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn packages(version: &str) -> BTreeSet<Package> {
        let (licence, folder) = (String::from("MIT"), PathBuf::new());
        let package =
            Package { name: "log".into(), version: version.into(), licence, own: false, is_macro: false, folder };
        [package].into()
    }

    #[test]
    fn the_list_is_written_and_found_again() {
        let text = format!("before\n{BEGIN}old\n{END}after\n");
        assert!(fault(&text, &packages("1.0.0")).is_some());
        let new = replaced(&text, &packages("1.0.0")).unwrap();
        assert!(
            new.starts_with("before\n") && new.ends_with("after\n") && new.contains("| log | 1.0.0 | MIT |"),
            "{new}"
        );
        assert_eq!(fault(&new, &packages("1.0.0")), None);
        assert!(fault(&new, &packages("1.0.1")).is_some());
        let longer = new.replace("| 0 |", "| 17 |");
        assert_eq!(fault(&longer, &packages("1.0.0")), None, "lines are not compared");
        assert!(replaced("nothing", &packages("1.0.0")).is_err());
    }
}
