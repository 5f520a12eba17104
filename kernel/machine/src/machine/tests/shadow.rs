//! Tests of a machine whose guest has a shadow IDT, and of one whose pages are split.

use memory::{
    frames::OutOfMemory,
    split::Pool,
    swap::Shadow,
    tables::{Access, Format, FrameSource, Tables},
};

use spin::Mutex;
use virtio::msix::Interrupt;

use super::rig::{Rig, rig_of};
use crate::{
    eli::Unfit,
    lapic,
    machine::{Entry, Next, Signal, Stop, context::Activity},
    quirk::Quirks,
    reason::Reason,
    splitter::{SplitTables, Splitter},
    vcpu::{Event, Exit, Intercepts, Interrupted, Interrupts},
};

struct Leaked;
impl FrameSource for Leaked {
    fn frame(&mut self) -> Result<u64, OutOfMemory> {
        let pages = vec![0u8; 8192].leak();
        Ok((pages.as_mut_ptr().expose_provenance() as u64).next_multiple_of(4096))
    }
}

/// Where the guest's page at 0 leads in the nested tables of the test.
const HOST: u64 = 1 << 32;
const IDT: u64 = 0x30_0000;
/// A second of this machine's TSC.
const SECOND: u64 = 1_000_000_000;

fn rig_shadowed(vcpus: usize) -> (Rig, &'static Mutex<Shadow>) {
    let mut tables = Tables::new(Format::Npt, true, &mut Leaked).unwrap();
    tables.map(0, HOST, 4 << 20, Access::RWX, &mut Leaked).unwrap();
    let shadow: &'static _ = Box::leak(Box::new(Mutex::new(Shadow::new(tables, &mut Leaked).unwrap())));
    let mut r = rig_of(vcpus, Interrupts::Owned, Quirks::default(), Some(shadow));
    r.host.interrupts.borrow_mut().clear();
    // Interrupt gates, all of them.
    for vector in 0..256 {
        r.machine.memory.write_u64(IDT + vector * 16, 0x0000_8e00_0010_0000 | vector).unwrap();
    }
    for (v, c) in &mut r.vcpus {
        (v.cr0, v.efer, v.rflags) = (0x11, 0x500, 0x202);
        c.activity = Activity::Running;
    }
    (r, shadow)
}

impl Rig {
    fn run(&mut self, i: usize) {
        assert!(matches!(self.enter(i), Entry::Run { .. }));
        let (v, c) = &mut self.vcpus[i];
        assert!(self.machine.entering_guest(c), "vCPU {i} has not flushed, or has something to do");
        v.event = None;
    }

    fn leave(&mut self, i: usize, exit: Exit) -> Next {
        let (v, c) = &mut self.vcpus[i];
        self.machine.left_guest(c);
        self.machine.handle(exit, v, c, &self.host)
    }

    fn nmi(&mut self, i: usize) {
        assert_eq!(self.leave(i, Exit::Nmi), Next::Continue);
    }

    fn pass(&self, ticks: u64) {
        self.host.tsc.set(self.host.tsc.get() + ticks);
    }

    fn shadow_count(&self, kind: &str) -> u64 {
        self.machine.shadow_report().find(|(name, _)| *name == kind).unwrap().1
    }

    fn write_idt(&mut self, i: usize) {
        assert_eq!(self.leave(i, Exit::NestedFault { gpa: IDT + 0x123, write: true, fetch: false }), Next::Continue);
    }
}

/// Of the first vCPU.
fn shadowed() -> (Rig, &'static Mutex<Shadow>) {
    let (mut r, shadow) = rig_shadowed(1);
    r.vcpu().idt = (IDT, 0xfff);
    r.run(0);
    assert_eq!(shadow.lock().at(), Some(IDT));
    (r, shadow)
}

const EXITING: Intercepts = Intercepts { interrupts: true, idt: false, not_present: false };
const SHADOWED: Intercepts = Intercepts { interrupts: false, idt: true, not_present: true };

