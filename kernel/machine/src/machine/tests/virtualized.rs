//! Guests whose local APIC the CPU virtualizes.

use virtio::msix::Interrupt;

use super::rig::{Rig, rig, rig_quirky};
use crate::{
    lapic::{Delivery, Destination, Message, msr},
    layout,
    machine::{Entry, Next, Signal, Stop},
    mailbox::Mailbox,
    posted::HandOver,
    quirk::Quirks,
    reason::Reason,
    vcpu::{Exit, Interrupts, StartState},
};

/// Of one vCPU, its APIC switched on.
fn virtualized(quirks: Quirks) -> Rig {
    let mut rig = rig_quirky(2, Interrupts::Virtualized, quirks);
    rig.vcpu().length = Some(2);
    assert!(rig.write_msr(msr::SVR, 0x1ff));
    rig.enter(0);
    rig
}

fn interrupt(destination: u32, vector: u8) -> Interrupt {
    Interrupt { destination, logical: false, lowest_priority: false, vector }
}

fn deliver(rig: &Rig, interrupt: Interrupt) -> Vec<Signal> {
    let mut signals = Vec::new();
    assert!(rig.machine.deliver(interrupt, |s| signals.push(s)));
    signals
}

fn mailbox(rig: &Rig) -> &Mailbox {
    rig.machine.mailbox(0).unwrap()
}

fn irr(rig: &Rig, vector: u8) -> bool {
    let page = rig.machine.virtual_apic(0).unwrap();
    page.register(msr::IRR + u32::from(vector) / 32) >> (vector % 32) & 1 != 0
}

#[test]
fn a_running_guest_is_notified_and_neither_kicked_nor_injected() {
    let mut rig = virtualized(Quirks::default());
    assert_eq!(deliver(&rig, interrupt(0, 0x31)), [], "in the host: it looks by itself");
    assert_eq!(rig.enter(0), Entry::Run { deadline: None });
    assert!(irr(&rig, 0x31));
    let v = rig.vcpu();
    assert_eq!((v.event, v.window), (None, false));
    assert_eq!(v.handed_over, [HandOver { rvi: 0x31, eoi_exits: None }]);
    assert!(rig.machine.mailbox(0).unwrap().entering_guest());
    assert_eq!(deliver(&rig, interrupt(0, 0x32)), [Signal::Notify(0)]);
    assert_eq!(deliver(&rig, interrupt(0, 0x33)), [], "one notification for all of them");
    rig.machine.mailbox(0).unwrap().left_guest();
    rig.enter(0);
    assert_eq!(rig.vcpu().handed_over.last().unwrap().rvi, 0x33);
}

#[test]
fn vectors_below_16_are_an_error_of_the_apic_as_ever() {
    let mut rig = virtualized(Quirks::default());
    deliver(&rig, interrupt(0, 0x0f));
    rig.enter(0);
    assert!(!irr(&rig, 0x0f));
    assert!(rig.write_msr(msr::ESR, 0));
    assert_eq!(rig.read_msr(msr::ESR), Some(0x40));
    assert_eq!(rig.machine.virtual_apic(0).unwrap().register(msr::ESR), 0x40, "and in the page");
}

#[test]
fn a_level_triggered_interrupt_kicks_and_its_end_reaches_the_ioapic() {
    let mut rig = virtualized(Quirks::default());
    // COM1's entry: level-triggered, vector 0x34, to APIC 0; then its transmitter-empty interrupt on.
    for (select, value) in [(0x10 + 2 * layout::COM1_GSI as u64, 0x8034), (0x11 + 2 * layout::COM1_GSI as u64, 0)] {
        rig.store(layout::IOAPIC, select);
        rig.store(layout::IOAPIC + 0x10, value);
    }
    rig.out(layout::COM1 + 4, 1, 8);
    rig.out(layout::COM1 + 1, 1, 2);
    rig.enter(0);
    assert!(irr(&rig, 0x34));
    let change = *rig.vcpu().handed_over.last().unwrap();
    assert_eq!(change, HandOver { rvi: 0x34, eoi_exits: Some([1 << 0x34, 0, 0, 0]) });
    // Its end reaches the IOAPIC, which sends it again: the line is still up.
    rig.machine.virtual_apic(0).unwrap().reset();
    assert_eq!(rig.exit(&[], Exit::EndOfInterrupt(0x34)), Next::Continue);
    assert_eq!(rig.vcpu().rip, 0x1000, "trap-like: RIP is right already");
    rig.enter(0);
    assert!(irr(&rig, 0x34));
    assert_eq!(rig.counted(Reason::VirtualEoi), 1);
    assert!(rig.machine.mailbox(0).unwrap().entering_guest());
    let mut signals = Vec::new();
    let level =
        Message { destination: Destination::Physical(0), delivery: Delivery::Fixed { vector: 0x35, level: true } };
    rig.machine.send(level, |s| signals.push(s));
    assert_eq!(signals, [Signal::Kick(0)], "the EOI-exit bitmap is the vCPU's core's to write");
}

