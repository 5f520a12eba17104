//! Maps of real machines (`maps/published.txt`), and maps of that kind with up to 6 TiB: what is free is what is usable without what is
//! reserved, to the page.

use super::{Frames, PAGE};
use proptest::prelude::*;

/// Start and end.
type Range = (u64, u64);

/// A machine of the file.
struct Machine {
    name: &'static str,
    source: &'static str,
    usable: Vec<Range>,
}

fn machines() -> Vec<Machine> {
    let mut machines: Vec<Machine> = Vec::new();
    let lines = include_str!("../../maps/published.txt").lines();
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (first, rest) = line.split_once(' ').expect("two words");
        if first == "machine" {
            machines.push(Machine { name: rest, source: "", usable: Vec::new() });
            continue;
        }
        let machine = machines.last_mut().expect("a machine comes first");
        if first == "source" {
            machine.source = rest;
        } else {
            let number = |text| u64::from_str_radix(text, 16).unwrap_or_else(|_| panic!("{text} of {}", machine.name));
            machine.usable.push((number(first), number(rest)));
        }
    }
    machines
}

/// Bytes that are in whole pages of a usable range, and in no page that a reserved range touches. Counts the ranges that are open at each
/// place where one begins or ends.
fn expected(usable: &[Range], reserved: &[Range]) -> u64 {
    let down = |at: u64| at / PAGE * PAGE;
    let up = |at: u64| down(at + PAGE - 1);
    let usable = usable.iter().map(|&(s, e)| (up(s), down(e), [1, 0]));
    let reserved = reserved.iter().map(|&(s, e)| (down(s), up(e), [0, 1]));
    let mut places: Vec<(u64, [i32; 2])> = usable
        .chain(reserved)
        .filter(|(s, e, _)| s < e)
        .flat_map(|(s, e, [u, r])| [(s, [u, r]), (e, [-u, -r])])
        .collect();
    places.sort_unstable();
    let (mut bytes, mut open, mut from) = (0, [0, 0], 0);
    for (at, [u, r]) in places {
        if open[0] > 0 && open[1] == 0 {
            bytes += at - from;
        }
        (from, open) = (at, [open[0] + u, open[1] + r]);
    }
    bytes
}

/// Free memory with these ranges, without those that are reserved.
fn frames(usable: &[Range], reserved: &[Range]) -> Frames {
    let mut frames = Frames::new();
    usable.iter().for_each(|&(s, e)| frames.add(s, e));
    reserved.iter().for_each(|&(s, e)| frames.reserve(s, e));
    frames
}

/// What is asked of the memory.
#[derive(Clone, Copy, Debug)]
enum Ask {
    /// For the hypervisor: bytes, and alignment as a power of two.
    Host(u64, u32),
    /// For a guest: bytes.
    Guest(u64),
    /// The page for the other cores' first instructions.
    Low,
}

/// Takes what is asked, as far as there is room. Returns the ranges.
fn take(frames: &mut Frames, asks: &[Ask]) -> Vec<Range> {
    let one = |ask: &Ask| {
        let (at, bytes) = match *ask {
            Ask::Host(bytes, align) => (frames.host(bytes, 1 << align).ok()?, bytes.next_multiple_of(PAGE)),
            Ask::Guest(bytes) => (frames.guest(bytes).ok()?, bytes.next_multiple_of(2 << 20)),
            Ask::Low => (frames.low_page()?, PAGE),
        };
        Some((at, at + bytes))
    };
    asks.iter().filter_map(one).collect()
}

/// The ranges overlap neither one another nor what is reserved, and are usable.
fn assert_apart(taken: &[Range], usable: &[Range], reserved: &[Range], name: &str) {
    let sum: u64 = taken.iter().map(|(s, e)| e - s).sum();
    assert_eq!(expected(usable, reserved) - expected(usable, &[reserved, taken].concat()), sum, "{name}: {taken:x?}");
}

#[test]
fn there_are_20_published_maps_of_which_one_is_larger_than_6_tib() {
    let machines = machines();
    assert!(machines.len() >= 20, "{}", machines.len());
    for machine in &machines {
        assert!(machine.source.starts_with("https://") && !machine.usable.is_empty(), "{}", machine.name);
        assert!(machine.usable.is_sorted() && machine.usable.iter().all(|(s, e)| s < e), "{}", machine.name);
    }
    let most = machines.iter().map(|machine| expected(&machine.usable, &[])).max();
    assert!(most > Some(6 << 40), "{most:?}");
}

