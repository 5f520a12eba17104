//! A vCPU on its core: the loop around entry and exit, the same for both back-ends.
//!
//! ```text
//!  kick = false ─▶ before_entry ─▶ Run  ─▶ mailbox: guest  ─▶ timer ─▶ run ─▶ handle ─┐
//!       ▲                   └────▶ Wait ─▶ mailbox: halted ─▶ timer ─▶ HLT ───────────┤
//!       └─────────────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! A post that finds the mailbox in `guest` or `halted` sets the core's kick flag and sends an NMI. This loop clears
//! the flag before it empties the mailbox. The back-ends read the flag again just before the guest runs, and `park`
//! just before the core halts. So a kick is seen wherever it comes.

use super::{
    console::Console,
    room::{JOBS_BYTES, MAX_DAMAGED},
    signal,
};
use crate::{
    arch::{apic, idle, time, timer},
    cache,
    cores::Core,
    interrupts, machine_check,
    maps::AtWork,
    options,
    trace::{self, VcpuTrace},
    virt::{self, Pages, WithVcpu},
    watchdog,
};
use ::trace::Classes;
use alloc::{boxed::Box, format, string::String, sync::Arc, vec::Vec};
use core::sync::atomic::Ordering;
use machine::{
    machine::{Entry, Host, Machine, Next, Signal, Stop},
    observe::{self, Observer},
    reason::Histogram,
    vcpu::{Event, Exit, Interrupts, Vcpu},
};
use memory::{GuestMemory, maps::Range};

/// Traced entries between two looks where the guest's kernel is. A kernel that boots has its addresses after that many exits.
const LOOK_EVERY: u32 = 63;

/// A vCPU's resources. They are kept for as long as sidecore runs.
#[derive(Clone, Copy)]
pub struct Kept {
    /// Exits of its present or last life.
    pub histogram: &'static Histogram,
    pages: Pages,
    /// The memory of its core's trace, if there is one.
    trace: Option<Range>,
}

impl Kept {
    /// Takes them for a vCPU of guest `guest` on this core, with `trace` bytes for the core's trace.
    ///
    /// # Errors
    /// There is no memory left.
    pub fn take(guest: usize, core: &Core, trace: u64) -> Result<Self, String> {
        let pages = Pages::take().map_err(|e| format!("pages for a vCPU: {e}"))?;
        let trace =
            trace::make(core.index, trace::Of::Guest(guest), trace).map_err(|e| format!("the trace of a vCPU: {e}"))?;
        Ok(Self { histogram: Box::leak(Box::new(Histogram::new())), pages, trace })
    }

    /// The physical addresses of its pages and of its core's trace.
    pub fn ranges(&self) -> impl Iterator<Item = Range> {
        core::iter::once(self.pages.range()).chain(self.trace)
    }
}

/// A core's job: to run one vCPU until its guest stops.
pub struct VcpuJob {
    /// Number of the guest.
    pub guest: usize,
    /// Number of the vCPU in its guest, from 0.
    pub index: usize,
    /// Its guest's machine.
    pub machine: Arc<Machine>,
    /// Cores of all vCPUs of the guest.
    pub cores: Vec<&'static Core>,
    /// The guest's console.
    pub console: &'static Console,
    /// The vCPU's resources.
    pub kept: Kept,
    /// Root of the guest's nested tables.
    pub nested_root: u64,
}

// What a guest's start looks for in everybody's part of the heap is enough for the boxes of its jobs. Those that zero its memory have a
// list of damaged places.
const _: () = assert!((size_of::<VcpuJob>() + 64) * (config::MAX_VCPUS as usize) <= JOBS_BYTES);
const _: () = assert!((size_of::<GuestMemory>() + MAX_DAMAGED * 16 + 256) * (config::MAX_VCPUS as usize) <= JOBS_BYTES);

impl VcpuJob {
    /// Runs the vCPU on this core until its guest stops.
    pub fn run(self, core: &'static Core) {
        options::self_test_on_guest_core(self.guest, self.index, || watchdog::answers(core.index) != 0);
        let _mapped = AtWork::of(core, self.guest);
        // It is dropped while its guest is mapped.
        let job = self;
        // The core's next guest joins its own class.
        cache::join(Some(job.machine.name()));
        let life = Life { job: &job, core, trace: VcpuTrace::new(core) };
        if let Err(why) = virt::with_vcpu(core, job.kept.pages, job.nested_root, &job.machine, job.index, life) {
            job.machine.request_stop(Stop::failed(why), |s| signal::send(&job.cores, s));
        }
    }
}

struct Life<'a> {
    job: &'a VcpuJob,
    core: &'static Core,
    trace: VcpuTrace,
}

impl Observer for Life<'_> {
    #[inline(always)]
    fn watches_exits(&self) -> bool {
        trace::on(Classes::EXITS.union(Classes::HISTOGRAMS))
    }

    #[inline(always)]
    fn exit(&self, exit: &observe::Exit) {
        self.trace.exit(exit);
    }

    #[inline(always)]
    fn injection(&self, vcpu: usize, event: Event) {
        if trace::on(Classes::INTERRUPTS) {
            self.trace.injection(vcpu, event);
        }
    }
}

