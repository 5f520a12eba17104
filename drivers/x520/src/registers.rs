//! The registers that the driver uses, as one table, and the way to them (data sheet 8.2).

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
/// `Bus::write_base` takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base(Register);

macro_rules! registers {
    ($($kind:tt $reg:ident $name:literal $offset:literal + $stride:literal x $count:literal $access:ident $section:literal)+) => {
        $(registers!(@row $kind $reg $name $offset $stride $count $access $section);)+
        /// All registers.
        pub const TABLE: &[Register] = &[$(registers!(@value $kind $reg)),+];
    };
    (@row plain $reg:ident $name:literal $offset:literal $stride:literal $count:literal $access:ident $section:literal) => {
        #[doc = concat!($name, ", data sheet ", $section)]
        pub const $reg: Register = registers!(@new $name $offset $stride $count $access $section);
    };
    (@row base $reg:ident $name:literal $offset:literal $stride:literal $count:literal $access:ident $section:literal) => {
        #[doc = concat!($name, ", data sheet ", $section)]
        pub const $reg: Base = Base(registers!(@new $name $offset $stride $count $access $section));
    };
    (@new $name:literal $offset:literal $stride:literal $count:literal $access:ident $section:literal) => {
        Register { name: $name, offset: $offset, stride: $stride, count: $count, access: Access::$access, section: $section }
    };
    (@value plain $reg:ident) => { $reg };
    (@value base $reg:ident) => { $reg.0 };
}

