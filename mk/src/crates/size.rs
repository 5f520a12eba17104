//! The table in SECURITY.md of how much runs in root mode, before the tracing console and now: written by `cargo mk check --update`,
//! compared by `cargo mk check`.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use goblin::elf::Elf;
use goblin::elf::section_header::SHF_EXECINSTR;

use super::package::Package;
use super::trusted::sum_below;

const BEGIN: &str = "<!-- size of root mode: written by `cargo mk check --update` -->\n";
const END: &str = "<!-- end of the size of root mode -->\n";

/// The commit before the trace, the control channel and management were begun.
const BEFORE_COMMIT: &str = "66453442";
/// What was measured there, by the commands in SECURITY.md.
const BEFORE: Size = Size { text: 1_631_623, own: 26, others: 63, lines: 85_037, unsafe_blocks: 313 };

/// Part of a value, in percent, by which text, lines and unsafe blocks may differ from the table. They change with most commits.
const TOLERANCE: u64 = 3;

/// How much runs in root mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Bytes of instructions in the image.
    text: u64,
    /// Packages of this repository.
    own: u64,
    /// Packages of others.
    others: u64,
    /// Lines of Rust in the packages of this repository.
    lines: u64,
    /// `unsafe` blocks in them.
    unsafe_blocks: u64,
}

impl Size {
    /// Measures the image and the packages that are linked into it.
    pub fn of(image: &[u8], packages: &BTreeSet<Package>) -> Result<Self> {
        let elf = Elf::parse(image).context("the hypervisor's image is no ELF file")?;
        let code = elf.section_headers.iter().filter(|section| section.sh_flags & u64::from(SHF_EXECINSTR) != 0);
        let own = || packages.iter().filter(|package| package.own);
        let sum = |count: &dyn Fn(&str) -> usize| {
            own().map(|package| sum_below(&package.folder.join("src"), count) as u64).sum()
        };
        Ok(Self {
            text: code.map(|section| section.sh_size).sum(),
            own: own().count() as u64,
            others: packages.iter().filter(|package| !package.own).count() as u64,
            lines: sum(&|text| text.lines().count()),
            unsafe_blocks: sum(&unsafe_blocks),
        })
    }

    /// The rows of the table: what, and the value.
    fn rows(self) -> [(&'static str, u64); 5] {
        let Self { text, own, others, lines, unsafe_blocks } = self;
        [
            ("bytes of instructions in the image", text),
            ("packages linked, ours", own),
            ("packages linked, others'", others),
            ("lines of Rust in ours", lines),
            ("`unsafe` blocks in ours", unsafe_blocks),
        ]
    }
}

/// Lines that begin an `unsafe` block.
fn unsafe_blocks(text: &str) -> usize {
    let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    code.map(|line| line.matches("unsafe {").count()).sum()
}

/// Writes the table anew.
pub fn replaced(text: &str, now: Size) -> Result<String> {
    let (before, _, after) = parts(text).context("SECURITY.md has no place for the size of root mode")?;
    let rows = BEFORE.rows().into_iter().zip(now.rows());
    let rows: String = rows.map(|((what, before), (_, now))| format!("| {what} | {before} | {now} |\n")).collect();
    Ok(format!("{before}{BEGIN}| | before ({BEFORE_COMMIT}) | now |\n|---|---|---|\n{rows}{END}{after}"))
}

/// What is wrong with the table.
pub fn fault(text: &str, now: Size) -> Option<String> {
    let Some((_, table, _)) = parts(text) else { return Some("SECURITY.md has no size of root mode".into()) };
    now.rows().into_iter().find_map(|(what, now)| {
        let row = table.lines().find_map(|line| line.strip_prefix("| ")?.strip_prefix(what));
        let said: Option<u64> = row.and_then(|row| row.trim_end_matches(" |").rsplit_once(' ')?.1.parse().ok());
        let near = said.is_some_and(|said| said.abs_diff(now) * 100 <= now * TOLERANCE);
        let good = if what.starts_with("packages") { said == Some(now) } else { near };
        (!good).then(|| {
            format!("SECURITY.md, {what}: it has {said:?}, and {now} is true: `cargo mk check --update` writes it")
        })
    })
}

fn parts(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (table, after) = rest.split_once(END)?;
    Some((before, table, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Size = Size { text: 1000, own: 30, others: 50, lines: 2000, unsafe_blocks: 100 };

    #[test]
    fn the_table_is_written_and_found_again() {
        let text = format!("before\n{BEGIN}old\n{END}after\n");
        assert!(fault(&text, NOW).is_some());
        let new = replaced(&text, NOW).unwrap();
        assert!(new.starts_with("before\n") && new.ends_with("after\n"), "{new}");
        assert_eq!(fault(&new, NOW), None);
        assert_eq!(fault(&new, Size { text: 1020, ..NOW }), None, "text changes with most commits");
        for other in [Size { text: 1100, ..NOW }, Size { others: 51, ..NOW }, Size { unsafe_blocks: 90, ..NOW }] {
            assert!(fault(&new, other).is_some(), "{other:?}");
        }
        assert!(replaced("nothing", NOW).is_err());
    }

    #[test]
    fn comments_have_no_unsafe_blocks() {
        let text = "// unsafe {\n    let a = unsafe { b() };\nunsafe fn c() {\n    unsafe {\n";
        assert_eq!(unsafe_blocks(text), 2);
    }
}
