//! The bus as Linux enumerates it, by both mechanisms.

use super::{function::Place, *};
use proptest::prelude::*;

use crate::{
    lapic::{Delivery, Destination},
    layout::{PCI_IO, PCI_MEMORY},
    testing::device,
    virtio_pci::VirtioPci,
};

fn add(bus: &mut Bus<Kind>) -> Result<u8, TooManyFunctions> {
    bus.add(|number| Kind::Virtio(Box::new(VirtioPci::new(device(), number))))
}

fn bus(functions: usize) -> Bus<Kind> {
    let mut bus = Bus::new();
    for i in 0..functions {
        assert_eq!(add(&mut bus), Ok(i as u8 + 1));
    }
    bus
}

fn port_read(b: &mut Bus<Kind>, function: u32, register: u32, size: u8) -> u32 {
    assert!(b.write_port(CONFIG_ADDRESS, 4, 0x8000_0000 | function << 8 | register & !3, |_| {}));
    b.read_port(CONFIG_DATA + (register & 3) as u16, size).unwrap()
}

#[test]
fn linux_finds_mechanism_1() {
    let mut b = bus(1);
    assert!(!b.write_port(0xcfb, 1, 1, |_| {}), "not a configuration port");
    assert!(b.write_port(CONFIG_ADDRESS, 4, 0x8000_0000, |_| {}));
    assert_eq!(b.read_port(CONFIG_ADDRESS, 4), Some(0x8000_0000));
    assert_eq!(b.read_port(CONFIG_ADDRESS, 1), None);
    assert_eq!(b.read_port(CONFIG_DATA, 4), Some(0x0d57_8086));
    assert_eq!(port_read(&mut b, 0, 0x0a, 2), 0x0600, "a host bridge");
}

#[test]
fn both_mechanisms_show_the_same_and_nothing_else_is_there() {
    let mut b = bus(2);
    for function in 0..256 {
        let id = b.read_ecam(u64::from(function) << 12, 4) as u32;
        assert_eq!(port_read(&mut b, function, 0, 4), id);
        let wanted = match function {
            0 => 0x0d57_8086,
            8 | 16 => 0x1041_1af4,
            _ => 0xffff_ffff,
        };
        assert_eq!(id, wanted, "function {function:#x}");
    }
    assert_eq!(port_read(&mut b, 8, 2, 2), 0x1041);
    assert_eq!(port_read(&mut b, 8, 0x0b, 1), 2);
    assert_eq!(b.read_ecam(0x8100, 4), 0xffff_ffff, "no extended space");
    assert_eq!(b.read_ecam(ECAM_SIZE, 4), 0xffff_ffff);
}

#[test]
fn with_the_enable_bit_clear_or_another_bus_there_is_nothing() {
    let mut b = bus(1);
    for address in [0x0000_0000, 0x8001_0000, 0x80ff_0000] {
        b.write_port(CONFIG_ADDRESS, 4, address, |_| {});
        assert_eq!(b.read_port(CONFIG_DATA, 4), Some(0xffff_ffff));
        assert_eq!(b.read_port(CONFIG_DATA + 2, 1), Some(0xff));
        assert!(b.write_port(CONFIG_DATA, 4, 0, |_| {}));
    }
}

#[test]
fn bars_are_sized_moved_and_answer_where_they_were_moved_to() {
    let mut b = bus(3);
    assert_eq!(b.read_memory(0xc000_8000, 4), None, "decoding is off");
    assert_eq!(b.read_port(0xc200, 2), None);
    b.write_ecam(0x1_0010, 4, 0xffff_ffff, |_| {});
    assert_eq!(b.read_ecam(0x1_0010, 4), 0xffff_c000);
    b.write_ecam(0x1_0010, 4, 0xd000_0000, |_| {});
    b.write_ecam(0x1_0014, 4, 0x2800, |_| {});
    b.write_ecam(0x1_0004, 2, 3, |_| {});
    assert_eq!(b.read_memory(0xd000_0012, 2), Some(3), "num_queues");
    assert_eq!(b.read_port(0x2804, 2), Some(0));
    assert!(b.write_port(0x2804, 2, 1, |_| {}) && !b.write_port(0x2900, 2, 1, |_| {}));
    assert_eq!(b.read_memory(0xc000_8000, 4), None);
    assert!(b.write_memory(0xd000_0014, 1, 1, |_| {}) && !b.write_memory(0xd000_4000, 1, 1, |_| {}));
    assert_eq!(b.read_memory(0xd000_0014, 1), Some(1));
    b.reset();
    assert_eq!(b.read_memory(0xd000_0014, 1), None);
    assert_eq!(b.read_ecam(0x1_0010, 4), 0xc000_8000);
}

