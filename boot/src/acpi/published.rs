//! Tables of real servers, rebuilt from what others have published. What the code does not read (names of devices, makers, processor
//! numbers, devices' interrupts) is 0, left out, or the same for all. Types, lengths, APIC IDs, what is enabled, nodes and addresses are
//! those of the source, and so is the order in MADTs and DMARs.
//!
//! | server | published at | tables |
//! |---|---|---|
//! | Dell PowerEdge R820 | A, `Server/Dell/PowerEdge/PowerEdge R820/E5985CCBA349` | MADT, SRAT, DMAR, MCFG |
//! | HP ProLiant DL380e Gen8 | A, `Server/Hewlett-Packard/ProLiant/ProLiant DL380e Gen8/CB05571909C8` | MADT, SRAT, DMAR, MCFG |
//! | HP ProLiant DL360 G7 | A, `Server/Hewlett-Packard/ProLiant/ProLiant DL360 G7/60DCEE46526A` | MADT, SRAT, DMAR, MCFG |
//! | Supermicro H8DGU | A, `Server/Supermicro/H8/H8DGU/57ED146F2C3C` | MADT, SRAT, IVRS |
//! | Supermicro H8QG6 | A, `Server/Supermicro/H8/H8QG6/28567EC2EFB1` | MADT, SRAT |
//! | Fujitsu PRIMERGY | A, `Server/Fujitsu/PRIMERGY/PRIMERGY/41B1E7A57925` | MADT, DMAR |
//! | HP Superdome2 16s x86 | <https://lore.kernel.org/r/552FFD83.5030901@hp.com>, kernel log | MADT, SRAT |
//! | Supermicro AS-4125GS-TNRT | <https://github.com/clu6/supermicro>, `dmesg.txt`, kernel log | MADT, SRAT |
//! | Dell PowerEdge R630 | <https://github.com/cilioh/zfs_chksm>, `dmesg`, kernel log | SRAT, DMAR |
//! | HPE, 8 sockets in 2 chassis, and 2 segments | <https://lore.kernel.org/r/DF4PR8401MB10356D373986227465D6CC749B110@DF4PR8401MB1035.NAMPRD84.PROD.OUTLOOK.COM> | MCFG |
//!
//! A: <https://github.com/linuxhw/ACPI>, commit d6d30c6ef6f4, decoded tables that users of linux-hardware.org have uploaded (CC BY 4.0).

use super::{Cores, EcamWindow, Maker, cores, dmar, ecam, io_apics, ivrs};
use crate::srat::node_of;

/// A table with these entries behind its header and `fixed` bytes.
fn table(fixed: usize, entries: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    [vec![0; 36 + fixed], entries.into_iter().flatten().collect()].concat()
}

fn madt(entries: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    table(8, entries)
}

fn srat(entries: impl IntoIterator<Item = Vec<u8>>) -> Vec<u8> {
    table(12, entries)
}

/// A DMAR or an IVRS: structures of a type, a length and registers' or a range's address.
fn remapping(structures: &[(u16, u16, u64)]) -> Vec<u8> {
    table(
        12,
        structures.iter().map(|&(kind, len, address)| {
            let head = [&kind.to_le_bytes()[..], &len.to_le_bytes(), &[0; 4], &address.to_le_bytes()].concat();
            let mut structure = vec![0; len.into()];
            structure[..16].copy_from_slice(&head);
            structure
        }),
    )
}

/// Local APICs (type 0), enabled or not.
fn apics(ids: impl IntoIterator<Item = u8>, enabled: bool) -> impl Iterator<Item = Vec<u8>> {
    ids.into_iter().map(move |id| vec![0, 8, 0, id, u8::from(enabled), 0, 0, 0])
}

/// Local x2APICs (type 9), enabled: their ID, and ACPI's processor UID.
fn x2apics(ids: impl IntoIterator<Item = (u32, u32)>) -> impl Iterator<Item = Vec<u8>> {
    let entry = |(id, uid): (u32, u32)| {
        [&[9, 16, 0, 0][..], &id.to_le_bytes(), &1_u32.to_le_bytes(), &uid.to_le_bytes()].concat()
    };
    ids.into_iter().map(entry)
}

