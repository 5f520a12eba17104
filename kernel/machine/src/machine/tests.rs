//! Tests of a whole machine, with a vCPU that runs nothing and a host that remembers.

use memory::GuestMemory;
use proptest::prelude::*;
use virtio::msix::Interrupt;

use super::testing::{kernel, settings};
use super::{Entry, Error, Machine, Next, Platform, Settings, Signal, Stop, context::Activity, refusals::Refusals};
use crate::{
    lapic, layout,
    reason::Reason,
    split_lock::SplitLocks,
    vcpu::{Event, Exit, Interrupts, PortAccess},
};
use rig::{MIB, Rig, access, rig, rig_with};

mod control_registers;
mod firmware;
mod observing;
mod rig;
mod shadow;
mod split_lock;
mod virtualized;

#[test]
fn the_first_vcpu_starts_linux_and_the_others_wait() {
    let mut r = rig(2);
    assert_eq!(r.vcpus[0].0.resets[0].rip, 0x20_0200);
    assert_eq!(r.enter(0), Entry::Run { deadline: None });
    assert_eq!(r.enter(1), Entry::Wait { deadline: None });
}

#[test]
fn what_does_not_fit_is_said() {
    let with = |vcpus, kernel| Settings { vcpus, kernel, ..settings() };
    let file = kernel();
    assert_eq!(Machine::new(with(0, &file)).err(), Some(Error::Vcpus(0)));
    assert_eq!(Machine::new(with(256, &file)).err(), Some(Error::Vcpus(256)));
    assert!(matches!(Machine::new(with(1, b"no kernel")).err(), Some(Error::Linux(_))));
    let no_memory = Settings { memory: GuestMemory::new(), ..with(1, &file) };
    assert!(matches!(Machine::new(no_memory).err(), Some(Error::Tables(_))));
}

#[test]
fn cpuid_is_answered_and_stepped_over_and_counted_with_its_cycles() {
    let mut r = rig(1);
    (r.vcpu().gprs.rax, r.vcpu().gprs.rcx) = (0xffff_ffff_4000_0000, 0);
    assert_eq!(r.exit(&[0x0f, 0xa2], Exit::Cpuid), Next::Continue);
    assert_eq!((r.vcpu().rip, r.vcpu().gprs.rax, r.vcpu().gprs.rbx), (0x1002, 0x4000_0001, 0x4b4d_564b));
    assert_eq!(r.counted(Reason::Cpuid), 0, "until the way back");
    r.enter(0);
    let (count, cycles) = r.vcpus[0].1.exits().get(Reason::Cpuid);
    assert_eq!(count, 1);
    assert!((10..100).contains(&cycles));
}

#[test]
fn a_halted_vcpu_wakes_for_an_interrupt_it_can_take() {
    let mut r = rig(1);
    assert!(r.write_msr(0x80f, 0x1ff));
    r.exit(&[0xf4], Exit::Halt);
    assert_eq!(r.vcpu().rip, 0x1001);
    assert_eq!(r.enter(0), Entry::Wait { deadline: None });
    r.vcpu().rflags &= !0x200;
    assert!(!r.machine.mailboxes[0].0.post(0x40), "nobody to kick: it is in the host");
    assert_eq!(r.enter(0), Entry::Wait { deadline: None }, "IF is clear");
    r.vcpu().rflags |= 0x200;
    assert_eq!(r.enter(0), Entry::Run { deadline: None });
    assert_eq!(r.vcpu().event, Some(Event::Interrupt(0x40)));
}

#[test]
fn an_nmi_wakes_a_halted_vcpu_with_interrupts_off() {
    let mut r = rig(1);
    r.vcpu().rflags &= !0x200;
    r.exit(&[0xf4], Exit::Halt);
    let _ = r.machine.mailboxes[0].0.request_nmi();
    assert_eq!(r.enter(0), Entry::Run { deadline: None });
    assert_eq!(r.vcpu().event, Some(Event::Nmi));
}

#[test]
fn a_single_step_ends_a_halt_at_once() {
    let mut r = rig(1);
    assert!(r.write_msr(0x80f, 0x1ff));
    let _ = r.machine.mailboxes[0].0.post(0x41);
    r.vcpu().rflags |= 0x100;
    r.exit(&[0xf4], Exit::Halt);
    assert_eq!(r.vcpu().rip, 0x1001);
    assert_eq!(r.enter(0), Entry::Run { deadline: None }, "it does not sleep with a trap to deliver");
    assert_eq!(r.vcpu().event, Some(Event::Exception(1, None)), "the trap goes before the interrupt");
}