/// A function that is no virtio device, as a passed-through one would be: a memory BAR of 4 KiB and an I/O BAR of 8 ports,
/// both at fixed addresses. Each store to a BAR asks for an interrupt with the stored value as its vector.
#[derive(Default)]
struct Foreign {
    config: u64,
    refused: u64,
}

impl Function for Foreign {
    fn read_config(&mut self, register: usize, _: u8) -> u64 {
        if register == 0 { 0x1515_8086 } else { self.config }
    }

    fn write_config(&mut self, _: usize, _: u8, value: u64, _: &mut impl FnMut(Message)) {
        self.config = value;
    }

    fn decode_memory(&self, gpa: u64) -> Option<Place> {
        (gpa >> 12 == 0xe_0000).then_some(Place { bar: 3, offset: gpa & 0xfff })
    }

    fn decode_port(&self, port: u16) -> Option<Place> {
        (port >> 3 == 0x9000 >> 3).then_some(Place { bar: 5, offset: u64::from(port & 7) })
    }

    fn read_bar(&mut self, place: Place, size: u8) -> u64 {
        u64::from(place.bar) << 16 | place.offset << 8 | u64::from(size)
    }

    fn write_bar(&mut self, _: Place, _: u8, value: u64, send: &mut impl FnMut(Message)) {
        match value as u8 {
            0..32 => self.refused += 1,
            vector => send(message(vector)),
        }
    }

    fn reason(&self, _: Place) -> Reason {
        Reason::MmioPci
    }

    fn reset(&mut self) {
        *self = Self::default();
    }

    fn refused(&self) -> u64 {
        self.refused
    }
}

/// The two kinds of functions on one bus.
enum Kind {
    Virtio(Box<VirtioPci<'static>>),
    Foreign(Foreign),
}

/// Calls a method of either kind.
macro_rules! either {
    ($kind:expr, $method:ident($($argument:expr),*)) => {
        match $kind {
            Kind::Virtio(function) => function.$method($($argument),*),
            Kind::Foreign(function) => function.$method($($argument),*),
        }
    };
}

impl Function for Kind {
    fn read_config(&mut self, register: usize, size: u8) -> u64 {
        either!(self, read_config(register, size))
    }

    fn write_config(&mut self, register: usize, size: u8, value: u64, send: &mut impl FnMut(Message)) {
        either!(self, write_config(register, size, value, send));
    }

    fn decode_memory(&self, gpa: u64) -> Option<Place> {
        either!(self, decode_memory(gpa))
    }

    fn decode_port(&self, port: u16) -> Option<Place> {
        either!(self, decode_port(port))
    }

    fn read_bar(&mut self, place: Place, size: u8) -> u64 {
        either!(self, read_bar(place, size))
    }

    fn write_bar(&mut self, place: Place, size: u8, value: u64, send: &mut impl FnMut(Message)) {
        either!(self, write_bar(place, size, value, send));
    }

    fn reason(&self, place: Place) -> Reason {
        either!(self, reason(place))
    }

    fn reset(&mut self) {
        either!(self, reset());
    }

