//! Decodes why the guest exited: exit reasons (SDM vol. 3D appendix C) and qualifications (vol. 3C 28.2).
//!
//! The decoder reads other fields through [`Information`]. So an exit costs only the VMREADs that it needs, and the
//! tests need no CPU.

use crate::fields::{
    EXIT_INSTRUCTION_LENGTH, EXIT_INTERRUPTION_ERROR_CODE, EXIT_INTERRUPTION_INFORMATION, EXIT_QUALIFICATION,
    GUEST_CS_ACCESS_RIGHTS, GUEST_PHYSICAL_ADDRESS, GUEST_RIP,
};
use crate::instructions::CurrentVmcs;
use crate::segments::wrap_rip;
use bitfield_struct::bitfield;
use machine::vcpu::{Exit, PortAccess};

/// The basic exit reasons that `decode` distinguishes (SDM vol. 3D table C-1).
#[allow(missing_docs, reason = "the names are the manual's")]
pub mod reason {
    pub const EXCEPTION_OR_NMI: u16 = 0;
    pub const EXTERNAL_INTERRUPT: u16 = 1;
    pub const TRIPLE_FAULT: u16 = 2;
    pub const INTERRUPT_WINDOW: u16 = 7;
    pub const NMI_WINDOW: u16 = 8;
    pub const CPUID: u16 = 10;
    pub const GETSEC: u16 = 11;
    pub const HLT: u16 = 12;
    pub const INVD: u16 = 13;
    pub const RDPMC: u16 = 15;
    pub const VMCALL: u16 = 18;
    pub const VMCLEAR: u16 = 19;
    pub const VMXON: u16 = 27;
    pub const CONTROL_REGISTER: u16 = 28;
    pub const IO: u16 = 30;
    pub const RDMSR: u16 = 31;
    pub const WRMSR: u16 = 32;
    pub const MWAIT: u16 = 36;
    pub const MONITOR: u16 = 39;
    /// Only together with [`super::ENTRY_FAILURE`].
    pub const ENTRY_MACHINE_CHECK: u16 = 41;
    pub const VIRTUALIZED_EOI: u16 = 45;
    pub const GDTR_OR_IDTR: u16 = 46;
    pub const LDTR_OR_TR: u16 = 47;
    pub const EPT_VIOLATION: u16 = 48;
    pub const INVEPT: u16 = 50;
    pub const PREEMPTION_TIMER: u16 = 52;
    pub const INVVPID: u16 = 53;
    pub const WBINVD: u16 = 54;
    pub const XSETBV: u16 = 55;
    pub const APIC_WRITE: u16 = 56;
    pub const VMFUNC: u16 = 59;
    pub const ENCLS: u16 = 60;
    pub const PCONFIG: u16 = 65;
    pub const UMWAIT: u16 = 67;
    pub const TPAUSE: u16 = 68;
    pub const ENCLV: u16 = 70;
    pub const BUS_LOCK: u16 = 74;
    pub const INSTRUCTION_TIMEOUT: u16 = 75;
}

/// Bit 31 of the exit reason: the entry failed, and the guest has not run.
pub const ENTRY_FAILURE: u32 = 1 << 31;

/// The first of the x2APIC's MSRs.
const X2APIC: u32 = 0x800;

/// The exit-information fields that decoding may need.
pub trait Information {
    /// Exit qualification.
    fn qualification(&self) -> u64;
    /// Guest-physical address of an EPT violation.
    fn guest_physical_address(&self) -> u64;
    /// VM-exit interruption information.
    fn interruption(&self) -> u32;
    /// VM-exit interruption error code.
    fn interruption_error(&self) -> u32;
    /// RIP plus the instruction's length, wrapped to the width of the code segment.
    fn next_rip(&self) -> u64;
}

impl Information for CurrentVmcs {
    fn qualification(&self) -> u64 {
        self.read(EXIT_QUALIFICATION)
    }
    fn guest_physical_address(&self) -> u64 {
        self.read(GUEST_PHYSICAL_ADDRESS)
    }
    fn interruption(&self) -> u32 {
        self.read(EXIT_INTERRUPTION_INFORMATION)
    }
    fn interruption_error(&self) -> u32 {
        self.read(EXIT_INTERRUPTION_ERROR_CODE)
    }
    fn next_rip(&self) -> u64 {
        let length = u64::from(self.read(EXIT_INSTRUCTION_LENGTH));
        let next = self.read(GUEST_RIP).wrapping_add(length);
        wrap_rip(next, self.read(GUEST_CS_ACCESS_RIGHTS))
    }
}

