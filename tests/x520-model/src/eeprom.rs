//! The EEPROM and the register that reads it (data sheet 6, 8.2.3.2).

use crate::model::{Config, Model};
use crate::registers::Reg;
use crate::state::EepromRead;

/// Number of words: 16 KiB.
pub const WORDS: usize = 0x2000;
/// Index of the word with the checksum.
pub const CHECKSUM: usize = 0x3f;
/// The sum of all checked words, with the checksum.
pub const SUM: u16 = 0xbaba;

/// Index of the word with the device's capabilities, and the bit that allows optics of any vendor.
const CAPABILITIES: usize = 0x2c;
const ANY_MODULE: u16 = 1;

/// Words for CORECTL by type of SFP module: 3 and 4 are cables at ports 0 and 1, 5 and 6 optics. Drivers treat active
/// cables and modules of 1 Gb/s as optics.
const SEQUENCES: [(u16, [u16; 2]); 4] =
    [(3, [0x1303, 0x2a03]), (4, [0x1304, 0x2a04]), (5, [0x1305, 0x2a05]), (6, [0x1306, 0x2a06])];

/// Microseconds that reading a word takes.
const READ_TIME: u64 = 20;

const START: u32 = 1;
const DONE: u32 = 2;
const REQUEST: u32 = 1 << 6;
const GRANT: u32 = 1 << 7;

/// The contents of an EEPROM: the modules of the pointers 0x03 to 0x0e, which the checksum covers, the firmware module
/// with a version that drivers accept, the device's capabilities, and the list of SFP initialization sequences.
#[must_use]
pub fn image(config: &Config) -> Vec<u16> {
    let mac = config.mac;
    let mut w = vec![0xffff; WORDS];
    w[..0x40].fill(0);
    // PCIe general, core 0 and core 1 modules: a length in words, then contents.
    let modules: [(usize, usize, &[u16]); 3] = [
        (0x06, 0x80, &[0x1234, 0x5678, 0x9abc]),
        (
            0x09,
            0x90,
            &[
                u16::from_le_bytes([mac[0], mac[1]]),
                u16::from_le_bytes([mac[2], mac[3]]),
                u16::from_le_bytes([mac[4], mac[5]]),
            ],
        ),
        (0x0a, 0xa0, &[0x0102, 0x0304, 0x0506]),
    ];
    for (pointer, at, contents) in modules {
        w[pointer] = at as u16;
        w[at] = contents.len() as u16;
        w[at + 1..=at + contents.len()].copy_from_slice(contents);
    }
    // Firmware module: at +4 the pass-through patch module, whose word 7 is the version.
    w[0x0f] = 0x100;
    w[0x104] = 0x120;
    w[0x127] = 0x0006;
    // SFP modules: a length, then pairs of type and sequence, ended by 0xffff. A sequence is a word that no driver
    // writes, then the words for CORECTL, ended by 0xffff.
    w[0x2b] = 0x140;
    w[0x140] = 9;
    for (i, (kind, words)) in SEQUENCES.iter().enumerate() {
        let at = 0x160 + 8 * i;
        w[0x141 + 2 * i] = *kind;
        w[0x142 + 2 * i] = at as u16;
        w[at] = words.len() as u16;
        w[at + 1..=at + words.len()].copy_from_slice(words);
    }
    w[CAPABILITIES] = if config.any_module { ANY_MODULE } else { 0 };
    w[0x2d] = 0xbeef;
    w[0x2e] = 0x0001;
    w[CHECKSUM] = SUM.wrapping_sub(sum(&w));
    if !config.eeprom_valid {
        w[CHECKSUM] ^= 0x0100;
    }
    w
}

