//! #DB and single stepping across exits (SDM vol. 3B 18, vol. 3C 25.4.2, 28.2.1).
//!
//! #DB always exits, and the host gives it back. An exit by #DB leaves DR6, DR7 and the pending debug exceptions as they
//! were before; hardware would have changed them on the way to the handler, so it is done here.

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
/// DR6.BS, and the same in the pending debug exceptions.
const BS: u64 = 1 << 14;
/// DR6.B0 to B3.
const B: u64 = 0xf;
/// What the exit qualification of a #DB has in common with DR6: B0 to B3, BD, BS.
const QUALIFICATION: u64 = B | 1 << 13 | BS;
const SHADOW: u32 = 0b11;

/// DR6 as the handler of a #DB finds it.
fn dr6_after(old: u64, qualification: u64) -> u64 {
    old & !B | qualification & QUALIFICATION
}

/// Whether a single-step trap is due after an instruction: TF set, and not for branches only.
fn steps(rflags: u64, debugctl: u64) -> bool {
    rflags & RFLAGS_TF != 0 && debugctl & DEBUGCTL_BTF == 0
}

/// After an exit by #DB of the given interruption type: makes DR6, DR7 and DEBUGCTL what the guest's handler is to find.
pub fn prepare_to_reflect(vmcs: &mut CurrentVmcs, kind: u8) {
    if kind == kind::PRIVILEGED_SOFTWARE_EXCEPTION {
        // INT1 is a trap: its handler returns behind it. The exit left RIP at it.
        let next = vmcs.next_rip();
        vmcs.write(GUEST_RIP, next);
    } else {
        let qualification = vmcs.read(EXIT_QUALIFICATION);
        let old: u64;
        // SAFETY: DR6 belongs to the guest; the host never looks at it.
        unsafe { asm!("mov {}, dr6", out(reg) old, options(nomem, nostack, preserves_flags)) };
        let new = dr6_after(old, qualification);
        // SAFETY: as above; the value has no reserved bit that the old one hadn't.
        unsafe { asm!("mov dr6, {}", in(reg) new, options(nomem, nostack, preserves_flags)) };
    }
    let dr7 = vmcs.read(GUEST_DR7);
    vmcs.write(GUEST_DR7, dr7 & !DR7_GD);
    let debugctl = vmcs.read(GUEST_IA32_DEBUGCTL);
    if debugctl & DEBUGCTL_LBR != 0 {
        vmcs.write(GUEST_IA32_DEBUGCTL, debugctl & !DEBUGCTL_LBR);
    }
    // In a shadow with TF set the next entry wants BS pending, and fails without (27.3.1.5).
    if vmcs.read(GUEST_INTERRUPTIBILITY) & SHADOW != 0 && steps(vmcs.read(GUEST_RFLAGS), debugctl) {
        let pending = vmcs.read(GUEST_PENDING_DEBUG_EXCEPTIONS);
        vmcs.write(GUEST_PENDING_DEBUG_EXCEPTIONS, pending | BS);
    }
}

/// After an instruction was emulated: RF ends with it, and if it was single-stepped the trap is due.
pub fn instruction_completed(vmcs: &mut CurrentVmcs) {
    let rflags = vmcs.read(GUEST_RFLAGS);
    if rflags & (RFLAGS_TF | RFLAGS_RF) == 0 {
        return;
    }
    vmcs.write(GUEST_RFLAGS, rflags & !RFLAGS_RF);
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