/// Qualification of a control-register access (SDM vol. 3C table 28-3).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct ControlRegisterAccess {
    /// 0, 3, 4 or 8.
    #[bits(4)]
    pub number: u8,
    /// One of the constants below.
    #[bits(2)]
    pub kind: u8,
    lmsw_memory: bool,
    __: bool,
    /// Encoding of the general register.
    #[bits(4)]
    pub register: u8,
    #[bits(4)]
    __: u8,
    /// Source of LMSW.
    pub lmsw_source: u16,
    __: u32,
}

impl ControlRegisterAccess {
    /// MOV to the control register.
    pub const MOV_TO: u8 = 0;
    /// MOV from the control register.
    pub const MOV_FROM: u8 = 1;
    /// CLTS.
    pub const CLTS: u8 = 2;
    /// LMSW.
    pub const LMSW: u8 = 3;
}

/// Qualification of a port access (SDM vol. 3C table 28-5).
#[bitfield(u64)]
struct PortQualification {
    /// Number of bytes minus one.
    #[bits(3)]
    size: u8,
    input: bool,
    string: bool,
    repeat: bool,
    immediate: bool,
    #[bits(9)]
    __: u16,
    port: u16,
    __: u32,
}

/// Qualification of an EPT violation (SDM vol. 3C table 28-7).
#[bitfield(u64)]
struct EptQualification {
    read: bool,
    write: bool,
    fetch: bool,
    #[bits(9)]
    __: u16,
    nmi_unblocking_due_to_iret: bool,
    #[bits(51)]
    __: u64,
}

/// What to do with an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Return it to the layers above.
    Above(Exit),
    /// Return it to the layers above, and block NMIs again: an IRET unblocked them and then faulted.
    AboveDuringIret(Exit),
    /// An NMI for the host. NMIs are blocked now.
    Nmi,
    /// An exception, with its interruption information and its error code.
    Exception(u32, u32),
    /// The guest changes bits of CR0 or CR4 that it doesn't own.
    ControlRegister(ControlRegisterAccess),
    /// The guest can take an interrupt.
    InterruptWindow,
    /// The guest can take an NMI.
    NmiWindow,
    /// The CPU refused the guest's state.
    EntryFailed,
    /// A machine check came during the entry (SDM vol. 3C 27.9).
    EntryMachineCheck,
}

/// Bits of the qualification of an instruction timeout (SDM vol. 3C 28.2.1).
const CONTEXT_INVALID: u64 = 1 << 0;
const NMI_UNBLOCKED: u64 = 1 << 12;