#[test]
fn until_there_is_an_idt_interrupts_exit_and_are_injected() {
    let (mut r, shadow) = rig_shadowed(1);
    r.run(0);
    assert_eq!(r.vcpu().intercepts, EXITING);
    assert_eq!(shadow.lock().at(), None);
    // The host's own vector first, then two of the guest's: one an entry.
    r.host.waiting.borrow_mut().extend([0xf5, 0x41, 0x31]);
    r.leave(0, Exit::ExternalInterrupt(None));
    r.enter(0);
    assert_eq!(r.vcpu().event, Some(Event::Interrupt(0x41)));
    assert_eq!(r.host.ended.get(), 1, "the host's is ended by the host, the guest's by the guest");
    assert_eq!((r.shadow_count("host-interrupts-by-exit"), r.shadow_count("injected")), (1, 1));
    assert_eq!(r.vcpu().intercepts, EXITING, "the other one exits again");
    assert_eq!(r.counted(Reason::ExternalInterrupt), 1);
}

#[test]
fn an_interrupt_that_the_guest_cannot_take_yet_stays_in_the_apic_until_it_can() {
    let (mut r, _) = rig_shadowed(1);
    r.run(0);
    r.vcpu().rflags = 2;
    r.host.waiting.borrow_mut().push_back(0x41);
    r.leave(0, Exit::ExternalInterrupt(None));
    r.run(0);
    assert_eq!(r.host.waiting.borrow().len(), 1, "not taken");
    assert!(r.vcpu().window && !r.vcpu().intercepts.interrupts, "or it would exit again at once");
    r.vcpu().rflags = 0x202;
    r.leave(0, Exit::InterruptWindow);
    r.enter(0);
    assert_eq!(r.vcpu().event, Some(Event::Interrupt(0x41)));
    assert!(!r.vcpu().window && r.vcpu().intercepts.interrupts);
}

#[test]
fn an_idt_of_one_page_is_shadowed_tried_and_relied_on() {
    let (mut r, shadow) = shadowed();
    assert_eq!(r.vcpu().intercepts, SHADOWED);
    assert_eq!(r.vcpu().flushes, 1);
    assert_eq!(*r.host.interrupts.borrow(), [(0, 0xf0)], "the probe, to itself");
    // What the CPU finds there: P clear in the host's gates alone.
    let page = shadow.lock().image().unwrap();
    let absent: Vec<_> = (0..256).filter(|v| page[v * 16 + 5] & 0x80 == 0).collect();
    assert_eq!(absent, [0xf0, 0xf5]);
    // The probe comes back.
    let exit = Exit::NotPresent { error: 0xf0 * 8 + 2, interrupted: Some(Interrupted::External(0xf0)) };
    assert_eq!(r.leave(0, exit), Next::Continue);
    assert_eq!((r.host.ended.get(), r.shadow_count("host-interrupts")), (1, 1));
    r.enter(0);
    assert_eq!(r.vcpu().event, None, "the guest does not see it");
    assert_eq!(r.counted(Reason::ShadowInterrupt), 1);
}

#[test]
fn the_guest_s_own_np_reaches_it_unchanged() {
    let (mut r, _) = shadowed();
    for (error, interrupted, event) in [
        (0x28, None, Event::Exception(11, Some(0x28))),
        (0x41 * 8 + 3, Some(Interrupted::External(0x41)), Event::Exception(11, Some(0x41 * 8 + 3))),
        (14 * 8 + 2, Some(Interrupted::Exception(14)), Event::Exception(8, Some(0))),
    ] {
        assert_eq!(r.leave(0, Exit::NotPresent { error, interrupted }), Next::Continue);
        assert_eq!(r.vcpu().event, Some(event));
        r.vcpu().event = None;
    }
    assert_eq!((r.host.ended.get(), r.counted(Reason::Exception)), (0, 0));
    r.enter(0);
    assert_eq!(r.counted(Reason::Exception), 1, "and is counted as what it is");
    let exit = Exit::NotPresent { error: 8 * 8 + 2, interrupted: Some(Interrupted::Exception(8)) };
    assert!(matches!(r.leave(0, exit), Next::Stop(Stop::TripleFault(_))));
}