/// What the words before the checksum and the modules of pointers 0x03 to 0x0e add up to (6.3.5 of the data sheet:
/// the firmware pointer 0x0f is left out).
fn sum(w: &[u16]) -> u16 {
    let mut sum = w[..CHECKSUM].iter().fold(0u16, |a, b| a.wrapping_add(*b));
    for pointer in &w[0x03..0x0f] {
        if !matches!(*pointer, 0 | 0xffff) {
            let at = usize::from(*pointer);
            let len = usize::from(w[at]);
            sum = w[at + 1..=at + len].iter().fold(sum, |a, b| a.wrapping_add(*b));
        }
    }
    sum
}

impl Model {
    pub(crate) fn write_eerd(&mut self, value: u32) {
        self.set(Reg::Eerd, 0, value & 0xfffc);
        if value & START != 0 {
            self.eeprom_read =
                EepromRead(Some(((value >> 2 & 0x3fff) as usize, self.now + READ_TIME + self.faults.slow)));
        }
    }

    pub(crate) fn update_eeprom(&mut self) {
        let EepromRead(Some((word, ready))) = self.eeprom_read else { return };
        if self.now >= ready {
            let value = self.eeprom.get(word).copied().unwrap_or(0xffff);
            self.set(Reg::Eerd, 0, u32::from(value) << 16 | (word as u32) << 2 | DONE);
            self.eeprom_read = EepromRead(None);
        }
    }

    /// Takes the sequences for SFP modules out of the list. The list is empty then.
    pub fn forget_sequences(&mut self) {
        self.eeprom[0x141] = 0xffff;
    }

    pub(crate) fn write_corectl(&mut self, value: u32) {
        self.set(Reg::Corectl, 0, value);
        self.sequence.push(value as u16);
        // Only the end matters: a driver may begin again.
        let longest = SEQUENCES[0].1.len();
        self.sequence.drain(..self.sequence.len().saturating_sub(longest));
    }

    /// Whether the analog side is set up for the module in the cage.
    pub(crate) fn is_set_up(&self) -> bool {
        let Some(module) = &self.module else { return false };
        let passive = module.is_cable() && module.byte(8) & 4 != 0;
        let kind = if passive { 3 } else { 5 } + u16::from(self.config.port & 1);
        SEQUENCES.iter().any(|(known, words)| *known == kind && self.sequence == *words)
    }

    /// Direct access is granted as soon as it is asked for.
    pub(crate) fn write_eec(&mut self, value: u32) {
        let fixed = self.get(Reg::Eec, 0) & 0xff00;
        let asked = value & REQUEST;
        self.set(Reg::Eec, 0, fixed | value & 0x77 & !GRANT | if asked != 0 { GRANT } else { 0 });
    }
}

#[cfg(test)]
mod tests {
    use super::{CHECKSUM, SUM, sum};
    use crate::model::Model;
    use crate::registers::Reg;
    use crate::testing::model;

    fn word(m: &mut Model, at: u32) -> u16 {
        m.write(Reg::Eerd.offset(0), at << 2 | 1);
        assert_eq!(m.read(Reg::Eerd.offset(0)) & 2, 0, "done at once");
        m.advance(100);
        let value = m.read(Reg::Eerd.offset(0));
        assert_eq!(value & 2, 2);
        (value >> 16) as u16
    }

    #[test]
    fn words_take_time_and_the_pointer_chain_leads_to_a_firmware_version() {
        let (mut m, _) = model();
        let firmware = word(&mut m, 0x0f);
        let patch = word(&mut m, u32::from(firmware) + 4);
        assert!(word(&mut m, u32::from(patch) + 7) > 5);
        assert_eq!(word(&mut m, 0x1fff), 0xffff);
    }

    #[test]
    fn the_checksum_covers_words_and_modules() {
        let config = crate::Config { mac: [2, 0, 0, 0, 0, 1], ..crate::Config::default() };
        let good = super::image(&config);
        assert_eq!(sum(&good).wrapping_add(good[CHECKSUM]), SUM);
        let bad = super::image(&crate::Config { eeprom_valid: false, ..config });
        assert_ne!(sum(&bad).wrapping_add(bad[CHECKSUM]), SUM);
    }
}
