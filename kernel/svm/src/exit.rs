//! Decodes an exit for the layers above.

use crate::event::{self, has_error_code};
use crate::exit_code::ExitCode;
use crate::fields::{MovCrInfo, NestedFaultInfo, PortInfo};
use crate::vmcb::Control;
use machine::vcpu::{Exit, PortAccess};

/// Decodes the exit that is recorded in `control`. The caller handles the exits of the NMI state ([`crate::nmi`])
/// itself: IRET, and the single step over it.
pub fn decode(control: &Control) -> Exit {
    let info = control.exit_info_1;
    match control.exit_code {
        ExitCode::INTR => Exit::ExternalInterrupt(None),
        ExitCode::NMI => Exit::Nmi,
        ExitCode::VINTR => Exit::InterruptWindow,
        ExitCode::IDTR_WRITE => Exit::DescriptorTable,
        ExitCode::EXCP_NP => {
            Exit::NotPresent { error: info as u32, interrupted: event::interrupted(control.exit_int_info) }
        }
        ExitCode::CPUID => Exit::Cpuid,
        ExitCode::HLT => Exit::Halt,
        ExitCode::MSR if info & 1 == 0 => Exit::ReadMsr,
        ExitCode::MSR => Exit::WriteMsr,
        ExitCode::IOIO => Exit::Port(port(info, control.exit_info_2)),
        ExitCode::NPF => {
            let fault = NestedFaultInfo::from_bits(info);
            Exit::NestedFault { gpa: control.exit_info_2, write: fault.write(), fetch: fault.fetch() }
        }
        code @ (ExitCode::CR8_READ | ExitCode::CR8_WRITE) => {
            Exit::Cr8 { write: code == ExitCode::CR8_WRITE, register: moved(info) }
        }
        ExitCode::CR0_READ => Exit::ReadControlRegister { number: 0, register: moved(info) },
        ExitCode::CR4_READ => Exit::ReadControlRegister { number: 4, register: moved(info) },
        ExitCode::CR0_WRITE | ExitCode::CR0_SELECTIVE_WRITE => {
            Exit::WriteControlRegister { number: 0, register: moved(info) }
        }
        ExitCode::CR4_WRITE => Exit::WriteControlRegister { number: 4, register: moved(info) },
        ExitCode::XSETBV => Exit::Xsetbv,
        ExitCode::VMMCALL => Exit::Hypercall,
        ExitCode::INVD | ExitCode::WBINVD => Exit::CacheFlush,
        ExitCode::RDPMC
        | ExitCode::INVLPGA
        | ExitCode::VMRUN
        | ExitCode::VMLOAD
        | ExitCode::VMSAVE
        | ExitCode::STGI
        | ExitCode::CLGI
        | ExitCode::SKINIT
        | ExitCode::MONITOR
        | ExitCode::MWAIT
        | ExitCode::MWAIT_CONDITIONAL
        | ExitCode::RDPRU
        | ExitCode::MCOMMIT => Exit::Forbidden,
        ExitCode::BUS_LOCK => Exit::SplitLock,
        ExitCode::SHUTDOWN => Exit::TripleFault,
        ExitCode(code @ 0x40..=0x5f) => {
            let vector = code.wrapping_sub(ExitCode::EXCP0.0) as u8;
            let error = has_error_code(vector).then_some(info as u32);
            Exit::Exception { vector, error }
        }
        ExitCode(reason) => Exit::Unexpected { reason, detail: info },
    }
}

/// Returns the general register of a MOV to or from a control register, if hardware gives it. It gives none for LMSW,
/// SMSW and CLTS.
fn moved(info: u64) -> Option<u8> {
    let mov = MovCrInfo::from_bits(info);
    mov.mov().then_some(mov.register())
}

