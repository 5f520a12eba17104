//! The VMX instructions (SDM vol. 3C ch. 31) as functions, and the VMCS that is current on this core.

#![allow(unsafe_code, reason = "VMX instructions are inline assembly")]

use crate::fields::{Field, HostField, INSTRUCTION_ERROR, Width};
use core::{arch::asm, fmt};

/// A VMX instruction failed (SDM vol. 3C 31.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// CF: there is no current VMCS to hold an error number, or the operand is not a usable address.
    Invalid,
    /// ZF: the number in the VM-instruction error field (table 31-1).
    Valid(u32),
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid => f.write_str("VMfailInvalid: no current VMCS, or a bad address"),
            Self::Valid(number) => write!(f, "VM-instruction error {number}: {}", error_text(*number)),
        }
    }
}

/// What a VM-instruction error number means (SDM vol. 3C table 31-1).
pub fn error_text(number: u32) -> &'static str {
    match number {
        1 => "VMCALL in VMX root operation",
        2 => "VMCLEAR with an invalid physical address",
        3 => "VMCLEAR with the VMXON pointer",
        4 => "VMLAUNCH with a VMCS that is not clear",
        5 => "VMRESUME with a VMCS that is not launched",
        6 => "VMRESUME after VMXOFF",
        7 => "VM entry with invalid control fields",
        8 => "VM entry with invalid host-state fields",
        9 => "VMPTRLD with an invalid physical address",
        10 => "VMPTRLD with the VMXON pointer",
        11 => "VMPTRLD with a wrong VMCS revision identifier",
        12 => "VMREAD or VMWRITE of a field that the CPU doesn't have",
        13 => "VMWRITE to a read-only field",
        15 => "VMXON in VMX root operation",
        16 => "VM entry with an invalid executive-VMCS pointer",
        17 => "VM entry with a non-launched executive VMCS",
        18 => "VM entry with an executive-VMCS pointer that is not the VMXON pointer",
        19 => "VMCALL with a VMCS that is not clear",
        20 => "VMCALL with invalid VM-exit control fields",
        22 => "VMCALL with a wrong MSEG revision identifier",
        23 => "VMXOFF under dual-monitor treatment of SMM",
        24 => "VMCALL with invalid SMM-monitor features",
        25 => "VM entry with invalid VM-execution control fields in an executive VMCS",
        26 => "VM entry with events blocked by MOV SS",
        28 => "INVEPT or INVVPID with an invalid operand",
        _ => "unknown",
    }
}

/// Turns the flags after a VMX instruction into a result. `invalid` is CF and `valid` is ZF, as SETcc stored them.
fn outcome(invalid: u8, valid: u8) -> Result<(), Failed> {
    if invalid != 0 {
        Err(Failed::Invalid)
    } else if valid != 0 {
        // ZF is set only if there is a current VMCS. So the read of the field doesn't fail for lack of one.
        Err(Failed::Valid(raw_read(INSTRUCTION_ERROR.encoding()).map_or(0, |n| n as u32)))
    } else {
        Ok(())
    }
}

