//! The firmware's map of memory: none of it is lost, whatever the firmware and the size of the machine.

use anyhow::{Context as _, Result};
use control::{Command, Event};

use super::media::FIRMWARE_MIB;
use crate::boot::{Boot, alone};
use crate::guests::{Guest, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::setup::{Medium, Setup};

const PAGE: u64 = 4096;

/// A machine: its name, how it boots, its memory in MiB, and that of each NUMA node, if it has nodes.
type Machine = (&'static str, Medium, u32, &'static [u32]);

/// By UEFI below, at and above the gap below 4 GiB; by BIOS; and two nodes, of which the second begins below the gap and ends above it.
const MACHINES: [Machine; 6] = [
    ("uefi-1g", Medium::StickUefi, 1 << 10, &[]),
    ("uefi-3g", Medium::StickUefi, 3 << 10, &[]),
    ("uefi-6g", Medium::StickUefi, 6 << 10, &[]),
    ("uefi-12g", Medium::StickUefi, 12 << 10, &[]),
    ("uefi-nodes", Medium::StickUefi, 6 << 10, &[1 << 10, 5 << 10]),
    ("bios-6g", Medium::Disc, 6 << 10, &[]),
];

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "machines of 1 to 12 GiB, by UEFI and by BIOS, one with two nodes: the memory that is free at first is the firmware's map \
                 without what is named, to the page";
    vec![alone(Scenario::new("memory-map", about, QEMU).taking_turns(), memory_map)]
}

fn memory_map(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    for (name, medium, mib, nodes) in MACHINES {
        let setup = server(&format!("memory-{name}"), &[Guest::new(1).then("wait")]);
        let least = setup.memory_mib + FIRMWARE_MIB;
        let setup = Setup { medium, memory_mib: mib.max(least), nodes, ..setup };
        let mut session = context.boot(&setup)?;
        let memory = session.booted(seconds(120))?.memory;
        session.result("a", "up", seconds(120))?;
        session.ask(Command::Report, seconds(20))?;
        let map = Map::of(session.unread().iter().filter_map(|event| match event {
            Event::Report(entry) => Some(entry.text.to_string()),
            _ => None,
        }))?;
        let figures = &mut context.figures;
        figures.at_most(&format!("{name}: memory, MiB"), memory >> 20, f64::from(mib))?;
        figures.at_least(&format!("{name}: memory, MiB"), memory >> 20, f64::from(mib) * 0.95)?;
        figures.at_least(&format!("{name}: ranges of the map"), map.usable.len(), 2)?;
        let whole: u64 = map.usable.iter().map(|(start, end)| end - start).sum();
        figures.exactly(&format!("{name}: bytes of the map that the boot event lacks"), whole - memory, 0)?;
        // The image, the log's areas, the configuration, the kernel and the RAM disk are somewhere in it.
        figures.at_least(&format!("{name}: ranges that were taken"), map.taken.len(), 8)?;
        let lost = map.expected().abs_diff(map.free_kib << 10);
        figures.exactly(&format!("{name}: bytes that are neither free nor named"), lost, 0)?;
        session.shut_down()?;
    }
    Ok(())
}

/// What the report says of the memory.
#[derive(Debug, Default, PartialEq, Eq)]
struct Map {
    usable: Vec<(u64, u64)>,
    taken: Vec<(u64, u64)>,
    free_kib: u64,
}

impl Map {
    /// From the report's lines. A line that comes twice counts once.
    fn of(lines: impl Iterator<Item = String>) -> Result<Self> {
        let mut map = Self::default();
        let mut free = None;
        for line in lines {
            let fault = || format!("not understood: {line}");
            if let Some(ranges) = line.strip_prefix("memory map: ") {
                add(ranges, &mut map.usable).with_context(fault)?;
            } else if let Some(ranges) = line.strip_prefix("memory taken of it: ") {
                add(ranges, &mut map.taken).with_context(fault)?;
            } else if let Some(rest) = line.strip_prefix("memory that is free after that: ") {
                free = Some(rest.strip_suffix(" KiB").with_context(fault)?.parse().with_context(fault)?);
            }
        }
        map.free_kib = free.context("the report does not say how much memory is free")?;
        Ok(map)
    }

    /// Bytes of whole pages of the map, without the pages of which a part is taken.
    fn expected(&self) -> u64 {
        let usable: Vec<_> = self.usable.iter().map(|(s, e)| (s.next_multiple_of(PAGE), e / PAGE * PAGE)).collect();
        let taken: Vec<_> = self.taken.iter().map(|(s, e)| (s / PAGE * PAGE, e.next_multiple_of(PAGE))).collect();
        let mut edges: Vec<u64> = usable.iter().chain(&taken).flat_map(|&(start, end)| [start, end]).collect();
        edges.sort_unstable();
        edges.dedup();
        let within = |ranges: &[(u64, u64)], at: u64| ranges.iter().any(|&(start, end)| start <= at && at < end);
        let free = edges.windows(2).filter(|pair| within(&usable, pair[0]) && !within(&taken, pair[0]));
        free.map(|pair| pair[1] - pair[0]).sum()
    }
}

/// Adds ranges like `0x1000 to 0x2000 what, 0x3000 to 0x4000` to those that are there already.
fn add(text: &str, ranges: &mut Vec<(u64, u64)>) -> Result<()> {
    for range in text.split(", ") {
        let mut words = range.split(' ');
        let mut number = || {
            let word = words.find(|word| *word != "to").context("a number is missing")?;
            let digits = word.strip_prefix("0x").with_context(|| format!("{word} is no address"))?;
            Ok::<_, anyhow::Error>(u64::from_str_radix(digits, 16)?)
        };
        let range = (number()?, number()?);
        if !ranges.contains(&range) {
            ranges.push(range);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_is_the_map_without_the_pages_that_are_taken() {
        let lines = [
            "4 cores, all started",
            "memory map: 0x800 to 0x9fc00, 0x100000 to 0x200000",
            "memory map: 0x800 to 0x9fc00, 0x100000 to 0x200000",
            "memory taken of it: 0x0 to 0x1000 the firmware's first page, 0x100010 to 0x100020 module a, 0x5000 to 0x6000 log",
            "memory taken of it: 0x300000 to 0x400000 symbols",
            "memory that is free after that: 7 KiB",
        ];
        let map = Map::of(lines.iter().map(ToString::to_string)).unwrap();
        assert_eq!((map.usable.len(), map.taken.len(), map.free_kib), (2, 4, 7));
        // 0x1000 to 0x9f000 without one page, 1 MiB without one page.
        assert_eq!(map.expected(), 0x9e000 - 0x1000 + 0x10_0000 - 0x1000);
        assert!(Map::of(std::iter::once("memory map: 1 to 2".to_owned())).is_err());
        assert!(Map::of(std::iter::empty()).is_err());
    }
}
