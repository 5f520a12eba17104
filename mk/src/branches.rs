//! Indirect branches in the path of an exit. After an exit a guest's predictions may be live, and an indirect branch may
//! go where the guest wants. So `cargo mk check` lists every `call` and `jmp` to a register or to memory in the functions
//! that can be reached from the loop around a vCPU by direct calls, and compares the list with `branches.tsv`.
//!
//! What an indirect call reaches is not followed. A table of addresses (`match`) makes no indirect branch: the image is
//! built without them. A call through the linker's table (`[rip + constant]`) is counted apart: its target is constant.
//! To the processor it is an indirect branch all the same, whose target is predicted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;

use anyhow::{Context as _, Result, bail};
use goblin::elf::{Elf, sym};
use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind, Register};

use crate::{image, paths, ui};

/// The loop around entry and exit, for both back-ends. The world switches are reached from it, and begin where the host
/// continues after an exit.
const ROOTS: [&str; 3] =
    ["<sidecore::guests::vcpu::Life as sidecore::virt::WithVcpu>::with", "vmx_exit", "vmx_exit_guarded"];
const UNKNOWN: &str = "?";

/// Indirect branches of one function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Count {
    /// Through the linker's table.
    linker: usize,
    /// All others.
    other: usize,
}

/// Compares the image with the list. `update`: writes the list anew, with the reasons that it had. Returns whether the
/// list is right and has a reason everywhere.
pub fn check(update: bool) -> Result<bool> {
    let image = fs::read(image::hypervisor()?)?;
    let found = reachable(&image)?;
    let place = paths::root().join("mk/src/branches.tsv");
    let mut listed = parse(&fs::read_to_string(&place).unwrap_or_default())?;
    if update {
        let rows = found.iter().map(|(name, count)| {
            let reason = listed.get(name).map_or(UNKNOWN, |(_, reason)| reason);
            format!("{}\t{}\t{name}\t{reason}\n", count.linker, count.other)
        });
        let text = rows.collect::<String>();
        fs::write(&place, &text)?;
        listed = parse(&text)?;
    }
    let complaints = compare(&found, &listed);
    complaints.iter().for_each(|complaint| ui::error(complaint));
    Ok(complaints.is_empty())
}

/// Reads the list: linker, other, function, reason, separated by tabs.
fn parse(text: &str) -> Result<BTreeMap<String, (Count, String)>> {
    text.lines()
        .map(|line| {
            let mut fields = line.split('\t');
            let mut next = || fields.next().with_context(|| format!("branches.tsv: a field is missing: {line}"));
            let count = Count { linker: next()?.parse()?, other: next()?.parse()? };
            Ok((next()?.to_owned(), (count, next()?.to_owned())))
        })
        .collect()
}

fn compare(found: &BTreeMap<String, Count>, listed: &BTreeMap<String, (Count, String)>) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, count) in found {
        let allowed = listed.get(name).map(|(allowed, _)| *allowed).unwrap_or_default();
        if count.linker > allowed.linker || count.other > allowed.other {
            complaints.push(format!(
                "{name} has {} indirect branches and {} by the linker's table in the path of an exit; branches.tsv allows \
                 {} and {} (`cargo mk check --update` writes it anew; give the reason)",
                count.other, count.linker, allowed.other, allowed.linker
            ));
        }
    }
    let without = listed.iter().filter(|(name, (_, reason))| found.contains_key(*name) && reason == UNKNOWN);
    complaints.extend(without.map(|(name, _)| format!("branches.tsv: {name} has no reason")));
    complaints
}

/// A function of the image.
struct Function<'a> {
    name: String,
    start: u64,
    code: &'a [u8],
}

/// Returns the indirect branches of each function that can be reached and has one.
fn reachable(image: &[u8]) -> Result<BTreeMap<String, Count>> {
    let functions = functions(image)?;
    let starts: Vec<u64> = functions.iter().map(|f| f.start).collect();
    let containing = |address: u64| {
        let index = starts.partition_point(|&start| start <= address).checked_sub(1)?;
        (address - starts[index] < functions[index].code.len() as u64).then_some(index)
    };
    let mut queue: Vec<usize> =
        functions.iter().enumerate().filter(|(_, f)| ROOTS.contains(&f.name.as_str())).map(|(i, _)| i).collect();
    if queue.len() < 4 {
        bail!("the image lacks a root: {ROOTS:?}");
    }
    let (mut seen, mut found) = (BTreeSet::new(), BTreeMap::<String, Count>::new());
    while let Some(index) = queue.pop() {
        if !seen.insert(index) {
            continue;
        }
        let Function { name, start, code } = &functions[index];
        let (count, targets) = branches(code, *start);
        if count != Count::default() {
            let sum = found.entry(name.clone()).or_default();
            *sum = Count { linker: sum.linker + count.linker, other: sum.other + count.other };
        }
        queue.extend(targets.into_iter().filter_map(containing));
    }
    Ok(found)
}