#[test]
fn every_emulated_instruction_is_followed_by_its_single_step() {
    let stepped = |r: &mut Rig| r.vcpu().event == Some(Event::Exception(1, None)) && r.vcpu().rip == 0x1000 + 2;
    for (code, exit) in [
        (&[0x0f, 0xa2][..], Exit::Cpuid),
        (&[0x0f, 0x09], Exit::CacheFlush),
        (&[0x8b, 0x03], Exit::NestedFault { gpa: layout::ECAM, write: false, fetch: false }),
        (&[0x0f, 0x32], Exit::ReadMsr),
        (&[0x0f, 0x30], Exit::WriteMsr),
    ] {
        let mut r = rig(1);
        r.vcpu().rflags |= 0x100;
        (r.vcpu().gprs.rbx, r.vcpu().gprs.rcx) = (layout::ECAM, 0x808);
        r.exit(code, exit);
        assert!(stepped(&mut r), "{exit:?}");
    }
    let mut r = rig(1);
    r.vcpu().rflags |= 0x100;
    let string = PortAccess { string: true, repeat: true, ..access(layout::COM1, 1, true) };
    (r.vcpu().gprs.rsi, r.vcpu().gprs.rcx) = (0x2000, 2);
    r.exit(&[0xf3, 0x6e], Exit::Port(string));
    assert_eq!((r.vcpu().rip, r.vcpu().event), (0x1000, Some(Event::Exception(1, None))), "after each iteration");
    assert_eq!(r.vcpu().rflags & 0x1_0000, 0x1_0000, "an iteration is not the instruction's end");
    r.exit(&[0xf3, 0x6e], Exit::Port(string));
    assert!(stepped(&mut r));
    assert_eq!(r.vcpu().rflags & 0x1_0000, 0);
}

#[test]
fn hypercalls_of_both_vendors_are_answered_as_kvm_would() {
    let undefined = Exit::Exception { vector: 6, error: None };
    for (code, exit) in [([0x0f, 0x01, 0xd9], Exit::Hypercall), ([0x0f, 0x01, 0xc1], undefined)] {
        let mut r = rig(1);
        r.exit(&code, exit);
        assert_eq!((r.vcpu().gprs.rax as i64, r.vcpu().rip, r.vcpu().event), (-1000, 0x1003, None), "{code:x?}");
        r.vcpu().cpl = 3;
        r.exit(&code, exit);
        assert_eq!(r.vcpu().gprs.rax as i64, -1, "{code:x?}: not at CPL 3");
        r.vcpu().cpl = 0;
        r.vcpu().segments[crate::vcpu::SegmentName::Cs as usize].attributes.set_long(false);
        r.exit(&code, exit);
        assert_eq!(r.vcpu().gprs.rax, 0xffff_fc18, "{code:x?}: EAX only");
    }
    let mut r = rig(1);
    r.exit(&[0x0f, 0x0b], undefined);
    assert_eq!((r.vcpu().event, r.vcpu().rip), (Some(Event::INVALID_OPCODE), 0x1000), "any other #UD is the guest's");
}

#[test]
fn xsetbv_is_undefined_until_osxsave_is_set() {
    let mut r = rig(1);
    (r.vcpu().gprs.rax, r.vcpu().gprs.rcx, r.vcpu().gprs.rdx) = (3, 0, 0);
    r.exit(&[0x0f, 0x01, 0xd1], Exit::Xsetbv);
    assert_eq!(r.vcpu().event, Some(Event::INVALID_OPCODE));
    r.vcpu().cr4 |= 1 << 18;
    r.exit(&[0x0f, 0x01, 0xd1], Exit::Xsetbv);
    assert_eq!((r.vcpu().event, r.vcpu().xcr0), (None, 3));
    r.vcpu().cpl = 3;
    r.exit(&[0x0f, 0x01, 0xd1], Exit::Xsetbv);
    assert_eq!(r.vcpu().event, Some(Event::GENERAL_PROTECTION));
}

#[test]
fn one_event_an_entry_and_a_window_for_the_rest() {
    let mut r = rig(1);
    assert!(r.write_msr(0x80f, 0x1ff));
    for vector in [0x41, 0x52, 0x63] {
        let _ = r.machine.mailboxes[0].0.post(vector);
    }
    r.vcpu().shadow = true;
    r.enter(0);
    assert_eq!((r.vcpu().event, r.vcpu().window), (None, true), "the interrupt shadow");
    r.vcpu().shadow = false;
    r.enter(0);
    assert_eq!((r.vcpu().event, r.vcpu().window), (Some(Event::Interrupt(0x63)), false), "the others wait for its EOI");
    r.vcpu().event = None;
    assert!(r.write_msr(0x80b, 0));
    r.enter(0);
    assert_eq!(r.vcpu().event, Some(Event::Interrupt(0x52)));
}

#[test]
fn the_back_end_is_told_the_task_priority_before_an_entry() {
    let mut r = rig(1);
    assert!(r.write_msr(0x808, 0x4f));
    r.enter(0);
    assert_eq!(r.vcpu().cr8, 4);
}