/// I/O APICs (type 1): ID and address.
fn inputs<const N: usize>(all: [(u8, u32); N]) -> impl Iterator<Item = Vec<u8>> {
    all.into_iter().map(|(id, at)| [&[1, 12, id, 0][..], &at.to_le_bytes(), &[0; 4]].concat())
}

/// The two interrupt overrides (type 2) and the line of NMIs (type 4) that all of these servers have. Only their lengths count here.
fn usual(nmi: [u8; 6]) -> [Vec<u8>; 3] {
    [vec![2, 10, 0, 0, 2, 0, 0, 0, 0, 0], vec![2, 10, 0, 9, 9, 0, 0, 0, 0x0d, 0], nmi.to_vec()]
}

/// Cores of a node in an SRAT by 8-bit ID (type 0).
fn local(node: u8, ids: impl IntoIterator<Item = u8>, enabled: bool) -> impl Iterator<Item = Vec<u8>> {
    ids.into_iter().map(move |id| [&[0, 16, node, id, u8::from(enabled)][..], &[0; 11]].concat())
}

/// Cores of a node in an SRAT by 32-bit ID (type 2).
fn wide(node: u32, ids: impl IntoIterator<Item = u32>) -> impl Iterator<Item = Vec<u8>> {
    let entry = move |id: u32| {
        [&[2, 24, 0, 0][..], &node.to_le_bytes(), &id.to_le_bytes(), &1_u32.to_le_bytes(), &[0; 8]].concat()
    };
    ids.into_iter().map(entry)
}

/// Memory of a node in an SRAT (type 1).
fn memory<const N: usize>(all: [(u8, u64, u64); N]) -> impl Iterator<Item = Vec<u8>> {
    all.into_iter().map(|(node, base, len)| {
        [&[1, 40, node, 0, 0, 0, 0, 0][..], &base.to_le_bytes(), &len.to_le_bytes(), &[0; 4], &[1, 0, 0, 0], &[0; 8]]
            .concat()
    })
}

fn mcfg(windows: &[(u64, u16, u8, u8)]) -> Vec<u8> {
    table(
        8,
        windows.iter().map(|&(base, segment, first, last)| {
            [&base.to_le_bytes()[..], &segment.to_le_bytes(), &[first, last], &[0; 4]].concat()
        }),
    )
}

fn addresses(units: &[super::RemappingUnit]) -> Vec<u64> {
    units.iter().map(|unit| unit.registers).collect()
}

fn range(first: u8, last: u8) -> impl Iterator<Item = u8> + Clone {
    first..=last
}

fn only(enabled: impl IntoIterator<Item = u32>) -> Cores {
    Cores { enabled: enabled.into_iter().collect(), ..Cores::default() }
}

/// The local APIC IDs of one of the R820's sockets, without the thread: 10 of 16.
const R820_CORES: [u8; 10] = [0, 2, 4, 6, 8, 0x10, 0x12, 0x14, 0x16, 0x18];