impl Host for Life<'_> {
    fn tsc(&self) -> u64 {
        time::tsc()
    }

    fn wall_clock(&self) -> u64 {
        time::wall_clock()
    }

    fn signal(&self, signal: Signal) {
        signal::send(&self.job.cores, signal);
    }

    fn write_apic(&self, msr: u32, value: u64) {
        apic::write_for_guest(msr, value);
    }

    fn reset_apic(&self) {
        apic::reset();
    }

    fn take_interrupt(&self) -> Option<u8> {
        interrupts::take_one()
    }

    fn end_of_interrupt(&self) {
        apic::end_of_interrupt();
    }

    fn console(&self, byte: u8) {
        self.job.console.put(byte);
    }
}

impl WithVcpu for Life<'_> {
    fn with<V: Vcpu>(self, vcpu: &mut V) {
        let VcpuJob { guest, index, machine, kept, .. } = self.job;
        let context = machine.attach(*index, vcpu, kept.histogram, &self);
        let (Some(mut context), Some(mailbox)) = (context, machine.mailbox(*index)) else { return };
        let emulated = machine.interrupts() == Interrupts::Emulated;
        let mut timer = Timer { armed: None };
        let mut look = Look { left: 0 };
        let late_notifications = machine.takes_late_notifications();
        loop {
            self.core.works();
            self.core.look_up();
            #[cfg(feature = "read-memory")]
            crate::read_memory::serve(self.core.index);
            if self.core.timer_fired.swap(false, Ordering::Relaxed) {
                timer.armed = None;
            }
            match machine.before_entry(vcpu, &mut context, &self) {
                Entry::Run { deadline } => {
                    // A back-end with its own timer does not need this core's.
                    let exits_by_itself = vcpu.exit_at(deadline);
                    timer.set(if exits_by_itself { None } else { deadline });
                    if late_notifications {
                        idle::take_pending();
                    }
                    if !machine.entering_guest(&context) {
                        continue;
                    }
                    if trace::on(Classes::ENTRIES.union(Classes::EXITS)) {
                        self.traced_entry(vcpu, &mut look);
                    }
                    self.core.rests();
                    let exit = vcpu.run();
                    self.core.works();
                    machine.left_guest(&context);
                    match exit {
                        // If interrupts are not emulated, they stay in the local APIC for the guest.
                        Exit::ExternalInterrupt(None) if emulated => idle::take_pending(),
                        Exit::ExternalInterrupt(Some(vector)) => interrupts::acknowledged(vector),
                        // On VT-x the NMI ends with this exit: no handler runs.
                        Exit::Nmi | Exit::NotEntered => crate::panic::park_if_panicking(),
                        // No handler runs for it either.
                        Exit::MACHINE_CHECK => {
                            if let Some(address) = machine_check::in_guest(*guest) {
                                machine.request_stop(Stop::memory_error(address), |s| self.signal(s));
                            }
                        }
                        _ => {}
                    }
                    match machine.handle(exit, vcpu, &mut context, &self) {
                        Next::Continue => {}
                        Next::Stop(_) => break,
                    }
                }
                Entry::Wait { deadline } => {
                    timer.set(deadline);
                    if !mailbox.halting() {
                        continue;
                    }
                    self.core.rests();
                    idle::wait(&self.core.kick);
                    mailbox.left_guest();
                }
                Entry::Stop(_) => break,
            }
        }
        // No interrupt of this guest and no timer interrupt of the host may reach the core's next job.
        apic::reset();
        self.core.timer_fired.store(false, Ordering::Relaxed);
    }
}

/// When the core looks next where the guest's kernel is.
struct Look {
    /// Traced entries until then.
    left: u32,
}

impl Look {
    /// Counts a traced entry. Returns whether it is time to look.
    #[inline(always)]
    fn is_due(&mut self) -> bool {
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                false
            }
            None => true,
        }
    }
}

impl Life<'_> {
    /// Does what the trace wants before an entry. Apart from the loop, which has more registers to save otherwise, also while the
    /// trace is off. What is rare or longer is apart from this one, for the same reason.
    #[inline(never)]
    fn traced_entry<V: Vcpu>(&self, vcpu: &V, look: &mut Look) {
        if trace::on(Classes::ENTRIES) {
            return self.recorded_entry(vcpu, look);
        }
        // Exits are on: one of the two is.
        if look.is_due() {
            self.look(vcpu, look);
        }
    }

    /// Writes the record of an entry, and looks where the guest's kernel is if it is time.
    #[inline(never)]
    fn recorded_entry<V: Vcpu>(&self, vcpu: &V, look: &mut Look) {
        if trace::on(Classes::EXITS) && look.is_due() {
            self.look(vcpu, look);
        }
        self.trace.entry(self.job.index);
    }

    /// Looks where the guest's kernel is.
    #[cold]
    #[inline(never)]
    fn look<V: Vcpu>(&self, vcpu: &V, look: &mut Look) {
        look.left = LOOK_EVERY;
        self.trace.kernel(&self.job.machine.kernel_addresses(vcpu));
    }
}

/// This core's timer. It is written only when the guest's deadline has changed.
struct Timer {
    armed: Option<u64>,
}

impl Timer {
    fn set(&mut self, deadline: Option<u64>) {
        if deadline != self.armed {
            match deadline {
                Some(at) => timer::arm(at),
                None => timer::disarm(),
            }
            self.armed = deadline;
        }
    }
}