#[test]
fn the_timer_gives_a_deadline_and_then_its_interrupt() {
    let mut r = rig(1);
    assert!(r.write_msr(0x80f, 0x1ff));
    assert!(r.write_msr(0x832, 0x4_00ec));
    assert!(r.write_msr(0x6e0, 5_000));
    assert_eq!(r.enter(0), Entry::Run { deadline: Some(5_000) });
    r.host.tsc.set(6_000);
    assert_eq!(r.enter(0), Entry::Run { deadline: None });
    assert_eq!(r.vcpu().event, Some(Event::Interrupt(0xec)));
    assert_eq!(r.counted(Reason::MsrApicTimer), 1);
}

#[test]
fn a_second_vcpu_is_started_by_init_and_start_up() {
    let mut r = rig(2);
    assert!(!r.machine.mailboxes[1].0.entering_guest() || r.machine.mailboxes[1].0.halting());
    assert!(r.write_msr(0x830, 1 << 32 | 0x4500));
    assert_eq!(*r.host.kicks.borrow(), [1]);
    r.machine.mailboxes[1].0.left_guest();
    assert_eq!(r.enter(1), Entry::Wait { deadline: None });
    assert!(r.write_msr(0x830, 1 << 32 | 0x4608));
    assert!(r.write_msr(0x830, 1 << 32 | 0x4609), "the second start-up is ignored");
    assert_eq!(r.enter(1), Entry::Run { deadline: None });
    let state = r.vcpus[1].0.resets.last().unwrap();
    assert_eq!((state.cs.selector, state.cs.base, state.rip), (0x800, 0x8000, 0));
    assert_eq!(state.gprs.rdx, u64::from(r.machine.cpuid.signature()));
    assert_eq!(r.vcpus[1].0.resets.len(), 2);
    assert_eq!(r.counted(Reason::MsrApicIcr), 0, "counted at the next entry");
}

#[test]
fn interrupt_commands_reach_own_vcpus_only() {
    let mut r = rig(2);
    assert!(r.write_msr(0x830, 7 << 32 | 0x40));
    assert_eq!(r.refused("icr"), 1);
    assert!(r.write_msr(0x830, 0x4_0040 | 3 << 18));
    assert!(r.write_msr(0x830, 1 << 32 | 0x400));
    assert_eq!(r.refused("icr"), 1);
    r.vcpus[1].1.activity = Activity::Running;
    r.enter(1);
    assert_eq!(r.vcpus[1].0.event, Some(Event::Nmi));
    let mut alone = rig(1);
    assert!(alone.write_msr(0x830, 0x40 | 3 << 18), "all but me, and there is nobody");
    assert_eq!(alone.refused("icr"), 0);
}

#[test]
fn a_devices_interrupt_reaches_the_vcpus_it_names() {
    let r = rig(2);
    let interrupt = |destination, logical| Interrupt { destination, logical, lowest_priority: false, vector: 0x50 };
    let mut kicked = Vec::new();
    assert!(r.machine.mailboxes[1].0.entering_guest());
    assert!(r.machine.deliver(interrupt(1, false), |i| kicked.push(i)));
    assert_eq!(kicked, [Signal::Kick(1)]);
    assert!(r.machine.deliver(interrupt(0b10, true), |_| {}));
    assert!(!r.machine.deliver(interrupt(2, false), |_| unreachable!()));
    assert!(!r.machine.deliver(interrupt(0x100, false), |_| unreachable!()));
    assert!(r.machine.mailboxes[1].0.pending());
    assert!(!r.machine.mailboxes[0].0.pending());
}

#[test]
fn listed_msrs_are_answered() {
    let mut r = rig(1);
    assert_eq!(r.read_msr(0xc001_0015), Some(1 << 24));
    assert_eq!(r.read_msr(0xfe), Some(0));
    assert_eq!(r.read_msr(0x2ff), Some(0x806));
    assert!(r.write_msr(0x2ff, 0x406));
    assert_eq!(r.read_msr(0x2ff), Some(0x406));
    assert!(!r.write_msr(0x2ff, 0x402));
    assert_eq!(r.read_msr(0xc000_0080), Some(0x500));
    assert!(r.write_msr(0xc000_0080, 0xd01));
    assert!(!r.write_msr(0xc000_0080, u64::MAX), "what the back-end refuses");
    assert_eq!(r.read_msr(0x1b), Some(0xfee0_0d00));
    assert_eq!(r.read_msr(0x802), Some(0));
    assert!(r.write_msr(0x1d9, 0));
    assert!(!r.write_msr(0x1d9, 1));
}

#[test]
fn any_other_msr_is_a_general_protection_and_counted() {
    let mut r = rig(1);
    for number in [0x48, 0x49, 0x179, 0x186, 0xda0, 0xc001_0114, 0x830 + 0x100, 0x4b56_4d02, u32::MAX] {
        assert_eq!(r.read_msr(number), None, "{number:#x}");
        assert_eq!(r.vcpu().event, Some(Event::GENERAL_PROTECTION));
        assert_eq!(r.vcpu().rip, 0x1000, "a fault points at its instruction");
        assert!(!r.write_msr(number, 1), "{number:#x}");
    }
    assert_eq!(r.read_msr(0x840), None, "no such register of the APIC");
    assert!(!r.write_msr(0xfe, 0), "read-only");
    assert_eq!(r.refused("msr"), 20);
}