#[test]
fn a_write_hands_the_page_back_and_it_is_shadowed_again_when_writes_have_stopped() {
    let (mut r, shadow) = shadowed();
    r.write_idt(0);
    assert_eq!(shadow.lock().at(), None, "before the guest tries again");
    r.run(0);
    assert_eq!((r.vcpu().intercepts, r.vcpu().flushes), (EXITING, 2));
    // Not yet, whatever it exits for.
    r.pass(SECOND / 1000);
    r.nmi(0);
    r.run(0);
    assert_eq!(shadow.lock().at(), None);
    // It need not exit by itself: the control core looks after that.
    let kicks = |r: &Rig| {
        let mut kicks = Vec::new();
        r.machine.tick(r.host.tsc.get(), |s| kicks.push(s));
        kicks
    };
    assert_eq!(kicks(&r), []);
    r.pass(SECOND / 100);
    assert_eq!(kicks(&r), [Signal::Kick(0)]);
    r.nmi(0);
    r.machine.memory.write(IDT + 0x123, &[0x55]).unwrap();
    r.run(0);
    assert_eq!((r.vcpu().intercepts, r.vcpu().flushes), (SHADOWED, 3));
    assert_eq!(kicks(&r), [], "and then no more");
    assert_eq!((r.shadow_count("shadowed"), r.shadow_count("idt-written")), (2, 1));
}

#[test]
fn who_writes_again_and_again_is_shadowed_less_and_less_often() {
    let (mut r, _) = shadowed();
    let start = r.host.tsc.get();
    // A minute in steps of a millisecond, with a write in each.
    while r.host.tsc.get() < start + 60 * SECOND {
        if r.machine.eli.as_ref().unwrap().lock().page().is_some() {
            r.write_idt(0);
        } else {
            r.nmi(0);
        }
        r.pass(SECOND / 1000);
        r.run(0);
    }
    let times = r.shadow_count("shadowed");
    assert!((40..=80).contains(&times), "about once a second: {times}");
}

#[test]
fn lidt_ends_the_shadow_for_the_vcpu_that_executes_it_which_executes_it_again() {
    let (mut r, shadow) = shadowed();
    let rip = r.vcpu().rip;
    assert_eq!(r.leave(0, Exit::DescriptorTable), Next::Continue);
    r.run(0);
    assert_eq!(r.vcpu().rip, rip);
    assert_eq!((r.vcpu().intercepts.interrupts, r.vcpu().intercepts.idt), (true, false));
    // Nonsense: no shadow, and no harm.
    for idt in [(0x10, 0xfff), (0xdead_beef_0000_0000, 0xffff), (IDT, 3), (0, 0), (0xfee0_0000, 0xfff)] {
        r.vcpu().idt = idt;
        r.pass(2 * SECOND);
        r.nmi(0);
        r.run(0);
        assert!(r.vcpu().intercepts.interrupts, "{idt:x?}");
    }
    // Another good one.
    for vector in 0..256 {
        r.machine.memory.write_u64(IDT + 0x1000 + vector * 16, 0x8e00_0010_0000).unwrap();
    }
    r.vcpu().idt = (IDT + 0x1000, 0xfff);
    r.pass(2 * SECOND);
    r.nmi(0);
    r.run(0);
    assert_eq!((r.vcpu().intercepts, shadow.lock().at()), (SHADOWED, Some(IDT + 0x1000)));
    assert_eq!(shadow.lock().lookup(IDT), Some(HOST + IDT), "the old page was handed back");
    assert_eq!(r.counted(Reason::DescriptorTable), 1);
}

#[test]
fn an_idt_without_gates_for_the_host_is_looked_at_again_later_and_stops_nobody() {
    let (mut r, shadow) = rig_shadowed(1);
    r.machine.memory.zero(IDT + 0x200, 0xe00).unwrap();
    r.vcpu().idt = (IDT, 0xfff);
    for _ in 0..20 {
        r.run(0);
        assert_eq!((r.vcpu().intercepts, shadow.lock().at()), (EXITING, None));
        r.pass(SECOND);
        r.nmi(0);
    }
    assert_eq!(r.vcpu().flushes, 0, "nothing changed, so nothing was flushed");
    assert!(!r.machine.eli.as_ref().unwrap().is_first(Unfit::NoVectors), "and it was said");
    for vector in 0..256 {
        r.machine.memory.write_u64(IDT + vector * 16, 0x8e00_0010_0000).unwrap();
    }
    r.run(0);
    assert_eq!(r.vcpu().intercepts, SHADOWED);
}

