//! Registers by name, as rows of a table, and the way to them. Each driver has its own table.

#![allow(unsafe_code, reason = "registers are memory that the device answers for")]

use core::ptr::NonNull;

use crate::dma::DmaBuffer;

/// The effect of reading and writing a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// A read returns what was written, except in special bits.
    ReadWrite,
    /// The driver never writes it.
    ReadOnly,
    /// The driver never reads it.
    WriteOnly,
    /// A counter or an interrupt cause. Reading sets it to 0.
    ReadClear,
}

/// One row of the table: a register, or an array of registers at a fixed distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// Name in the data sheet.
    pub name: &'static str,
    /// Offset of the first in BAR 0, in bytes.
    pub offset: u32,
    /// Bytes from one to the next.
    pub stride: u32,
    /// The number of registers that the driver knows.
    pub count: u32,
    /// Access.
    pub access: Access,
    /// Section of the data sheet.
    pub section: &'static str,
}

/// A register that holds an address at which the device writes or reads memory by itself. Only
/// [`Bus::write_base`] takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base(Register);

impl Base {
    /// For the table alone.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(register: Register) -> Self {
        Self(register)
    }

    /// The row of the table. Its address is of no use: [`Bus::write_base`] writes the register.
    #[must_use]
    pub const fn register(&self) -> Register {
        self.0
    }
}

/// Makes the constants of a driver's registers, and `TABLE` with all of them.
#[macro_export]
macro_rules! registers {
    ($($kind:tt $reg:ident $name:literal $offset:literal + $stride:literal x $count:literal $access:ident $section:literal)+) => {
        $($crate::registers!(@row $kind $reg $name $offset $stride $count $access $section);)+
        /// All registers.
        pub const TABLE: &[$crate::registers::Register] = &[$($crate::registers!(@value $kind $reg)),+];
    };
    (@row plain $reg:ident $name:literal $offset:literal $stride:literal $count:literal $access:ident $section:literal) => {
        #[doc = concat!($name, ", data sheet ", $section)]
        pub const $reg: $crate::registers::Register = $crate::registers!(@new $name $offset $stride $count $access $section);
    };
    (@row base $reg:ident $name:literal $offset:literal $stride:literal $count:literal $access:ident $section:literal) => {
        #[doc = concat!($name, ", data sheet ", $section)]
        pub const $reg: $crate::registers::Base = $crate::registers::Base::new($crate::registers!(@new $name $offset $stride $count $access $section));
    };
    (@new $name:literal $offset:literal $stride:literal $count:literal $access:ident $section:literal) => {
        $crate::registers::Register { name: $name, offset: $offset, stride: $stride, count: $count, access: $crate::registers::Access::$access, section: $section }
    };
    (@value plain $reg:ident) => { $reg };
    (@value base $reg:ident) => { $reg.register() };
}

impl Register {
    /// Offset in BAR 0 of the `n`th.
    #[inline(always)]
    const fn at(&self, n: u16) -> u32 {
        debug_assert!((n as u32) < self.count);
        self.offset.wrapping_add((n as u32).wrapping_mul(self.stride))
    }
}

/// The device's registers: BAR 0, uncached, in words of 32 bits.
pub trait Registers {
    /// Reads at a byte offset.
    fn read(&self, offset: u32) -> u32;
    /// Writes at a byte offset. All earlier stores to memory are visible to the device before the write is.
    fn write(&self, offset: u32, value: u32);
}

/// The mapped BAR 0.
#[derive(Debug)]
pub struct Mmio {
    base: NonNull<u32>,
}

// SAFETY: the address is the same on every CPU, and the owner of the value is the only user.
unsafe impl Send for Mmio {}

/// Bytes of BAR 0.
pub const BAR_BYTES: usize = 0x2_0000;

impl Mmio {
    /// The registers at `base`.
    ///
    /// # Safety
    /// All [`BAR_BYTES`] of a device's BAR 0 are mapped there, uncached, for as long as the value lives. Nobody else
    /// uses them.
    #[must_use]
    pub const unsafe fn new(base: NonNull<u32>) -> Self {
        Self { base }
    }

    fn word(&self, offset: u32) -> *mut u32 {
        assert!((offset as usize) < BAR_BYTES);
        self.base.as_ptr().wrapping_add(offset as usize / 4)
    }
}

impl Registers for Mmio {
    #[inline(always)]
    fn read(&self, offset: u32) -> u32 {
        // SAFETY: within the BAR, as `word` checks; the caller of `new` has mapped it.
        unsafe { self.word(offset).read_volatile() }
    }

    #[inline(always)]
    fn write(&self, offset: u32, value: u32) {
        // The CPU does not reorder stores to write-back memory and to uncached memory. The fence keeps the compiler
        // from it.
        core::sync::atomic::fence(core::sync::atomic::Ordering::Release);
        // SAFETY: as in `read`.
        unsafe { self.word(offset).write_volatile(value) };
    }
}

/// Registers by name.
#[derive(Debug)]
pub struct Bus<R>(pub R);

impl<R: Registers> Bus<R> {
    /// Reads the `n`th.
    #[inline(always)]
    pub fn read(&self, register: &Register, n: u16) -> u32 {
        self.0.read(register.at(n))
    }

    /// Writes the `n`th.
    #[inline(always)]
    pub fn write(&self, register: &Register, n: u16, value: u32) {
        self.0.write(register.at(n), value);
    }

    /// Writes the address of a ring's memory to the device. No other function does that.
    pub fn write_base(&self, low: &Base, high: &Base, n: u16, memory: &DmaBuffer) {
        self.0.write(low.0.at(n), memory.bus() as u32);
        self.0.write(high.0.at(n), (memory.bus() >> 32) as u32);
    }

    /// Reads a register, changes the value by `f`, and writes it back.
    pub fn update(&self, register: &Register, n: u16, f: impl FnOnce(u32) -> u32) {
        self.write(register, n, f(self.read(register, n)));
    }
}