#[test]
fn a_dell_r820_has_four_nodes_counted_from_1_and_16_cores_that_are_not_there() {
    // The threads of all sockets take turns, and the second threads come last.
    let ids: Vec<u8> = [0, 1]
        .into_iter()
        .flat_map(|thread| {
            R820_CORES.into_iter().flat_map(move |core| [0, 0x20, 0x40, 0x60].map(|s| s | core | thread))
        })
        .collect();
    let absent = range(0xd0, 0xdf);
    let io = inputs([(0, 0xfec0_0000), (1, 0xfec3_f000), (2, 0xfec7_f000), (3, 0xfec8_0000), (4, 0xfecc_0000)]);
    let nmi = [4, 6, 0xff, 5, 0, 1];
    let madt = madt(apics(ids.clone(), true).chain(apics(absent.clone(), false)).chain(usual(nmi)).chain(io));
    assert_eq!(madt.len(), 0x382, "as long as the server's");
    let found = cores(&madt);
    assert_eq!(found.enabled, ids.iter().map(|&id| id.into()).collect::<Vec<u32>>());
    assert_eq!((found.enabled.len(), found.addable), (80, 0));
    assert_eq!(found.offline, (0xd0..=0xdf).collect::<Vec<_>>());
    assert_eq!(io_apics(&madt), [0xfec0_0000, 0xfec3_f000, 0xfec7_f000, 0xfec8_0000, 0xfecc_0000]);

    let sockets = [0, 1, 2, 3].map(|socket: u8| {
        let ids = [0, 1].into_iter().flat_map(move |thread| R820_CORES.map(|core| socket << 5 | core | thread));
        local(socket + 1, ids, true)
    });
    let gibibytes = 1 << 30;
    let memory = memory([
        (1, 0, 17 * gibibytes),
        (2, 17 * gibibytes, 16 * gibibytes),
        (3, 33 * gibibytes, 16 * gibibytes),
        (4, 49 * gibibytes, 16 * gibibytes),
    ]);
    let srat = srat(sockets.into_iter().flatten().chain(local(0, absent, false)).chain(memory));
    for id in &found.enabled {
        assert_eq!(node_of(&srat, *id), Some(1 + (id >> 5)), "{id:#x}");
    }
    assert_eq!(node_of(&srat, 0xd0), None);

    // Four units; the reserved ranges of the USB controllers overlap each other; one ATSR.
    let dmar = dmar(&remapping(&[
        (0, 72, 0xcf00_0000),
        (0, 32, 0xc800_0000),
        (0, 32, 0xc400_0000),
        (0, 40, 0xdf10_0000),
        (1, 40, 0xbf45_8000),
        (1, 32, 0xbf45_0000),
        (1, 32, 0xbf45_2000),
        (2, 72, 0),
    ]));
    assert_eq!(addresses(&dmar), [0xcf00_0000, 0xc800_0000, 0xc400_0000, 0xdf10_0000]);
    assert!(dmar.iter().all(|unit| unit.maker == Maker::Intel));
    let window = EcamWindow { base: 0xe000_0000, segment: 0, first: 0, last: 0xff };
    assert_eq!(ecam(&mcfg(&[(0xe000_0000, 0, 0, 0xff)])), [window]);
}

#[test]
fn an_hp_dl380e_has_56_entries_that_are_off_and_call_themselves_core_0() {
    let ids = [0, 2, 4, 6, 0x20, 0x22, 0x24, 0x26];
    let io = inputs([(8, 0xfec0_0000), (0, 0xfec1_0000), (10, 0xfec4_0000)]);
    let nothing = || [0; 56];
    let madt = madt(apics(ids, true).chain(apics(nothing(), false)).chain(io).chain(usual([4, 6, 0xff, 0, 0, 1])));
    assert_eq!(madt.len(), 618, "as long as the server's");
    assert_eq!(cores(&madt), only(ids.map(u32::from)), "core 0 is there");
    assert_eq!(io_apics(&madt).len(), 3);

    let nodes = local(0, [0, 2, 4, 6], true).chain(local(1, [0x20, 0x22, 0x24, 0x26], true));
    let memory = memory([(0, 0, 0x8_8000_0000), (1, 0x8_8000_0000, 0xc_0000_0000)]);
    let srat = srat(nodes.chain(local(0, nothing(), false)).chain(memory));
    assert_eq!(ids.map(|id| node_of(&srat, id.into())), [0, 0, 0, 0, 1, 1, 1, 1].map(Some));

    // Nine reserved ranges, two of them in the first MiB, for the management controller, the disks and the network.
    let reserved = [
        (40, 0x7dff_d000),
        (54, 0x7dff_6000),
        (120, 0x7df8_3000),
        (120, 0x7df7_f000),
        (120, 0x7df6_f000),
        (120, 0x79f6_f000),
        (120, 0x75f6_f000),
        (120, 0xf_4000),
        (120, 0xe_8000),
    ];
    let units = [(0, 144, 0xfbef_e000), (0, 40, 0xbeff_e000)];
    let structures: Vec<_> =
        units.into_iter().chain(reserved.map(|(len, at)| (1, len, at))).chain([(2, 64, 0), (2, 56, 0)]).collect();
    let table = remapping(&structures);
    assert_eq!(table.len(), 1286, "as long as the server's");
    assert_eq!(addresses(&dmar(&table)), [0xfbef_e000, 0xbeff_e000]);
}

