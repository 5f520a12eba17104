//! The bus as Linux enumerates it, by both mechanisms.

use super::*;
use engine::{net, shared::Shared};
use proptest::prelude::*;

fn bus(functions: usize) -> Bus<'static> {
    let mut bus = Bus::new();
    for i in 0..functions {
        let shared = Box::leak(Box::new(Shared::new(net::config([2, 0, 0, 0, 0, i as u8], 1500, 1))));
        assert_eq!(bus.add(shared), Ok(i as u8 + 1));
    }
    bus
}

fn port_read(b: &mut Bus, function: u32, register: u32, size: u8) -> u32 {
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
    assert_eq!(b.read_port(CONFIG_DATA, 4), Some(0x0008_1b36));
    assert_eq!(port_read(&mut b, 0, 0x0a, 2), 0x0600, "a host bridge");
}

#[test]
fn both_mechanisms_show_the_same_and_nothing_else_is_there() {
    let mut b = bus(2);
    for function in 0..256 {
        let id = b.read_ecam(u64::from(function) << 12, 4) as u32;
        assert_eq!(port_read(&mut b, function, 0, 4), id);
        let wanted = match function {
            0 => 0x0008_1b36,
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
    assert_eq!(b.read_port(0x1200, 2), None);
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

#[test]
fn a_full_bus_takes_no_more() {
    let mut b = bus(MAX_FUNCTIONS);
    let one_more = Box::leak(Box::new(Shared::new(net::config([2; 6], 1500, 1))));
    assert_eq!(b.add(one_more), Err(TooManyFunctions));
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
            prop_assert_eq!(b.read_ecam(0, 4), 0x0008_1b36);
            prop_assert_eq!(b.read_ecam(0x8000, 4), 0x1041_1af4);
        }
    }
}
