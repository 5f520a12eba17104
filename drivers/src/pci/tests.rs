//! Configuration space as plain memory.

#![allow(unsafe_code, reason = "an ECAM window in the test's own memory")]

use super::{Active, Address, BadBar, ConfigSpace, MemoryBar, Place, Seen};

/// The registers of a function, and what is left of them when it was silenced.
fn silenced(registers: &[(usize, u32)]) -> (Active, Vec<u32>) {
    let mut window = vec![0_u32; 1 << 10];
    for &(offset, value) in registers {
        window[offset / 4] = value;
    }
    let base = window.as_mut_ptr().expose_provenance() as u64;
    let space = ConfigSpace::Ecam { base, first: 0, last: 0 };
    // SAFETY: the first function of the first bus is all of `window`, which nobody else uses.
    let active = unsafe { space.silence(Address { bus: 0, device: 0, function: 0 }) };
    (active, window)
}

#[test]
fn a_silenced_function_neither_masters_the_bus_nor_sends_messages() {
    // Commands: ports, memory, bus master; status: capabilities. MSI at 0x50, another one at 0x60, MSI-X at 0x70.
    let all = [(4, 0x10_0007), (0x34, 0x50), (0x50, 0x0081_6005), (0x60, 0xffff_7009), (0x70, 0xc007_0011)];
    let (active, left) = silenced(&all);
    assert_eq!(active, Active { bus_master: true, messages: true });
    assert_eq!(left[1] & 0xffff, 0x403, "ports and memory stay, the interrupt pin is disabled");
    assert_eq!([left[0x50 / 4], left[0x60 / 4], left[0x70 / 4]], [0x0080_6005, 0xffff_7009, 0x4007_0011]);
}

#[test]
fn a_bridge_without_messages_still_masters_the_bus() {
    let mut bus = Bus::new();
    bus.add(0, &[(4, 0x10_0007), (0x34, 0x50), (0x50, 0x0081_0005)]);
    let base = bus.0.as_mut_ptr().expose_provenance() as u64;
    let space = ConfigSpace::Ecam { base, first: 0, last: 0 };
    let at = Address { bus: 0, device: 0, function: 0 };
    // SAFETY: the function is the first 1,024 words of the vector, which nobody else uses.
    assert!(unsafe { space.stop_interrupts(at) });
    assert_eq!([bus.0[1] & 0xffff, bus.0[0x50 / 4]], [0x407, 0x0080_0005]);
}

#[test]
fn a_silent_function_stays_as_it_is_but_for_its_pin() {
    let (active, left) = silenced(&[(4, 0x10_0003), (0x34, 0x50), (0x50, 0x0080_0005)]);
    assert!(!active.any());
    assert_eq!((left[1] & 0xffff, left[0x50 / 4]), (0x403, 0x0080_0005));
    // Without the bit for it there is no list.
    let (active, left) = silenced(&[(4, 0x0003), (0x34, 0x50), (0x50, 0x0081_0005)]);
    assert_eq!((active.any(), left[0x50 / 4]), (false, 0x0081_0005));
}

#[test]
fn a_damaged_list_of_capabilities_ends() {
    // It leads to itself, into the header, and to a register of all ones.
    for next in [0x50, 0x10, 0xff] {
        let (active, _) = silenced(&[(4, 0x10_0000), (0x34, 0x50), (0x50, 0x0001_0005 | next << 8), (0xfc, u32::MAX)]);
        assert!(active.messages);
    }
}

/// Wakes the first function of a bus with these registers. Returns its state before, the wait, and the registers.
fn woken(registers: &[(usize, u32)], resets: bool) -> (Option<u8>, u64, Vec<u32>) {
    let mut bus = Bus::new();
    bus.add(0, registers);
    let base = bus.0.as_mut_ptr();
    let space = ConfigSpace::Ecam { base: base.expose_provenance() as u64, first: 0, last: 0 };
    let mut waited = 0;
    let wait = |micros| {
        waited = micros;
        if resets {
            // SAFETY: these are the six base addresses in the vector, which only this thread uses.
            (4..10).for_each(|register| unsafe { base.add(register).write_volatile(0) });
        }
    };
    // SAFETY: the function is the first 1,024 words of the vector.
    let state = unsafe { space.wake(Address { bus: 0, device: 0, function: 0 }, wait) };
    (state, waited, bus.0[..64].to_vec())
}

