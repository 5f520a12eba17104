//! Writes the host-state area: the state of this core after a VM exit (SDM vol. 3C 25.5, 28.5). All of it except RSP is
//! the same at each exit, and is written when the vCPU is reset.

#![allow(unsafe_code, reason = "reads this core's descriptor tables and writes the host-state area")]

use crate::{entry, fields::*, instructions::CurrentVmcs, msr};
use core::arch::asm;
use speculation::Switch;
use x86_64::{
    instructions::{
        segmentation::{CS, DS, ES, FS, GS, SS, Segment},
        tables::{sgdt, sidt},
    },
    registers::{
        control::{Cr0, Cr3, Cr4},
        model_specific::{FsBase, GsBase, Msr},
    },
};

/// Mask of a selector in the host-state area: its low three bits (TI and RPL) must be clear.
const SELECTOR: u16 = !7;

fn task_register() -> u16 {
    let selector: u16;
    // SAFETY: STR only reads.
    unsafe { asm!("str {:x}", out(reg) selector, options(nomem, nostack, preserves_flags)) };
    selector
}

/// Base of the TSS, from the two halves of its descriptor (SDM vol. 3A 8.2.3).
fn tss_base(low: u64, high: u64) -> u64 {
    low >> 16 & 0x00ff_ffff | low >> 32 & 0xff00_0000 | high << 32
}

/// Writes the host state of the core that runs this: the present values of its control registers, descriptor tables and
/// bases. They must not change as long as the vCPU is used.
///
/// # Safety
/// The core is in 64-bit mode at CPL 0, with interrupts off. Its GDT holds the descriptor of the TSS in TR.
pub unsafe fn write(vmcs: &mut CurrentVmcs, switch: &Switch) {
    let gdt = sgdt();
    let tr = task_register();
    let descriptor = gdt.base.as_u64().wrapping_add(u64::from(tr & SELECTOR)) as usize;
    let descriptor = core::ptr::with_exposed_provenance::<u64>(descriptor);
    // SAFETY: by the caller's promise TR's descriptor is in the GDT. It is 16 bytes long in 64-bit mode.
    let tss = unsafe { tss_base(descriptor.read_unaligned(), descriptor.add(1).read_unaligned()) };
    let (frame, pcid) = Cr3::read_raw();
    // SAFETY: these MSRs exist on every CPU with VT-x.
    let (pat, efer) = unsafe { (Msr::new(msr::PAT).read(), Msr::new(msr::EFER).read()) };
    // SAFETY: all of these are this core's present values. `exit_address` is where entry.s continues, on the stack that
    // it saves at each entry. The host never uses SYSENTER.
    unsafe {
        vmcs.write_host(HOST_ES_SELECTOR, ES::get_reg().0 & SELECTOR);
        vmcs.write_host(HOST_CS_SELECTOR, CS::get_reg().0 & SELECTOR);
        vmcs.write_host(HOST_SS_SELECTOR, SS::get_reg().0 & SELECTOR);
        vmcs.write_host(HOST_DS_SELECTOR, DS::get_reg().0 & SELECTOR);
        vmcs.write_host(HOST_FS_SELECTOR, FS::get_reg().0 & SELECTOR);
        vmcs.write_host(HOST_GS_SELECTOR, GS::get_reg().0 & SELECTOR);
        vmcs.write_host(HOST_TR_SELECTOR, tr & SELECTOR);
        vmcs.write_host(HOST_FS_BASE, FsBase::read().as_u64());
        vmcs.write_host(HOST_GS_BASE, GsBase::read().as_u64());
        vmcs.write_host(HOST_TR_BASE, tss);
        vmcs.write_host(HOST_GDTR_BASE, gdt.base.as_u64());
        vmcs.write_host(HOST_IDTR_BASE, sidt().base.as_u64());
        vmcs.write_host(HOST_CR0, Cr0::read_raw());
        vmcs.write_host(HOST_CR3, frame.start_address().as_u64() | u64::from(pcid));
        vmcs.write_host(HOST_CR4, Cr4::read_raw());
        vmcs.write_host(HOST_IA32_PAT, pat);
        vmcs.write_host(HOST_IA32_EFER, efer);
        vmcs.write_host(HOST_SYSENTER_CS, 0);
        vmcs.write_host(HOST_SYSENTER_ESP, 0);
        vmcs.write_host(HOST_SYSENTER_EIP, 0);
        vmcs.write_host(HOST_RIP, entry::exit_address(switch));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_base_of_the_tss_is_put_together_from_four_pieces() {
        // Base 0x1234_5678_9abc_def0, limit 0x67, type busy TSS.
        assert_eq!(tss_base(0x9a00_8bbc_def0_0067, 0x1234_5678), 0x1234_5678_9abc_def0);
    }
}
