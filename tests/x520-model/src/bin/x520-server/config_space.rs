//! Configuration space of the function (data sheet 9.3).

/// MSI-X vectors.
pub const VECTORS: u32 = 64;

const BYTES: usize = 0x1000;
/// Command: memory and bus master can be set.
const COMMAND: usize = 0x04;
/// Status: the pin is, or would be, asserted.
const STATUS: usize = 0x06;
const INTERRUPT: u8 = 1 << 3;
/// Command, upper byte: the pin is disabled.
const PIN_OFF: u8 = 1 << 2;
const BAR0: usize = 0x10;
const BAR4: usize = 0x20;
const POWER: usize = 0x40;
const MSIX: usize = 0x70;
const EXPRESS: usize = 0xa0;

/// The registers, and which of their bits can be written.
pub struct ConfigSpace {
    bytes: Vec<u8>,
    writable: Vec<u8>,
}

impl ConfigSpace {
    pub fn new() -> Self {
        let mut c = Self { bytes: vec![0; BYTES], writable: vec![0; BYTES] };
        // Vendor and device 82599 SFI/SFP+; capabilities; Ethernet; subsystem: X520.
        c.put(0x00, &[0x86, 0x80, 0xfb, 0x10, 0, 0, 0x10, 0, 0x01, 0, 0, 2, 16]);
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

    /// Reads; beyond its end there are zeroes.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        for (i, byte) in data.iter_mut().enumerate() {
            *byte = self.bytes.get(offset as usize + i).copied().unwrap_or(0);
        }
    }

    /// Writes what can be written.
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        for (i, value) in data.iter().enumerate() {
            let at = offset as usize + i;
            if let (Some(byte), Some(mask)) = (self.bytes.get_mut(at), self.writable.get(at)) {
                *byte = *byte & !mask | value & mask;
            }
        }
    }
}
