//! The machine's I/O APICs: masks what firmware has left open, so that no line of a device nobody drives interrupts a core
//! (82093AA data sheet 3.1, 3.2; Intel ICH10 data sheet 13.5).
//!
//! An entry with the delivery mode SMI stays as it is: it belongs to the firmware's system management mode.

/// Registers of an I/O APIC, which are reached by an index and a window.
pub trait Registers {
    /// Reads a register.
    fn read(&mut self, index: u8) -> u32;
    /// Writes a register.
    fn write(&mut self, index: u8, value: u32);
}

/// Index of the version register. Bits 23 to 16: number of the last redirection entry.
const VERSION: u8 = 1;
/// Index of the lower half of the first redirection entry. Each entry has two registers.
const ENTRIES: u8 = 0x10;
/// The last entry that an index of 8 bits can name.
const LAST: u8 = (u8::MAX - ENTRIES) / 2;
/// The entry sends nothing.
const MASKED: u32 = 1 << 16;
/// Delivery mode, and the mode SMI in it.
const MODE: u32 = 7 << 8;
const SMI: u32 = 2 << 8;

/// What became of an I/O APIC's entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Masked {
    /// Number of entries.
    pub entries: u32,
    /// Those that were open, and are masked now.
    pub were_open: u32,
    /// Those that send SMIs and were left open.
    pub smi: u32,
    /// Those that are open although they were masked.
    pub refused: u32,
}

/// Masks all entries but those of the firmware's. `None`: no I/O APIC answers there.
pub fn mask_all(registers: &mut impl Registers) -> Option<Masked> {
    let version = registers.read(VERSION);
    if version == u32::MAX || version == 0 {
        return None;
    }
    let last = ((version >> 16) as u8).min(LAST);
    let mut masked = Masked { entries: u32::from(last).saturating_add(1), ..Masked::default() };
    for number in 0..=last {
        let index = ENTRIES.saturating_add(number.saturating_mul(2));
        let entry = registers.read(index);
        let count = match (entry & MASKED, entry & MODE) {
            (0, SMI) => &mut masked.smi,
            (0, _) => {
                registers.write(index, entry | MASKED);
                if registers.read(index) & MASKED == 0 { &mut masked.refused } else { &mut masked.were_open }
            }
            _ => continue,
        };
        *count = count.saturating_add(1);
    }
    Some(masked)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An I/O APIC whose registers are plain memory, but for one that cannot be written.
    struct Model {
        registers: Vec<u32>,
        fixed: Option<u8>,
        writes: Vec<u8>,
    }

    impl Model {
        fn new(last: u32, entries: &[u32]) -> Self {
            let mut registers = vec![0x1_0000; 256];
            registers[usize::from(VERSION)] = last << 16 | 0x20;
            for (number, entry) in entries.iter().enumerate() {
                registers[usize::from(ENTRIES) + 2 * number] = *entry;
            }
            Self { registers, fixed: None, writes: Vec::new() }
        }
    }

    impl Registers for Model {
        fn read(&mut self, index: u8) -> u32 {
            self.registers[usize::from(index)]
        }

        fn write(&mut self, index: u8, value: u32) {
            self.writes.push(index);
            if self.fixed != Some(index) {
                self.registers[usize::from(index)] = value;
            }
        }
    }

    #[test]
    fn open_entries_are_masked_and_keep_the_rest_and_smis_stay_with_the_firmware() {
        // Fixed and level, masked already, SMI, ExtINT, NMI.
        let mut model = Model::new(23, &[0x0000_a031, 0x0001_0040, 0x0000_0200, 0x0000_0700, 0x0000_0400]);
        let masked = mask_all(&mut model).expect("it answers");
        assert_eq!(masked, Masked { entries: 24, were_open: 3, smi: 1, refused: 0 });
        let entries: Vec<u32> = (0..5).map(|n| model.registers[usize::from(ENTRIES) + 2 * n]).collect();
        assert_eq!(entries, [0x0001_a031, 0x0001_0040, 0x0000_0200, 0x0001_0700, 0x0001_0400]);
        assert_eq!(model.writes, [0x10, 0x16, 0x18], "what is masked already is not written");
    }

    #[test]
    fn the_last_entry_is_masked_however_many_there_are() {
        for last in [0, 23, 119, 239, 255] {
            let mut model = Model::new(last, &vec![0; 120]);
            let masked = mask_all(&mut model).expect("it answers");
            // An index has 8 bits, so that more than 120 entries cannot be there.
            assert_eq!(masked.entries, last.min(119) + 1);
            assert_eq!(masked.were_open, masked.entries);
        }
    }

    #[test]
    fn an_address_without_an_io_apic_is_left_alone() {
        for absent in [u32::MAX, 0] {
            let mut model = Model::new(23, &[0]);
            model.registers[usize::from(VERSION)] = absent;
            assert_eq!(mask_all(&mut model), None);
            assert!(model.writes.is_empty());
        }
    }

    #[test]
    fn an_entry_that_stays_open_is_told() {
        let mut model = Model::new(1, &[0x31, 0x32]);
        model.fixed = Some(0x12);
        assert_eq!(mask_all(&mut model), Some(Masked { entries: 2, were_open: 1, smi: 0, refused: 1 }));
    }
}