#[test]
fn the_host_leaves_a_vector_that_a_device_begins_to_raise_and_the_interrupt_is_not_lost() {
    let (mut r, shadow) = shadowed();
    r.host.interrupts.borrow_mut().clear();
    let mut signals = Vec::new();
    let message = Interrupt { destination: 0, logical: false, lowest_priority: false, vector: 0xf5 };
    assert!(r.machine.deliver(message, |s| signals.push(s)));
    assert_eq!(signals, [Signal::Kick(0)], "not sent: it would end up with the host");
    r.nmi(0);
    r.run(0);
    assert_eq!(shadow.lock().at(), Some(IDT), "shadowed anew at once");
    let vectors = r.machine.eli.as_ref().unwrap().vectors().unwrap();
    assert!(!vectors.contains(0xf5));
    assert_eq!(*r.host.interrupts.borrow(), [(0, 0xf5), (0, vectors.probe)]);
    signals.clear();
    r.machine.deliver(message, |s| signals.push(s));
    assert_eq!(signals, [Signal::Interrupt(0, 0xf5)], "from now on the usual way");
}

#[test]
fn the_host_leaves_a_vector_that_the_timer_the_spurious_vector_or_an_int_n_claims() {
    let (mut r, _) = shadowed();
    let vectors = |r: &Rig| r.machine.eli.as_ref().unwrap().vectors().unwrap();
    assert_eq!(vectors(&r).kick, 0xf5);
    r.machine.left_guest(&r.vcpus[0].1);
    r.wrmsr(lapic::msr::SVR, 0x1f5);
    assert!(!vectors(&r).contains(0xf5));
    let timer = vectors(&r).kick;
    r.wrmsr(lapic::msr::LVT_TIMER, timer.into());
    assert!(!vectors(&r).contains(timer));
    r.run(0);
    let used = vectors(&r).probe;
    let exit = Exit::NotPresent { error: u32::from(used) * 8 + 2, interrupted: Some(Interrupted::Software(used)) };
    r.leave(0, exit);
    r.enter(0);
    assert!(!vectors(&r).contains(used));
    assert_eq!(r.vcpu().event, None, "it executes INT n again");
    assert_eq!(r.host.ended.get(), 0, "no interrupt was taken");
}

#[test]
fn two_vcpus_share_one_shadow_and_a_write_by_one_stops_both() {
    let (mut r, shadow) = rig_shadowed(2);
    for (v, _) in &mut r.vcpus {
        v.idt = (IDT, 0xfff);
    }
    r.run(0);
    r.run(1);
    for i in 0..2 {
        assert_eq!(r.vcpus[i].0.intercepts, SHADOWED);
        assert_eq!(r.vcpus[i].0.flushes, 1);
    }
    assert_eq!(r.shadow_count("shadowed"), 2);
    // vCPU 1 leaves when it is kicked, in a thread of its own; vCPU 0 waits for that before the page is handed back.
    let machine = &r.machine;
    let [(_, c0), (_, c1)] = &mut r.vcpus[..] else { unreachable!() };
    machine.left_guest(c0);
    let eli = machine.eli.as_ref().unwrap();
    let kicked = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !kicked.load(std::sync::atomic::Ordering::SeqCst) {
                std::thread::yield_now();
            }
            assert_eq!(shadow.lock().at(), Some(IDT), "nothing changes while it is in the guest");
            machine.left_guest(c1);
        });
        let mut state = eli.lock();
        eli.hand_back(&mut state, 0, IDT + 8, 0, |vcpu| {
            assert_eq!(vcpu, 1);
            kicked.store(true, std::sync::atomic::Ordering::SeqCst);
        });
    });
    assert_eq!(shadow.lock().at(), None);
    // Neither gets in without a flush.
    assert!(!machine.entering_guest(c0) && !machine.entering_guest(c1));
    r.run(1);
    assert_eq!((r.vcpus[1].0.flushes, r.vcpus[1].0.intercepts), (2, EXITING));
}