#[test]
fn a_wake_that_finds_the_vcpu_awake_is_told_from_a_kick() {
    let mut rig = virtualized(Quirks::default());
    assert!(mailbox(&rig).halting());
    assert_eq!(deliver(&rig, interrupt(0, 0x31)), [Signal::Kick(0)], "its HLT has exited");
    // Before the NMI arrives it wakes by itself, takes what was posted, and is in the guest again.
    mailbox(&rig).left_guest();
    rig.enter(0);
    assert!(irr(&rig, 0x31) && mailbox(&rig).entering_guest());
    // The next one is posted while the NMI is on its way: it needs no exit either.
    assert_eq!(deliver(&rig, interrupt(0, 0x32)), [Signal::Notify(0)]);
    mailbox(&rig).left_guest();
    assert_eq!(rig.exit(&[], Exit::Nmi), Next::Continue);
    rig.enter(0);
    assert_eq!((rig.counted(Reason::LateWake), rig.counted(Reason::Nmi)), (1, 0));
    assert!(mailbox(&rig).entering_guest() && mailbox(&rig).request_nmi(), "this one has to be kicked");
    mailbox(&rig).left_guest();
    assert_eq!(rig.exit(&[], Exit::Nmi), Next::Continue);
    rig.enter(0);
    assert_eq!((rig.counted(Reason::LateWake), rig.counted(Reason::Nmi)), (1, 1));
}

#[test]
fn an_entry_that_was_given_up_is_no_exit() {
    let mut rig = virtualized(Quirks::default());
    assert_eq!(rig.exit(&[], Exit::NotEntered), Next::Continue);
    rig.enter(0);
    assert_eq!((rig.counted(Reason::Nmi), rig.counted(Reason::LateWake)), (0, 0));
}

/// Programs the deadline as Linux does, at an address without memory: what would fetch the instruction would fault.
fn program(rig: &mut Rig, deadline: u64) {
    let (v, c) = &mut rig.vcpus[0];
    v.rip = 0xdead_0000;
    v.gprs.rcx = msr::TSC_DEADLINE.into();
    v.gprs.set_edx_eax(deadline);
    assert_eq!(rig.machine.handle(Exit::WriteMsr, v, c, &rig.host), Next::Continue);
    assert_eq!((v.rip, v.event), (0xdead_0002, None));
}

fn ring(rig: &Rig, now: u64) -> Vec<Signal> {
    let mut signals = Vec::new();
    rig.machine.ring(now, |s| signals.push(s));
    signals
}

#[test]
fn a_deadline_is_programmed_in_one_exit_without_decoding_and_rung_by_another_core() {
    let mut rig = virtualized(Quirks::default());
    assert!(rig.write_msr(msr::LVT_TIMER, 0x4_00ec));
    program(&mut rig, 50_000);
    // Half a millisecond later this core would look after it.
    assert_eq!(rig.enter(0), Entry::Run { deadline: Some(550_000) });
    assert!(rig.machine.mailbox(0).unwrap().entering_guest());
    assert_eq!(ring(&rig, 49_999), []);
    assert_eq!(ring(&rig, 50_200), [Signal::Notify(0)]);
    assert_eq!(ring(&rig, 50_300), [], "once");
    rig.machine.mailbox(0).unwrap().left_guest();
    rig.host.tsc.set(50_300);
    assert_eq!(rig.read_msr(msr::TSC_DEADLINE), Some(0), "it has ended");
    assert_eq!(rig.enter(0), Entry::Run { deadline: None });
    assert!(irr(&rig, 0xec));
    assert_eq!((rig.counted(Reason::Deadline), rig.counted(Reason::MsrApicTimer)), (0, 2));
}

#[test]
fn a_deadline_that_nobody_rang_is_due_in_another_exit_and_comes_once() {
    let mut rig = virtualized(Quirks::default());
    assert!(rig.write_msr(msr::LVT_TIMER, 0x4_00ec));
    program(&mut rig, 50_000);
    rig.enter(0);
    rig.host.tsc.set(550_000);
    rig.exit(&[], Exit::Deadline);
    assert_eq!(ring(&rig, 560_000), [], "it has been taken back");
    assert_eq!(rig.enter(0), Entry::Run { deadline: None });
    assert!(irr(&rig, 0xec));
    assert_eq!((rig.counted(Reason::Deadline), rig.counted(Reason::MsrApicTimer)), (1, 1));
}