#[test]
fn on_published_maps_what_is_free_is_what_is_usable_without_what_is_reserved() {
    for Machine { name, usable, .. } in machines() {
        // As the hypervisor does, wherever GRUB has put image and modules; and a bit of each range: its first and last byte, pages in its
        // middle that begin and end within pages, and what goes over its end.
        let top = usable.iter().filter(|(_, e)| *e <= 1 << 32).map(|(_, e)| *e).max().unwrap_or(1 << 32);
        let mut reserved = vec![(0, 0x1000), (2 << 20, 6 << 20), (top - (64 << 20), top)];
        for &(start, end) in &usable {
            let middle = start + (end - start) / 2;
            reserved.extend([
                (start, start + 1),
                (end - 1, end),
                (middle + 0x123, middle + 0x2345),
                (end - 0x800, end + 0x1800),
            ]);
        }
        for count in 0..=reserved.len() {
            let reserved = &reserved[..count];
            let frames = frames(&usable, reserved);
            assert_eq!((frames.free(), frames.given_up()), (expected(&usable, reserved), 0), "{name}: {reserved:x?}");
            assert!(frames.runs.windows(2).all(|pair| pair[0].1 <= pair[1].0), "{name}");
        }
    }
}

#[test]
fn on_published_maps_all_memory_is_handed_out_once() {
    for Machine { name, usable, .. } in machines() {
        let reserved = [(0, 0x1000), (2 << 20, 6 << 20)];
        let mut frames = frames(&usable, &reserved);
        let all = frames.free();
        // A guest gets the largest part that has room, then the hypervisor all that is left but what lies below 1 MiB, which is the cores'.
        let mut asks = vec![Ask::Host(0x5000, 12), Ask::Host(1 << 20, 21), Ask::Low];
        asks.extend((21..=44).rev().flat_map(|bits| [Ask::Guest(1 << bits); 3]));
        asks.extend((12..=21).rev().flat_map(|bits| [Ask::Host(1 << bits, 12); 3]));
        let mut taken = take(&mut frames, &asks);
        loop {
            let more = take(&mut frames, &[Ask::Guest(2 << 20), Ask::Host(PAGE, 12), Ask::Low]);
            if more.is_empty() {
                break;
            }
            taken.extend(more);
        }
        assert_eq!(frames.free(), 0, "{name}: {:x?}", frames.runs);
        assert_eq!(taken.iter().map(|(s, e)| e - s).sum::<u64>(), all, "{name}");
        assert_apart(&taken, &usable, &reserved, name);
        let low: u64 = taken.iter().filter(|(_, e)| *e <= 0xa_0000).map(|(s, e)| e - s).sum();
        assert_eq!(frames.used_by_host() + frames.used_by_guests() + low, all, "{name}");
    }
}

/// Ranges one behind another, with holes: pages of the hole, pages of the range; each is a power of two and something.
fn map() -> impl Strategy<Value = Vec<Range>> {
    let pages = |most: u32| (0..most, any::<u64>()).prop_map(|(bits, more)| (1 << bits) + more % (1 << bits));
    // A range of 2^26 pages has 256 GiB.
    prop::collection::vec((pages(25), pages(26), 0..PAGE, 0..PAGE), 1..150).prop_map(|all| {
        let mut at = 0;
        let of = |(hole, pages, before, behind): (u64, u64, u64, u64)| {
            let start = at + hole * PAGE + before;
            at = start + pages * PAGE;
            (start, at + behind)
        };
        all.into_iter().map(of).filter(|(_, end)| *end <= 6 << 40).collect()
    })
}

fn ask() -> impl Strategy<Value = Ask> {
    prop_oneof![
        (1..1_u64 << 28, 12..22_u32).prop_map(|(bytes, align)| Ask::Host(bytes, align)),
        (1..1_u64 << 40).prop_map(Ask::Guest),
        Just(Ask::Low),
    ]
}

proptest! {
    // A case has up to 150 ranges, so fewer are enough; 256 take longer than all other tests of maps.
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Ranges with holes up to 6 TiB, in any order. Each range that is reserved begins near the beginning of a usable one, or anywhere.
    #[test]
    fn on_maps_with_holes_up_to_6_tib_what_is_free_is_exact(
        map in map().prop_shuffle(),
        near in prop::collection::vec((any::<prop::sample::Index>(), 0_u64..1 << 20, 1_u64..1 << 24), 0..60),
        anywhere in prop::collection::vec((0_u64..6 << 40, 1_u64..1 << 38), 0..5),
        asks in prop::collection::vec(ask(), 0..40),
    ) {
        let near = near.iter().filter(|_| !map.is_empty()).map(|(index, behind, len)| {
            let start = index.get(&map).0 + behind;
            (start, start + len)
        });
        let reserved: Vec<Range> = near.chain(anywhere.into_iter().map(|(start, len)| (start, start + len))).collect();
        let mut frames = frames(&map, &reserved);
        prop_assert_eq!((frames.free(), frames.given_up()), (expected(&map, &reserved), 0));
        let taken = take(&mut frames, &asks);
        assert_apart(&taken, &map, &reserved, "a map of the test");
        let gone: Vec<Range> = reserved.iter().chain(&taken).copied().collect();
        prop_assert_eq!((frames.free(), frames.given_up()), (expected(&map, &gone), 0));
    }
}