#[test]
fn of_the_registers_for_speculation_a_guest_gets_the_bits_that_its_cpuid_has() {
    let mut r = rig(1);
    // The back-end would take any bit.
    r.vcpus[0].0.msrs.extend([(0x48, 0), (0x49, 0)]);
    assert!(r.write_msr(0x48, 0x87));
    for bit in (0..64).filter(|bit| 0x87_u64 >> bit & 1 == 0) {
        assert!(!r.write_msr(0x48, 0x87 | 1 << bit), "bit {bit}");
    }
    assert_eq!(r.read_msr(0x48), Some(0x87));
    assert!(r.write_msr(0x49, 1));
    assert!((1..64).all(|bit| !r.write_msr(0x49, 1 << bit)));
    assert_eq!(r.read_msr(0x49), None, "write-only");
}

#[test]
fn the_clock_pages_are_written_where_the_guest_wants_them() {
    let mut r = rig(1);
    assert!(r.write_msr(clock_msr(1), 0x30_0001));
    assert_eq!(r.machine.memory.read_u32(0x30_0000), Ok(2));
    assert!(r.write_msr(clock_msr(0), 0x30_0100));
    assert_eq!(r.machine.memory.read_u32(0x30_0104), Ok(1_699_999_999), "the time at the guest's start, just before");
    assert!(!r.write_msr(clock_msr(1), 0xffff_f001), "not its memory");
    assert_eq!(r.read_msr(clock_msr(1)), None, "write-only");
}

#[test]
fn the_tsc_moves_with_everything_that_counts_in_it() {
    let mut r = rig(1);
    assert!(r.write_msr(0x80f, 0x1ff));
    assert!(r.write_msr(0x832, 0x4_00ec));
    assert!(r.write_msr(clock_msr(1), 0x30_0001));
    assert!(r.write_msr(0x6e0, 1_000_000));
    assert_eq!(r.enter(0), Entry::Run { deadline: Some(1_000_000) });
    // The guest's TSC starts again at 0, in the host's time somewhat below 1,000.
    assert!(r.write_msr(0x10, 0));
    let offset = r.vcpu().tsc_offset;
    let begin = 0_u64.wrapping_sub(offset);
    assert!((1..1000).contains(&begin), "{begin}");
    assert_eq!(r.enter(0), Entry::Run { deadline: Some(begin + 1_000_000) });
    assert_eq!(r.read_msr(0x3b), Some(offset));
    assert_eq!(r.machine.memory.read_u64(0x30_0008), Ok(offset), "the clock page: system time 0 was at the host's 0");
    assert!(r.read_msr(0x10).is_some_and(|tsc| tsc < 1000));
    // By TSC_ADJUST it goes far ahead: the deadline has passed.
    assert!(r.write_msr(0x3b, 2_000_000));
    assert_eq!(r.enter(0), Entry::Run { deadline: None });
    assert_eq!(r.vcpu().event, Some(Event::Interrupt(0xec)));
    assert_eq!(r.read_msr(0x6e0), Some(0));
}

#[test]
fn a_vcpus_tsc_survives_its_init() {
    let mut r = rig(2);
    let (v, c) = &mut r.vcpus[1];
    c.tsc_offset = 77;
    v.tsc_offset = 77;
    assert!(r.write_msr(0x830, 1 << 32 | 0x4500));
    assert!(r.write_msr(0x830, 1 << 32 | 0x4608));
    r.enter(1);
    assert_eq!(r.vcpus[1].0.tsc_offset, 77);
}

#[test]
fn a_guest_with_the_physical_timer_cannot_move_its_tsc() {
    for interrupts in [Interrupts::Emulated, Interrupts::Virtualized, Interrupts::Owned] {
        let mut r = rig_with(1, interrupts);
        let follows = interrupts != Interrupts::Owned;
        assert!(r.read_msr(0x10).is_some());
        assert_eq!(r.read_msr(0x3b).is_some(), follows, "{interrupts:?}");
        assert_eq!((r.write_msr(0x10, 0), r.write_msr(0x3b, 5)), (follows, follows), "{interrupts:?}");
        let current = crate::cpuid::Current { apic_id: 0, cr4: 0, xcr0: 1 };
        assert_eq!(r.machine.cpuid.answer(7, 0, &current).ebx & 2 != 0, follows, "{interrupts:?}");
        assert_eq!(r.vcpu().tsc_offset, if follows { 5 } else { 0 });
    }
}

fn clock_msr(i: u32) -> u32 {
    crate::clock::WALL_CLOCK_NEW + i
}

