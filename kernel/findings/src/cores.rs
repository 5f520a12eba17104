//! The cores: which are listed, which have started, whether they are alike, whether their TSCs agree. A machine has up to
//! [`MAX_CORES`] of them, so no sentence is about a single one: their numbers are told as ranges.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use boot::acpi;
use clock::agree::Outcome;
use config::Topology;
use control::ReportEntry;
use core::fmt;

use crate::{found, warning};

/// Most cores that are used.
pub const MAX_CORES: usize = 1024;

/// Numbers as text: "0, 2 to 5, 9". Each is told once, in ascending order.
#[must_use]
pub fn ranges(numbers: &[u32]) -> String {
    let sorted: BTreeSet<u32> = numbers.iter().copied().collect();
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in sorted {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push((number, number)),
        }
    }
    let texts = runs.into_iter().map(|(first, last)| match last.saturating_sub(first) {
        0 => format!("{first}"),
        // As short, and easier to read.
        1 => format!("{first}, {last}"),
        _ => format!("{first} to {last}"),
    });
    texts.collect::<Vec<_>>().join(", ")
}

/// What ACPI's MADT lists, if all of it starts that can be used.
#[must_use]
pub fn listed(cores: &acpi::Cores) -> Vec<ReportEntry> {
    // Without a MADT the boot core is there.
    let enabled = cores.enabled.len().max(1);
    let mut said = Vec::from([started(enabled.min(MAX_CORES), enabled)]);
    said.extend(offline(cores));
    said
}

/// `count` cores run, and no others were asked to. `listed` are enabled in the MADT.
#[must_use]
pub fn started(count: usize, listed: usize) -> ReportEntry {
    if listed > MAX_CORES {
        warning(format!("{count} cores are used, all that this hypervisor can; the machine has {listed}"))
    } else {
        found(format!("{count} cores, all started"))
    }
}

/// The cores that the MADT lists and does not enable. `None`: there are none.
#[must_use]
pub fn offline(cores: &acpi::Cores) -> Option<ReportEntry> {
    let count = cores.offline.len();
    (count != 0).then(|| {
        found(format!(
            "ACPI lists {count} more cores that are not enabled ({} of them can be added later): they are not used; APIC IDs {}",
            cores.addable,
            ranges(&cores.offline)
        ))
    })
}

/// A core that did not start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absent {
    /// The number that it would have.
    pub number: u32,
    /// Its APIC ID.
    pub apic_id: u32,
    /// Its NUMA node, if ACPI's SRAT names it.
    pub node: Option<u32>,
    /// It came and got stuck.
    pub stuck: bool,
}

/// Some cores did not start, and `running` did. `topology` has those that run.
#[must_use]
pub fn absent(cores: &[Absent], running: usize, topology: &Topology) -> ReportEntry {
    let mut clauses = Vec::new();
    for (stuck, what) in [(false, "do not answer a start-up IPI"), (true, "came and got stuck")] {
        let numbers: Vec<u32> = cores.iter().filter(|core| core.stuck == stuck).map(|core| core.number).collect();
        if !numbers.is_empty() {
            clauses.push(format!("{} {what}", ranges(&numbers)));
        }
    }
    let ids: Vec<u32> = cores.iter().map(|core| core.apic_id).collect();
    clauses.push(format!("APIC IDs {}", ranges(&ids)));
    let beside: Vec<u32> = cores.iter().flat_map(|core| topology.beside(core.number)).collect();
    if !beside.is_empty() {
        clauses.push(format!("their siblings {} run", ranges(&beside)));
    }
    let mut nodes: BTreeMap<u32, usize> = BTreeMap::new();
    for node in cores.iter().filter_map(|core| core.node) {
        let count = nodes.entry(node).or_default();
        *count = count.saturating_add(1);
    }
    clauses.extend(nodes.into_iter().map(|(node, count)| format!("NUMA node {node} lacks {count}")));
    warning(format!(
        "{running} cores run, {} did not start: {}; the others keep their numbers",
        cores.len(),
        clauses.join("; ")
    ))
}