#[test]
fn a_timer_that_is_masked_periodic_or_changed_is_not_anothers_to_ring() {
    let mut rig = virtualized(Quirks::default());
    assert!(rig.write_msr(msr::LVT_TIMER, 0x2_00ec) && rig.write_msr(msr::DIVIDE, 0b1011));
    assert!(rig.write_msr(msr::INITIAL_COUNT, 50_000));
    let Entry::Run { deadline: Some(due) } = rig.enter(0) else { panic!("no deadline") };
    assert!(due < 60_000, "periodic: it stays with the vCPU's core, to the tick");
    assert_eq!(ring(&rig, due), []);
    assert!(rig.write_msr(msr::LVT_TIMER, 0x4_00ec));
    program(&mut rig, 70_000);
    rig.enter(0);
    program(&mut rig, 0);
    assert_eq!(rig.enter(0), Entry::Run { deadline: None });
    assert_eq!(ring(&rig, u64::MAX), [], "switched off");
    program(&mut rig, 90_000);
    assert!(rig.write_msr(msr::LVT_TIMER, 0x5_00ec));
    assert_eq!(rig.enter(0), Entry::Run { deadline: None });
    assert_eq!(ring(&rig, u64::MAX), [], "masked");
}

#[test]
fn a_self_ipi_with_an_illegal_vector_is_an_error_and_not_executed_again() {
    let mut rig = virtualized(Quirks::default());
    rig.machine.virtual_apic(0).unwrap().show(msr::SELF_IPI, 3);
    assert_eq!(rig.exit(&[], Exit::ApicWrite(msr::SELF_IPI)), Next::Continue);
    assert_eq!(rig.vcpu().rip, 0x1000);
    assert!(rig.write_msr(msr::ESR, 0));
    assert_eq!(rig.read_msr(msr::ESR), Some(0x20));
    assert!(matches!(rig.exit(&[], Exit::ApicWrite(msr::ICR)), Next::Stop(Stop::Failed(_))));
}

#[test]
fn ipis_are_posted_to_siblings_and_to_oneself() {
    let mut rig = virtualized(Quirks::default());
    assert!(rig.machine.mailbox(1).unwrap().entering_guest());
    assert!(rig.write_msr(msr::ICR, 0x1_0000_00fd));
    assert_eq!((rig.host.notified.borrow().as_slice(), rig.host.kicks.borrow().as_slice()), (&[1][..], &[][..]));
    assert!(rig.write_msr(msr::ICR, 0x0_0000_00f6));
    assert!(rig.write_msr(msr::ICR, 0x4_00f5));
    rig.enter(0);
    assert!(irr(&rig, 0xf6) && irr(&rig, 0xf5));
    assert_eq!(rig.machine.virtual_apic(0).unwrap().register(msr::ICR), 0x4_00f5);
}

#[test]
fn what_halts_in_the_host_wakes_for_what_it_can_take() {
    let mut rig = virtualized(Quirks::BOCHS);
    rig.vcpu().length = Some(1);
    rig.vcpu().rflags = 0x202;
    rig.exit(&[0xf4], Exit::Halt);
    assert_eq!(rig.enter(0), Entry::Wait { deadline: None });
    let page = rig.machine.virtual_apic(0).unwrap();
    page.show(msr::TPR, 0x40);
    assert!(rig.machine.mailbox(0).unwrap().halting());
    assert_eq!(deliver(&rig, interrupt(0, 0x31)), [Signal::Kick(0)]);
    rig.machine.mailbox(0).unwrap().left_guest();
    assert_eq!(rig.enter(0), Entry::Wait { deadline: None }, "its priority holds it back");
    deliver(&rig, interrupt(0, 0x51));
    rig.vcpu().rflags = 2;
    assert_eq!(rig.enter(0), Entry::Wait { deadline: None }, "CLI; HLT");
    rig.vcpu().rflags = 0x202;
    assert_eq!(rig.enter(0), Entry::Run { deadline: None });
}

#[test]
fn on_bochs_nobody_is_notified_while_an_interrupt_waits() {
    let mut rig = virtualized(Quirks::BOCHS);
    assert!(rig.machine.takes_late_notifications());
    deliver(&rig, interrupt(0, 0x31));
    rig.enter(0);
    assert!(rig.machine.mailbox(0).unwrap().entering_guest());
    assert_eq!(deliver(&rig, interrupt(0, 0x32)), [Signal::Kick(0)], "0x31 stands in VIRR");
    rig.machine.virtual_apic(0).unwrap().reset();
    rig.machine.mailbox(0).unwrap().left_guest();
    rig.enter(0);
    rig.machine.virtual_apic(0).unwrap().reset();
    assert!(rig.machine.mailbox(0).unwrap().entering_guest());
    assert_eq!(deliver(&rig, interrupt(0, 0x33)), [Signal::Notify(0)]);
}

