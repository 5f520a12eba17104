//! The controller's registers (NVMe Base 2.0, 3.1.3) and the way to them.

#![allow(unsafe_code, reason = "registers are memory that the device answers for")]

use core::ptr::NonNull;

use bitfield_struct::bitfield;

/// Controller capabilities, lower half (3.1.3.1).
pub(crate) const CAP_LOW: u32 = 0x00;
/// Controller capabilities, upper half.
pub(crate) const CAP_HIGH: u32 = 0x04;
/// Version (3.1.3.2).
pub(crate) const VS: u32 = 0x08;
/// Interrupt mask set (3.1.3.3).
pub(crate) const INTMS: u32 = 0x0c;
/// Controller configuration (3.1.3.5).
pub(crate) const CC: u32 = 0x14;
/// Controller status (3.1.3.6).
pub(crate) const CSTS: u32 = 0x1c;
/// Admin queue attributes (3.1.3.8).
pub(crate) const AQA: u32 = 0x24;
/// Admin submission queue base address (3.1.3.9).
pub(crate) const ASQ: u32 = 0x28;
/// Admin completion queue base address (3.1.3.10).
pub(crate) const ACQ: u32 = 0x30;
/// First doorbell (NVMe over PCIe Transport 1.0, 3.1.2).
const DOORBELLS: u32 = 0x1000;

/// What every register of a device that has left the bus reads as.
pub(crate) const ALL_ONES: u32 = u32::MAX;

/// Controller capabilities (3.1.3.1).
#[bitfield(u64)]
pub(crate) struct Cap {
    /// Most entries of an I/O queue, minus one.
    pub mqes: u16,
    pub cqr: bool,
    #[bits(2)]
    _ams: u8,
    #[bits(5)]
    _reserved: u8,
    /// Longest time for CSTS.RDY to follow CC.EN, in units of 500 ms.
    pub to: u8,
    /// Distance of two doorbells: 4 bytes shifted left by this.
    #[bits(4)]
    pub dstrd: u8,
    _nssrs: bool,
    /// Supported command sets. Bit 0: NVM. Bit 7: none.
    pub css: u8,
    #[bits(3)]
    _reserved2: u8,
    /// Smallest page: 4 KiB shifted left by this.
    #[bits(4)]
    pub mpsmin: u8,
    #[bits(4)]
    _mpsmax: u8,
    _reserved3: u8,
}

/// Controller configuration (3.1.3.5).
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub(crate) struct Cc {
    pub en: bool,
    #[bits(3)]
    _reserved: u8,
    #[bits(3)]
    pub css: u8,
    #[bits(4)]
    pub mps: u8,
    #[bits(3)]
    pub ams: u8,
    /// Shutdown notification. 1: normal, 2: abrupt.
    #[bits(2)]
    pub shn: u8,
    /// log2 of the bytes of a submission queue entry.
    #[bits(4)]
    pub iosqes: u8,
    /// log2 of the bytes of a completion queue entry.
    #[bits(4)]
    pub iocqes: u8,
    _reserved2: u8,
}

/// CC.SHN of an orderly shutdown.
pub(crate) const SHN_NORMAL: u8 = 1;
/// CC.SHN if there is no time.
pub(crate) const SHN_ABRUPT: u8 = 2;

/// Controller status (3.1.3.6).
#[bitfield(u32)]
pub(crate) struct Csts {
    pub rdy: bool,
    /// Controller fatal status.
    pub cfs: bool,
    /// 0: no shutdown, 1: under way, 2: complete.
    #[bits(2)]
    pub shst: u8,
    #[bits(28)]
    _rest: u32,
}

/// CSTS.SHST: the shutdown is complete.
pub(crate) const SHST_COMPLETE: u8 = 2;

/// The controller's registers: BAR 0, uncached.
pub trait Registers {
    /// Reads 32 bits at a byte offset, a multiple of 4.
    fn read(&self, offset: u32) -> u32;
    /// Writes 32 bits at a byte offset, a multiple of 4. All earlier stores to memory are visible to the device before
    /// the write is.
    fn write(&self, offset: u32, value: u32);
    /// Bytes of BAR 0.
    fn size(&self) -> u32;
}

/// The mapped BAR 0. Copies reach the same registers: the controller's owner and each queue have one.
#[derive(Clone, Debug)]
pub struct Mmio {
    base: NonNull<u32>,
    len: u32,
}

// SAFETY: the address is the same on every CPU. Users of copies write different registers: each queue its doorbells.
unsafe impl Send for Mmio {}

