//! The configuration space of one type-0 function: 256 bytes, and a mask of the bits that the guest may write.
//!
//! Follows PCI Local Bus 3.0 ch. 6.

use bitflags::bitflags;

/// Bytes of a conventional function's configuration space.
pub const SIZE: usize = 256;

const STATUS_CAPABILITIES: u8 = 0x10;
const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const CACHE_LINE_SIZE: usize = 0x0c;
const LATENCY_TIMER: usize = 0x0d;
const BARS: usize = 0x10;
const CAPABILITIES: usize = 0x34;
const INTERRUPT_LINE: usize = 0x3c;
const FIRST_CAPABILITY: u8 = 0x40;

bitflags! {
    /// Command register (6.2.2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Command: u16 {
        /// The function answers in I/O space.
        const IO = 1 << 0;
        /// The function answers in memory space.
        const MEMORY = 1 << 1;
        /// The function may master the bus.
        const MASTER = 1 << 2;
        /// The function reacts to parity errors.
        const PARITY = 1 << 6;
        /// The function drives SERR#.
        const SERR = 1 << 8;
        /// The function does not assert INTx.
        const INTX_DISABLE = 1 << 10;
    }
}

/// What identifies a function.
#[derive(Clone, Copy, Debug)]
pub struct Identity {
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// Revision ID.
    pub revision: u8,
    /// Base class, sub-class, interface: 24 bits.
    pub class: u32,
    /// Subsystem vendor ID.
    pub subsystem_vendor: u16,
    /// Subsystem ID.
    pub subsystem: u16,
}

/// The kind of a BAR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bar {
    /// 32-bit memory, not prefetchable.
    Memory32,
    /// I/O ports.
    Io,
}

impl Bar {
    /// Returns the low, read-only bits that encode the kind.
    const fn kind(self) -> u32 {
        match self {
            Self::Memory32 => 0,
            Self::Io => 1,
        }
    }
}

/// The offset of BAR `index` (0 to 5).
fn bar_offset(index: usize) -> usize {
    BARS.saturating_add(index.min(5) << 2)
}

/// The configuration space of a function.
#[derive(Clone, Debug)]
pub struct ConfigSpace {
    bytes: [u8; SIZE],
    /// Bits that the guest may write.
    writable: [u8; SIZE],
    /// The offset of the next capability, and the offset of the pointer to it.
    next: u8,
    link: u8,
}

impl ConfigSpace {
    /// Makes the configuration space of a function that has only its identity.
    #[must_use]
    pub fn new(identity: &Identity) -> Self {
        let mut space =
            Self { bytes: [0; SIZE], writable: [0; SIZE], next: FIRST_CAPABILITY, link: CAPABILITIES as u8 };
        space.set(0x00, &identity.vendor.to_le_bytes());
        space.set(0x02, &identity.device.to_le_bytes());
        space.set(0x08, &[identity.revision]);
        space.set(0x09, &identity.class.to_le_bytes()[..3]);
        space.set(0x2c, &identity.subsystem_vendor.to_le_bytes());
        space.set(0x2e, &identity.subsystem.to_le_bytes());
        space.permit(COMMAND, &Command::all().bits().to_le_bytes());
        for scratch in [CACHE_LINE_SIZE, LATENCY_TIMER, INTERRUPT_LINE] {
            space.permit(scratch, &[0xff]);
        }
        space
    }

    /// Adds BAR `index` (0 to 5) of `size` bytes at `address`. The size is a power of two, at least 16.
    pub fn add_bar(&mut self, index: usize, bar: Bar, size: u32, address: u32) {
        let offset = bar_offset(index);
        let mask = size.next_power_of_two().max(16).wrapping_neg();
        self.set(offset, &(address & mask | bar.kind()).to_le_bytes());
        self.permit(offset, &mask.to_le_bytes());
    }

    /// Appends a capability. `body` is its content after ID and pointer. `writable` is a mask of the bits in `body`
    /// that the guest may write; missing bytes count as 0. Returns its offset, or `None` if there is no room for it.
    pub fn add_capability(&mut self, id: u8, body: &[u8], writable: &[u8]) -> Option<u8> {
        let offset = self.next;
        let content = usize::from(offset).saturating_add(2);
        let end = content.saturating_add(body.len());
        if offset == 0 || end > SIZE {
            return None;
        }
        self.set(usize::from(offset), &[id, 0]);
        self.set(content, body);
        self.permit(content, writable);
        self.set(usize::from(self.link), &[offset]);
        self.bytes[STATUS] |= STATUS_CAPABILITIES;
        self.link = offset.saturating_add(1);
        // At the end this wraps to 0, which means that there is no more room.
        self.next = (end.next_multiple_of(4) & 0xff) as u8;
        Some(offset)
    }

    /// Sets bytes, even those that the guest may not write. Ignores bytes beyond the end.
    pub fn set(&mut self, offset: usize, bytes: &[u8]) {
        for (to, from) in self.bytes.iter_mut().skip(offset).zip(bytes) {
            *to = *from;
        }
    }

    fn permit(&mut self, offset: usize, bits: &[u8]) {
        for (to, from) in self.writable.iter_mut().skip(offset).zip(bits) {
            *to = *from;
        }
    }

    /// Returns a byte. It is all ones beyond the end.
    #[must_use]
    pub fn byte(&self, offset: usize) -> u8 {
        self.bytes.get(offset).copied().unwrap_or(0xff)
    }