// The registers of queues from 64 on lie elsewhere. The driver does not use these queues.
registers! {
    plain CTRL "CTRL" 0x00000 + 4 x 1 ReadWrite "8.2.3.1"
    plain STATUS "STATUS" 0x00008 + 4 x 1 ReadOnly "8.2.3.1"
    plain CTRL_EXT "CTRL_EXT" 0x00018 + 4 x 1 ReadWrite "8.2.3.1"
    plain ESDP "ESDP" 0x00020 + 4 x 1 ReadWrite "8.2.3.1"
    plain I2CCTL "I2CCTL" 0x00028 + 4 x 1 ReadWrite "8.2.3.1"
    plain LEDCTL "LEDCTL" 0x00200 + 4 x 1 ReadWrite "8.2.3.1"

    plain EEC "EEC" 0x10010 + 4 x 1 ReadWrite "8.2.3.2"
    plain EERD "EERD" 0x10014 + 4 x 1 ReadWrite "8.2.3.2"
    plain EEMNGCTL "EEMNGCTL" 0x10110 + 4 x 1 ReadOnly "8.2.3.2"

    plain SWSM "SWSM" 0x10140 + 4 x 1 ReadWrite "8.2.3.4"
    plain SW_FW_SYNC "SW_FW_SYNC" 0x10160 + 4 x 1 ReadWrite "8.2.3.4"

    plain EICR "EICR" 0x00800 + 4 x 1 ReadClear "8.2.3.5"
    plain EIMC "EIMC" 0x00888 + 4 x 1 WriteOnly "8.2.3.5"
    plain EIMC_EX "EIMC_EX" 0x00ab0 + 4 x 2 WriteOnly "8.2.3.5"

    plain FCTRL "FCTRL" 0x05080 + 4 x 1 ReadWrite "8.2.3.7"
    plain VLNCTRL "VLNCTRL" 0x05088 + 4 x 1 ReadWrite "8.2.3.7"
    plain MCSTCTRL "MCSTCTRL" 0x05090 + 4 x 1 ReadWrite "8.2.3.7"
    plain RXCSUM "RXCSUM" 0x05000 + 4 x 1 ReadWrite "8.2.3.7"
    plain MTA "MTA" 0x05200 + 4 x 128 ReadWrite "8.2.3.7"
    plain RAL "RAL" 0x0a200 + 8 x 128 ReadWrite "8.2.3.7"
    plain RAH "RAH" 0x0a204 + 8 x 128 ReadWrite "8.2.3.7"
    plain MPSAR "MPSAR" 0x0a600 + 4 x 256 ReadWrite "8.2.3.7"
    plain VFTA "VFTA" 0x0a000 + 4 x 128 ReadWrite "8.2.3.7"
    plain MRQC "MRQC" 0x0ec80 + 4 x 1 ReadWrite "8.2.3.7"
    plain RSSRK "RSSRK" 0x0eb80 + 4 x 10 ReadWrite "8.2.3.7"
    plain RETA "RETA" 0x0eb00 + 4 x 32 ReadWrite "8.2.3.7"

    base RDBAL "RDBAL" 0x01000 + 0x40 x 64 ReadWrite "8.2.3.8"
    base RDBAH "RDBAH" 0x01004 + 0x40 x 64 ReadWrite "8.2.3.8"
    plain RDLEN "RDLEN" 0x01008 + 0x40 x 64 ReadWrite "8.2.3.8"
    plain DCA_RXCTRL "DCA_RXCTRL" 0x0100c + 0x40 x 64 ReadWrite "8.2.3.11"
    plain RDH "RDH" 0x01010 + 0x40 x 64 ReadWrite "8.2.3.8"
    plain SRRCTL "SRRCTL" 0x01014 + 0x40 x 64 ReadWrite "8.2.3.8"
    plain RDT "RDT" 0x01018 + 0x40 x 64 ReadWrite "8.2.3.8"
    plain RXDCTL "RXDCTL" 0x01028 + 0x40 x 64 ReadWrite "8.2.3.8"
    plain RDRXCTL "RDRXCTL" 0x02f00 + 4 x 1 ReadWrite "8.2.3.8"
    plain RXPBSIZE "RXPBSIZE" 0x03c00 + 4 x 8 ReadWrite "8.2.3.8"
    plain RXCTRL "RXCTRL" 0x03000 + 4 x 1 ReadWrite "8.2.3.8"

    plain DMATXCTL "DMATXCTL" 0x04a80 + 4 x 1 ReadWrite "8.2.3.9"
    plain DTXMXSZRQ "DTXMXSZRQ" 0x08100 + 4 x 1 ReadWrite "8.2.3.9"
    plain TXPBSIZE "TXPBSIZE" 0x0cc00 + 4 x 8 ReadWrite "8.2.3.9"
    plain TXPBTHRESH "TXPBTHRESH" 0x04950 + 4 x 8 ReadWrite "8.2.3.9"
    plain MTQC "MTQC" 0x08120 + 4 x 1 ReadWrite "8.2.3.9"
    base TDBAL "TDBAL" 0x06000 + 0x40 x 64 ReadWrite "8.2.3.9"
    base TDBAH "TDBAH" 0x06004 + 0x40 x 64 ReadWrite "8.2.3.9"
    plain TDLEN "TDLEN" 0x06008 + 0x40 x 64 ReadWrite "8.2.3.9"
    plain TDH "TDH" 0x06010 + 0x40 x 64 ReadWrite "8.2.3.9"
    plain TDT "TDT" 0x06018 + 0x40 x 64 ReadWrite "8.2.3.9"
    plain TXDCTL "TXDCTL" 0x06028 + 0x40 x 64 ReadWrite "8.2.3.9"

    plain RTTDCS "RTTDCS" 0x04900 + 4 x 1 ReadWrite "8.2.3.10"

    plain HLREG0 "HLREG0" 0x04240 + 4 x 1 ReadWrite "8.2.3.22"
    plain MAXFRS "MAXFRS" 0x04268 + 4 x 1 ReadWrite "8.2.3.22"
    plain AUTOC "AUTOC" 0x042a0 + 4 x 1 ReadWrite "8.2.3.22"
    plain AUTOC2 "AUTOC2" 0x042a8 + 4 x 1 ReadWrite "8.2.3.22"
    plain ANLP1 "ANLP1" 0x042b0 + 4 x 1 ReadOnly "8.2.3.22"
    plain CORECTL "CORECTL" 0x14f00 + 4 x 1 ReadWrite "8.2.3.22"
    plain LINKS "LINKS" 0x042a4 + 4 x 1 ReadOnly "8.2.3.22"

    plain CRCERRS "CRCERRS" 0x04000 + 4 x 1 ReadClear "8.2.3.23"
    plain RXMPC "RXMPC" 0x03fa0 + 4 x 8 ReadClear "8.2.3.23"
    plain GPRC "GPRC" 0x04074 + 4 x 1 ReadClear "8.2.3.23"
    plain BPRC "BPRC" 0x04078 + 4 x 1 ReadClear "8.2.3.23"
    plain MPRC "MPRC" 0x0407c + 4 x 1 ReadClear "8.2.3.23"
    plain GPTC "GPTC" 0x04080 + 4 x 1 ReadClear "8.2.3.23"
    plain GORCL "GORCL" 0x04088 + 4 x 1 ReadClear "8.2.3.23"
    plain GORCH "GORCH" 0x0408c + 4 x 1 ReadClear "8.2.3.23"
    plain GOTCL "GOTCL" 0x04090 + 4 x 1 ReadClear "8.2.3.23"
    plain GOTCH "GOTCH" 0x04094 + 4 x 1 ReadClear "8.2.3.23"
    plain RUC "RUC" 0x040a4 + 4 x 1 ReadClear "8.2.3.23"
    plain ROC "ROC" 0x040ac + 4 x 1 ReadClear "8.2.3.23"
    plain RFC "RFC" 0x040a8 + 4 x 1 ReadClear "8.2.3.23"
    plain RJC "RJC" 0x040b0 + 4 x 1 ReadClear "8.2.3.23"
    plain TPR "TPR" 0x040d0 + 4 x 1 ReadClear "8.2.3.23"
    plain MPTC "MPTC" 0x040f0 + 4 x 1 ReadClear "8.2.3.23"
    plain BPTC "BPTC" 0x040f4 + 4 x 1 ReadClear "8.2.3.23"
    plain QPRDC "QPRDC" 0x01430 + 0x40 x 16 ReadClear "8.2.3.23"
    plain RQSMR "RQSMR" 0x02300 + 4 x 32 ReadWrite "8.2.3.23"

    plain PFVTCTL "PFVTCTL" 0x051b0 + 4 x 1 ReadWrite "8.2.3.27"
    plain PFVFRE "PFVFRE" 0x051e0 + 4 x 2 ReadWrite "8.2.3.27"
    plain PFVFTE "PFVFTE" 0x08110 + 4 x 2 ReadWrite "8.2.3.27"
    plain PFVML2FLT "PFVML2FLT" 0x0f000 + 4 x 64 ReadWrite "8.2.3.27"
    plain PFVLVF "PFVLVF" 0x0f100 + 4 x 64 ReadWrite "8.2.3.27"
    plain PFVLVFB "PFVLVFB" 0x0f200 + 4 x 128 ReadWrite "8.2.3.27"
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
    /// All [`BAR_BYTES`] of an 82599's BAR 0 are mapped there, uncached, for as long as the value lives. Nobody else
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
pub(crate) struct Bus<R>(pub R);

impl<R: Registers> Bus<R> {
    #[inline(always)]
    pub(crate) fn read(&self, register: &Register, n: u16) -> u32 {
        self.0.read(register.at(n))
    }

    #[inline(always)]
    pub(crate) fn write(&self, register: &Register, n: u16, value: u32) {
        self.0.write(register.at(n), value);
    }

    /// Writes the address of a ring's memory to the device. No other function does that.
    pub(crate) fn write_base(&self, low: &Base, high: &Base, n: u16, memory: &DmaBuffer) {
        self.0.write(low.0.at(n), memory.bus() as u32);
        self.0.write(high.0.at(n), (memory.bus() >> 32) as u32);
    }

    /// Reads a register, changes the value by `f`, and writes it back.
    pub(crate) fn update(&self, register: &Register, n: u16, f: impl FnOnce(u32) -> u32) {
        self.write(register, n, f(self.read(register, n)));
    }
}