/// Least bytes of BAR 0: the registers and a page of doorbells.
pub const BAR_BYTES: u64 = 0x2000;

impl Mmio {
    /// The registers at `base`, `len` bytes.
    ///
    /// # Safety
    /// These bytes of an NVMe controller's BAR 0 are mapped there, uncached, for as long as the value or a copy lives.
    /// Nobody else uses them.
    #[must_use]
    pub const unsafe fn new(base: NonNull<u32>, len: u32) -> Self {
        Self { base, len }
    }

    fn word(&self, offset: u32) -> Option<*mut u32> {
        (offset < self.len & !3).then(|| self.base.as_ptr().wrapping_add(offset as usize / 4))
    }
}

impl Registers for Mmio {
    /// All ones beyond the BAR.
    #[inline(always)]
    fn read(&self, offset: u32) -> u32 {
        // SAFETY: within the BAR, as `word` checks; the caller of `new` has mapped it.
        self.word(offset).map_or(ALL_ONES, |at| unsafe { at.read_volatile() })
    }

    /// Nothing beyond the BAR.
    #[inline(always)]
    fn write(&self, offset: u32, value: u32) {
        // The CPU does not reorder stores to write-back memory and to uncached memory. The fence keeps the compiler
        // from it.
        core::sync::atomic::fence(core::sync::atomic::Ordering::Release);
        if let Some(at) = self.word(offset) {
            // SAFETY: as in `read`.
            unsafe { at.write_volatile(value) };
        }
    }

    fn size(&self) -> u32 {
        self.len
    }
}

/// Reads CAP.
pub(crate) fn read_cap(registers: &impl Registers) -> Cap {
    Cap::from_bits(u64::from(registers.read(CAP_HIGH)) << 32 | u64::from(registers.read(CAP_LOW)))
}

/// Writes a register of 64 bits, the lower half first.
pub(crate) fn write_wide(registers: &impl Registers, offset: u32, value: u64) {
    registers.write(offset, value as u32);
    registers.write(offset.saturating_add(4), (value >> 32) as u32);
}

/// Offset of the doorbell of a submission queue's tail. `dstrd`: CAP.DSTRD.
pub(crate) const fn tail_doorbell(queue: u16, dstrd: u8) -> u32 {
    doorbell((queue as u32) << 1, dstrd)
}

/// Offset of the doorbell of a completion queue's head. `dstrd`: CAP.DSTRD.
pub(crate) const fn head_doorbell(queue: u16, dstrd: u8) -> u32 {
    doorbell((queue as u32) << 1 | 1, dstrd)
}

/// Offset of the doorbell number `index`. One that is too far away is beyond every BAR.
const fn doorbell(index: u32, dstrd: u8) -> u32 {
    index.saturating_mul(4 << dstrd).saturating_add(DOORBELLS)
}

/// Tells the controller that power goes, and does not wait. For a panic: nothing else of the driver is touched. A
/// controller that was told of its shutdown before is not told again.
pub fn notify_abrupt_shutdown(registers: &impl Registers) {
    let cc = registers.read(CC);
    if cc != ALL_ONES && Cc::from_bits(cc).en() && Cc::from_bits(cc).shn() == 0 {
        registers.write(CC, Cc::from_bits(cc).with_shn(SHN_ABRUPT).into_bits());
    }
}

#[cfg(test)]
mod tests {
    use super::{Cap, Cc, head_doorbell, tail_doorbell};

    #[test]
    fn fields_are_where_the_specification_puts_them() {
        let cap = Cap::from_bits(0x0010_0026_2801_03ff);
        assert_eq!((cap.mqes(), cap.cqr(), cap.to(), cap.dstrd()), (1023, true, 0x28, 6));
        assert_eq!((cap.css(), cap.mpsmin()), (1, 0));
        let cc = Cc::new().with_en(true).with_shn(1).with_iosqes(6).with_iocqes(4);
        assert_eq!(cc.into_bits(), 0x0046_4001);
    }

    #[test]
    fn doorbells_follow_the_stride() {
        assert_eq!((tail_doorbell(0, 0), head_doorbell(0, 0), tail_doorbell(1, 0)), (0x1000, 0x1004, 0x1008));
        assert_eq!((tail_doorbell(3, 2), head_doorbell(3, 2)), (0x1000 + 96, 0x1000 + 112));
        assert_eq!(head_doorbell(u16::MAX, 10), 0x1000 + 0x1_ffff * 4096);
    }
}
