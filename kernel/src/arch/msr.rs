//! MSRs that may not be there: an access that the processor refuses returns that, instead of #GP.

#![allow(unsafe_code, reason = "RDMSR, WRMSR, and moving the code that they interrupt")]

use crate::arch::frame::Frame;
use core::arch::global_asm;
use speed::{Access, Msrs, Refused};

// msr_read(msr, &mut value) and msr_write(msr, value): whether the processor has done it. Only RDMSR and WRMSR may fault. They
// have changed nothing then, and #GP's handler goes on at msr_refused.
global_asm!(
    ".balign 16",
    ".global msr_read",
    ".global msr_read_instruction",
    ".global msr_write",
    ".global msr_write_instruction",
    ".global msr_refused",
    "msr_read:",
    "mov ecx, edi",
    "msr_read_instruction:",
    "rdmsr",
    "shl rdx, 32",
    "or rax, rdx",
    "mov [rsi], rax",
    "mov eax, 1",
    "ret",
    "msr_write:",
    "mov ecx, edi",
    "mov eax, esi",
    "mov rdx, rsi",
    "shr rdx, 32",
    "msr_write_instruction:",
    "wrmsr",
    "mov eax, 1",
    "ret",
    "msr_refused:",
    "xor eax, eax",
    "ret",
);

unsafe extern "C" {
    static msr_read_instruction: u8;
    static msr_write_instruction: u8;
    static msr_refused: u8;
    fn msr_read(msr: u32, value: *mut u64) -> u32;
    fn msr_write(msr: u32, value: u64) -> u32;
}

/// Makes an access that has faulted return. Returns false if something else has faulted.
pub fn leave(frame: &mut Frame) -> bool {
    let here = [&raw const msr_read_instruction, &raw const msr_write_instruction].map(|at| at.addr() as u64);
    if here.contains(&frame.rip) {
        frame.rip = (&raw const msr_refused).addr() as u64;
        true
    } else {
        false
    }
}

/// The registers of this core's speed and microcode.
pub struct Physical;

impl Msrs for Physical {
    fn read(&mut self, msr: u32) -> Result<u64, Refused> {
        let mut value = 0;
        // SAFETY: `speed` names only registers whose reading has no effect. If one is not there, the handler makes this return 0.
        // `value` is ours.
        match unsafe { msr_read(msr, &raw mut value) } {
            0 => Err(Refused { msr, access: Access::Read }),
            _ => Ok(value),
        }
    }

    fn write(&mut self, msr: u32, value: u64) -> Result<(), Refused> {
        // SAFETY: `speed` writes only registers of frequency, thermal logs and the microcode's revision. None has to do with memory. If
        // one is not there, the handler makes this return 0.
        match unsafe { msr_write(msr, value) } {
            0 => Err(Refused { msr, access: Access::Write }),
            _ => Ok(()),
        }
    }
}