#[test]
fn a_vcpu_with_an_idt_of_its_own_has_its_interrupts_exit_while_another_is_shadowed() {
    let (mut r, shadow) = rig_shadowed(2);
    r.vcpus[0].0.idt = (IDT, 0xfff);
    r.vcpus[1].0.idt = (IDT + 0x1000, 0xfff);
    r.run(0);
    r.run(1);
    assert_eq!(shadow.lock().at(), Some(IDT));
    let own = r.vcpus[1].0.intercepts;
    assert!(own.interrupts && !own.idt && own.not_present, "an INT n through the shared page still has to be seen");
    // It comes to use the same one.
    r.vcpus[1].0.idt = (IDT, 0xfff);
    r.pass(SECOND);
    r.nmi(1);
    r.run(1);
    assert_eq!(r.vcpus[1].0.intercepts, SHADOWED);
    assert_eq!(r.vcpus[0].0.flushes, 1, "nothing changed for the other");
}

#[test]
fn requests_between_vcpus_come_by_the_host_s_vector_and_stop_by_nmi() {
    let (mut r, _) = rig_shadowed(2);
    for (v, _) in &mut r.vcpus {
        v.idt = (IDT, 0xfff);
    }
    r.run(1);
    r.wrmsr(lapic::msr::ICR, 1 << 32 | 0x400); // an NMI
    assert_eq!(*r.host.calls.borrow(), [(1, 0xf5)]);
    r.nmi(1);
    r.run(1);
    let mut signals = Vec::new();
    r.machine.request_stop(Stop::Killed, |s| signals.push(s));
    assert_eq!(signals, [Signal::Kick(1)]);
}

#[test]
fn init_ends_the_shadow_for_a_vcpu() {
    let (mut r, _) = rig_shadowed(2);
    r.vcpus[1].0.idt = (IDT, 0xfff);
    r.run(1);
    r.wrmsr(lapic::msr::ICR, 1 << 32 | 0xc500);
    r.nmi(1);
    assert!(matches!(r.enter(1), Entry::Wait { .. }));
    assert!(!r.machine.eli.as_ref().unwrap().lock().in_use());
    let mut kicks = 0;
    r.machine.tick(u64::MAX - 1, |_| kicks += 1);
    assert_eq!(kicks, 0, "a vCPU that waits for its start has no IDT to look at");
    r.wrmsr(lapic::msr::ICR, 1 << 32 | 0x600);
    assert!(matches!(r.enter(1), Entry::Run { .. }));
    assert!(r.vcpus[1].0.intercepts.interrupts);
}

#[test]
fn a_new_life_begins_with_the_real_page() {
    let (_r, shadow) = shadowed();
    let _next = rig_of(1, Interrupts::Owned, Quirks::default(), Some(shadow));
    let shadow = shadow.lock();
    assert_eq!((shadow.at(), shadow.lookup(IDT)), (None, Some(HOST + IDT)));
}

#[test]
fn an_access_that_the_tables_refuse_for_another_reason_still_ends_the_guest() {
    let (mut r, _) = shadowed();
    let exit = Exit::NestedFault { gpa: IDT + 0x2000, write: true, fetch: false };
    assert!(matches!(r.leave(0, exit), Next::Stop(Stop::Failed(_))));
}

#[test]
fn the_first_fetch_from_a_page_makes_it_executable_and_the_guest_goes_on() {
    let mut tables = Tables::new(Format::Ept, false, &mut Leaked).unwrap();
    tables.set_small_executable();
    tables.map(0, HOST, 4 << 20, Access::RWX, &mut Leaked).unwrap();
    let pool = Pool::take(4 << 20, &mut Leaked).unwrap();
    let splitter: &'static _ = Box::leak(Box::new(Splitter::new(SplitTables::Alone(Mutex::new(tables)), pool)));
    let mut r = rig_of(1, Interrupts::Emulated, Quirks::default(), None);
    r.machine.splitter = Some(splitter);
    let fetch = |gpa| Exit::NestedFault { gpa, write: false, fetch: true };
    assert_eq!(r.leave(0, fetch(0x20_1234)), Next::Continue);
    r.run(0);
    assert_eq!(r.counted(Reason::PageSplit), 1);
    assert_eq!(r.vcpu().event, None, "nothing is raised");
    // Beyond the memory there is no code, as without a splitter.
    r.leave(0, fetch(0x5000_0000));
    assert_eq!(r.vcpu().event, Some(Event::INVALID_OPCODE));
}
