//! Traces of a machine, whole and damaged, and what of them is shown.

use std::io::Write as _;
use std::path::PathBuf;

use proptest::prelude::*;
use trace::stream::{ChunkWriter, Clock, HeaderWriter, NOTHING};

use super::*;

const MAP: &[u8] = b"\
ffffffff81000110 t native_halt
ffffffff81000200 T arch_cpu_idle
ffffffff81e00080 T entry_SYSCALL_64
ffffffff81e01280 T asm_exc_page_fault
";
const MOVED: u64 = 0x1e00_0000;

/// The blocks that a trace begins with.
fn header() -> Vec<u8> {
    let mut buffer = [0; 512];
    let mut writer = HeaderWriter::new(&mut buffer, Clock::default()).unwrap();
    for (table, number, name) in
        [(Table::Guest, 0, "a"), (Table::Guest, 1, "b"), (Table::Reason, 2, "hlt"), (Table::Reason, 3, "cpuid")]
    {
        writer.name(table, number, NOTHING, name).unwrap();
    }
    writer.finish().to_vec()
}

fn kernel(core: u32, offset: u64) -> Vec<u8> {
    let (lstar, page_fault) = (0xffff_ffff_81e0_0080 + offset, 0xffff_ffff_81e0_1280 + offset);
    let addresses = KernelAddresses { core, guest: 0, since: 1, read: 2, lstar, page_fault };
    addresses.write(&mut [0; 100]).unwrap().to_vec()
}

/// A chunk of a core with these exits: guest, reason, RIP.
fn chunk(core: u32, exits: &[(u8, u8, u64)]) -> Vec<u8> {
    let mut buffer = vec![0; 16 << 10];
    let mut writer = ChunkWriter::new(&mut buffer, core, 0, 1).unwrap();
    for &(guest, code, a) in exits {
        writer.push(Record { guest, code, a, ..Record::new(Kind::Exit, 5) }).unwrap();
    }
    writer.finish().to_vec()
}

/// The words that COM2 sends for these bytes.
pub fn words(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// A trace of guest `a`, with a kernel that was moved. It halts in a function, and asks for CPUID in two places.
pub fn trace() -> Vec<u8> {
    let (halt, idle) = (0xffff_ffff_8100_0112 + MOVED, 0xffff_ffff_8100_0210 + MOVED);
    let exits = [(0, 2, halt), (0, 2, halt), (0, 2, halt), (0, 3, idle), (1, 2, 0x1234), (0, 3, 0x40_0000)];
    [header(), kernel(1, MOVED), chunk(1, &exits)].concat()
}

/// The symbols of guest `a`.
pub fn known() -> Known {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(MAP).unwrap();
    Known::read(&[Choice { guest: "a".into(), file: PathBuf::from(file.path()), offset: None }]).unwrap()
}

/// Reason, address, exits, exits of the reason, function.
fn shown(traced: &Traced, guest: &str) -> Vec<(String, u64, u64, u64, Option<String>)> {
    let hot = traced.hottest(guest).into_iter();
    hot.map(|hot| (hot.reason, hot.address, hot.exits, hot.of, hot.function.map(|(name, _)| name))).collect()
}

#[test]
fn the_hottest_addresses_of_each_reason_have_the_names_of_a_kernel_that_was_moved() {
    let mut traced = Traced::new(known());
    assert!(traced.take(&words(&trace()), false));
    let expected = [
        ("hlt", 0xffff_ffff_8100_0112 + MOVED, 3, 3, Some("native_halt")),
        ("cpuid", 0x40_0000, 1, 2, None),
        ("cpuid", 0xffff_ffff_8100_0210 + MOVED, 1, 2, Some("arch_cpu_idle")),
    ];
    let expected =
        expected.map(|(reason, at, exits, of, name)| (reason.to_owned(), at, exits, of, name.map(str::to_owned)));
    assert_eq!(shown(&traced, "a"), expected);
    assert_eq!(shown(&traced, "b"), [("hlt".to_owned(), 0x1234, 1, 1, None)]);
    assert_eq!(shown(&traced, "c"), []);
    assert_eq!((traced.totals(), traced.is_over()), ((6, 1), false));
}

#[test]
fn exits_that_came_before_the_kernel_s_place_was_known_are_added_to_those_after() {
    let halt = 0xffff_ffff_8100_0112 + MOVED;
    let mut traced = Traced::new(known());
    let bytes =
        [header(), chunk(1, &[(0, 2, halt), (0, 2, halt)]), kernel(1, MOVED), chunk(1, &[(0, 2, halt)])].concat();
    traced.take(&words(&bytes), false);
    assert_eq!(shown(&traced, "a"), [("hlt".to_owned(), halt, 3, 3, Some("native_halt".to_owned()))]);
}

#[test]
fn a_trace_in_pieces_of_any_length_is_read_as_a_whole() {
    for length in [1, 3, 20, 100] {
        let mut traced = Traced::new(known());
        trace().chunks(length).for_each(|piece| assert!(traced.take(&words(piece), false)));
        assert_eq!(traced.totals(), (6, 1), "{length}");
    }
}

#[test]
fn a_trace_that_begins_after_another_one_has_ended_begins_at_zero() {
    let mut traced = Traced::default();
    traced.take(&words(&trace()), false);
    traced.take("", true);
    assert_eq!((traced.is_over(), traced.totals().0), (true, 6), "what has arrived is still shown");
    traced.take(&words(&header()), false);
    assert_eq!((traced.is_over(), traced.totals().0), (false, 0));
}

#[test]
fn without_symbols_or_a_word_of_the_kernel_addresses_stay_raw() {
    let mut plain = Traced::default();
    plain.take(&words(&trace()), false);
    assert!(plain.hottest("a").iter().all(|hot| hot.function.is_none()));
    // Another kernel's symbols do not fit.
    let mut other = Traced::new(known());
    other.take(&words(&[header(), kernel(1, 0x1234), chunk(1, &[(0, 2, 0xffff_ffff_9000_0000)])].concat()), false);
    assert_eq!(other.hottest("a")[0].function, None);
}

#[test]
fn addresses_without_end_are_bounded_and_still_counted() {
    let mut traced = Traced::default();
    traced.take(&words(&header()), false);
    for round in 0..30_u64 {
        let exits: Vec<_> = (0..500).map(|n| (0, 2, round * 500 + n)).collect();
        traced.take(&words(&chunk(1, &exits)), false);
    }
    assert_eq!((traced.exits.len(), traced.totals().0), (MOST, 15_000));
    assert_eq!(traced.hottest("a").len(), OF_A_REASON);
    for core in 0..2_000 {
        traced.take(&words(&kernel(core, 0)), false);
    }
    assert_eq!(traced.kernels.len(), MOST_CORES);
}

proptest! {
    #[test]
    fn any_bytes_are_read_and_kept_within_bounds(pieces in prop::collection::vec((any::<Vec<u8>>(), any::<bool>()), 0..20)) {
        let mut traced = Traced::new(Known::default());
        for (bytes, begins) in pieces {
            let bytes = if begins { trace() } else { bytes };
            prop_assert!(traced.take(&words(&bytes), false));
            prop_assert!(traced.begun.len() <= stream::BLOCK_BYTES + stream::MAX_CONTENT);
        }
        prop_assert!(!traced.take("no base64!", false));
        drop(traced.hottest("a"));
    }
}