#[test]
fn a_function_that_sleeps_is_woken_and_keeps_its_base_addresses() {
    // PMCSR at 0x44: D3hot, PME_En and PME_Status.
    let head = [(4, 0x10_0000), (0x10, 0xfe00_000c), (0x14, 0x12), (0x34, 0x40), (0x40, 0x0001)];
    for (pmcsr, state, waits) in [(0x8103, Some(3), 10_000), (0x8102, Some(2), 200), (0x8101, Some(1), 200)] {
        let all = [&head[..], &[(0x44, pmcsr)]].concat();
        let (was, waited, left) = woken(&all, true);
        assert_eq!((was, waited, left[0x44 / 4]), (state, waits, 0x0100), "PME_Status is not cleared by this");
        assert_eq!([left[4], left[5]], [0xfe00_000c, 0x12]);
    }
    // With No_Soft_Reset nothing is lost, and nothing is written.
    let (was, _, left) = woken(&[&head[..], &[(0x44, 0x000b)]].concat(), true);
    assert_eq!((was, left[0x44 / 4], left[4]), (Some(3), 8, 0));
}

#[test]
fn a_function_at_full_power_or_without_a_capability_for_it_is_left_alone() {
    for registers in [
        &[(4, 0x10_0000), (0x34, 0x40), (0x40, 0x0001), (0x44, 0x8100)][..],
        &[(4, 0x10_0000), (0x34, 0x40), (0x40, 0x4005), (0x44, 3)],
        &[(4, 0), (0x34, 0x40), (0x40, 0x0001), (0x44, 3)],
    ] {
        let (was, waited, left) = woken(registers, true);
        assert_eq!((was, waited), (None, 0));
        assert_eq!(left[0x44 / 4], registers.iter().find(|(offset, _)| *offset == 0x44).unwrap().1);
    }
}

#[test]
fn registers_are_where_the_specifications_put_them() {
    let at = Address { bus: 2, device: 31, function: 7 };
    assert_eq!(ConfigSpace::Ports.locate(at, 0x3f), Some(Place::Selector(0x8002_ff3c)));
    assert_eq!(ConfigSpace::Ports.locate(at, 0x100), None);
    // The base is bus 0's, whichever the first bus is: a server with two nodes has 40 to 7f of base f0000000 at f4000000.
    let address = |ecam: ConfigSpace, bus, offset| match ecam.locate(Address { bus, ..at }, offset) {
        Some(Place::Memory(p)) => Some(p as usize),
        _ => None,
    };
    let ecam = ConfigSpace::Ecam { base: 0xf000_0000, first: 0x40, last: 0x7f };
    assert_eq!(address(ecam, 0x40, 0x10), Some(0xf40f_f010));
    assert_eq!(address(ecam, 0x7f, 0xffc), Some(0xf7ff_fffc));
    for (bus, offset) in [(0x3f, 0), (0x80, 0), (0x40, 0x1000)] {
        assert_eq!(address(ecam, bus, offset), None);
    }
}

/// A bus of functions in memory. Registers of absent functions read as all ones.
struct Bus(Vec<u32>);

impl Bus {
    fn new() -> Self {
        Self(vec![u32::MAX; 1 << 18])
    }

    /// Adds a function by its number, with these registers. All others are 0.
    fn add(&mut self, number: usize, registers: &[(usize, u32)]) {
        let own = &mut self.0[number << 10..][..1 << 10];
        own.fill(0);
        own[0] = 0x1521_8086;
        registers.iter().for_each(|(offset, value)| own[offset / 4] = *value);
    }

    fn scan(&mut self) -> Vec<Seen> {
        let base = self.0.as_mut_ptr().expose_provenance() as u64;
        let (mut found, space) = (Vec::new(), ConfigSpace::Ecam { base, first: 0, last: 0 });
        // SAFETY: bus 0 is all of the vector, which nobody else uses.
        unsafe { space.scan_bus(0, |seen| found.push(seen)) };
        found
    }

    fn numbers(&mut self) -> Vec<u8> {
        self.scan().iter().map(|seen| seen.at.device << 3 | seen.at.function).collect()
    }
}

const SEVERAL: (usize, u32) = (0xc, 1 << 23);