    fn refused(&self) -> u64 {
        either!(self, refused())
    }
}

fn message(vector: u8) -> Message {
    Message { destination: Destination::Physical(0), delivery: Delivery::Fixed { vector, level: false } }
}

#[test]
fn a_function_of_another_kind_stands_beside_virtio_devices_on_the_same_bus() {
    let mut b = bus(1);
    assert_eq!(b.add(|_| Kind::Foreign(Foreign::default())), Ok(2));
    assert_eq!((add(&mut b), b.functions()), (Ok(3), 3));
    let ids = [8, 16, 24].map(|function| port_read(&mut b, function, 0, 4));
    assert_eq!(ids, [0x1041_1af4, 0x1515_8086, 0x1041_1af4]);
    b.write_ecam(0x1_0040, 4, 0x55aa, |_| {});
    assert_eq!((b.read_ecam(0x1_0044, 4), port_read(&mut b, 16, 0x40, 4)), (0x55aa, 0x55aa));

    let mut sent = std::vec::Vec::new();
    assert!(b.write_memory(0xe000_0020, 8, 0x41, |m| sent.push(m)));
    assert!(b.write_port(0x9004, 2, 0x42, |m| sent.push(m)));
    assert!(b.write_port(0x9004, 2, 0x1f, |m| sent.push(m)));
    assert_eq!((sent, b.refused()), (vec![message(0x41), message(0x42)], 1));
    assert_eq!((b.read_memory(0xe000_0020, 4), b.read_port(0x9004, 1)), (Some(0x3_2004), Some(0x5_0401)));
    assert_eq!((b.memory_reason(0xe000_0020), b.port_reason(0x9004)), (Some(Reason::MmioPci), Some(Reason::MmioPci)));
    assert_eq!((b.memory_reason(0xe000_1000), b.port_reason(0x9008)), (None, None));
    assert_eq!((b.read_memory(0xe000_1000, 4), b.read_port(0x9008, 1)), (None, None));

    b.write_ecam(0x8004, 2, 3, |_| {});
    assert_eq!(
        (b.memory_reason(0xc000_4000), b.port_reason(0xc100)),
        (Some(Reason::MmioPci), Some(Reason::IoVirtioNotify))
    );
    b.reset();
    assert_eq!((b.read_ecam(0x1_0040, 4), b.refused(), b.port_reason(0xc100)), (0, 0, None));
}

#[test]
fn a_full_bus_takes_no_more() {
    let mut b = bus(MAX_FUNCTIONS);
    assert_eq!(add(&mut b), Err(TooManyFunctions));
}

proptest! {
    /// Whatever is accessed, wherever the BARs are moved to, nothing panics and the bridge stays.
    #[test]
    fn hostile_accesses_are_harmless(
        accesses in proptest::collection::vec((0u8..8, any::<u32>(), 0u8..=9, any::<u64>()), 1..300)
    ) {
        let mut b = bus(2);
        for (what, at, size, value) in accesses {
            let near = u64::from(at & 0x1_ffff);
            let port = CONFIG_ADDRESS + (at & 7) as u16;
            match what {
                0 => drop(b.read_ecam(u64::from(at), size)),
                1 => b.write_ecam(near, size, value, |_| {}),
                2 => drop(b.read_port(port, size)),
                3 => drop(b.write_port(port, size, value as u32, |_| {})),
                4 => drop(b.write_port(at as u16, size, value as u32, |_| {})),
                5 => drop(b.read_memory(value, size)),
                6 => drop(b.read_memory(0xc000_0000 + near, size)),
                _ => drop(b.write_memory(0xc000_0000 + near, size, value, |_| {})),
            }
            prop_assert_eq!(b.read_ecam(0, 4), 0x0d57_8086);
            prop_assert_eq!(b.read_ecam(0x8000, 4), 0x1041_1af4);
        }
    }
}

#[test]
fn the_windows_are_those_into_which_edk2_moves_bars() {
    assert_eq!((*PCI_MEMORY.start(), *PCI_IO.start(), *PCI_IO.end()), (0xc000_0000, 0xc000, 0xffff));
    let mut b = bus(2);
    for (register, address) in [(0x10, 0xc000_0000), (0x14, 0xc000)] {
        b.write_ecam(0x1_0000 + register, 4, address, |_| {});
    }
    // The other function gives way first, as its decoding is off.
    b.write_ecam(0x1_0004, 2, 3, |_| {});
    assert_eq!(
        (b.memory_reason(0xc000_0000), b.port_reason(0xc000)),
        (Some(Reason::MmioPci), Some(Reason::IoVirtioNotify))
    );
}
