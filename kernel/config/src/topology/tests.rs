//! Topologies as CPUs describe them. The values of leaves are those of the named CPUs.

use super::*;

/// A CPU with these leaves. A sub-leaf that is not listed reads as zeroes.
struct Cpu(&'static [(u32, u32, Leaf)]);

impl Cpu {
    fn bits(&self) -> u32 {
        let first = |leaf| self.0.iter().find(|entry| entry.0 == leaf).map_or(0, |entry| entry.2[0]);
        let (last, last_extended) = (first(0), first(0x8000_0000));
        thread_bits(|leaf, subleaf| {
            let limit = if leaf < 0x8000_0000 { last } else { last_extended.max(0x8000_0000) };
            assert!(leaf <= limit, "leaf {leaf:#x} is beyond the last one");
            let entry = self.0.iter().find(|entry| (entry.0, entry.1) == (leaf, subleaf));
            entry.map_or([0; 4], |entry| entry.2)
        })
    }
}

const HTT_ONLY: Leaf = [0, 0, 0, HTT];

#[test]
fn a_xeon_with_hyper_threading() {
    // Xeon Gold 6130 (Skylake): leaf 0xB, 2 threads, 32 APIC IDs of a package.
    let xeon = Cpu(&[(0, 0, [0x16, 0, 0, 0]), (0xb, 0, [1, 2, 0x100, 0]), (0xb, 1, [6, 32, 0x201, 0])]);
    assert_eq!(xeon.bits(), 1);
    // Xeon Platinum 8480+ (Sapphire Rapids): leaf 0x1F.
    let new = Cpu(&[
        (0, 0, [0x20, 0, 0, 0]),
        (0x1f, 0, [1, 2, 0x100, 0]),
        (0x1f, 1, [7, 112, 0x201, 0]),
        (0xb, 0, [2, 4, 0x100, 0]),
    ]);
    assert_eq!(new.bits(), 1, "leaf 0x1F goes before leaf 0xB");
}

#[test]
fn a_leaf_that_is_there_and_empty_is_not_used() {
    let cpu = Cpu(&[(0, 0, [0x1f, 0, 0, 0]), (0xb, 0, [1, 2, 0x100, 0]), (0xb, 1, [4, 16, 0x201, 0])]);
    assert_eq!(cpu.bits(), 1);
}

#[test]
fn one_thread_a_core_is_no_bit() {
    // Xeon E-2224: no Hyper-Threading. The level of threads has one.
    let cpu = Cpu(&[(0, 0, [0x16, 0, 0, 0]), (0xb, 0, [0, 1, 0x100, 0]), (0xb, 1, [4, 4, 0x201, 0])]);
    assert_eq!(cpu.bits(), 0);
    // A leaf whose levels begin with the core.
    let cpu = Cpu(&[(0, 0, [0xb, 0, 0, 0]), (0xb, 0, [4, 4, 0x200, 0])]);
    assert_eq!(cpu.bits(), 0);
    assert_eq!(Cpu(&[(0, 0, [1, 0, 0, 0])]).bits(), 0);
}

#[test]
fn the_level_of_threads_is_believed_whatever_number_of_threads_it_gives() {
    // Bochs 3.0, one thread a core: a bit for a single thread, which its APIC IDs do not have. The hypervisor does not ask there.
    // On a hybrid CPU the boot core may have one thread, and other cores have two.
    let bochs = Cpu(&[(0, 0, [0x16, 0, 0, 0]), (0xb, 0, [1, 1, 0x100, 0]), (0xb, 1, [1, 1, 0x201, 0])]);
    assert_eq!(bochs.bits(), 1);
}

#[test]
fn amd_by_its_own_leaf() {
    // EPYC 7001 (Zen 1) has no leaf 0xB: EBX of 0x8000_001E has threads - 1.
    let zen = |extensions, ebx| {
        [
            (0, 0, [0xd, 0, 0, 0]),
            (0x8000_0000, 0, [0x8000_001f, 0, 0, 0]),
            (0x8000_0001, 0, [0, 0, extensions, 0]),
            (0x8000_001e, 0, [0, ebx, 0, 0]),
        ]
    };
    let with = zen(TOPOLOGY_EXTENSIONS, 0x100);
    assert_eq!(Cpu(Vec::leak(with.to_vec())).bits(), 1);
    let without = zen(0, 0x100);
    assert_eq!(Cpu(Vec::leak(without.to_vec())).bits(), 0, "the leaf is not announced");
    let single = zen(TOPOLOGY_EXTENSIONS, 0);
    assert_eq!(Cpu(Vec::leak(single.to_vec())).bits(), 0);
    let odd = zen(TOPOLOGY_EXTENSIONS, 0x200);
    assert_eq!(Cpu(Vec::leak(odd.to_vec())).bits(), 2, "three threads take two bits");
}

#[test]
fn old_intel_by_leaves_1_and_4() {
    // Pentium 4 with Hyper-Threading: two IDs, one core.
    let old = Cpu(&[(0, 0, [5, 0, 0, 0]), (1, 0, [0, 2 << 16, 0, HTT]), (4, 0, [0x4121, 0, 0, 0])]);
    assert_eq!(old.bits(), 1);
    // Core 2 Duo: two IDs, two cores.
    let core2 = Cpu(&[(0, 0, [10, 0, 0, 0]), (1, 0, [0, 2 << 16, 0, HTT]), (4, 0, [1 << 26 | 0x121, 0, 0, 0])]);
    assert_eq!(core2.bits(), 0);
    assert_eq!(Cpu(&[(0, 0, [10, 0, 0, 0]), (1, 0, HTT_ONLY)]).bits(), 0, "leaf 4 says nothing");
}

#[test]
fn no_leaf_makes_it_panic() {
    for fill in [0, 1, 0x100, 0xffff_ffff] {
        let bits = thread_bits(|_, _| [fill; 4]);
        assert!(Topology::new(&[0, 1, u32::MAX], bits).cores() == 3);
    }
}

#[test]
fn no_leaf_beyond_the_last_one_is_asked_for() {
    for last in 0..0x20 {
        let bits = thread_bits(|leaf, _| {
            assert!(leaf <= last || leaf == 0x8000_0000, "leaf {leaf:#x} of {last:#x}");
            if leaf == 0 { [last, 0, 0, 0] } else { [0; 4] }
        });
        assert_eq!(bits, 0);
    }
}

#[test]
fn siblings_by_apic_ids() {
    // Two packages of two cores with two threads. Firmware lists first threads first.
    let topology = Topology::new(&[0, 2, 16, 18, 1, 3, 17, 19], 1);
    assert_eq!(topology.groups(), [[0, 4], [1, 5], [2, 6], [3, 7]]);
    assert!(topology.siblings(0, 4) && !topology.siblings(0, 1) && !topology.siblings(0, 0));
    assert!(!topology.siblings(8, 9), "no such cores");
    assert!(topology.has_siblings());
    // Hyper-Threading is off in the setup: the bit is there, the second threads are not.
    assert!(!Topology::new(&[0, 2, 4], 1).has_siblings());
    assert_eq!(Topology::one_thread_each(3), Topology::new(&[0, 1, 2], 0));
}

#[test]
fn a_core_that_does_not_run_is_in_no_group_and_the_others_keep_their_numbers() {
    // Two threads a core, in IDs with holes: three cores in each of three packages.
    let ids: Vec<u32> = (0..3).flat_map(|package| (0..6).map(move |thread| package << 3 | thread)).collect();
    let whole = Topology::new(&ids, 1);
    assert_eq!(whole.groups().len(), 9);
    let topology = whole.without(&[5, 8, 9, 5]);
    assert_eq!((topology.cores(), topology.groups().len()), (18, 8));
    assert_eq!(topology.groups()[2], [4], "its sibling has the physical core for itself");
    assert!(topology.runs(4) && !topology.runs(5) && !topology.runs(18));
    assert!(!topology.siblings(4, 5), "one of them does not run");
    assert_eq!((topology.beside(5), topology.beside(8), topology.beside(18)), (vec![4], vec![], vec![]));
}

#[test]
fn ids_with_the_top_bits_set_are_told_apart() {
    let topology = Topology::new(&[0x8000_0000, 0x8000_0001, 0xffff_fffe, 0x1_0000, 1], 1);
    assert_eq!(topology.groups(), [vec![0, 1], vec![2], vec![3], vec![4]]);
}