#[test]
fn each_function_that_answers_is_found_once() {
    let mut bus = Bus::new();
    bus.add(0, &[]);
    // Not looked for, because function 0 says that it is alone.
    bus.add(1, &[]);
    for number in [8, 10, 15, 0xf8] {
        bus.add(number, &[SEVERAL]);
    }
    // Without function 0 there is no device.
    bus.add(0x12, &[SEVERAL]);
    assert_eq!(bus.numbers(), [0, 8, 10, 15, 0xf8]);
}

#[test]
fn a_bridge_says_which_bus_is_behind_it() {
    let mut bus = Bus::new();
    bus.add(0, &[(8, 0x0604_0000), (0xc, 1 << 16), (0x18, 0x0007_0500)]);
    bus.add(8, &[(8, 0x0604_0000), (0xc, 1 << 16)]);
    bus.add(16, &[(8, 0x0200_0001), (0x18, 0x0007_0500)]);
    let found: Vec<_> = bus.scan().iter().map(|seen| (seen.class, seen.secondary)).collect();
    assert_eq!(found, [(0x06_0400, Some(5)), (0x06_0400, Some(0)), (0x02_0000, None)]);
}

/// An ARI capability behind another one, whose function names this one as the next.
fn ari(next: u32) -> [(usize, u32); 4] {
    [SEVERAL, (0x100, 0x1401_0001), (0x140, 0x0001_000e), (0x144, next << 8)]
}

#[test]
fn functions_that_only_ari_names_are_found() {
    let mut bus = Bus::new();
    bus.add(0, &ari(1));
    bus.add(1, &ari(9));
    // Function 8 is absent, so device 1 is none for who does not know ARI.
    bus.add(9, &ari(0xff));
    bus.add(0xff, &ari(0));
    assert_eq!(bus.numbers(), [0, 1, 9, 0xff]);
}

#[test]
fn lists_that_lead_back_end() {
    // The next function is the same one, one before, or one that is absent.
    for next in [0, 9, 0x20] {
        let mut bus = Bus::new();
        bus.add(0, &ari(9));
        bus.add(9, &ari(next));
        assert_eq!(bus.numbers(), [0, 9], "{next}");
    }
    let mut bus = Bus::new();
    bus.add(0, &ari(9));
    bus.add(4, &ari(9));
    bus.add(9, &ari(4));
    assert_eq!(bus.numbers(), [0, 4, 9], "two that name each other");
    // Extended capabilities that lead to themselves, into the header, or to nothing.
    for next in [0x100, 0x20, 0x200, 0xffc] {
        let mut bus = Bus::new();
        bus.add(0, &[(0x100, next << 20 | 0x0001_0001)]);
        assert_eq!(bus.numbers(), [0], "{next:#x}");
    }
}

#[test]
fn a_bar_is_believed_only_if_it_makes_sense() {
    let good = |base, size| Ok(MemoryBar { base, size });
    // 64 bits, prefetchable, above 4 GiB; 32 bits; the largest of 32 bits.
    assert_eq!(MemoryBar::decode([0xf004_000c, 0x38], [0xfffe_000c, u32::MAX]), good(0x38_f004_0000, 0x2_0000));
    assert_eq!(MemoryBar::decode([0xfe00_0000, 7], [0xfff8_0000, 0]), good(0xfe00_0000, 0x8_0000));
    assert_eq!(MemoryBar::decode([0x8000_0000, 0], [0x8000_0000, 0]), good(0x8000_0000, 0x8000_0000));
    let bad = [
        ([0, 0], [0, 0], BadBar::Absent),
        ([u32::MAX, u32::MAX], [u32::MAX, u32::MAX], BadBar::Absent),
        ([0xc001, 0], [0xffe1, 0], BadBar::Ports),
        ([0xfe00_0002, 0], [0xfffe_0002, 0], BadBar::Nonsense(0xfe00_0002, 0xfffe_0002)),
        ([0xfe00_0000, 0], [0xfefe_0000, 0], BadBar::Nonsense(0xfe00_0000, 0xfefe_0000)),
        ([4, 0], [0xfffe_0004, u32::MAX], BadBar::Unassigned(0, 0x2_0000)),
        ([0xfe01_0004, 0], [0xfffe_0004, u32::MAX], BadBar::Unassigned(0xfe01_0000, 0x2_0000)),
        ([4, 0], [4, 0], BadBar::Nonsense(4, 4)),
    ];
    for (was, sized, why) in bad {
        assert_eq!(MemoryBar::decode(was, sized), Err(why), "{was:x?} {sized:x?}");
    }
}
