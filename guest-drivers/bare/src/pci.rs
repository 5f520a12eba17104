//! PCI configuration space through the two ports (PCI 3.0, 3.2.2.3.2).

use crate::cpu;

const CONFIG_ADDRESS: u16 = 0xcf8;
const CONFIG_DATA: u16 = 0xcfc;

/// A function: bus, device, function.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Function(pub u8, pub u8, pub u8);

impl Function {
    fn select(self, register: u8) {
        let Self(bus, device, function) = self;
        let place = u32::from(bus) << 16 | u32::from(device) << 11 | u32::from(function) << 8;
        cpu::out32(CONFIG_ADDRESS, 1 << 31 | place | u32::from(register & 0xfc));
    }

    /// Reads a double word.
    pub fn read(self, register: u8) -> u32 {
        self.select(register);
        cpu::in32(CONFIG_DATA)
    }

    /// Writes a double word.
    pub fn write(self, register: u8, value: u32) {
        self.select(register);
        cpu::out32(CONFIG_DATA, value);
    }

    /// Offset of this function in ECAM.
    pub fn ecam(self) -> u64 {
        u64::from(self.0) << 20 | u64::from(self.1) << 15 | u64::from(self.2) << 12
    }

    /// Capabilities: offset and ID of each.
    pub fn capabilities(self) -> impl Iterator<Item = (u8, u8)> {
        let has_list = self.read(0x04) >> 16 & 1 << 4 != 0;
        let mut at = if has_list { self.read(0x34) as u8 & 0xfc } else { 0 };
        // A list has at most 48 entries. A longer one is a loop.
        (0..48).map_while(move |_| {
            let here = at;
            (here >= 0x40).then(|| {
                let word = self.read(here);
                at = (word >> 8) as u8 & 0xfc;
                (here, word as u8)
            })
        })
    }

    /// Base address register `index`: address, and whether it is in I/O space.
    pub fn bar(self, index: u8) -> (u64, bool) {
        let low = self.read(0x10 + index * 4);
        match low & 7 {
            kind if kind & 1 == 1 => (u64::from(low & !3), true),
            4 => (u64::from(self.read(0x14 + index * 4)) << 32 | u64::from(low & !0xf), false),
            _ => (u64::from(low & !0xf), false),
        }
    }
}

/// All functions of bus 0.
pub fn bus_0() -> impl Iterator<Item = Function> {
    (0..32).flat_map(|device| (0..8).map(move |function| Function(0, device, function)))
}