/// Decodes an exit.
pub fn decode(exit_reason: u32, information: &impl Information) -> Cause {
    if exit_reason & ENTRY_FAILURE != 0 {
        let machine_check = exit_reason as u16 == reason::ENTRY_MACHINE_CHECK;
        return if machine_check { Cause::EntryMachineCheck } else { Cause::EntryFailed };
    }
    let exit = match exit_reason as u16 {
        reason::EXCEPTION_OR_NMI => {
            let bits = information.interruption();
            if crate::events::Information::from_bits(bits).kind() == crate::events::kind::NMI {
                return Cause::Nmi;
            }
            return Cause::Exception(bits, information.interruption_error());
        }
        reason::EXTERNAL_INTERRUPT => {
            let bits = crate::events::Information::from_bits(information.interruption());
            Exit::ExternalInterrupt(bits.valid().then(|| bits.vector()))
        }
        reason::TRIPLE_FAULT => Exit::TripleFault,
        reason::INTERRUPT_WINDOW => return Cause::InterruptWindow,
        reason::NMI_WINDOW => return Cause::NmiWindow,
        reason::CPUID => Exit::Cpuid,
        reason::HLT => Exit::Halt,
        reason::INVD | reason::WBINVD => Exit::CacheFlush,
        reason::VMCALL => Exit::Hypercall,
        reason::GETSEC
        | reason::RDPMC
        | reason::VMCLEAR..=reason::VMXON
        | reason::MWAIT
        | reason::MONITOR
        | reason::INVEPT
        | reason::INVVPID
        | reason::VMFUNC
        | reason::ENCLS
        | reason::PCONFIG
        | reason::UMWAIT
        | reason::TPAUSE
        | reason::ENCLV => Exit::Forbidden,
        reason::CONTROL_REGISTER => {
            let access = ControlRegisterAccess::from_bits(information.qualification());
            if access.number() != 8 {
                return Cause::ControlRegister(access);
            }
            Exit::Cr8 { write: access.kind() == ControlRegisterAccess::MOV_TO, register: Some(access.register()) }
        }
        reason::IO => port(information),
        reason::RDMSR => Exit::ReadMsr,
        reason::WRMSR => Exit::WriteMsr,
        reason::GDTR_OR_IDTR | reason::LDTR_OR_TR => Exit::DescriptorTable,
        reason::XSETBV => Exit::Xsetbv,
        reason::BUS_LOCK => Exit::SplitLock,
        reason::PREEMPTION_TIMER => Exit::Deadline,
        reason::VIRTUALIZED_EOI => Exit::EndOfInterrupt(information.qualification() as u8),
        // The qualification is the offset in the page. A register has 16 bytes there.
        reason::APIC_WRITE => Exit::ApicWrite(X2APIC.saturating_add(information.qualification() as u32 >> 4 & 0xff)),
        reason::EPT_VIOLATION => {
            let q = EptQualification::from_bits(information.qualification());
            let fault =
                Exit::NestedFault { gpa: information.guest_physical_address(), write: q.write(), fetch: q.fetch() };
            if q.nmi_unblocking_due_to_iret() {
                return Cause::AboveDuringIret(fault);
            }
            fault
        }
        reason::INSTRUCTION_TIMEOUT => {
            let qualification = information.qualification();
            let exit = Exit::InstructionTimeout { intact: qualification & CONTEXT_INVALID == 0 };
            if qualification & NMI_UNBLOCKED != 0 {
                return Cause::AboveDuringIret(exit);
            }
            exit
        }
        // Some of the other reasons can't happen with the controls in use (INVLPG, CR3, TPR threshold, ...). This
        // machine doesn't support the rest: task switches, INIT and SMI from outside, EPT misconfigurations.
        _ => Exit::Unexpected { reason: u64::from(exit_reason), detail: information.qualification() },
    };
    Cause::Above(exit)
}