#[test]
fn an_hp_dl360_g7_has_cores_that_are_off_between_those_that_are_on_and_64_buses() {
    let groups: [(&[u8], bool); 8] = [
        (&[0, 0x20], true),
        (&[0x10, 0x30, 4, 0x24], false),
        (&[0x14, 0x34, 2, 0x22, 0x12, 0x32], true),
        (&[6, 0x26, 0x16, 0x36], false),
        (&[1, 0x21], true),
        (&[0x11, 0x31, 5, 0x25], false),
        (&[0x15, 0x35, 3, 0x23, 0x13, 0x33], true),
        (&[7, 0x27, 0x17, 0x37], false),
    ];
    let entries = groups.into_iter().flat_map(|(ids, enabled)| apics(ids.iter().copied(), enabled));
    let io = inputs([(8, 0xfec0_0000), (0, 0xfec8_0000)]);
    let madt = madt(entries.chain(io).chain(usual([4, 6, 0xff, 0, 0, 1])));
    assert_eq!(madt.len(), 350, "as long as the server's");
    let of = |wanted| {
        let ids = groups.into_iter().filter(move |(_, enabled)| *enabled == wanted).flat_map(|(ids, _)| ids);
        ids.map(|id| u32::from(*id)).collect::<Vec<_>>()
    };
    let found = cores(&madt);
    let mut off = of(false);
    off.sort_unstable();
    assert_eq!((found.enabled, found.offline, found.addable), (of(true), off, 0));

    // All 64 IDs that two sockets can have are listed.
    let on = [0, 1, 2, 3, 0x12, 0x13, 0x14, 0x15];
    let off = (0..0x40).filter(|id| !on.contains(&(id & 0x1f)));
    let srat = srat(local(0, on, true).chain(local(1, on.map(|id| id | 0x20), true)).chain(local(0, off, false)));
    for id in of(true) {
        assert_eq!(node_of(&srat, id), Some(id >> 5), "{id:#x}");
    }
    assert!(of(false).iter().all(|id| node_of(&srat, *id).is_none()));

    let dmar = dmar(&remapping(&[
        (0, 32, 0xe7ff_e000),
        (1, 32, 0xdf7e_6000),
        (1, 86, 0xdf7d_f000),
        (1, 94, 0xdf61_e000),
        (2, 64, 0),
    ]));
    assert_eq!(addresses(&dmar), [0xe7ff_e000]);
    let [window] = ecam(&mcfg(&[(0xe000_0000, 0, 0, 0x3f)]))[..] else { panic!("one window") };
    assert_eq!((window.start(), window.end()), (0xe000_0000, 0xe400_0000));
}

