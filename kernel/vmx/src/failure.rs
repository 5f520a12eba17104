//! Logs why the CPU refused an entry (SDM vol. 3C 27.2, 27.3, 27.8).

use crate::{exit::ENTRY_FAILURE, fields::*, instructions::CurrentVmcs, instructions::error_text, segments};
use machine::vcpu::{Exit, SegmentName};

/// Logs that VMLAUNCH or VMRESUME failed: controls or host state are wrong, or there is no current VMCS.
#[cold]
pub fn instruction(vmcs: &CurrentVmcs) -> Exit {
    let number = vmcs.read(INSTRUCTION_ERROR);
    log::error!("VM entry failed, VM-instruction error {number}: {}. {}", error_text(number), State(vmcs));
    Exit::Unexpected { reason: u64::from(ENTRY_FAILURE), detail: u64::from(number) }
}

/// Logs that the CPU refused the guest's state.
#[cold]
pub fn guest_state(vmcs: &CurrentVmcs, reason: u32) {
    let what = match reason as u16 {
        33 => match vmcs.read(EXIT_QUALIFICATION) {
            2 => "guest state: a PDPTE has reserved bits set",
            3 => "guest state: an NMI can't be delivered in the shadow of STI or MOV SS",
            4 => "guest state: the VMCS link pointer is bad",
            _ => "guest state",
        },
        34 => "loading of MSRs",
        _ => "an unknown reason",
    };
    log::error!("VM entry refused: {what} (exit reason {reason:#x}). {}", State(vmcs));
}

/// The parts of a VMCS that are most often wrong.
struct State<'a>(&'a CurrentVmcs);

impl core::fmt::Display for State<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let v = self.0;
        write!(
            f,
            "RIP {:#x} RFLAGS {:#x} CR0 {:#x} CR3 {:#x} CR4 {:#x} EFER {:#x}, entry controls {:#x}, interruptibility {:#x}, \
             activity {}, pending debug {:#x}, event {:#x}",
            v.read(GUEST_RIP),
            v.read(GUEST_RFLAGS),
            v.read(GUEST_CR0),
            v.read(GUEST_CR3),
            v.read(GUEST_CR4),
            v.read(GUEST_IA32_EFER),
            v.read(ENTRY_CONTROLS),
            v.read(GUEST_INTERRUPTIBILITY),
            v.read(GUEST_ACTIVITY_STATE),
            v.read(GUEST_PENDING_DEBUG_EXCEPTIONS),
            v.read(ENTRY_INTERRUPTION_INFORMATION),
        )?;
        for (name, letters) in [
            (SegmentName::Cs, "CS"),
            (SegmentName::Ss, "SS"),
            (SegmentName::Ds, "DS"),
            (SegmentName::Ldtr, "LDTR"),
            (SegmentName::Tr, "TR"),
        ] {
            let fields = segments::fields(name);
            write!(
                f,
                ", {letters} {:#x}/{:#x}/{:#x}/{:#x}",
                v.read(fields.selector),
                v.read(fields.base),
                v.read(fields.limit),
                v.read(fields.access_rights),
            )?;
        }
        Ok(())
    }
}
