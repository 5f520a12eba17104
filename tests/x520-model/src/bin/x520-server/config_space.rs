//! Configuration space of the function (data sheet 9.3).

/// PCI device identifier of a card with an SFP+ cage.
pub const CAGE: u16 = 0x10fb;
/// The same of a mezzanine card whose link is KR over a backplane.
pub const BACKPLANE: u16 = 0x1517;
/// MSI-X vectors.
pub const VECTORS: u32 = 64;

const BYTES: usize = 0x1000;
/// Command: memory and bus master can be set.
const COMMAND: usize = 0x04;
/// Command, lower byte: it may reach memory by itself.
const BUS_MASTER: u8 = 1 << 2;
const STATUS: usize = 0x06;
/// Status: the pin is, or would be, asserted.
const INTERRUPT: u8 = 1 << 3;
/// Command, upper byte: the pin is disabled.
const PIN_OFF: u8 = 1 << 2;
const BAR0: usize = 0x10;
const BAR4: usize = 0x20;
const POWER: usize = 0x40;
/// PMCSR: the power state, of which the device has D0 and D3hot (9.3.5). Bit 3, No_Soft_Reset, is 0: the way back to D0
/// is a reset.
const PMCSR: usize = POWER + 4;
const STATE: u8 = 3;
const D0: u8 = 0;
const D3HOT: u8 = 3;
const MSIX: usize = 0x70;
const EXPRESS: usize = 0xa0;

/// The registers, and which of their bits can be written.
pub struct ConfigSpace {
    device: u16,
    bytes: Vec<u8>,
    writable: Vec<u8>,
}

impl ConfigSpace {
    /// `device`: the PCI device identifier.
    pub fn new(device: u16) -> Self {
        let mut c = Self { device, bytes: vec![0; BYTES], writable: vec![0; BYTES] };
        // Vendor and device; capabilities; Ethernet; subsystem: X520.
        let [low, high] = device.to_le_bytes();
        c.put(0x00, &[0x86, 0x80, low, high, 0, 0, 0x10, 0, 0x01, 0, 0, 2, 16]);
        c.put(0x2c, &[0x86, 0x80, 0x0c, 0x00]);
        c.put(0x34, &[POWER as u8]);
        c.allow(COMMAND, &[0x46, 0x05]);
        c.allow(0x3c, &[0xff]);
        // Interrupt pin A.
        c.put(0x3d, &[1]);
        // Two memory BARs of 64 bits: registers, and the MSI-X tables.
        c.put(BAR0, &[0x04]);
        c.allow(BAR0, &[0, 0, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff]);
        c.put(BAR4, &[0x04]);
        c.allow(BAR4, &[0, 0xc0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        c.put(POWER, &[0x01, MSIX as u8, 0x03, 0x00]);
        c.put(MSIX, &[0x11, EXPRESS as u8, VECTORS as u8 - 1, 0, 4, 0, 0, 0, 4, 0x20, 0, 0]);
        c.allow(MSIX + 3, &[0xc0]);
        // PCI Express 2.0 endpoint with function-level reset left out; 512 bytes of payload; 5 GT/s, 8 lanes.
        c.put(EXPRESS, &[0x10, 0, 0x02, 0, 0x02, 0, 0, 0, 0x10, 0x28, 0, 0, 0x82, 0x04, 0, 0, 0, 0, 0x82, 0]);
        c.allow(EXPRESS + 8, &[0xff, 0x7f]);
        c
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn allow(&mut self, at: usize, mask: &[u8]) {
        self.writable[at..at + mask.len()].copy_from_slice(mask);
    }

    /// Says in the status register whether there is an interrupt. True: it is to be shown at the pin.
    pub fn set_pin(&mut self, asserted: bool) -> bool {
        let status = &mut self.bytes[STATUS];
        *status = *status & !INTERRUPT | if asserted { INTERRUPT } else { 0 };
        asserted && self.bytes[COMMAND + 1] & PIN_OFF == 0
    }

    /// Whether it may reach memory by itself.
    pub fn masters_the_bus(&self) -> bool {
        self.bytes[COMMAND] & BUS_MASTER != 0 && !self.sleeps()
    }

    /// Reads; beyond its end there are zeroes.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        for (i, byte) in data.iter_mut().enumerate() {
            *byte = self.bytes.get(offset as usize + i).copied().unwrap_or(0);
        }
    }

    /// Whether it is in D3hot: it answers for its configuration space only.
    pub fn sleeps(&self) -> bool {
        self.bytes[PMCSR] & STATE == D3HOT
    }

    /// Writes what can be written. True: it has come back from D3hot, and lost its state.
    #[must_use]
    pub fn write(&mut self, offset: u64, data: &[u8]) -> bool {
        let slept = self.sleeps();
        for (i, value) in data.iter().enumerate() {
            let at = offset as usize + i;
            if at == PMCSR {
                // A state that it does not have is not taken.
                if matches!(value & STATE, D0 | D3HOT) {
                    self.bytes[PMCSR] = value & STATE;
                }
            } else if let (Some(byte), Some(mask)) = (self.bytes.get_mut(at), self.writable.get(at)) {
                *byte = *byte & !mask | value & mask;
            }
        }
        let awake = slept && !self.sleeps();
        if awake {
            *self = Self::new(self.device);
        }
        awake
    }
}

#[cfg(test)]
mod tests {
    use super::{BAR0, BAR4, CAGE, COMMAND, ConfigSpace, MSIX, PMCSR, STATUS};