#[test]
fn on_bochs_a_guest_that_came_out_and_took_what_was_posted_is_not_notified_late() {
    let mut rig = virtualized(Quirks::BOCHS);
    deliver(&rig, interrupt(0, 0x31));
    rig.enter(0);
    assert!(rig.machine.mailbox(0).unwrap().entering_guest());
    let machine = &rig.machine;
    let signals = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut signals = Vec::new();
            machine.deliver(interrupt(0, 0x32), |s| signals.push(s));
            signals
        });
        let descriptor = machine.mailbox(0).unwrap().descriptor();
        while !descriptor.outstanding() && !sender.is_finished() {
            std::thread::yield_now();
        }
        // The sender waits because of 0x31, or has given up.
        let taken = descriptor.take();
        let signals = sender.join().unwrap();
        assert!(taken.is_some());
        signals
    });
    assert!(!signals.contains(&Signal::Notify(0)), "PIR is empty: {signals:?}");
}

#[test]
fn init_clears_the_page_and_what_was_posted() {
    let mut rig = virtualized(Quirks::default());
    deliver(&rig, interrupt(0, 0x31));
    let page = rig.machine.virtual_apic(0).unwrap();
    page.show(msr::TPR, 0x50);
    assert!(!rig.machine.mailbox(0).unwrap().request_init());
    assert_eq!(rig.enter(0), Entry::Wait { deadline: None });
    let page = rig.machine.virtual_apic(0).unwrap();
    assert_eq!((page.deliverable(), page.register(msr::TPR)), (None, 0));
    assert_eq!((page.register(msr::SVR), page.register(msr::VERSION)), (0xff, 0x5_0015), "as after reset");
    assert!(!rig.machine.mailbox(0).unwrap().request_startup(0x9a));
    rig.enter(0);
    assert_eq!(rig.vcpu().resets.last().unwrap().rip, StartState::startup_ipi(0x9a, 0).rip);
}

#[test]
fn only_these_guests_have_a_page() {
    assert!(rig(1).machine.virtual_apic(0).is_none());
    assert!(rig(1).machine.virtual_apic_addresses(0).is_none());
    let rig = virtualized(Quirks::default());
    let [a, b] = [0, 1].map(|i| rig.machine.virtual_apic_addresses(i).unwrap());
    assert!(a.page != b.page && a.descriptor != b.descriptor);
    assert!(a.page.is_multiple_of(4096) && a.descriptor.is_multiple_of(4096), "Bochs 3.0 wants both on a page's edge");
    assert!(rig.machine.virtual_apic_addresses(2).is_none());
}

#[test]
fn an_eoi_that_is_watched_exits_and_does_nothing_else_until_it_is_not_watched_any_more() {
    let mut rig = virtualized(Quirks::default());
    let watch = |rig: &Rig, vector| {
        let mut signals = Vec::new();
        assert!(rig.machine.watch_eoi(vector, |s| signals.push(s)));
        assert_eq!(signals, [Signal::Kick(0), Signal::Kick(1)], "their cores have to write the bitmaps");
        assert!(!mailbox(rig).entering_guest(), "it looks before it enters");
    };
    watch(&rig, Some(0x41));
    rig.enter(0);
    assert_eq!(rig.vcpu().handed_over, [HandOver { rvi: 0, eoi_exits: Some([0, 2, 0, 0]) }]);
    assert!(mailbox(&rig).entering_guest());
    mailbox(&rig).left_guest();
    assert_eq!(rig.exit(&[], Exit::EndOfInterrupt(0x41)), Next::Continue);
    // A level-triggered interrupt changes the bitmap; the watched vector stays in it.
    let level =
        Message { destination: Destination::Physical(0), delivery: Delivery::Fixed { vector: 0x35, level: true } };
    rig.machine.send(level, |_| {});
    rig.enter(0);
    assert_eq!(rig.counted(Reason::VirtualEoi), 1);
    let change = HandOver { rvi: 0x35, eoi_exits: Some([1 << 0x35, 2, 0, 0]) };
    assert_eq!(rig.vcpu().handed_over.last(), Some(&change));
    // An edge-triggered one does not, and changes nothing of it.
    deliver(&rig, interrupt(0, 0x33));
    rig.enter(0);
    assert_eq!(rig.vcpu().handed_over.last(), Some(&HandOver { rvi: 0x35, eoi_exits: None }));
    watch(&rig, None);
    rig.enter(0);
    let change = HandOver { rvi: 0x35, eoi_exits: Some([1 << 0x35, 0, 0, 0]) };
    assert_eq!(rig.vcpu().handed_over.last(), Some(&change));
    assert_eq!(rig.vcpu().handed_over.len(), 4);
}

#[test]
fn no_eoi_is_watched_where_the_cpu_does_not_virtualize_the_apic() {
    let rig = rig(1);
    let mut signals = Vec::new();
    assert!(!rig.machine.watch_eoi(Some(0x41), |s| signals.push(s)));
    assert_eq!(signals, []);
}
