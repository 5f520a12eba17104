//! #DB and single stepping across exits (SDM vol. 3B 18, vol. 3C 25.4.2, 28.2.1).
//!
//! #DB always exits, and the host injects it again. Without the exit, hardware would change DR6, DR7 and the pending
//! debug exceptions before the handler runs. An exit by #DB does not change them. So this file does.

#![allow(unsafe_code, reason = "DR6 is the guest's own, in the register")]

use crate::{
    events::kind,
    exit::Information as _,
    fields::{
        EXIT_QUALIFICATION, GUEST_DR7, GUEST_IA32_DEBUGCTL, GUEST_INTERRUPTIBILITY, GUEST_PENDING_DEBUG_EXCEPTIONS,
        GUEST_RFLAGS, GUEST_RIP,
    },
    instructions::CurrentVmcs,
};
use core::arch::asm;

/// Vector of #DB.
pub const VECTOR: u8 = 1;

const RFLAGS_TF: u64 = 1 << 8;
const RFLAGS_RF: u64 = 1 << 16;
const DR7_GD: u64 = 1 << 13;
const DEBUGCTL_LBR: u64 = 1 << 0;
const DEBUGCTL_BTF: u64 = 1 << 1;
/// DR6.BS. The pending debug exceptions have the same bit.
const BS: u64 = 1 << 14;
/// DR6.B0 to B3.
const B: u64 = 0xf;
/// Pending debug exceptions: a breakpoint that was enabled was met.
const ENABLED_BREAKPOINT: u64 = 1 << 12;
/// The bits that the exit qualification of a #DB shares with DR6: B0 to B3, BD, BS.
const QUALIFICATION: u64 = B | 1 << 13 | BS;
const SHADOW: u32 = 0b11;

/// DR6 as the handler of a #DB finds it.
fn dr6_after(old: u64, qualification: u64) -> u64 {
    old & !B | qualification & QUALIFICATION
}

/// Whether a single-step trap is due after an instruction: TF is set, and does not mean branches only.
fn steps(rflags: u64, debugctl: u64) -> bool {
    rflags & RFLAGS_TF != 0 && debugctl & DEBUGCTL_BTF == 0
}

/// Sets DR6, DR7 and DEBUGCTL for the guest's handler, after an exit by #DB. `kind` is the interruption type.
pub fn prepare_to_reflect(vmcs: &mut CurrentVmcs, kind: u8) {
    if kind == kind::PRIVILEGED_SOFTWARE_EXCEPTION {
        // INT1 is a trap: its handler returns to the next instruction. The exit left RIP at the INT1.
        let next = vmcs.next_rip();
        vmcs.write(GUEST_RIP, next);
    } else {
        let qualification = vmcs.read(EXIT_QUALIFICATION);
        let old: u64;
        // SAFETY: DR6 belongs to the guest. The host does not use it.
        unsafe { asm!("mov {}, dr6", out(reg) old, options(nomem, nostack, preserves_flags)) };
        let new = dr6_after(old, qualification);
        // SAFETY: as above. The reserved bits are as in the old value.
        unsafe { asm!("mov dr6, {}", in(reg) new, options(nomem, nostack, preserves_flags)) };
    }
    let dr7 = vmcs.read(GUEST_DR7);
    vmcs.write(GUEST_DR7, dr7 & !DR7_GD);
    let debugctl = vmcs.read(GUEST_IA32_DEBUGCTL);
    if debugctl & DEBUGCTL_LBR != 0 {
        vmcs.write(GUEST_IA32_DEBUGCTL, debugctl & !DEBUGCTL_LBR);
    }
    // In an interrupt shadow with TF set, the next entry requires BS to be pending, and fails without it (27.3.1.5).
    if vmcs.read(GUEST_INTERRUPTIBILITY) & SHADOW != 0 && steps(vmcs.read(GUEST_RFLAGS), debugctl) {
        let pending = vmcs.read(GUEST_PENDING_DEBUG_EXCEPTIONS);
        vmcs.write(GUEST_PENDING_DEBUG_EXCEPTIONS, pending | BS);
    }
}

/// Whether a debug trap comes right after the next entry, if that delivers no event.
pub fn trap_waits(vmcs: &CurrentVmcs) -> bool {
    vmcs.read(GUEST_PENDING_DEBUG_EXCEPTIONS) & (BS | ENABLED_BREAKPOINT) != 0
}

/// Updates the debug state after an instruction was emulated, or an iteration of one that goes on (`iteration`). Clears
/// RF, or sets it. If the guest is single-stepped, makes the trap pending.
pub fn completed(vmcs: &mut CurrentVmcs, iteration: bool) {
    let rflags = vmcs.read(GUEST_RFLAGS);
    let new = rflags & !RFLAGS_RF | if iteration { RFLAGS_RF } else { 0 };
    if new != rflags {
        vmcs.write(GUEST_RFLAGS, new);
    }
    if rflags & RFLAGS_TF == 0 {
        return;
    }
    if steps(rflags, vmcs.read(GUEST_IA32_DEBUGCTL)) {
        let pending = vmcs.read(GUEST_PENDING_DEBUG_EXCEPTIONS);
        vmcs.write(GUEST_PENDING_DEBUG_EXCEPTIONS, pending | BS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handler_finds_the_cause_in_dr6_and_no_older_breakpoint() {
        assert_eq!(dr6_after(0xffff_0ff3, 0x4000), 0xffff_4ff0);
        assert_eq!(dr6_after(0xffff_0ff0, 0x0001_2004), 0xffff_2ff4);
    }

    #[test]
    fn stepping_branches_only_is_not_a_step_for_every_instruction() {
        assert!(steps(0x102, 0));
        assert!(!steps(0x102, DEBUGCTL_BTF));
        assert!(!steps(0x2, 0));
    }
}
