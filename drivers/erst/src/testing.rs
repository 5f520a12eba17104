//! A store for tests: two registers and a range of records, as QEMU's device has them, and the table that goes with it.

use std::collections::BTreeMap;

use crate::{Bus, Space};

pub const REGISTERS: u64 = 0xfebf_0000;
pub const RANGE: u64 = 0xfebf_4000;
pub const RANGE_BYTES: usize = 4096;

/// An instruction as 32 bytes.
pub fn entry(action: u8, instruction: u8, register: (u8, u8, u64), value: u64, mask: u64) -> [u8; 32] {
    let (space, bits, address) = register;
    let access = bits.trailing_zeros() as u8 - 2;
    let head = [action, instruction, 0, 0, space, bits, 0, access];
    [&head[..], &address.to_le_bytes(), &value.to_le_bytes(), &mask.to_le_bytes()].concat().try_into().unwrap()
}

/// The table of these instructions.
pub fn table(entries: &[[u8; 32]]) -> Vec<u8> {
    let mut table = vec![0; 48];
    table[..4].copy_from_slice(b"ERST");
    table[36..40].copy_from_slice(&48_u32.to_le_bytes());
    table[44..48].copy_from_slice(&(entries.len() as u32).to_le_bytes());
    table.extend(entries.as_flattened());
    table
}

/// The table of [`Device`].
pub fn of_device() -> Vec<u8> {
    const COMMAND: (u8, u8, u64) = (0, 32, REGISTERS);
    const VALUE: (u8, u8, u64) = (0, 32, REGISTERS + 8);
    const WIDE: (u8, u8, u64) = (0, 64, REGISTERS + 8);
    let all = u64::MAX;
    let command = |action: u8| entry(action, 3, COMMAND, action.into(), 0xffff_ffff);
    let mut entries = vec![command(0), command(1), command(2), command(3)];
    entries.extend([entry(4, 2, VALUE, 0, 0xffff_ffff), command(4)]);
    entries.extend([entry(5, 3, VALUE, 0x9c, 0xffff_ffff), command(5)]);
    entries.extend([command(6), entry(6, 1, VALUE, 1, 0xffff_ffff)]);
    entries.extend([command(7), entry(7, 0, VALUE, 0, 0xffff_ffff)]);
    entries.extend([command(8), entry(8, 0, WIDE, 0, all)]);
    entries.extend([entry(9, 2, WIDE, 0, all), command(9)]);
    entries.extend([command(10), entry(10, 0, VALUE, 0, 0xffff_ffff)]);
    for action in 13..=15 {
        entries.extend([command(action), entry(action, 0, WIDE, 0, all)]);
    }
    table(&entries)
}

/// The device. A record's number is at byte 96 of it.
#[derive(Default)]
pub struct Device {
    pub records: BTreeMap<u64, Vec<u8>>,
    /// Most records.
    pub most: usize,
    /// Times that it says "busy" after a command.
    pub slow: u32,
    pub attributes: u64,
    pub waited: u64,
    pub range: Vec<u8>,
    pub value: u64,
    pub operation: u64,
    pub offset: usize,
    pub id: u64,
    pub status: u64,
    pub busy: u32,
    pub next: usize,
}

impl Device {
    pub fn new() -> Self {
        Self { most: 8, range: vec![0; RANGE_BYTES], ..Self::default() }
    }

    fn command(&mut self, action: u64) {
        match action {
            0..=2 => self.operation = action,
            3 => self.operation = u64::MAX,
            4 => self.offset = self.value as usize,
            5 => {
                assert_eq!(self.value, 0x9c);
                self.busy = self.slow;
                self.status = self.execute();
            }
            6 => {
                self.value = u64::from(self.busy > 0);
                self.busy = self.busy.saturating_sub(1);
            }
            7 => self.value = self.status,
            8 => {
                self.value = self.records.keys().nth(self.next).copied().unwrap_or(u64::MAX);
                self.next = if self.value == u64::MAX { 0 } else { self.next + 1 };
            }
            9 => self.id = self.value,
            10 => self.value = self.records.len() as u64,
            13 => self.value = RANGE,
            14 => self.value = RANGE_BYTES as u64,
            15 => self.value = self.attributes,
            other => panic!("action {other:#x}"),
        }
    }

    fn execute(&mut self) -> u64 {
        let range = &mut self.range[self.offset..];
        match self.operation {
            0 => {
                let len = u32::from_le_bytes(range[20..24].try_into().unwrap()) as usize;
                let id = u64::from_le_bytes(range[96..104].try_into().unwrap());
                if self.records.len() == self.most && !self.records.contains_key(&id) {
                    return 1;
                }
                self.records.insert(id, range[..len].to_vec());
            }
            1 => match self.records.get(&self.id) {
                Some(record) => range[..record.len()].copy_from_slice(record),
                None if self.records.is_empty() => return 4,
                None => return 5,
            },
            2 => {
                if self.records.remove(&self.id).is_none() {
                    return 5;
                }
            }
            _ => return 3,
        }
        0
    }
}

impl Bus for &mut Device {
    fn read(&mut self, space: Space, address: u64, bytes: u8) -> Option<u64> {
        assert!(space == Space::Memory && matches!(bytes, 4 | 8));
        let mask = u64::MAX >> (64 - 8 * u32::from(bytes));
        (address == REGISTERS + 8).then_some(self.value & mask)
    }

    fn write(&mut self, space: Space, address: u64, _bytes: u8, value: u64) -> Option<()> {
        assert_eq!(space, Space::Memory);
        match address {
            REGISTERS => self.command(value),
            address if address == REGISTERS + 8 => self.value = value,
            _ => return None,
        }
        Some(())
    }

    fn load(&mut self, address: u64, to: &mut [u8]) -> Option<()> {
        let start = address.checked_sub(RANGE)? as usize;
        to.copy_from_slice(self.range.get(start..start + to.len())?);
        Some(())
    }

    fn store(&mut self, address: u64, from: &[u8]) -> Option<()> {
        let start = address.checked_sub(RANGE)? as usize;
        self.range.get_mut(start..start + from.len())?.copy_from_slice(from);
        Some(())
    }

    fn wait(&mut self, micros: u64) {
        self.waited += micros;
    }
}