    fn word(&self, offset: usize) -> u32 {
        u32::from_le_bytes(core::array::from_fn(|i| self.byte(offset.saturating_add(i))))
    }

    /// The guest reads `size` bytes (up to 8) at `offset`.
    #[must_use]
    pub fn read(&self, offset: usize, size: u8) -> u64 {
        (0..usize::from(size.min(8))).fold(0, |v, i| v | u64::from(self.byte(offset.saturating_add(i))) << (i << 3))
    }

    /// The guest writes `size` bytes (up to 8) at `offset`. Bits that it may not write keep their value.
    pub fn write(&mut self, offset: usize, size: u8, value: u64) {
        let bytes = value.to_le_bytes();
        let targets = self.bytes.iter_mut().zip(&self.writable).skip(offset);
        for ((to, mask), from) in targets.zip(bytes.iter().take(usize::from(size))) {
            *to = *to & !mask | from & mask;
        }
    }

    /// The command register.
    #[must_use]
    pub fn command(&self) -> Command {
        Command::from_bits_truncate(self.word(COMMAND) as u16)
    }

    /// Returns the present address of BAR `index`, even if its decoding is disabled.
    #[must_use]
    pub fn bar(&self, index: usize) -> u32 {
        let value = self.word(bar_offset(index));
        if value & 1 != 0 { value & !3 } else { value & !0xf }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn space() -> ConfigSpace {
        let mut s = ConfigSpace::new(&Identity {
            vendor: 0x1af4,
            device: 0x1041,
            revision: 1,
            class: 0x02_0000,
            subsystem_vendor: 0x1af4,
            subsystem: 0x1041,
        });
        s.add_bar(0, Bar::Memory32, 0x4000, 0xc000_4000);
        s.add_bar(1, Bar::Io, 0x100, 0x1100);
        s
    }

    #[test]
    fn identity_is_read_only_and_read_at_any_width() {
        let mut s = space();
        for offset in (0..0x40).filter(|o| !matches!(o, 0x04 | 0x05 | 0x0c | 0x0d | 0x10..0x18 | 0x3c)) {
            let before = s.byte(offset);
            s.write(offset, 1, 0xff);
            s.write(offset, 1, 0x00);
            assert_eq!(s.byte(offset), before, "{offset:#x}");
        }
        assert_eq!(s.read(0, 4), 0x1041_1af4);
        assert_eq!(s.read(0, 8), 0x1041_1af4);
        assert_eq!((s.read(2, 2), s.read(0x0b, 1), s.read(8, 4)), (0x1041, 2, 0x0200_0001));
        assert_eq!(s.read(0xfe, 4), 0xffff_0000);
        assert_eq!(s.read(0x100, 4), 0xffff_ffff);
    }

    #[test]
    fn bars_are_sized_and_moved() {
        let mut s = space();
        assert_eq!((s.bar(0), s.bar(1)), (0xc000_4000, 0x1100));
        for (offset, all_ones) in [(0x10, 0xffff_c000), (0x14, 0xffff_ff01), (0x18, 0), (0x30, 0)] {
            let old = s.read(offset, 4);
            s.write(offset, 4, 0xffff_ffff);
            assert_eq!(s.read(offset, 4), all_ones, "BAR at {offset:#x}");
            s.write(offset, 4, old);
            assert_eq!(s.read(offset, 4), old);
        }
        s.write(0x10, 4, 0xd123_4567);
        s.write(0x14, 4, 0x2abc);
        assert_eq!((s.bar(0), s.bar(1)), (0xd123_4000, 0x2a00));
    }

    #[test]
    fn the_command_register_takes_its_defined_bits() {
        let mut s = space();
        assert_eq!(s.command(), Command::empty());
        s.write(4, 2, 0xffff);
        assert_eq!(s.read(4, 2), 0x0547);
        assert_eq!(s.command(), Command::all());
    }

    #[test]
    fn capabilities_are_chained_until_there_is_no_more_room() {
        let mut s = space();
        assert_eq!(s.read(0x34, 1), 0);
        assert_eq!(s.add_capability(0x11, &[0; 10], &[0, 0xc0]), Some(0x40));
        assert_eq!(s.add_capability(0x09, &[16; 14], &[]), Some(0x4c));
        assert_eq!((s.read(0x34, 1), s.read(0x41, 1), s.read(0x4d, 1)), (0x40, 0x4c, 0));
        assert_eq!(s.read(6, 2), 0x10);
        s.write(0x40, 4, 0xffff_ffff);
        assert_eq!(s.read(0x40, 4), 0xc000_4c11);
        let last = core::iter::from_fn(|| s.add_capability(0x09, &[0; 14], &[])).last();
        assert_eq!(last, Some(0xec));
        assert_eq!(s.add_capability(0x09, &[0; 2], &[]), Some(0xfc));
        assert_eq!(s.add_capability(0x09, &[], &[]), None);
    }

    proptest! {
        #[test]
        fn hostile_accesses_are_harmless(accesses in proptest::collection::vec((0usize..0x1010, 0u8.., any::<u64>()), 1..100)) {
            let mut s = space();
            for (offset, size, value) in accesses {
                s.write(offset, size, value);
                let _ = s.read(offset, size);
                prop_assert_eq!(s.read(0, 4), 0x1041_1af4);
                prop_assert_eq!(s.bar(0) & 0x3fff, 0);
                prop_assert_eq!(s.bar(1) & 0xff, 0);
            }
        }
    }
}