#[test]
fn a_supermicro_h8dgu_has_its_second_socket_s_nodes_the_other_way_round() {
    let (ids, absent) = (range(0x10, 0x1b).chain(range(0x20, 0x2b)), range(0x98, 0x9f));
    let io = inputs([(0, 0xfec0_0000), (1, 0xfec2_0000)]);
    let lines = usual([4, 6, 0xff, 0, 0, 1]).into_iter().chain([vec![4, 6, 1, 5, 0, 1]]);
    let madt = madt(apics(ids.clone(), true).chain(apics(absent, false)).chain(io).chain(lines));
    assert_eq!(madt.len(), 356, "as long as the server's");
    let found = cores(&madt);
    assert_eq!(found.enabled, ids.map(u32::from).collect::<Vec<_>>(), "no core has ID 0");
    assert_eq!(found.offline, (0x98..=0x9f).collect::<Vec<_>>());

    // Two nodes have no memory.
    let low = memory([(0, 0, 0xa_0000), (0, 0x10_0000, 0xdff0_0000), (0, 0x1_0000_0000, 0x8_2000_0000)]);
    let first = local(0, range(0x10, 0x15), true).chain(local(1, range(0x16, 0x1b), true));
    let second = local(2, range(0x26, 0x2b), true);
    let high = memory([(3, 0x9_2000_0000, 0x9_0000_0000)]);
    let srat = srat(low.chain(first).chain(second).chain(high).chain(local(3, range(0x20, 0x25), true)));
    let nodes = [(0x10, 0), (0x15, 0), (0x16, 1), (0x1b, 1), (0x20, 3), (0x25, 3), (0x26, 2), (0x2b, 2)];
    assert_eq!(nodes.map(|(id, _)| node_of(&srat, id)), nodes.map(|(_, node)| Some(node)));

    // An IVHD of type 0x10 with flags 0x3e and 128 bytes.
    let ivrs = ivrs(&remapping(&[(0x3e10, 128, 0xf600_0000)]));
    assert_eq!((addresses(&ivrs), ivrs[0].maker), (vec![0xf600_0000], Maker::Amd));
}

#[test]
fn a_supermicro_h8qg6_with_64_cores_has_holes_between_sockets_and_an_io_apic_far_below_the_others() {
    let sockets = [0x20, 0x40, 0x60, 0x80];
    let ids = sockets.into_iter().flat_map(|first| range(first, first + 0xf));
    let io = inputs([(0, 0xfec0_0000), (1, 0xfec2_0000), (2, 0xbe00_0000)]);
    let lines = usual([4, 6, 0xff, 0, 0, 1]).into_iter().chain([vec![4, 6, 1, 5, 0, 1]]);
    let madt = madt(apics(ids.clone(), true).chain(io).chain(lines));
    assert_eq!(madt.len(), 624, "as long as the server's");
    assert_eq!(cores(&madt), only(ids.clone().map(u32::from)));
    assert_eq!(io_apics(&madt), [0xfec0_0000, 0xfec2_0000, 0xbe00_0000]);

    let halves = sockets.into_iter().flat_map(|first| [first, first + 8]);
    let nodes = (0..8).zip(halves.clone()).flat_map(|(node, first)| local(node, range(first, first + 7), true));
    let srat = srat(nodes);
    for (node, first) in (0..8).zip(halves) {
        assert_eq!((node_of(&srat, first.into()), node_of(&srat, u32::from(first) + 7)), (Some(node), Some(node)));
    }
    assert_eq!(node_of(&srat, 0x30), None, "a hole");
}

#[test]
fn a_fujitsu_primergy_has_one_socket_and_one_unit_for_all() {
    let madt = madt(
        apics([0, 2, 4, 6, 1, 3, 5, 7], true).chain(inputs([(0, 0xfec0_0000)])).chain(usual([4, 6, 0xff, 5, 0, 1])),
    );
    assert_eq!(madt.len(), 146, "as long as the server's");
    assert_eq!(cores(&madt), only([0, 2, 4, 6, 1, 3, 5, 7]));
    let table = remapping(&[(0, 88, 0xfed9_1000), (1, 40, 0xbf46_9000)]);
    assert_eq!((table.len(), addresses(&dmar(&table))), (176, vec![0xfed9_1000]));
}

