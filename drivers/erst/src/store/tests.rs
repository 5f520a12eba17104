//! Tests of the steps, and of programs, on a store of the tests' own.

use proptest::prelude::*;

use super::*;
use crate::testing::{Device, RANGE, RANGE_BYTES, REGISTERS, entry, of_device, table};

fn record(id: u64, text: &[u8]) -> Vec<u8> {
    let mut record = vec![0; 200];
    record[..4].copy_from_slice(b"CPER");
    record[96..104].copy_from_slice(&id.to_le_bytes());
    record.extend(text);
    let len = record.len() as u32;
    record[20..24].copy_from_slice(&len.to_le_bytes());
    record
}

#[test]
fn records_are_written_read_replaced_and_cleared() {
    let table = Table::new(&of_device()).unwrap();
    let mut device = Device::new();
    let mut store = Store::open(&table, &mut device).unwrap();
    assert_eq!(store.range(), (RANGE, RANGE_BYTES as u64));
    let mut bytes = [0; RANGE_BYTES];
    assert_eq!(store.ids(), Ok(vec![]));
    assert_eq!(store.read(7, &mut bytes), Err(Error::NotFound));
    for (id, text) in [(7, "one"), (9, "two"), (7, "three")] {
        let (head, body) = (&record(id, text.as_bytes())[..50], &record(id, text.as_bytes())[50..]);
        store.write(&[head, body]).unwrap();
    }
    assert_eq!(store.ids(), Ok(vec![7, 9]));
    assert!(store.read(7, &mut bytes).unwrap().starts_with(&record(7, b"three")));
    assert_eq!(store.clear(7), Ok(()));
    assert_eq!(store.clear(7), Err(Error::NotFound));
    assert_eq!(store.ids(), Ok(vec![9]));
    assert_eq!(device.records.len(), 1);
}

#[test]
fn what_the_firmware_refuses_is_said() {
    let table = Table::new(&of_device()).unwrap();
    let mut device = Device { most: 1, ..Device::new() };
    let mut store = Store::open(&table, &mut device).unwrap();
    store.write(&[&record(1, b"")]).unwrap();
    assert_eq!(store.write(&[&record(2, b"")]), Err(Error::Status(1)));
    assert_eq!(store.write(&[&record(1, &[0; RANGE_BYTES])]), Err(Error::TooLong(RANGE_BYTES as u64)));
    let mut device = Device { attributes: NON_VOLATILE, ..Device::new() };
    assert_eq!(Store::open(&table, &mut device).err(), Some(Error::Range(2)));
}

#[test]
fn slow_firmware_is_waited_for_and_one_that_hangs_is_not() {
    let table = Table::new(&of_device()).unwrap();
    let mut device = Device { slow: 1_000, ..Device::new() };
    Store::open(&table, &mut device).unwrap().write(&[&record(1, b"")]).unwrap();
    assert_eq!(device.waited, 1_000 * PAUSE);
    device.slow = u32::MAX;
    assert_eq!(Store::open(&table, &mut device).unwrap().write(&[&record(1, b"")]), Err(Error::Busy));
}

#[test]
fn a_table_that_is_cut_off_is_none() {
    let bytes = of_device();
    assert!(Table::new(&bytes[..bytes.len() - 1]).is_none());
    assert!(Table::new(&bytes[..40]).is_none());
    assert!(Table::new(&table(&[])).is_some());
}

#[test]
fn a_program_that_does_not_end_is_ended() {
    let loops = entry(8, 0xf, (0, 32, REGISTERS), 0, 0);
    let table = Table::new(&table(&[loops])).unwrap();
    let mut device = Device::new();
    assert_eq!(Program::new(&table, &mut device).run(Action::RecordId, 0), Err(Error::Endless(Action::RecordId)));
}

/// Carries out a program of these instructions, each of action 8.
fn run(device: &mut Device, program: &[[u8; 32]], input: u64) -> Result<u64, Error> {
    let table = Table::new(&table(program)).unwrap();
    Program::new(&table, device).run(Action::RecordId, input)
}