#[test]
fn the_console_goes_out_and_comes_in() {
    let mut r = rig(1);
    for b in b"hi" {
        assert_eq!(r.out(layout::COM1, 1, u64::from(*b)), Next::Continue);
    }
    assert_eq!(*r.host.console.borrow(), b"hi");
    assert_eq!(r.vcpu().rip, 0x1001);
    let mut typed = b"ok".iter().copied();
    r.machine.type_in(|| typed.next(), |_| unreachable!("interrupts are off"));
    assert_eq!(r.input(layout::COM1 + 5, 1) & 1, 1);
    assert_eq!(r.input(layout::COM1, 1), u64::from(b'o'));
    assert_eq!(r.input(layout::COM1, 1), u64::from(b'k'));
    r.enter(0);
    assert_eq!(r.refused("port"), 0);
    assert_eq!(r.counted(Reason::IoUart), 1, "of exits between two entries the last is counted");
}

#[test]
fn more_typed_than_the_console_holds_is_kept() {
    let mut r = rig(1);
    let mut typed = (0..1000_u32).map(|i| i as u8);
    r.machine.type_in(|| typed.next(), |_| {});
    let mut got = Vec::new();
    for _ in 0..1000 {
        got.push(r.input(layout::COM1, 1) as u8);
        r.machine.type_in(|| typed.next(), |_| {});
    }
    assert_eq!(got, (0..1000_u32).map(|i| i as u8).collect::<Vec<_>>());
}

#[test]
fn string_output_takes_one_element_an_exit() {
    let mut r = rig(1);
    r.machine.memory.write(0x2000, b"abc").unwrap();
    (r.vcpu().gprs.rsi, r.vcpu().gprs.rcx) = (0x2000, 2);
    let string = PortAccess { string: true, repeat: true, ..access(layout::COM1, 1, true) };
    r.exit(&[0xf3, 0x6e], Exit::Port(string));
    assert_eq!((r.vcpu().rip, r.vcpu().gprs.rsi, r.vcpu().gprs.rcx), (0x1000, 0x2001, 1));
    r.exit(&[0xf3, 0x6e], Exit::Port(string));
    assert_eq!((r.vcpu().rip, r.vcpu().gprs.rcx), (0x1002, 0));
    assert_eq!(*r.host.console.borrow(), b"ab");
    // insb: a status byte into memory.
    r.vcpu().gprs.rdi = 0x2010;
    let string = PortAccess { string: true, ..access(layout::COM1 + 5, 1, false) };
    r.exit(&[0x6c], Exit::Port(string));
    assert_eq!(r.machine.memory.read_u8(0x2010), Ok(0x60));
    assert_eq!((r.vcpu().rip, r.vcpu().gprs.rdi), (0x1001, 0x2011));
}

#[test]
fn ports_without_a_device_read_as_all_ones_and_are_counted() {
    let mut r = rig(1);
    r.vcpu().gprs.rax = 0;
    assert_eq!(r.input(0x60, 1), 0xff);
    assert_eq!(r.input(0x1f0, 2), 0xffff);
    assert_eq!(r.input(0x5000, 4), 0xffff_ffff);
    r.out(0x64, 1, 0xaa);
    assert_eq!(r.refused("port"), 4);
    r.out(0x80, 1, 0);
    assert_eq!(r.refused("port"), 4, "the delay port is there");
}

#[test]
fn configuration_space_answers_by_both_ways_and_absent_functions_are_counted() {
    let mut r = rig(1);
    assert_eq!(r.load(layout::ECAM + 0x8000), 0x1041_1af4);
    r.out(0xcf8, 4, 0x8000_0800);
    assert_eq!(r.input(0xcfc, 4), 0x1041_1af4);
    assert_eq!(r.refused("pci-config"), 0);
    assert_eq!(r.load(layout::ECAM + 0x1_0000), 0xffff_ffff);
    r.out(0xcf8, 4, 0x8000_1000);
    assert_eq!(r.input(0xcfc, 2), 0xffff);
    r.out(0xcf8, 4, 0x8001_0800);
    r.out(0xcfc, 4, 1);
    assert_eq!(r.refused("pci-config"), 3);
    r.enter(0);
    assert_eq!(r.counted(Reason::IoPciConfig), 1);
}

#[test]
fn a_virtio_device_answers_at_its_bars_and_its_notifications_are_told_apart() {
    let mut r = rig(1);
    r.out(0xcf8, 4, 0x8000_0804);
    r.out(0xcfc, 2, 3); // memory and I/O decoding
    let bar0 = u64::from(layout::bar0(1));
    r.store(bar0, 0);
    assert_ne!(r.load(bar0 + 4), 0xffff_ffff, "device features");
    r.out(layout::bar1(1) as u16, 2, 0);
    assert_eq!((r.refused("port"), r.refused("memory")), (0, 0));
    r.enter(0);
    assert_eq!(r.counted(Reason::IoVirtioNotify), 1);
}