/// What differs among the cores' TSCs: number of the core, and what its meeting with core 0 has found (`None`: it did not come).
#[must_use]
pub fn clocks(outcomes: &[(u32, Option<Outcome>)]) -> Vec<ReportEntry> {
    let mut said = Vec::new();
    let (mut right, mut wrong, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
    let (mut farthest_right, mut farthest_wrong) = (0, 0);
    for &(core, outcome) in outcomes {
        match outcome {
            Some(Outcome { added, left: 0 }) => {
                right.push(core);
                farthest_right = added.cast_signed().unsigned_abs().max(farthest_right);
            }
            Some(Outcome { left, .. }) => {
                wrong.push(core);
                farthest_wrong = left.max(farthest_wrong);
            }
            None => unknown.push(core),
        }
    }
    if !right.is_empty() {
        let cores = ranges(&right);
        said.push(found(format!(
            "cores {cores}: their TSCs were put right by up to {farthest_right} ticks, as core 0's"
        )));
    }
    if !wrong.is_empty() {
        said.push(warning(format!(
            "cores {}: their TSCs are up to {farthest_wrong} ticks or more off core 0's, and cannot be put right: time differs \
             between guests' CPUs on these cores and others",
            ranges(&wrong)
        )));
    }
    if !unknown.is_empty() {
        said.push(warning(format!("cores {}: their TSCs were not compared with core 0's", ranges(&unknown))));
    }
    said
}

/// What CPUID says of one core and not of all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// Type of the core on a hybrid processor: bits 31 to 24 of leaf 0x1A's EAX. 0: the processor is not hybrid.
    pub hybrid: u8,
    /// Family, model and stepping: leaf 1's EAX.
    pub signature: u32,
}

impl Kind {
    /// Reads it on the core that this runs on (SDM vol. 2A "CPUID", leaves 1, 7 and 0x1A).
    #[must_use]
    pub fn find(cpuid: impl Fn(u32, u32) -> [u32; 4]) -> Self {
        let [signature, ..] = cpuid(1, 0);
        let hybrid = if Self::is_hybrid(&cpuid) { (cpuid(0x1a, 0)[0] >> 24) as u8 } else { 0 };
        Self { hybrid, signature }
    }

    /// Whether the processor has cores of several types, and says which one each is.
    #[must_use]
    pub fn is_hybrid(cpuid: impl Fn(u32, u32) -> [u32; 4]) -> bool {
        const HYBRID: u32 = 1 << 15;
        cpuid(0, 0)[0] >= 0x1a && cpuid(7, 0)[3] & HYBRID != 0
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.hybrid {
            0 => write!(f, "of signature {:#x}", self.signature),
            0x20 => f.write_str("efficiency cores"),
            0x40 => f.write_str("performance cores"),
            other => write!(f, "of the unknown type {other:#x}"),
        }
    }
}