#[test]
fn an_hp_superdome_with_16_sockets_lists_x2apics_only() {
    // 15 cores a socket: the first threads of all, as far as the log lists them before the second ones.
    let threads =
        (0..16_u32).flat_map(|socket| (0..15).map(move |core| (socket * 0x20 + core * 2, socket * 0x24 + core * 2)));
    let madt = madt(x2apics(threads.clone()));
    let found = cores(&madt);
    assert_eq!(found, only(threads.map(|(id, _)| id)));
    assert_eq!(found.enabled.len(), 240);
    let ends = [found.enabled[14], found.enabled[15], found.enabled[120], found.enabled[239]];
    assert_eq!(ends, [0x1c, 0x20, 0x100, 0x1fc]);

    // The nodes 6 to 14, each with 30 threads of 32 IDs.
    let srat = srat((6..15_u32).flat_map(|node| wide(node, node * 0x20..node * 0x20 + 30)));
    for (id, node) in [(0xc0, 6), (0xdd, 6), (0xe0, 7), (0xff - 2, 7), (0x100, 8), (0x1c0, 14), (0x1dd, 14)] {
        assert_eq!(node_of(&srat, id), Some(node), "{id:#x}");
    }
    assert_eq!([0xde, 0xfe, 0xff, 0x11e].map(|id| node_of(&srat, id)), [None; 4]);
}

#[test]
fn a_supermicro_with_two_sockets_of_96_cores_has_nine_io_apics_below_4_gib() {
    // The order of the eights of cores in the log: 16 threads each.
    let blocks = [0, 0x40, 0x80, 0x20, 0x60, 0xa0, 0x30, 0x70, 0xb0, 0x10, 0x50, 0x90];
    let threads =
        |socket: u32| blocks.into_iter().flat_map(move |block| socket * 0x100 + block..socket * 0x100 + block + 16);
    let srat = srat([0, 1].into_iter().flat_map(|node| wide(node, threads(node))));
    for node in [0, 1] {
        assert!(threads(node).all(|id| node_of(&srat, id) == Some(node)));
    }
    assert_eq!([0xc0, 0xff, 0x1c0].map(|id| node_of(&srat, id)), [None; 3]);
    let addresses = [
        0xfec0_0000,
        0xd150_0000,
        0xf418_0000,
        0xf518_0000,
        0xd018_0000,
        0xc340_0000,
        0xc218_0000,
        0xb528_0000,
        0xb418_0000,
    ];
    let numbered: Vec<_> = (240..).zip(addresses).flat_map(|io| inputs([io])).collect();
    assert_eq!(io_apics(&madt(numbered)), addresses);
}

#[test]
fn a_dell_r630_lists_the_cores_of_both_nodes_in_turns() {
    let ids = (0..16_u8).step_by(2).chain((1..16).step_by(2));
    let srat = srat(ids.flat_map(|id| local(0, [id], true).chain(local(1, [id | 0x10], true))));
    for id in 0..0x20 {
        assert_eq!(node_of(&srat, id), Some(id >> 4), "{id:#x}");
    }
    // The log says neither lengths nor devices of the structures: they have none here.
    let table = remapping(&[(0, 16, 0xfbff_c000), (0, 16, 0xc7ff_c000), (2, 16, 0), (2, 16, 0)]);
    assert_eq!(addresses(&dmar(&table)), [0xfbff_c000, 0xc7ff_c000]);
}

#[test]
fn an_hpe_with_a_segment_for_each_socket_has_windows_beyond_15_tib() {
    let sockets = [
        (0x8000_0000, 0),
        (0xfff_0000_0000, 1),
        (0xfff_3000_0000, 2),
        (0xfff_2000_0000, 3),
        (0xfff_5000_0000, 4),
        (0xfff_4000_0000, 5),
        (0xfff_7000_0000, 6),
        (0xfff_6000_0000, 7),
    ]
    .map(|(base, segment)| (base, segment, 0, 0xfe));
    let windows = ecam(&mcfg(&sockets));
    assert_eq!(windows.iter().map(|w| (w.base, w.segment, w.first, w.last)).collect::<Vec<_>>(), sockets);
    assert_eq!((windows[0].end(), windows[7].end()), (0x8ff0_0000, 0xfff_6ff0_0000), "bus 255 is not there");
    // One without the hubs: the chassis of four sockets share a segment.
    let windows = ecam(&mcfg(&[(0x8000_0000, 0, 0, 0xff), (0x9000_0000, 1, 0, 0xff)]));
    assert_eq!(windows.iter().map(EcamWindow::end).collect::<Vec<_>>(), [0x9000_0000, 0xa000_0000]);
}