/// Returns a function's indirect branches, and the targets of its direct ones.
fn branches(code: &[u8], start: u64) -> (Count, Vec<u64>) {
    let (mut count, mut targets) = (Count::default(), Vec::new());
    for i in Decoder::with_ip(64, code, start, DecoderOptions::NONE) {
        match i.op0_kind() {
            OpKind::NearBranch64 => targets.push(i.near_branch64()),
            kind if matches!(i.mnemonic(), Mnemonic::Call | Mnemonic::Jmp) => {
                if kind == OpKind::Memory && i.memory_base() == Register::RIP {
                    count.linker += 1;
                } else {
                    count.other += 1;
                }
            }
            _ => {}
        }
    }
    (count, targets)
}

/// Returns the functions of an ELF file by address. A label of assembly has no size: it ends where the next one begins.
fn functions(image: &[u8]) -> Result<Vec<Function<'_>>> {
    let elf = Elf::parse(image)?;
    let text: HashMap<usize, _> = elf.section_headers.iter().enumerate().filter(|(_, s)| s.is_executable()).collect();
    // The linker script's labels may lie at the end of a section, or beyond it.
    let inside =
        |s: &sym::Sym| text.get(&s.st_shndx).is_some_and(|t| (t.sh_addr..t.sh_addr + t.sh_size).contains(&s.st_value));
    let mut symbols: Vec<_> =
        elf.syms.iter().filter(|s| matches!(s.st_type(), sym::STT_FUNC | sym::STT_NOTYPE) && inside(s)).collect();
    // Of several names for one address the one with a size comes first.
    symbols.sort_by_key(|s| (s.st_value, u64::MAX - s.st_size));
    symbols.dedup_by_key(|s| s.st_value);
    let ends: Vec<u64> = symbols.iter().skip(1).map(|s| s.st_value).chain([u64::MAX]).collect();
    symbols
        .iter()
        .zip(ends)
        .map(|(symbol, next)| {
            let section = text[&symbol.st_shndx];
            let end = if symbol.st_size == 0 { next } else { symbol.st_value + symbol.st_size };
            let end = end.min(section.sh_addr + section.sh_size);
            let offset = |address: u64| (address - section.sh_addr + section.sh_offset) as usize;
            let code = image.get(offset(symbol.st_value)..offset(end)).context("a symbol outside of the file")?;
            let name = elf.strtab.get_at(symbol.st_name).context("a symbol without a name")?;
            // "#" leaves out the hash. The compiler appends ".llvm." and a number to names that it makes known.
            let name = format!("{:#}", rustc_demangle::demangle(name));
            let name = name.split(" (.llvm.").next().unwrap_or(&name).to_owned();
            Ok(Function { name, start: symbol.st_value, code })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branches_are_told_apart() {
        // call rax; call [rip+0]; jmp [rax*8+0x10]; call +0; je +2; ret; call [rax+0x20]
        let code = [
            0xff, 0xd0, 0xff, 0x15, 0, 0, 0, 0, 0xff, 0x24, 0xc5, 0x10, 0, 0, 0, 0xe8, 0, 0, 0, 0, 0x74, 2, 0xc3, 0xff,
            0x50, 0x20,
        ];
        let (count, targets) = branches(&code, 0x1000);
        assert_eq!(count, Count { linker: 1, other: 3 });
        assert_eq!(targets, [0x1014, 0x1018]);
    }

    #[test]
    fn more_branches_new_functions_and_missing_reasons_are_refused() {
        let listed = parse("1\t2\ta::b\tthe log\n0\t1\tc\t?\n0\t1\tgone\t?\n").unwrap();
        let found = |a, c| BTreeMap::from([("a::b".to_owned(), a), ("c".to_owned(), c)]);
        let (a, c) = (Count { linker: 1, other: 2 }, Count { linker: 0, other: 1 });
        assert_eq!(compare(&found(a, c), &listed).len(), 1, "c has no reason");
        assert_eq!(compare(&found(Count { other: 3, ..a }, c), &listed).len(), 2);
        assert_eq!(compare(&found(Count { linker: 2, ..a }, c), &listed).len(), 2);
        let listed = parse("1\t2\ta::b\tthe log\n").unwrap();
        assert_eq!(compare(&found(Count { linker: 0, other: 0 }, c), &listed).len(), 1, "c is new");
        assert!(parse("1\t2\ta").is_err());
    }
}