    fn word(c: &ConfigSpace, at: usize) -> u32 {
        let mut bytes = [0; 4];
        c.read(at as u64, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn it_is_an_82599_with_two_bars_that_tell_their_size() {
        let mut c = ConfigSpace::new(CAGE);
        assert_eq!((word(&c, 0), word(&c, 8) >> 16), (0x10fb_8086, 0x0200));
        for (bar, size) in [(BAR0, 0x2_0000), (BAR4, 0x4000)] {
            assert!(!c.write(bar as u64, &[0xff; 8]));
            let low = word(&c, bar);
            // Memory, 64 bits.
            assert_eq!((low & 0xf, !(low & !0xf) + 1, word(&c, bar + 4)), (4, size, u32::MAX));
        }
        assert!(!c.write(0, &[0; 4]));
        assert_eq!(word(&c, 0), 0x10fb_8086, "read only");
    }

    #[test]
    fn capabilities_are_a_chain_and_msix_has_its_vectors() {
        let c = ConfigSpace::new(CAGE);
        let (mut at, mut kinds) = (word(&c, 0x34) & 0xff, Vec::new());
        while at != 0 {
            kinds.push(word(&c, at as usize) & 0xff);
            at = word(&c, at as usize) >> 8 & 0xff;
        }
        assert_eq!(kinds, [0x01, 0x11, 0x10], "power management, MSI-X, PCI Express");
        assert_eq!(word(&c, MSIX) >> 16 & 0x7ff, 63);
    }

    #[test]
    fn the_pin_is_told_in_the_status_and_shown_unless_it_is_off() {
        let mut c = ConfigSpace::new(CAGE);
        assert!(c.set_pin(true));
        assert_eq!(word(&c, STATUS) >> 3 & 1, 1);
        assert!(!c.write(COMMAND as u64, &[6, 4]));
        assert!(c.masters_the_bus() && !c.set_pin(true));
        assert_eq!(word(&c, STATUS) >> 3 & 1, 1);
        assert!(!c.set_pin(false));
        assert_eq!(word(&c, STATUS) >> 3 & 1, 0);
    }

    #[test]
    fn d3hot_is_kept_and_the_way_back_is_a_reset() {
        let mut c = ConfigSpace::new(CAGE);
        assert!(!c.write(BAR0 as u64, &[0, 0, 0x40, 0xfe]) && !c.write(COMMAND as u64, &[6, 0]));
        // D1 and D2 do not exist.
        for (wanted, is) in [(1, 0), (3, 3), (2, 3), (3, 3)] {
            assert!(!c.write(PMCSR as u64, &[wanted, 0]));
            assert_eq!(word(&c, PMCSR), is);
        }
        assert!(c.sleeps() && !c.masters_the_bus());
        assert_eq!(word(&c, BAR0), 0xfe40_0004);
        assert!(c.write(PMCSR as u64, &[0, 0]), "back");
        assert_eq!((word(&c, PMCSR), word(&c, BAR0), c.masters_the_bus()), (0, 4, false));
        assert!(!c.write(PMCSR as u64, &[0, 0]));
    }
}