#[test]
fn memory_that_is_not_there_reads_as_all_ones_and_is_counted() {
    let mut r = rig(1);
    assert_eq!(r.load(4 * MIB as u64), 0xffff_ffff);
    assert_eq!(r.vcpu().rip, 0x1002);
    r.store(layout::LOCAL_APIC + 0x300, 0x000c_4500);
    assert_eq!(r.load(layout::LOCAL_APIC + 0x30), 0xffff_ffff);
    assert_eq!(r.refused("memory"), 3);
    r.exit(&[], Exit::NestedFault { gpa: layout::ECAM, write: false, fetch: true });
    assert_eq!(r.vcpu().event, Some(Event::INVALID_OPCODE));
    // movups [rbx], xmm0
    r.vcpu().gprs.rbx = 0x5000_0000;
    r.exit(&[0x0f, 0x11, 0x03], Exit::NestedFault { gpa: 0x5000_0000, write: true, fetch: false });
    assert_eq!(r.vcpu().event, Some(Event::INVALID_OPCODE));
    assert_eq!((r.refused("memory"), r.refused("instruction")), (5, 1));
    assert_eq!(r.load(layout::IOAPIC), 0);
    assert_eq!(r.refused("memory"), 5, "the IOAPIC is there");
}

#[test]
fn a_fault_while_an_event_is_delivered_ends_the_guest() {
    let mut r = rig(1);
    let (v, c) = &mut r.vcpus[0];
    v.event = Some(Event::Interrupt(0x40));
    let exit = Exit::NestedFault { gpa: 0x7000_0000, write: true, fetch: false };
    (v.rip, v.cr2, v.cr3) = (0xffff_ffff_8100_0000, 0x7000_0008, 0x1000);
    let Next::Stop(stop) = r.machine.handle(exit, v, c, &r.host) else { panic!("it goes on") };
    assert_eq!(
        stop.to_string(),
        "triple fault: at RIP 0xffffffff81000000 in the delivery of interrupt 0x40, CR2 0x70000008, CR3 0x1000, \
         IDT 0x0 limit 0x0"
    );
}

#[test]
fn power_off_reset_and_triple_fault_stop_every_vcpu_with_the_same_reason() {
    for (cause, expected) in [(0, Some(Stop::PowerOff)), (1, Some(Stop::Reset)), (2, None)] {
        let mut r = rig(2);
        let next = match cause {
            0 => r.out(layout::SLEEP_CONTROL, 1, 0x34),
            1 => r.out(layout::RESET, 1, u64::from(layout::RESET_VALUE)),
            _ => r.exit(&[], Exit::TripleFault),
        };
        let expected = expected.unwrap_or_else(|| Stop::triple_fault(&r.vcpus[0].0, None));
        assert_eq!(next, Next::Stop(expected.clone()));
        assert_eq!(r.machine.stopped(), Some(expected.clone()));
        assert_eq!(r.enter(1), Entry::Stop(expected.clone()));
        r.machine.request_stop(Stop::Killed, |_| {});
        assert_eq!(r.machine.stopped(), Some(expected), "the first reason counts");
    }
}

#[test]
fn the_operator_kills_and_presses_the_power_button() {
    let mut r = rig(2);
    // Route the button's GSI to vector 0x71 on APIC 0.
    for (register, value) in [(0x10 + 2 * 5, 0x71), (0x11 + 2 * 5, 0)] {
        r.store(layout::IOAPIC, register);
        r.store(layout::IOAPIC + 0x10, value);
    }
    assert!(r.write_msr(0x80f, 0x1ff));
    r.machine.press_power_button(|_| {});
    r.enter(0);
    assert_eq!(r.vcpu().event, Some(Event::Interrupt(0x71)));
    assert_eq!(r.input(layout::EVENT_STATUS, 1), 1);
    let mut kicked = Vec::new();
    assert!(r.machine.mailboxes[0].0.entering_guest());
    r.machine.request_stop(Stop::Killed, |i| kicked.push(i));
    assert_eq!(kicked, [Signal::Kick(0)]);
    r.machine.mailboxes[0].0.left_guest();
    assert_eq!(r.enter(0), Entry::Stop(Stop::Killed));
    assert_eq!(r.enter(1), Entry::Stop(Stop::Killed));
}

#[test]
fn an_instruction_that_does_not_end_stops_the_guest_only_if_its_state_is_lost() {
    let mut r = rig(1);
    r.exit(&[], Exit::InstructionTimeout { intact: true });
    r.exit(&[], Exit::MACHINE_CHECK);
    assert_eq!((r.machine.stopped(), r.vcpu().rip, r.vcpu().event), (None, 0x1000, None), "it goes on where it was");
    r.exit(&[], Exit::InstructionTimeout { intact: false });
    assert!(matches!(r.machine.stopped(), Some(Stop::Failed(_))));
}

