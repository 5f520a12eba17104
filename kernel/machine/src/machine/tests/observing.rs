//! The host is shown each exit once, while it watches, and each injection.

use super::rig::{Rig, access, rig};
use crate::{
    layout,
    machine::{Entry, Next, Stop},
    observe,
    reason::Reason,
    vcpu::{Event, Exit},
};

/// The exits that the observer was shown: reason and qualification.
fn seen(rig: &Rig) -> Vec<(Reason, u64)> {
    rig.host.exits.take().iter().map(|exit| (exit.reason, exit.qualification)).collect()
}

#[test]
fn each_exit_is_shown_once_when_it_has_been_handled() {
    let mut r = rig(1);
    r.host.watches.set(true);
    r.vcpu().gprs.rax = 0xffff_ffff_4000_0000;
    r.exit(&[0x0f, 0xa2], Exit::Cpuid);
    assert!(r.host.exits.take().is_empty(), "not before the way back");
    assert_eq!(r.enter(0), Entry::Run { deadline: None });
    let [exit] = r.host.exits.take()[..] else { panic!("not one exit") };
    let cycles = r.vcpus[0].1.exits().get(Reason::Cpuid).1;
    let observe::Exit { vcpu, reason, rip, qualification, begin, end } = exit;
    assert_eq!((vcpu, reason, rip, qualification), (0, Reason::Cpuid, 0x1000, 0x4000_0000));
    assert_eq!(end - begin, cycles, "the same as in the histogram");
    r.enter(0);
    assert!(r.host.exits.take().is_empty(), "an entry without an exit before it");
}

#[test]
fn exits_of_every_kind_come_in_their_order_with_what_they_name() {
    let mut r = rig(1);
    r.host.watches.set(true);
    let apic = u64::from(crate::lapic::msr::SVR);
    r.vcpu().gprs.rcx = apic;
    r.exit(&[0x0f, 0x32], Exit::ReadMsr);
    r.enter(0);
    r.exit(&[0xed], Exit::Port(access(layout::COM1, 1, false)));
    r.enter(0);
    r.load(layout::IOAPIC);
    r.enter(0);
    r.exit(&[], Exit::ExternalInterrupt(Some(0x33)));
    r.enter(0);
    r.exit(&[], Exit::NotEntered);
    r.enter(0);
    r.exit(&[0xf4], Exit::Halt);
    assert_eq!(r.enter(0), Entry::Wait { deadline: None });
    r.enter(0);
    let expected = [
        (Reason::MsrApicOther, apic),
        (Reason::IoUart, layout::COM1.into()),
        (Reason::MmioIoapic, layout::IOAPIC),
        (Reason::ExternalInterrupt, 0x33),
        (Reason::Halt, 0),
    ];
    assert_eq!(seen(&r), expected, "an entry that did not take place is no exit");
    assert_eq!(r.vcpus[0].1.exits().total(), expected.len() as u64);
}

#[test]
fn the_exit_that_ends_the_guest_is_shown_too() {
    let mut r = rig(1);
    r.host.watches.set(true);
    assert!(matches!(r.exit(&[], Exit::TripleFault), Next::Stop(Stop::TripleFault(_))));
    assert_eq!(seen(&r), [(Reason::TripleFault, 0)]);
    assert!(matches!(r.enter(0), Entry::Stop(Stop::TripleFault(_))));
    assert_eq!(seen(&r), []);
}

#[test]
fn an_exit_is_shown_if_the_host_watched_at_its_beginning() {
    let mut r = rig(1);
    let mut one = |on| {
        r.host.watches.set(on);
        r.exit(&[0x0f, 0xa2], Exit::Cpuid);
        // The exit that is under way stays as it began.
        r.host.watches.set(!on);
        r.enter(0);
        seen(&r).len()
    };
    assert_eq!([one(false), one(true), one(false)], [0, 1, 0]);
    assert_eq!(r.counted(Reason::Cpuid), 3, "the histogram counts them all");
}

#[test]
fn injections_are_shown_on_the_way_in_and_exceptions_at_once() {
    let mut r = rig(2);
    r.write_msr(crate::lapic::msr::SVR, 0x1ff);
    r.exit(&[0x0f, 0x0b], Exit::Forbidden);
    assert_eq!(r.host.injections.take(), [(0, Event::INVALID_OPCODE)]);
    r.enter(0);
    assert_eq!(r.host.injections.take(), [], "nothing waits");
    // The vCPU is in the host: nobody has to be kicked.
    assert!(r.machine.mailbox(0).is_some_and(|mailbox| !mailbox.post(0x41)));
    r.vcpu().event = None;
    r.enter(0);
    assert_eq!(r.host.injections.take(), [(0, Event::Interrupt(0x41))]);
}