macro_rules! with_memory_operand {
    ($(#[$doc:meta])* $name:ident, $instruction:literal) => {
        $(#[$doc])*
        pub unsafe fn $name(physical: u64) -> Result<(), Failed> {
            let (invalid, valid): (u8, u8);
            // SAFETY: the caller's promise. The operand is a 64-bit value on our stack. The instruction only reads it.
            unsafe {
                asm!(
                    concat!($instruction, " [{p}]"),
                    "setc {c}",
                    "setz {z}",
                    p = in(reg) &raw const physical,
                    c = out(reg_byte) invalid,
                    z = out(reg_byte) valid,
                    options(nostack),
                );
            }
            outcome(invalid, valid)
        }
    };
}

with_memory_operand! {
    /// VMXON.
    ///
    /// # Errors
    /// The region's revision identifier or address is wrong, or the core is in VMX operation already.
    ///
    /// # Safety
    /// The core is at CPL 0. CR4.VMXE is set, and CR0 and CR4 are as the fixed-bit MSRs require. `physical` is a 4 KiB
    /// frame that nobody else uses while this core is in VMX operation.
    vmxon, "vmxon"
}
with_memory_operand! {
    /// VMCLEAR: the VMCS becomes inactive and clear, and its contents are in memory.
    ///
    /// # Errors
    /// No VMCS can be at this address.
    ///
    /// # Safety
    /// The core is in VMX root operation. `physical` is a VMCS region that only this core uses.
    vmclear, "vmclear"
}
with_memory_operand! {
    /// VMPTRLD: the VMCS becomes active and current on this core.
    ///
    /// # Errors
    /// The address or the revision identifier in the region is wrong.
    ///
    /// # Safety
    /// The core is in VMX root operation. `physical` is a VMCS region that is active on no other core. No other core
    /// uses it until it is cleared.
    vmptrld, "vmptrld"
}

fn raw_read(encoding: u32) -> Result<u64, ()> {
    let (value, invalid, valid): (u64, u8, u8);
    // SAFETY: VMREAD changes only its destination and the flags. This module calls it only in VMX root operation, where
    // it can't fault.
    unsafe {
        asm!(
            "vmread {v}, {e}",
            "setc {c}",
            "setz {z}",
            v = out(reg) value,
            e = in(reg) u64::from(encoding),
            c = out(reg_byte) invalid,
            z = out(reg_byte) valid,
            options(nostack, nomem),
        );
    }
    if invalid | valid == 0 { Ok(value) } else { Err(()) }
}

/// The VMCS that is current on this core.
#[derive(Debug)]
pub struct CurrentVmcs {
    physical: u64,
}

impl CurrentVmcs {
    /// Clears the VMCS at `physical` and makes it current on this core.
    ///
    /// # Errors
    /// The CPU refuses the address or the revision identifier in the region.
    ///
    /// # Safety
    /// As for [`vmclear`] and [`vmptrld`]. Also, as long as the value is used, this core stays in VMX operation and
    /// makes no other VMCS current.
    pub unsafe fn load(physical: u64) -> Result<Self, Failed> {
        // SAFETY: the caller's promise.
        unsafe {
            vmclear(physical)?;
            vmptrld(physical)?;
        }
        Ok(Self { physical })
    }

    /// Reads a field. If the CPU doesn't have it, returns 0 and writes a line to the log.
    pub fn read<W: Width>(&self, field: Field<W>) -> W::Value {
        let raw = raw_read(field.encoding()).unwrap_or_else(|()| {
            self.tell_read(field.encoding());
            0
        });
        W::truncate(raw)
    }

    /// Writes a field of the guest-state or control areas. If the CPU refuses, writes a line to the log.
    pub fn write<W: Width>(&mut self, field: Field<W>, value: W::Value) {
        // SAFETY: a guest field or a control can't harm the host. The guest sees only what the EPT maps. The addresses
        // in control fields (MSR bitmap, EPT root) are the constructor's promise.
        unsafe { self.raw_write(field.encoding(), value.into()) };
    }

    /// Writes a field of the host-state area.
    ///
    /// # Safety
    /// This core must be able to run with the value after the next VM exit.
    pub unsafe fn write_host<W: Width>(&mut self, field: HostField<W>, value: W::Value) {
        // SAFETY: the caller's promise.
        unsafe { self.raw_write(field.encoding(), value.into()) };
    }

    /// # Safety
    /// As for [`Self::write_host`] if the encoding is of the host-state area.
    unsafe fn raw_write(&mut self, encoding: u32, value: u64) {
        let (invalid, valid): (u8, u8);
        // SAFETY: by `load`, the core is in VMX root operation with a current VMCS. The value is the caller's promise.
        unsafe {
            asm!(
                "vmwrite {e}, {v}",
                "setc {c}",
                "setz {z}",
                e = in(reg) u64::from(encoding),
                v = in(reg) value,
                c = out(reg_byte) invalid,
                z = out(reg_byte) valid,
                options(nostack),
            );
        }
        if let Err(e) = outcome(invalid, valid) {
            self.tell_write(encoding, value, e);
        }
    }

    /// Logs a VMREAD that failed. Inlined, it would put the log's indirect call beside each VMREAD in the path of an exit.
    #[cold]
    #[inline(never)]
    fn tell_read(&self, encoding: u32) {
        log::error!("VMREAD of field {encoding:#06x} failed on the VMCS at {:#x}", self.physical);
    }

    /// Logs a VMWRITE that failed.
    #[cold]
    #[inline(never)]
    fn tell_write(&self, encoding: u32, value: u64, error: Failed) {
        log::error!("VMWRITE of {value:#x} to field {encoding:#06x} of the VMCS at {:#x}: {error}", self.physical);
    }
}

/// The translations that an INVEPT or INVVPID drops (SDM vol. 3C 29.4.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Scope {
    /// One EPT pointer, or one VPID.
    SingleContext = 1,
    /// All.
    AllContexts = 2,
}

/// INVEPT: drops translations that were derived from the EPT of `ept_pointer` on this core.
///
/// # Errors
/// The CPU doesn't have that scope, or the pointer is malformed.
///
/// # Safety
/// VMX root operation.
pub unsafe fn invept(scope: Scope, ept_pointer: u64) -> Result<(), Failed> {
    let descriptor = [ept_pointer, 0];
    let (invalid, valid): (u8, u8);
    // SAFETY: the caller's promise. The descriptor has the 16 bytes that the instruction reads.
    unsafe {
        asm!(
            "invept {t}, [{d}]",
            "setc {c}",
            "setz {z}",
            t = in(reg) scope as u64,
            d = in(reg) &raw const descriptor,
            c = out(reg_byte) invalid,
            z = out(reg_byte) valid,
            options(nostack),
        );
    }
    outcome(invalid, valid)
}

/// INVVPID: drops translations tagged with `vpid` on this core.
///
/// # Errors
/// The CPU doesn't have that scope, or the VPID is 0.
///
/// # Safety
/// VMX root operation.
pub unsafe fn invvpid(scope: Scope, vpid: u16) -> Result<(), Failed> {
    let descriptor = [u64::from(vpid), 0];
    let (invalid, valid): (u8, u8);
    // SAFETY: as for `invept`.
    unsafe {
        asm!(
            "invvpid {t}, [{d}]",
            "setc {c}",
            "setz {z}",
            t = in(reg) scope as u64,
            d = in(reg) &raw const descriptor,
            c = out(reg_byte) invalid,
            z = out(reg_byte) valid,
            options(nostack),
        );
    }
    outcome(invalid, valid)
}