#[test]
fn xsetbv_and_cr8_do_as_hardware_does() {
    let mut r = rig(1);
    r.vcpu().cr4 |= 1 << 18;
    (r.vcpu().gprs.rax, r.vcpu().gprs.rcx, r.vcpu().gprs.rdx) = (7, 0, 0);
    r.exit(&[0x0f, 0x01, 0xd1], Exit::Xsetbv);
    assert_eq!((r.vcpu().xcr0, r.vcpu().rip), (7, 0x1003));
    r.vcpu().gprs.rax = 5;
    r.exit(&[0x0f, 0x01, 0xd1], Exit::Xsetbv);
    assert_eq!((r.vcpu().xcr0, r.vcpu().event), (7, Some(Event::GENERAL_PROTECTION)));
    // mov cr8, rax and mov r9, cr8; once told and once decoded
    r.exit(&[0x44, 0x0f, 0x22, 0xc0], Exit::Cr8 { write: true, register: None });
    r.exit(&[0x45, 0x0f, 0x20, 0xc1], Exit::Cr8 { write: false, register: Some(9) });
    assert_eq!((r.vcpu().gprs.r9, r.vcpu().rip), (5, 0x1004));
    r.vcpu().gprs.rax = 16;
    r.exit(&[0x44, 0x0f, 0x22, 0xc0], Exit::Cr8 { write: true, register: Some(0) });
    assert_eq!(r.vcpu().event, Some(Event::GENERAL_PROTECTION));
}

#[test]
fn instructions_that_this_machine_lacks_are_undefined() {
    let mut r = rig(1);
    r.exit(&[0x0f, 0x01, 0xc8], Exit::Forbidden);
    assert_eq!(r.vcpu().event, Some(Event::INVALID_OPCODE));
    assert_eq!(r.refused("instruction"), 1);
    r.exit(&[0x0f, 0x09], Exit::CacheFlush);
    assert_eq!((r.vcpu().event, r.vcpu().rip), (None, 0x1002));
    r.exit(&[], Exit::Exception { vector: 17, error: Some(0) });
    assert_eq!(r.vcpu().event, Some(Event::Exception(17, Some(0))));
}

#[test]
fn code_that_changes_under_an_exit_runs_again_and_not_for_ever() {
    let mut r = rig(1);
    r.exit(&[0x90], Exit::Cpuid);
    assert_eq!((r.vcpu().event, r.vcpu().rip), (None, 0x1000));
    for _ in 0..1000 {
        r.exit(&[0x90], Exit::Cpuid);
    }
    assert_eq!(r.vcpu().event, Some(Event::INVALID_OPCODE));
}

#[test]
fn refused_msi_messages_and_broken_rings_of_a_former_life_do_not_count() {
    let r = rig(1);
    r.nic.counters().faults.add(3);
    assert_eq!(r.refused("descriptor"), 3);
    let again = Refusals::new(&[r.nic]);
    assert!(again.report(0).all(|(_, count)| count == 0));
}