#[test]
fn instructions_do_what_the_specification_says() {
    const VALUE: (u8, u8, u64) = (0, 64, REGISTERS + 8);
    let all = u64::MAX;
    let read = entry(8, 0, VALUE, 0, all);
    let mut device = Device::new();
    let set = |value| entry(8, 3, VALUE, value, all);
    // Two numbers are loaded, added and stored; and subtracted.
    let load = |which| entry(8, which, VALUE, 0, all);
    let store = entry(8, 7, VALUE, 0, all);
    let nothing = (0, 32, REGISTERS);
    assert_eq!(
        run(&mut device, &[set(40), load(5), set(2), load(6), entry(8, 8, nothing, 0, 0), store, read], 0),
        Ok(42)
    );
    assert_eq!(
        run(&mut device, &[set(40), load(5), set(2), load(6), entry(8, 9, nothing, 0, 0), store, read], 0),
        Ok(38)
    );
    assert_eq!(run(&mut device, &[set(40), entry(8, 0xa, VALUE, 5, all), read], 0), Ok(45));
    assert_eq!(run(&mut device, &[set(40), entry(8, 0xb, VALUE, 5, all), read], 0), Ok(35));
    // One is left out if the register has the value, and is not if it has another one.
    let skip = |value| entry(8, 0xe, VALUE, value, all);
    assert_eq!(run(&mut device, &[set(1), skip(1), set(9), read], 0), Ok(1));
    assert_eq!(run(&mut device, &[set(1), skip(2), set(9), read], 0), Ok(9));
    // A jump over one, and a wait that is cut short.
    assert_eq!(run(&mut device, &[set(3), entry(8, 0xf, nothing, 3, 0), set(4), read], 0), Ok(3));
    let before = device.waited;
    assert_eq!(run(&mut device, &[set(3), entry(8, 0xc, nothing, u64::MAX, 0), read], 0), Ok(3));
    assert_eq!(device.waited - before, 1_000);
    let stuck = entry(8, 0xd, VALUE, 3, all);
    assert_eq!(run(&mut device, &[set(3), stuck], 0), Err(Error::Busy));
    assert_eq!(run(&mut device, &[set(4), stuck, read], 0), Ok(4));
    // The input, a field of the register, and the other bits of it.
    assert_eq!(run(&mut device, &[entry(8, 2, VALUE, 0, all), read], 77), Ok(77));
    let mut field = entry(8, 3, VALUE, 0x5, 0xf);
    (field[2], field[6]) = (1, 8);
    assert_eq!(run(&mut device, &[set(0xabcd), field, read], 0), Ok(0xa5cd));
    assert_eq!(run(&mut device, &[entry(8, 0x12, VALUE, 0, all)], 0), Err(Error::Instruction(0x12)));
    assert_eq!(run(&mut device, &[entry(8, 0, (0, 32, 0x1000), 0, all)], 0), Err(Error::Unreachable(0x1000)));
    assert_eq!(run(&mut device, &[entry(8, 0, (2, 32, 0x1000), 0, all)], 0), Err(Error::Unreachable(0)));
    assert_eq!(run(&mut device, &[], 0), Err(Error::Missing(Action::RecordId)));
}

proptest! {
    #[test]
    fn any_table_is_read_and_its_programs_end(
        entries in prop::collection::vec((0..17_u8, 0..20_u8, any::<u8>(), any::<[u8; 4]>(), 0..4_u8, 0..5_u64, any::<u64>()), 0..30)
    ) {
        let entries: Vec<_> = entries
            .into_iter()
            .map(|(action, instruction, flags, [space, bits, bit, access], at, value, mask)| {
                let mut entry = entry(action, instruction, (0, 32, REGISTERS + 8 * u64::from(at)), value, mask);
                (entry[2], entry[4], entry[5], entry[6], entry[7]) = (flags, space % 3, bits, bit % 70, access % 6);
                entry
            })
            .collect();
        struct Anything(u64);
        impl Bus for Anything {
            fn read(&mut self, space: crate::Space, address: u64, bytes: u8) -> Option<u64> {
                assert!(address != 0 && matches!(bytes, 1 | 2 | 4 | 8));
                assert!(space == crate::Space::Memory || address < 0x1_0000);
                self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                Some(self.0 >> 62)
            }
            fn write(&mut self, _: crate::Space, _: u64, _: u8, _: u64) -> Option<()> {
                Some(())
            }
            fn load(&mut self, _: u64, _: &mut [u8]) -> Option<()> {
                Some(())
            }
            fn store(&mut self, _: u64, _: &[u8]) -> Option<()> {
                Some(())
            }
            fn wait(&mut self, _: u64) {}
        }
        let table = Table::new(&table(&entries)).unwrap();
        for action in [Action::BeginWrite, Action::Execute, Action::Busy, Action::RecordId] {
            let _ = Program::new(&table, Anything(1)).run_optional(action, 5);
        }
    }
}