fn port(info: u64, next_rip: u64) -> PortAccess {
    let info = PortInfo::from_bits(info);
    PortAccess {
        port: info.port(),
        size: info.size(),
        write: !info.input(),
        string: info.string(),
        repeat: info.repeat(),
        next_rip,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vmcb::Vmcb;
    use machine::eli::Interrupted;
    use machine::vcpu::Event;

    fn exit(code: ExitCode, info_1: u64, info_2: u64) -> Exit {
        let mut control = Vmcb::ZERO.control;
        (control.exit_code, control.exit_info_1, control.exit_info_2) = (code, info_1, info_2);
        decode(&control)
    }

    #[test]
    fn a_port_exit_names_port_size_direction_and_next_instruction() {
        // OUT DX, AL to 0x3f8 with 64-bit addresses.
        let out = PortAccess { port: 0x3f8, size: 1, write: true, string: false, repeat: false, next_rip: 0x1002 };
        assert_eq!(exit(ExitCode::IOIO, 0x03f8_0210, 0x1002), Exit::Port(out));
        // REP INSD from 0xcfc.
        let ins = PortAccess { port: 0xcfc, size: 4, write: false, string: true, repeat: true, next_rip: 7 };
        assert_eq!(exit(ExitCode::IOIO, 0x0cfc_024d, 7), Exit::Port(ins));
    }

    /// The codes of APM vol. 2 appendix C.
    #[test]
    fn instructions_that_no_guest_has_are_forbidden() {
        // RDPMC, INVLPGA, VMRUN, VMLOAD, VMSAVE, STGI, CLGI, SKINIT, MONITOR, MWAIT without and with a monitor, RDPRU, MCOMMIT.
        for code in [0x6f, 0x7a, 0x80, 0x82, 0x83, 0x84, 0x85, 0x86, 0x8a, 0x8b, 0x8c, 0x8e, 0xa3] {
            assert_eq!(exit(ExitCode(code), 0, 0), Exit::Forbidden, "code {code:#x}");
        }
    }

    #[test]
    fn a_nested_fault_tells_stores_from_fetches() {
        let gpa = 0xc000_0010;
        assert_eq!(exit(ExitCode::NPF, 0x1_0000_0006, gpa), Exit::NestedFault { gpa, write: true, fetch: false });
        assert_eq!(exit(ExitCode::NPF, 0x1_0000_0014, gpa), Exit::NestedFault { gpa, write: false, fetch: true });
    }

    #[test]
    fn the_register_of_a_cr8_access_is_told_only_with_decode_assists() {
        assert_eq!(exit(ExitCode::CR8_WRITE, 1 << 63 | 9, 0), Exit::Cr8 { write: true, register: Some(9) });
        assert_eq!(exit(ExitCode::CR8_READ, 0, 0), Exit::Cr8 { write: false, register: None });
    }

    #[test]
    fn accesses_to_cr0_and_cr4_name_the_register_and_lmsw_names_none() {
        assert_eq!(exit(ExitCode(0x65), 1 << 63 | 3, 0), Exit::WriteControlRegister { number: 0, register: Some(3) });
        assert_eq!(exit(ExitCode(0x65), 0, 0), Exit::WriteControlRegister { number: 0, register: None });
        assert_eq!(exit(ExitCode(0x10), 0, 0), Exit::WriteControlRegister { number: 0, register: None });
        assert_eq!(exit(ExitCode(0x14), 1 << 63, 0), Exit::WriteControlRegister { number: 4, register: Some(0) });
        assert_eq!(exit(ExitCode(0x00), 1 << 63 | 15, 0), Exit::ReadControlRegister { number: 0, register: Some(15) });
        assert_eq!(exit(ExitCode(0x04), 1 << 63 | 2, 0), Exit::ReadControlRegister { number: 4, register: Some(2) });
    }

    #[test]
    fn exceptions_carry_an_error_code_only_where_the_vector_has_one() {
        assert_eq!(exit(ExitCode(0x51), 0, 0), Exit::Exception { vector: 17, error: Some(0) });
        assert_eq!(exit(ExitCode(0x52), 0xdead, 0), Exit::Exception { vector: 18, error: None });
        assert_eq!(exit(ExitCode(0x41), 0xdead, 0), Exit::Exception { vector: 1, error: None });
    }

    #[test]
    fn a_np_tells_what_was_being_delivered() {
        let mut control = Vmcb::ZERO.control;
        (control.exit_code, control.exit_info_1) = (ExitCode::EXCP_NP, 0xf5 * 8 + 3);
        assert_eq!(decode(&control), Exit::NotPresent { error: 0x7ab, interrupted: None });
        control.exit_int_info = event::injection(Event::Interrupt(0xf5));
        let interrupted = Some(Interrupted::External(0xf5));
        assert_eq!(decode(&control), Exit::NotPresent { error: 0x7ab, interrupted });
    }

    #[test]
    fn a_bus_lock_beyond_the_threshold_is_a_split_lock_and_no_ac_is() {
        assert_eq!(exit(ExitCode(0xa5), 0, 0), Exit::SplitLock);
        assert_eq!(exit(ExitCode(0x51), 0, 0), Exit::Exception { vector: 17, error: Some(0) }, "AMD has no other #AC");
    }

    #[test]
    fn codes_nobody_asked_for_keep_their_raw_value() {
        for code in [0x7e, 0x62, 0x3ff, 0x403, u64::MAX] {
            assert_eq!(exit(ExitCode(code), 5, 6), Exit::Unexpected { reason: code, detail: 5 });
        }
    }

    #[test]
    fn rdmsr_and_wrmsr_are_told_apart() {
        assert_eq!(exit(ExitCode::MSR, 0, 0), Exit::ReadMsr);
        assert_eq!(exit(ExitCode::MSR, 1, 0), Exit::WriteMsr);
    }
}
