//! Indirect branches in the path of an exit. After an exit a guest's predictions may be live, and an indirect branch may
//! go where the guest wants. So `cargo mk check` lists every `call` and `jmp` to a register or to memory in the functions
//! that can be reached from the loop around a vCPU by direct calls, and compares the list with `branches.tsv`.
//!
//! What an indirect call reaches is not followed. A table of addresses (`match`) makes no indirect branch: the image is
//! built without them. Calls through the linker's table are direct in the image (`direct_calls`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context as _, Result, bail};
use goblin::elf::Elf;
use iced_x86::{Decoder, DecoderOptions, Mnemonic, OpKind};

use crate::functions::{self, Function};
use crate::{image, paths, ui};

/// The loop around entry and exit, for both back-ends. The world switches are reached from it, and begin where the host
/// continues after an exit.
const ROOTS: [&str; 3] =
    ["<sidecore::guests::vcpu::Life as sidecore::virt::WithVcpu>::with", "vmx_exit", "vmx_exit_guarded"];
const UNKNOWN: &str = "?";

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
            format!("{count}\t{name}\t{reason}\n")
        });
        let text = rows.collect::<String>();
        fs::write(&place, &text)?;
        listed = parse(&text)?;
    }
    let complaints = compare(&found, &listed);
    complaints.iter().for_each(|complaint| ui::error(complaint));
    Ok(complaints.is_empty())
}

/// Reads the list: number, function, reason, separated by tabs.
fn parse(text: &str) -> Result<BTreeMap<String, (usize, String)>> {
    text.lines()
        .map(|line| {
            let mut fields = line.split('\t');
            let mut next = || fields.next().with_context(|| format!("branches.tsv: a field is missing: {line}"));
            let count = next()?.parse()?;
            Ok((next()?.to_owned(), (count, next()?.to_owned())))
        })
        .collect()
}

fn compare(found: &BTreeMap<String, usize>, listed: &BTreeMap<String, (usize, String)>) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, &count) in found {
        let allowed = listed.get(name).map_or(0, |(allowed, _)| *allowed);
        if count > allowed {
            complaints.push(format!(
                "{name} has {count} indirect branches in the path of an exit; branches.tsv allows {allowed} (`cargo mk check \
                 --update` writes it anew; give the reason)"
            ));
        }
    }
    let without = listed.iter().filter(|(name, (_, reason))| found.contains_key(*name) && reason == UNKNOWN);
    complaints.extend(without.map(|(name, _)| format!("branches.tsv: {name} has no reason")));
    complaints
}

/// Returns the indirect branches of each function that can be reached and has one.
fn reachable(image: &[u8]) -> Result<BTreeMap<String, usize>> {
    let functions = functions::of(&Elf::parse(image)?, image)?;
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
    let (mut seen, mut found) = (BTreeSet::new(), BTreeMap::<String, usize>::new());
    while let Some(index) = queue.pop() {
        if !seen.insert(index) {
            continue;
        }
        let Function { name, start, code, .. } = &functions[index];
        let (count, targets) = branches(code, *start);
        if count != 0 {
            *found.entry(name.clone()).or_default() += count;
        }
        queue.extend(targets.into_iter().filter_map(containing));
    }
    Ok(found)
}

/// Returns how many indirect branches a function has, and the targets of its direct ones.
fn branches(code: &[u8], start: u64) -> (usize, Vec<u64>) {
    let (mut count, mut targets) = (0, Vec::new());
    for i in Decoder::with_ip(64, code, start, DecoderOptions::NONE) {
        match i.op0_kind() {
            OpKind::NearBranch64 => targets.push(i.near_branch64()),
            _ if matches!(i.mnemonic(), Mnemonic::Call | Mnemonic::Jmp) => count += 1,
            _ => {}
        }
    }
    (count, targets)
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
        assert_eq!(count, 4);
        assert_eq!(targets, [0x1014, 0x1018]);
    }

    #[test]
    fn more_branches_new_functions_and_missing_reasons_are_refused() {
        let listed = parse("2\ta::b\tthe log\n1\tc\t?\n1\tgone\t?\n").unwrap();
        let found = |a, c| BTreeMap::from([("a::b".to_owned(), a), ("c".to_owned(), c)]);
        assert_eq!(compare(&found(2, 1), &listed).len(), 1, "c has no reason");
        assert_eq!(compare(&found(3, 1), &listed).len(), 2);
        let listed = parse("2\ta::b\tthe log\n").unwrap();
        assert_eq!(compare(&found(0, 1), &listed).len(), 1, "c is new");
        assert!(parse("1\t2").is_err());
    }
}
