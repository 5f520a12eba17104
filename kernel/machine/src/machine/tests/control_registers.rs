//! CR0 and CR4 where accesses exit.

use super::{
    rig::{Rig, rig},
    *,
};

const CD: u64 = 1 << 30;
const PAE: u64 = 1 << 5;

fn write(number: u8, register: Option<u8>) -> Exit {
    Exit::WriteControlRegister { number, register }
}

fn read(number: u8, register: Option<u8>) -> Exit {
    Exit::ReadControlRegister { number, register }
}

/// In 64-bit code with paging: the vCPU's own tables are not walked.
fn in_long_mode() -> Rig {
    let mut r = rig(1);
    (r.vcpu().cr0, r.vcpu().cr4) = (0x11, PAE);
    r
}

#[test]
fn a_mov_to_cr0_is_done_once_told_and_once_decoded() {
    let mut r = in_long_mode();
    (r.vcpu().gprs.rax, r.vcpu().gprs.r9) = (CD | 0x11, 0x11);
    r.exit(&[0x0f, 0x22, 0xc0], write(0, None));
    assert_eq!((r.vcpu().cr0, r.vcpu().rip), (CD | 0x11, 0x1003));
    r.enter(0);
    r.vcpu().length = Some(4);
    r.exit(&[0x41, 0x0f, 0x22, 0xc1], write(0, Some(9)));
    assert_eq!((r.vcpu().cr0, r.vcpu().rip), (0x11, 0x1004));
    r.enter(0);
    assert_eq!(r.counted(Reason::ControlRegister), 2);
}

#[test]
fn in_32_bit_code_the_upper_half_of_the_register_does_not_count() {
    for told in [None, Some(0)] {
        let mut r = rig(1);
        r.vcpu().segments[crate::vcpu::SegmentName::Cs as usize].attributes =
            crate::vcpu::SegmentAttributes::new().with_default_32(true).with_present(true);
        (r.vcpu().efer, r.vcpu().cr0, r.vcpu().gprs.rax) = (0, 0x10, 0xdead_0000_0000_0011);
        r.exit(&[0x0f, 0x22, 0xc0], write(0, told));
        assert_eq!((r.vcpu().event, r.vcpu().cr0), (None, 0x11));
    }
}

#[test]
fn lmsw_smsw_and_clts_are_known_with_registers_and_memory() {
    let mut r = in_long_mode();
    r.vcpu().gprs.rax = 0xe;
    r.exit(&[0x0f, 0x01, 0xf0], write(0, None)); // lmsw ax
    assert_eq!(r.vcpu().cr0, 0x1f);
    r.exit(&[0x0f, 0x06], write(0, None)); // clts
    assert_eq!(r.vcpu().cr0, 0x17);
    r.vcpu().gprs.rdi = 0x3000;
    r.exit(&[0x0f, 0x01, 0x27], read(0, None)); // smsw [rdi]
    let mut bytes = [0xff; 3];
    r.machine.memory.read(0x3000, &mut bytes).unwrap();
    assert_eq!((bytes, r.vcpu().rip), ([0x17, 0, 0], 0x1003), "two bytes and no third");
    r.machine.memory.write(0x3000, &[0, 0]).unwrap();
    r.exit(&[0x0f, 0x01, 0x37], write(0, None)); // lmsw [rdi]
    assert_eq!(r.vcpu().cr0, 0x11);
}

#[test]
fn a_read_of_cr4_shows_what_the_guest_is_to_see() {
    let mut r = in_long_mode();
    r.vcpu().gprs.r9 = u64::MAX;
    r.exit(&[0x41, 0x0f, 0x20, 0xe1], read(4, None)); // mov r9, cr4
    assert_eq!((r.vcpu().gprs.r9, r.vcpu().rip), (PAE, 0x1004));
    r.vcpu().gprs.r9 = u64::MAX;
    r.exit(&[0x41, 0x0f, 0x20, 0xe1], read(0, None)); // the same, called a read of CR0
    assert_eq!(r.vcpu().gprs.r9, PAE);
    r.exit(&[0x0f, 0x01, 0xe1], read(4, None)); // smsw ecx does not read CR4
    assert_eq!(r.vcpu().rip, 0x1000, "run again");
}

#[test]
fn a_read_of_cr0_shows_what_the_guest_is_to_see() {
    let mut r = in_long_mode();
    r.vcpu().cr0 = CD | 0x11;
    (r.vcpu().gprs.rbx, r.vcpu().gprs.rcx) = (u64::MAX, u64::MAX);
    r.exit(&[0x0f, 0x20, 0xc3], read(0, None)); // mov rbx, cr0
    assert_eq!(r.vcpu().gprs.rbx, CD | 0x11);
    r.exit(&[0x0f, 0x01, 0xe1], read(0, None)); // smsw ecx
    assert_eq!(r.vcpu().gprs.rcx, CD | 0x11);
    r.vcpu().gprs.rcx = u64::MAX;
    r.exit(&[0x66, 0x0f, 0x01, 0xe1], read(0, None)); // smsw cx
    assert_eq!(r.vcpu().gprs.rcx, 0xffff_ffff_ffff_0011);
}

#[test]
fn a_move_from_another_register_that_the_emulator_calls_a_read_of_cr0_is_done() {
    let mut r = in_long_mode();
    (r.vcpu().cr2, r.vcpu().cr3, r.vcpu().cr4) = (0x2222, 0x3000, PAE);
    for (code, value) in [([0x0f, 0x20, 0xd0], 0x2222), ([0x0f, 0x20, 0xd8], 0x3000), ([0x0f, 0x20, 0xe0], PAE)] {
        r.exit(&code, Exit::ReadControlRegister { number: 0, register: None });
        assert_eq!((r.vcpu().gprs.rax, r.vcpu().rip), (value, 0x1003), "{code:x?}");
    }
}

#[test]
fn a_hidden_or_reserved_bit_is_a_general_protection_fault() {
    for bit in [12_u8, 13, 14, 15, 19, 22, 23, 24, 25, 31, 32, 63] {
        let mut r = in_long_mode();
        r.vcpu().gprs.rax = PAE | 1 << bit;
        r.exit(&[0x0f, 0x22, 0xe0], write(4, None)); // mov cr4, rax
        assert_eq!((r.vcpu().event, r.vcpu().cr4), (Some(Event::GENERAL_PROTECTION), PAE), "bit {bit}");
        assert_eq!(r.vcpu().rip, 0x1000);
    }
    let mut r = in_long_mode();
    r.vcpu().gprs.rax = PAE | 1 << 6 | 1 << 8;
    r.exit(&[0x0f, 0x22, 0xe0], write(4, Some(0)));
    assert_eq!((r.vcpu().event, r.vcpu().cr4), (None, PAE | 1 << 6 | 1 << 8), "MCE and PCE");
}

#[test]
fn nobody_but_the_kernel_of_the_guest_writes_them() {
    let mut r = in_long_mode();
    (r.vcpu().cpl, r.vcpu().gprs.rax) = (3, PAE);
    r.exit(&[0x0f, 0x22, 0xe0], write(4, None));
    assert_eq!(r.vcpu().event, Some(Event::GENERAL_PROTECTION));
}

#[test]
fn another_instruction_than_the_one_that_exited_runs_again() {
    let mut r = in_long_mode();
    r.vcpu().gprs.rax = 0x11;
    for exit in [write(0, None), write(4, None), read(0, None)] {
        r.exit(&[0x0f, 0x22, 0xd8], exit); // mov cr3, rax
        assert_eq!((r.vcpu().event, r.vcpu().rip), (None, 0x1000), "{exit:?}");
    }
}
