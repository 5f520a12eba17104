//! Fetches and decodes the guest's instructions. It is needed if hardware gives neither an instruction's length nor
//! what the instruction would store.
//!
//! Follows SDM vol. 2 ch. 2 through the iced-x86 decoder. The bytes are read from guest memory once. Another vCPU may
//! have changed them since the exit, so the decoded instruction is compared with the exit's reason.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, Register};
use memory::GuestMemory;

use crate::{
    vcpu::{SegmentName, Vcpu},
    walk::{Access, PageFault, translate},
};

/// Longest instruction, bytes.
const MAX_LENGTH: usize = 15;
const EFER_LMA: u64 = 1 << 10;

/// Why an instruction cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Undecodable {
    /// Its bytes are not mapped, or no longer. The guest gets this #PF.
    Fault(PageFault),
    /// Its bytes are not the instruction that exited, because another vCPU is rewriting it. The guest runs it again.
    Changed,
    /// Its bytes are not an instruction that this machine knows. The guest gets #UD.
    Invalid,
}

/// Makes the decoder's tables, which are on the heap. Without this the first use makes them.
pub fn prepare() {
    let _ = Decoder::new(64, &[], DecoderOptions::NONE);
}

/// Default operand size of the code segment: 16, 32 or 64.
#[must_use]
pub fn bitness(vcpu: &impl Vcpu) -> u32 {
    let cs = vcpu.segment(SegmentName::Cs).attributes;
    if vcpu.efer() & EFER_LMA != 0 && cs.long() {
        64
    } else if cs.default_32() {
        32
    } else {
        16
    }
}

/// Returns the address of the instruction after one of `length` bytes.
#[must_use]
pub fn next_rip(vcpu: &impl Vcpu, length: u8) -> u64 {
    let next = vcpu.rip().wrapping_add(u64::from(length));
    if bitness(vcpu) == 64 { next } else { next & 0xffff_ffff }
}

/// Returns the instruction at CS:RIP.
///
/// # Errors
/// Its bytes cannot be read, or are not an instruction.
pub fn decode(vcpu: &impl Vcpu, memory: &GuestMemory) -> Result<Instruction, Undecodable> {
    let mut bytes = [0; MAX_LENGTH];
    let (bytes, fault) = fetch(vcpu, memory, &mut bytes);
    let mut decoder = Decoder::with_ip(bitness(vcpu), bytes, vcpu.rip(), DecoderOptions::NONE);
    let instruction = decoder.decode();
    if !instruction.is_invalid() {
        return Ok(instruction);
    }
    match fault {
        // Not all bytes were readable, and the decoder needed more.
        Some(fault) if decoder.last_error() == iced_x86::DecoderError::NoMoreBytes => Err(Undecodable::Fault(fault)),
        _ => Err(Undecodable::Invalid),
    }
}

/// Returns the address of the instruction after the one that exited. It uses the length that hardware gives. If there
/// is none, it decodes the instruction, and checks by `expected` that it is the right one.
///
/// # Errors
/// As [`decode`], and [`Undecodable::Changed`].
pub fn after(vcpu: &impl Vcpu, memory: &GuestMemory, expected: impl Fn(Mnemonic) -> bool) -> Result<u64, Undecodable> {
    if let Some(length) = vcpu.instruction_length() {
        return Ok(next_rip(vcpu, length));
    }
    let instruction = decode(vcpu, memory)?;
    if !expected(instruction.mnemonic()) {
        return Err(Undecodable::Changed);
    }
    Ok(next_rip(vcpu, instruction.len() as u8))
}

/// Reads the bytes at CS:RIP, up to 15, as far as they are mapped. The fault is that of the first byte that is not
/// mapped.
fn fetch<'a>(vcpu: &impl Vcpu, memory: &GuestMemory, into: &'a mut [u8; MAX_LENGTH]) -> (&'a [u8], Option<PageFault>) {
    if let Some((bytes, length)) = vcpu.instruction_bytes()
        && length != 0
    {
        *into = bytes;
        return (into.get(..usize::from(length)).unwrap_or(into), None);
    }
    let long = bitness(vcpu) == 64;
    let base = if long { 0 } else { vcpu.segment(SegmentName::Cs).base };
    let (mut filled, mut fault) = (0, None);
    // One page, and the next one if the instruction may reach into it.
    for _ in 0..2 {
        let start = base.wrapping_add(vcpu.rip()).wrapping_add(filled as u64);
        let linear = if long { start } else { start & 0xffff_ffff };
        let in_page = 0x1000_u64.saturating_sub(linear & 0xfff) as usize;
        let rest = into.get_mut(filled..).unwrap_or_default();
        let part = in_page.min(rest.len());
        if part == 0 {
            break;
        }
        match translate(vcpu, memory, linear, Access::Fetch) {
            Ok(gpa) => {
                // Where there is no memory, the bytes read as all ones.
                let slice = rest.get_mut(..part).unwrap_or_default();
                if memory.read(gpa, slice).is_err() {
                    slice.fill(0xff);
                }
            }
            Err(first) => {
                fault = Some(first);
                break;
            }
        }
        filled = filled.saturating_add(part);
    }
    (into.get(..filled).unwrap_or(into), fault)
}

/// A general-purpose register as an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpr {
    /// Encoding, 0 to 15.
    pub number: u8,
    /// Bytes: 1, 2, 4 or 8.
    pub size: u8,
    /// AH, CH, DH or BH.
    pub high: bool,
}

impl Gpr {
    /// Returns the operand for a register of the decoder, or `None` if it is not a general-purpose one.
    #[must_use]
    pub fn new(register: Register) -> Option<Self> {
        // The decoder numbers its registers class by class, and within a class by encoding.
        let index = register as u32;
        let in_class = |first: Register, last: Register, size| {
            (first as u32..=last as u32).contains(&index).then(|| Self {
                number: index.wrapping_sub(first as u32) as u8,
                size,
                high: false,
            })
        };
        in_class(Register::RAX, Register::R15, 8)
            .or_else(|| in_class(Register::EAX, Register::R15D, 4))
            .or_else(|| in_class(Register::AX, Register::R15W, 2))
            .or_else(|| in_class(Register::AL, Register::BL, 1))
            .or_else(|| in_class(Register::AH, Register::BH, 1).map(|r| Self { high: true, ..r }))
            .or_else(|| {
                in_class(Register::SPL, Register::R15L, 1).map(|r| Self { number: r.number.saturating_add(4), ..r })
            })
    }

    /// Its value, zero-extended.
    #[must_use]
    pub fn read(self, vcpu: &impl Vcpu) -> u64 {
        let full = vcpu.gprs().get(self.number);
        if self.high { full >> 8 & 0xff } else { full & mask(self.size) }
    }

    /// Sets it. A write of 4 bytes clears the upper half. A write of 1 or 2 bytes keeps the rest.
    pub fn write(self, vcpu: &mut impl Vcpu, value: u64) {
        let old = vcpu.gprs().get(self.number);
        let new = match self.size {
            8 => value,
            4 => value & 0xffff_ffff,
            _ if self.high => old & !0xff00 | (value & 0xff) << 8,
            size => old & !mask(size) | value & mask(size),
        };
        vcpu.gprs_mut().set(self.number, new);
    }
}

/// The low `size` bytes, 1 to 8.
#[must_use]
pub const fn mask(size: u8) -> u64 {
    !u64::MAX.unbounded_shl((size as u32) << 3)
}

#[cfg(test)]
mod tests;