/// Whether the cores are alike: number and kind of each that runs. Nothing is said if they are.
#[must_use]
pub fn kinds(cores: &[(u32, Kind)]) -> Vec<ReportEntry> {
    let mut classes: BTreeMap<Kind, Vec<u32>> = BTreeMap::new();
    for &(core, kind) in cores {
        classes.entry(kind).or_default().push(core);
    }
    if classes.len() < 2 {
        return Vec::new();
    }
    let texts: Vec<String> =
        classes.iter().map(|(kind, cores)| format!("cores {} are {kind}", ranges(cores))).collect();
    [warning(format!(
        "the cores are not alike: {}; sidecore takes what core 0 has for all of them, and does not choose among kinds",
        texts.join("; ")
    ))]
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::ReportKind;

    /// CPUID of a processor with these words, by leaf.
    fn leaves<const N: usize>(words: [(u32, [u32; 4]); N]) -> impl Fn(u32, u32) -> [u32; 4] {
        move |leaf, _| words.iter().find(|(known, _)| *known == leaf).map_or([0; 4], |(_, words)| *words)
    }

    #[test]
    fn the_kinds_of_a_hybrid_processor_are_told_and_alike_cores_are_not() {
        let core = |hybrid: u32, kind: u32, last: u32| {
            Kind::find(leaves([
                (0, [last, 0, 0, 0]),
                (1, [0x000b_06f2, 0, 0, 0]),
                (7, [0, 0, 0, hybrid << 15]),
                (0x1a, [kind << 24 | 1, 0, 0, 0]),
            ]))
        };
        let (performance, efficiency, plain) = (core(1, 0x40, 0x20), core(1, 0x20, 0x20), core(0, 0x40, 0x20));
        assert_eq!((plain.hybrid, core(1, 0x40, 0x19).hybrid), (0, 0), "only where CPUID says hybrid and has the leaf");
        let said = kinds(&[(0, performance), (1, performance), (2, efficiency), (3, efficiency), (4, efficiency)]);
        assert!(
            said[0].text.contains("cores 2 to 4 are efficiency cores; cores 0, 1 are performance cores"),
            "{said:?}"
        );
        assert_eq!(kinds(&[(0, plain), (1, plain)]), []);
        let other = Kind { signature: 0x000b_06f5, ..plain };
        assert!(kinds(&[(0, plain), (1, other)])[0].text.contains("of signature 0xb06f5"));
    }

    #[test]
    fn numbers_are_told_as_ranges() {
        assert_eq!(ranges(&[]), "");
        assert_eq!(ranges(&[9, 3, 2, 4, 2, 0]), "0, 2 to 4, 9");
        assert_eq!(ranges(&[5, 6]), "5, 6");
        assert_eq!(ranges(&[u32::MAX, u32::MAX - 1, u32::MAX - 2]), "4294967293 to 4294967295");
        assert_eq!(ranges(&(1..288).collect::<Vec<_>>()), "1 to 287");
    }

    #[test]
    fn more_cores_than_can_be_used_are_a_warning() {
        assert_eq!(started(4, 4), found("4 cores, all started"));
        assert_eq!(started(1024, 1024), found("1024 cores, all started"));
        let entry = started(1024, 1152);
        assert_eq!(entry.kind, ReportKind::Warning);
        assert!(entry.text.contains("1024 cores are used") && entry.text.ends_with("the machine has 1152"));
    }

    #[test]
    fn cores_that_are_listed_and_not_enabled_are_told() {
        let cores = acpi::Cores { enabled: vec![0, 1], offline: vec![2, 3, 4, 0x8000_0000], addable: 2 };
        let said = listed(&cores);
        assert_eq!(said[0], found("2 cores, all started"));
        assert_eq!(
            said[1].text,
            "ACPI lists 4 more cores that are not enabled (2 of them can be added later): they are not used; APIC IDs 2 to 4, \
             2147483648"
        );
        assert_eq!(listed(&acpi::Cores::default()), [found("1 cores, all started")], "without a MADT");
    }

    #[test]
    fn a_core_that_does_not_start_is_told_with_its_sibling_and_its_node() {
        let topology = Topology::new(&[0, 1, 2, 3, 512, 513], 1).without(&[3, 4, 5]);
        let core = |number, apic_id, node, stuck| Absent { number, apic_id, node, stuck };
        let cores = [core(3, 3, Some(0), false), core(4, 512, Some(1), false), core(5, 513, Some(1), true)];
        let said = absent(&cores, 3, &topology);
        assert_eq!(said.kind, ReportKind::Warning);
        assert_eq!(
            said.text,
            "3 cores run, 3 did not start: 3, 4 do not answer a start-up IPI; 5 came and got stuck; APIC IDs 3, 512, 513; their \
             siblings 2 run; NUMA node 0 lacks 1; NUMA node 1 lacks 2; the others keep their numbers"
        );
    }

    #[test]
    fn clocks_of_many_cores_take_three_sentences_at_most() {
        let outcome = |added: i64, left| Some(Outcome { added: added.cast_unsigned(), left });
        let outcomes: Vec<_> = (1..=100)
            .map(|core| (core, outcome(-i64::from(core), 0)))
            .chain([(101, outcome(5, 7)), (102, None), (103, outcome(0, 9))])
            .collect();
        let said = clocks(&outcomes);
        assert_eq!(said.len(), 3);
        assert!(said[0].text.starts_with("cores 1 to 100: their TSCs were put right by up to 100 ticks"));
        assert!(said[1].text.starts_with("cores 101, 103: their TSCs are up to 9 ticks or more off"));
        assert!(said[2].text.starts_with("cores 102: "));
        assert_eq!(clocks(&[]), []);
    }
}
