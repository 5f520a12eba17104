//! Which of the machine's cores are threads of one physical core. A thread can read what its sibling leaves in caches and
//! buffers of the core, so [`plan`](crate::plan()) gives no two guests threads of one core.
//!
//! Follows SDM vol. 3A 9.9 (topology) and vol. 2A "CPUID" (leaves 1, 4, 0xB, 0x1F), and APM vol. 3 appendix E
//! (0x8000_001E).

use alloc::{collections::BTreeMap, vec::Vec};

/// Which cores are threads of one physical core.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Topology {
    /// For each core, in the order of their numbers, what it has in common with its siblings only.
    physical: Vec<u32>,
    /// Those of them that do not run, in ascending order. They keep their numbers.
    absent: Vec<u32>,
}

impl Topology {
    /// The topology of cores with these APIC IDs. The lowest `thread_bits` bits of an ID number the threads of a
    /// physical core ([`thread_bits`]).
    #[must_use]
    pub fn new(apic_ids: &[u32], thread_bits: u32) -> Self {
        let physical = apic_ids.iter().map(|id| id.checked_shr(thread_bits).unwrap_or(0)).collect();
        Self { physical, absent: Vec::new() }
    }

    /// A machine of this many cores with one thread each.
    #[must_use]
    pub fn one_thread_each(cores: u32) -> Self {
        Self { physical: (0..cores).collect(), absent: Vec::new() }
    }

    /// The same machine without the cores of these numbers: they have not started. The others keep their numbers.
    #[must_use]
    pub fn without(mut self, absent: &[u32]) -> Self {
        self.absent.extend(absent);
        self.absent.sort_unstable();
        self.absent.dedup();
        self
    }

    /// Whether there is a core of this number, and it runs.
    #[must_use]
    pub fn runs(&self, core: u32) -> bool {
        core < self.cores() && self.absent.binary_search(&core).is_err()
    }

    /// The cores that run and are threads of the same physical core as `core`, which need not run.
    #[must_use]
    pub fn beside(&self, core: u32) -> Vec<u32> {
        let Some(physical) = self.physical.get(core as usize) else { return Vec::new() };
        let numbered = (0_u32..).zip(&self.physical);
        numbered
            .filter(|&(other, of)| other != core && of == physical && self.runs(other))
            .map(|(other, _)| other)
            .collect()
    }

    /// The number of cores, with those that do not run. They are numbered from 0.
    #[must_use]
    pub fn cores(&self) -> u32 {
        u32::try_from(self.physical.len()).unwrap_or(u32::MAX)
    }

    /// Whether two cores run and are threads of one physical core.
    #[must_use]
    pub fn siblings(&self, one: u32, other: u32) -> bool {
        one != other && self.of(one).is_some() && self.of(one) == self.of(other)
    }

    /// Whether any physical core has two threads.
    #[must_use]
    pub fn has_siblings(&self) -> bool {
        self.groups().iter().any(|group| group.len() > 1)
    }

    /// The cores that run of each physical core, in the order of their first threads.
    #[must_use]
    pub fn groups(&self) -> Vec<Vec<u32>> {
        let mut groups: Vec<Vec<u32>> = Vec::new();
        let mut known: BTreeMap<u32, usize> = BTreeMap::new();
        for (core, physical) in (0_u32..).zip(&self.physical).filter(|&(core, _)| self.runs(core)) {
            let place = *known.entry(*physical).or_insert(groups.len());
            match groups.get_mut(place) {
                Some(group) => group.push(core),
                None => groups.push([core].into()),
            }
        }
        groups
    }

    fn of(&self, core: u32) -> Option<u32> {
        self.physical.get(core as usize).copied().filter(|_| self.runs(core))
    }
}

/// EAX, EBX, ECX and EDX of a CPUID leaf.
pub type Leaf = [u32; 4];

/// The number of low bits of an APIC ID that number the threads of a physical core. 0 if each core has one thread, or if
/// the CPU does not say.
///
/// `cpuid` executes CPUID with a leaf and a sub-leaf. It is asked for no leaf beyond the CPU's last one.
#[must_use]
pub fn thread_bits(cpuid: impl Fn(u32, u32) -> Leaf) -> u32 {
    let [last, ..] = cpuid(0, 0);
    for leaf in [0x1f, 0xb] {
        if last >= leaf
            && let Some(bits) = from_levels(|level| cpuid(leaf, level))
        {
            return bits;
        }
    }
    let [last_extended, ..] = cpuid(0x8000_0000, 0);
    if (0x8000_001e..=0x8000_ffff).contains(&last_extended) && cpuid(0x8000_0001, 0)[2] & TOPOLOGY_EXTENSIONS != 0 {
        let [_, units, ..] = cpuid(0x8000_001e, 0);
        return bits_for((units >> 8 & 0xff).saturating_add(1));
    }
    if last < 4 {
        return 0;
    }
    let [_, numbers, _, features] = cpuid(1, 0);
    if features & HTT != 0 {
        let [caches, ..] = cpuid(4, 0);
        // Both are numbers of APIC IDs, rounded up to powers of two.
        let ids_of_package = bits_for(numbers >> 16 & 0xff);
        let cores_of_package = bits_for((caches >> 26).saturating_add(1));
        return if caches & 0x1f == 0 { 0 } else { ids_of_package.saturating_sub(cores_of_package) };
    }
    0
}

/// CPUID.1:EDX: EBX has the number of APIC IDs of a package.
const HTT: u32 = 1 << 28;
/// CPUID.8000_0001:ECX: leaf 0x8000_001E is there.
const TOPOLOGY_EXTENSIONS: u32 = 1 << 22;
/// A level's type in ECX: the threads of a core.
const LEVEL_THREADS: u32 = 1;
/// More levels than any leaf has. Their types have 8 bits, and six are defined.
const MAX_LEVELS: u32 = 16;

/// Reads leaf 0xB or 0x1F. `None` if the CPU does not fill it in. The level of threads may be missing: then each core has
/// one.
fn from_levels(level: impl Fn(u32) -> Leaf) -> Option<u32> {
    let [_, first, ..] = level(0);
    if first & 0xffff == 0 {
        return None;
    }
    for number in 0..MAX_LEVELS {
        let [shift, _, kind, _] = level(number);
        match kind >> 8 & 0xff {
            0 => break,
            LEVEL_THREADS => return Some(shift & 0x1f),
            _ => {}
        }
    }
    Some(0)
}

/// The bits that number `count` things.
fn bits_for(count: u32) -> u32 {
    count.max(1).next_power_of_two().trailing_zeros()
}

#[cfg(test)]
mod tests;