fn port(information: &impl Information) -> Exit {
    let q = PortQualification::from_bits(information.qualification());
    Exit::Port(PortAccess {
        port: q.port(),
        size: q.size().saturating_add(1),
        write: !q.input(),
        string: q.string(),
        repeat: q.repeat(),
        next_rip: information.next_rip(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Fake {
        qualification: u64,
        interruption: u32,
    }
    impl Information for Fake {
        fn qualification(&self) -> u64 {
            self.qualification
        }
        fn guest_physical_address(&self) -> u64 {
            0xfee0_0300
        }
        fn interruption(&self) -> u32 {
            self.interruption
        }
        fn interruption_error(&self) -> u32 {
            0
        }
        fn next_rip(&self) -> u64 {
            0x1002
        }
    }

    fn with_qualification(reason: u16, qualification: u64) -> Cause {
        decode(u32::from(reason), &Fake { qualification, ..Fake::default() })
    }

    #[test]
    fn a_repeated_string_output_is_told_with_port_size_and_next_rip() {
        assert_eq!(
            with_qualification(reason::IO, 0x03f8_0030),
            Cause::Above(Exit::Port(PortAccess {
                port: 0x3f8,
                size: 1,
                write: true,
                string: true,
                repeat: true,
                next_rip: 0x1002
            }))
        );
        let Cause::Above(Exit::Port(p)) = with_qualification(reason::IO, 0x0cfc_000b) else { panic!("no port access") };
        assert_eq!((p.port, p.size, p.write, p.string), (0xcfc, 4, false, false));
    }

    #[test]
    fn ept_violations_tell_stores_and_fetches_apart() {
        let fault = |write, fetch| Exit::NestedFault { gpa: 0xfee0_0300, write, fetch };
        assert_eq!(with_qualification(reason::EPT_VIOLATION, 0x181), Cause::Above(fault(false, false)));
        assert_eq!(with_qualification(reason::EPT_VIOLATION, 0x182), Cause::Above(fault(true, false)));
        assert_eq!(with_qualification(reason::EPT_VIOLATION, 0x184), Cause::Above(fault(false, true)));
        assert_eq!(with_qualification(reason::EPT_VIOLATION, 0x1182), Cause::AboveDuringIret(fault(true, false)));
    }

    #[test]
    fn cr8_goes_above_and_cr0_stays_inside() {
        assert_eq!(with_qualification(28, 0x0708), Cause::Above(Exit::Cr8 { write: true, register: Some(7) }));
        assert_eq!(with_qualification(28, 0x0f18), Cause::Above(Exit::Cr8 { write: false, register: Some(15) }));
        let Cause::ControlRegister(access) = with_qualification(28, 0x0300) else { panic!("not told as CR0") };
        assert_eq!((access.number(), access.kind(), access.register()), (0, ControlRegisterAccess::MOV_TO, 3));
    }

    #[test]
    fn an_nmi_is_told_from_an_exception() {
        let with = |interruption| decode(0, &Fake { interruption, ..Fake::default() });
        assert_eq!(with(0x8000_0202), Cause::Nmi);
        assert_eq!(with(0x8000_0b11), Cause::Exception(0x8000_0b11, 0));
    }

    #[test]
    fn an_acknowledged_interrupt_carries_its_vector() {
        let with = |interruption| decode(1, &Fake { interruption, ..Fake::default() });
        assert_eq!(with(0x8000_00f0), Cause::Above(Exit::ExternalInterrupt(Some(0xf0))));
        assert_eq!(with(0), Cause::Above(Exit::ExternalInterrupt(None)));
    }

    #[test]
    fn what_a_virtual_apic_leaves_to_the_host_names_vector_or_register() {
        assert_eq!(with_qualification(reason::VIRTUALIZED_EOI, 0x34), Cause::Above(Exit::EndOfInterrupt(0x34)));
        assert_eq!(with_qualification(reason::APIC_WRITE, 0x3f0), Cause::Above(Exit::ApicWrite(0x83f)));
        assert_eq!(with_qualification(reason::PREEMPTION_TIMER, 0), Cause::Above(Exit::Deadline));
    }

    #[test]
    fn a_bus_lock_exit_is_a_split_lock() {
        assert_eq!(with_qualification(74, 0), Cause::Above(Exit::SplitLock));
        // Bit 26: a bus lock, but the exit has another reason.
        assert_eq!(decode(1 << 26 | 10, &Fake::default()), Cause::Above(Exit::Cpuid));
    }

    #[test]
    fn every_vmx_instruction_is_forbidden_except_vmcall() {
        for r in [11, 19, 20, 21, 22, 23, 24, 25, 26, 27, 50, 53, 59] {
            assert_eq!(with_qualification(r, 0), Cause::Above(Exit::Forbidden), "reason {r}");
        }
        assert_eq!(with_qualification(18, 0), Cause::Above(Exit::Hypercall));
    }

    #[test]
    fn instructions_that_no_guest_has_are_forbidden() {
        // RDPMC, MWAIT, MONITOR, ENCLS, PCONFIG, UMWAIT, TPAUSE, ENCLV.
        for r in [15, 36, 39, 60, 65, 67, 68, 70] {
            assert_eq!(with_qualification(r, 0), Cause::Above(Exit::Forbidden), "reason {r}");
        }
    }

    #[test]
    fn an_instruction_that_does_not_end_says_whether_the_guest_can_go_on() {
        let exit = |intact| Exit::InstructionTimeout { intact };
        assert_eq!(with_qualification(75, 0), Cause::Above(exit(true)));
        assert_eq!(with_qualification(75, 1), Cause::Above(exit(false)));
        assert_eq!(with_qualification(75, 1 << 12), Cause::AboveDuringIret(exit(true)));
        assert_eq!(with_qualification(75, 1 << 12 | 1), Cause::AboveDuringIret(exit(false)));
    }

    #[test]
    fn a_refused_entry_is_not_taken_for_an_exit_of_the_same_number() {
        assert_eq!(decode(ENTRY_FAILURE | 33, &Fake::default()), Cause::EntryFailed);
        assert_eq!(decode(ENTRY_FAILURE | 41, &Fake::default()), Cause::EntryMachineCheck);
        assert_eq!(
            with_qualification(49, 5),
            Cause::Above(Exit::Unexpected { reason: 49, detail: 5 }),
            "an EPT misconfiguration"
        );
    }
}