fn any_exit() -> impl Strategy<Value = Exit> {
    let port = (any::<u16>(), 0_u8..9, any::<[bool; 3]>(), any::<u64>()).prop_map(|(port, size, [w, s, r], next)| {
        // Half of them at ports where something is.
        let port =
            if next & 1 == 0 { port } else { [0x3f8, 0xcf8, 0xcfc, 0x600, 0xc100][port as usize % 5] + port % 8 };
        Exit::Port(PortAccess { port, size, write: w, string: s, repeat: r, next_rip: next })
    });
    let fault = (any::<u64>(), 0_u64..0x8000, 0_usize..5, any::<bool>()).prop_map(|(any, offset, base, fetch)| {
        let bases = [layout::ECAM, layout::IOAPIC, layout::bar0(1).into(), layout::LOCAL_APIC, any & !0x7fff];
        Exit::NestedFault { gpa: bases[base] | offset, write: any & 1 == 0, fetch: fetch && any & 6 == 0 }
    });
    prop_oneof![
        6 => port,
        6 => fault,
        1 => Just(Exit::Cpuid),
        1 => Just(Exit::Halt),
        3 => Just(Exit::ReadMsr),
        3 => Just(Exit::WriteMsr),
        1 => (any::<bool>(), any::<Option<u8>>()).prop_map(|(write, register)| Exit::Cr8 { write, register }),
        1 => any::<(bool, Option<u8>)>().prop_map(|(four, register)| {
            Exit::ReadControlRegister { number: if four { 4 } else { 0 }, register }
        }),
        1 => (any::<bool>(), any::<Option<u8>>()).prop_map(|(four, register)| {
            Exit::WriteControlRegister { number: if four { 4 } else { 0 }, register }
        }),
        1 => Just(Exit::Xsetbv),
        1 => Just(Exit::SplitLock),
        1 => any::<bool>().prop_map(|intact| Exit::InstructionTimeout { intact }),
        1 => Just(Exit::CacheFlush),
        1 => Just(Exit::InterruptWindow),
        1 => (any::<u8>(), any::<Option<u32>>()).prop_map(|(vector, error)| Exit::Exception { vector, error }),
        1 => any::<u64>().prop_map(|reason| Exit::Unexpected { reason, detail: 0 }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn no_sequence_of_exits_panics(
        steps in prop::collection::vec((any_exit(), any::<[u64; 16]>(), any::<[u8; 15]>(), any::<u8>()), 1..60),
    ) {
        let mut r = rig(2);
        for (exit, registers, mut code, choice) in steps {
            for (i, value) in registers.iter().enumerate() {
                // Registers near addresses and MSRs that mean something.
                let value = match (choice >> 5, value & 3) {
                    (0, 0) => 0x800 + (value >> 2) % 0x40,
                    (1, 0) => u64::from(layout::bar0(1)) + (value >> 2) % 0x4000,
                    (2, _) => (value >> 2) % 0x3000,
                    _ => *value,
                };
                r.vcpu().gprs.set(i as u8, value);
            }
            if let Exit::NestedFault { gpa, .. } = exit
                && choice & 1 == 0
            {
                r.vcpu().gprs.rbx = gpa;
                code[..2].copy_from_slice(if choice & 2 == 0 { &[0x8b, 0x03] } else { &[0x89, 0x03] });
            }
            if exit == Exit::ReadMsr || exit == Exit::WriteMsr {
                code[..2].copy_from_slice(if exit == Exit::ReadMsr { &[0x0f, 0x32] } else { &[0x0f, 0x30] });
            }
            let _ = r.exit(&code, exit);
            r.host.tsc.set(r.host.tsc.get().wrapping_add(registers[0] >> 32));
            let _ = r.enter(0);
            let _ = r.enter(1);
        }
    }
}

#[test]
fn who_owns_the_apic_gets_its_interrupts_sent_to_the_core_and_never_by_mailbox() {
    let mut r = rig_with(2, Interrupts::Owned);
    assert_eq!(r.host.apic_resets.get(), 2, "each core's APIC was put in order");
    let mut signals = Vec::new();
    let to = |destination, vector| Interrupt { destination, logical: false, lowest_priority: false, vector };
    assert!(r.machine.deliver(to(1, 0x41), |s| signals.push(s)));
    assert!(!r.machine.deliver(to(2, 0x41), |s| signals.push(s)), "there is no third vCPU");
    assert!(!r.machine.deliver(to(1, 0x1f), |s| signals.push(s)), "an exception's vector");
    assert_eq!(signals, [Signal::Interrupt(1, 0x41)]);
    // An IPI to the sibling, and one to itself.
    r.wrmsr(lapic::msr::ICR, 1 << 32 | 0x51);
    r.wrmsr(lapic::msr::SELF_IPI, 0x52);
    r.wrmsr(lapic::msr::ICR, 1 << 18 | 0x53);
    assert_eq!(*r.host.interrupts.borrow(), [(1, 0x51), (0, 0x52), (0, 0x53)]);
    assert!(matches!(r.enter(0), Entry::Run { deadline: None }));
    assert_eq!(r.vcpu().event, None, "nothing is injected");
}

#[test]
fn an_owned_apics_timer_and_spurious_vector_go_to_the_hardware_once_checked() {
    let mut r = rig_with(1, Interrupts::Owned);
    let svr = |value| (lapic::msr::SVR, value);
    let timer = |value| (lapic::msr::LVT_TIMER, value);
    r.wrmsr(lapic::msr::SVR, 0x1ff);
    r.wrmsr(lapic::msr::LVT_TIMER, 0x200ec);
    r.wrmsr(lapic::msr::LVT_TIMER, 0x2001f); // an exception's vector: masked
    r.wrmsr(lapic::msr::SVR, 0xff); // disabled: the timer is masked, NMIs still get in
    let writes = r.host.apic_writes.borrow().clone();
    let timers: Vec<_> = writes.iter().filter(|w| w.0 == lapic::msr::LVT_TIMER).copied().collect();
    assert_eq!(timers, [timer(0x10000), timer(0x200ec), timer(0x3001f), timer(0x3001f)]);
    assert!(writes.iter().filter(|w| w.0 == lapic::msr::SVR).all(|w| *w == svr(0x1ff)), "{writes:x?}");
    // What it may not have is #GP as ever, and reaches nothing.
    let before = r.host.apic_writes.borrow().len();
    r.wrmsr(lapic::msr::LVT_TIMER, 1 << 40);
    assert_eq!(r.vcpu().event, Some(Event::GENERAL_PROTECTION));
    r.wrmsr(lapic::msr::ID, 7);
    assert_eq!(r.vcpu().event, Some(Event::GENERAL_PROTECTION));
    assert_eq!(r.host.apic_writes.borrow().len(), before);
}
