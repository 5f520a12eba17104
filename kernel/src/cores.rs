//! The cores: starts them, gives them jobs, and sends kicks between them.
//!
//! A core halts until it gets a job, and then runs it. An engine's job never ends. A guest core's job ends with its
//! vCPU's life.
//!
//! A core reaches another by a kick: it sets a flag and sends an NMI. The machine also sends NMIs, for memory and bus
//! errors, to the boot core. Such an NMI looks like a kick that was already handled. The chipset's latch tells the
//! difference, and the NMI is counted.

#![allow(unsafe_code, reason = "per-core data is reached through GS; starting a core writes the trampoline page")]

use crate::{
    arch::{CoreIndex, MAX_CORES, apic, gdt, idle, idt, time},
    machine_check::banks,
    mem,
};
use alloc::{boxed::Box, vec::Vec};
use boot::trampoline::{self, Parameters};
use clock::agree::{Meetings, Outcome, Side};
use config::Topology;
use core::{
    ptr,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering},
};
use spin::Mutex;
use watchdog::Seen;
use x86_64::registers::model_specific::GsBase;

type Job = Box<dyn FnOnce(&'static Core) + Send>;

/// One core.
pub struct Core {
    /// Its own address. GS points here, so that a core finds its own data.
    me: *const Core,
    /// Its number.
    pub index: CoreIndex,
    /// Its APIC ID.
    pub apic_id: u32,
    /// Another core wants it to leave HLT or its guest, and to check for requests.
    pub kick: AtomicBool,
    /// 0: there is no unanswered call. Otherwise the last kick was a [`Core::call`], and the value is 1 plus the ticks
    /// of the control core since then.
    pub called: AtomicU8,
    /// Where the core puts an interrupt that it takes for its guest: see [`crate::interrupts::take_one`].
    pub taking: AtomicU16,
    /// Its timer has fired since the core last checked.
    pub timer_fired: AtomicBool,
    /// Odd while the core runs the hypervisor's code. It changes when the core makes progress: see [`Core::seen`].
    progress: AtomicU64,
    /// Virtualization is on.
    pub virtualizes: AtomicBool,
    alive: AtomicBool,
    busy: AtomicBool,
    job: Mutex<Option<Job>>,
}

// SAFETY: `me` is written once, before the value is shared. After that it is only read. The other fields are constant,
// atomic, or behind a lock.
unsafe impl Sync for Core {}
// SAFETY: as for Sync.
unsafe impl Send for Core {}

static CORES: [AtomicPtr<Core>; MAX_CORES] = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_CORES];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Returns the core with this number.
pub fn get(index: CoreIndex) -> Option<&'static Core> {
    let p = CORES.get(index)?.load(Ordering::Acquire);
    // SAFETY: an entry is null or a leaked box, which is never freed.
    unsafe { p.as_ref() }
}

/// Returns the number of cores that run.
pub fn count() -> usize {
    COUNT.load(Ordering::Acquire)
}

/// Returns which of the cores that run are threads of one physical core.
pub fn topology() -> Topology {
    let ids: Vec<u32> = (0..count()).filter_map(get).map(|core| core.apic_id).collect();
    let bits = config::thread_bits(|leaf, subleaf| {
        let r = core::arch::x86_64::__cpuid_count(leaf, subleaf);
        [r.eax, r.ebx, r.ecx, r.edx]
    });
    Topology::new(&ids, bits)
}

/// Returns this core, or `None` if its per-core data is not set up yet.
fn current() -> Option<&'static Core> {
    if COUNT.load(Ordering::Acquire) == 0 || GsBase::read().is_null() {
        return None;
    }
    let p: *const Core;
    // SAFETY: a GS base that is not null points to this core's `Core`. Its field `me` is its own address. The layout of
    // the struct is the compiler's choice, so `offset_of` gives the field's offset.
    unsafe {
        core::arch::asm!("mov {}, gs:[{}]", out(reg) p, const core::mem::offset_of!(Core, me), options(nostack, preserves_flags, readonly));
        p.as_ref()
    }
}

/// Returns this core's number, or 0 if it has none yet.
pub fn current_index() -> CoreIndex {
    current().map_or(0, |c| c.index)
}

/// Whether this is the core that booted.
pub fn is_boot_core() -> bool {
    current_index() == 0
}

/// Returns this core's [`Core::taking`].
pub fn taking() -> Option<&'static AtomicU16> {
    current().map(|c| &c.taking)
}

/// Handles the timer's interrupt on this core.
pub fn timer_expired() {
    if let Some(c) = current() {
        c.timer_fired.store(true, Ordering::Relaxed);
    }
}

impl Core {
    fn create(index: CoreIndex, apic_id: u32) -> &'static Self {
        let core = Box::leak(Box::new(Self {
            me: ptr::null(),
            index,
            apic_id,
            kick: AtomicBool::new(false),
            called: AtomicU8::new(0),
            taking: AtomicU16::new(0),
            timer_fired: AtomicBool::new(false),
            progress: AtomicU64::new(0),
            virtualizes: AtomicBool::new(false),
            alive: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            job: Mutex::new(None),
        }));
        core.me = core;
        if let Some(place) = CORES.get(index) {
            place.store(core, Ordering::Release);
        }
        core
    }

    /// Loads this core's tables and enables its local APIC. Runs on the core itself.
    fn enter(&self, stacks: &mem::Stacks) {
        gdt::load(stacks.interrupt);
        idt::load();
        GsBase::write(x86_64::VirtAddr::from_ptr(self));
        apic::enable();
        banks::start(self.index);
    }

    /// Makes the core leave HLT or its guest.
    pub fn kick(&self) {
        self.kick.store(true, Ordering::SeqCst);
        apic::send_nmi(self.apic_id);
    }

    /// Makes the core leave HLT or its guest by an interrupt instead of an NMI. The guest has a shadow IDT, and this
    /// vector is the host's. The guest may delay the interrupt; [`Core::answered`] notices that.
    pub fn call(&self, vector: u8) {
        self.kick.store(true, Ordering::SeqCst);
        self.called.store(1, Ordering::SeqCst);
        apic::send_fixed(self.apic_id, vector);
    }

    /// Checks whether the core has answered the last call. The control core calls this once a tick. Returns true if the
    /// call was answered or is too recent to tell. Otherwise repeats the kick by NMI and returns false.
    pub fn answered(&self) -> bool {
        match self.called.load(Ordering::SeqCst) {
            // The core may have answered just now. Then the count lasts one tick longer, or there is one kick too many.
            1 => self.called.store(2, Ordering::SeqCst),
            2 => {
                self.called.store(0, Ordering::SeqCst);
                if self.kick.load(Ordering::SeqCst) {
                    apic::send_nmi(self.apic_id);
                    return false;
                }
            }
            _ => {}
        }
        true
    }

    /// Clears the kick and the call. The caller then checks for requests, which answers all earlier kicks.
    pub fn look_up(&self) {
        self.called.store(0, Ordering::SeqCst);
        self.kick.store(false, Ordering::SeqCst);
    }

    /// Notes that this core begins to run the hypervisor's code, or makes progress there. Only the core itself calls it.
    pub fn works(&self) {
        self.progress.store(self.progress.load(Ordering::Relaxed).wrapping_add(1) | 1, Ordering::Relaxed);
    }

    /// Notes that this core halts, enters its guest, or does something that may take long. Only the core itself calls it.
    pub fn rests(&self) {
        self.progress.store((self.progress.load(Ordering::Relaxed) | 1).wrapping_add(1), Ordering::Relaxed);
    }

    /// What the watchdog sees of the core.
    pub fn seen(&self) -> Seen {
        match self.progress.load(Ordering::Relaxed) {
            rests if rests % 2 == 0 => Seen::Resting,
            works => Seen::Working(works),
        }
    }

    /// Gives a waiting core a job. The box of the job is allocated as the caller allocates: in a part of the heap that the core
    /// maps all the time. Returns false if it already has one.
    pub fn give(&self, job: impl FnOnce(&'static Core) + Send + 'static) -> bool {
        if self.busy.swap(true, Ordering::AcqRel) {
            return false;
        }
        *self.job.lock() = Some(Box::new(job));
        self.kick();
        true
    }

    /// Whether it has a job.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    fn serve(&'static self) -> ! {
        loop {
            idle::wait(&self.kick);
            self.kick.store(false, Ordering::SeqCst);
            let job = self.job.lock().take();
            if let Some(job) = job {
                self.works();
                job(self);
                banks::poll(self.index);
                self.rests();
                self.busy.store(false, Ordering::Release);
            }
        }
    }
}

/// Makes the boot core number 0, with these stacks.
pub fn adopt_boot_core(stacks: &mem::Stacks) -> &'static Core {
    let core = Core::create(0, boot_apic_id());
    core.busy.store(true, Ordering::Relaxed);
    core.alive.store(true, Ordering::Relaxed);
    core.enter(stacks);
    COUNT.store(1, Ordering::Release);
    core
}

/// Returns this core's initial APIC ID. CPUID has it even before the APIC is in x2APIC mode.
pub fn boot_apic_id() -> u32 {
    let cpuid = raw_cpuid::CpuId::new();
    let by_topology = cpuid.get_extended_topology_info().and_then(|mut i| i.next()).map(|l| l.x2apic_id());
    by_topology.or_else(|| cpuid.get_feature_info().map(|f| u32::from(f.initial_local_apic_id()))).unwrap_or(0)
}

/// What has come of starting the other cores.
#[derive(Debug, Default)]
pub struct Started {
    /// APIC IDs of those that did not answer.
    pub silent: Vec<u32>,
    /// Cores whose TSC did not agree with core 0's, or that did not come to compare them (`None`).
    pub clocks: Vec<(CoreIndex, Option<Outcome>)>,
}

/// What a core needs to start.
struct Start {
    core: &'static Core,
    stacks: mem::Stacks,
    /// Where it compares its TSC with core 0's.
    meetings: Meetings,
    /// All cores have IA32_TSC_ADJUST.
    can_adjust: bool,
}

/// Starts all other processors.
///
/// # Errors
/// There is no page below 1 MiB, or no memory for stacks; the text says which.
pub fn start_others(apic_ids: &[u32]) -> Result<Started, alloc::string::String> {
    let mut all = Started::default();
    let boot = boot_apic_id();
    let page = mem::FRAMES.lock().low_page().ok_or("there is no free page below 1 MiB to start other cores on")?;
    let cr3 =
        u32::try_from(mem::root()).map_err(|_| "the page tables are above 4 GiB, where no core can start with them")?;
    mem::set_executable(page, true).map_err(|e| alloc::format!("the trampoline page cannot be mapped: {e}"))?;
    let started = start_each(apic_ids.iter().copied().filter(|&id| id != boot), page, cr3, &mut all);
    mem::set_executable(page, false).map_err(|e| alloc::format!("the trampoline page: {e}"))?;
    started.map(|()| all)
}

/// Starts one core after the other on the trampoline page.
fn start_each(
    apic_ids: impl Iterator<Item = u32>,
    page: u64,
    cr3: u32,
    all: &mut Started,
) -> Result<(), alloc::string::String> {
    let (code, offsets) = trampoline::template();
    // Stacks of a core that did not answer. The next core gets them.
    let mut spare = None;
    let can_adjust = raw_cpuid::CpuId::new().get_extended_feature_info().is_some_and(|f| f.has_tsc_adjust_msr());
    for apic_id in apic_ids.take(MAX_CORES - 1) {
        let index = count();
        let stacks = match spare.take() {
            Some(stacks) => stacks,
            None => mem::stacks(index).map_err(|e| alloc::format!("no stack for core {index}: {e}"))?,
        };
        let core = Core::create(index, apic_id);
        let start = Box::leak(Box::new(Start { core, stacks, meetings: Meetings::new(), can_adjust }));
        let parameters = Parameters {
            page: page as u32,
            cr3,
            stack: stacks.main,
            argument: ptr::from_ref(start).expose_provenance() as u64,
            entry: start_core as *const () as u64,
        };
        let (block, len) = parameters.block(&offsets);
        // SAFETY: the page was taken from free memory below 1 MiB for this, and it is mapped. The last core that used
        // it has answered, or INIT has stopped it (see below).
        unsafe {
            let p: *mut u8 = ptr::with_exposed_provenance_mut(page as usize);
            ptr::copy_nonoverlapping(code.as_ptr(), p, code.len());
            ptr::copy_nonoverlapping(block.as_ptr(), p.add(offsets.parameters), len);
        }
        apic::send_init(apic_id);
        time::delay_micros(10_000);
        for _ in 0..2 {
            apic::send_startup(apic_id, page as u32);
            let patience = time::tsc().saturating_add(time::micros(200));
            while time::tsc() < patience && !core.alive.load(Ordering::Acquire) {
                core::hint::spin_loop();
            }
            if core.alive.load(Ordering::Acquire) {
                break;
            }
        }
        let patience = time::tsc().saturating_add(time::micros(2_000_000));
        while time::tsc() < patience && !core.alive.load(Ordering::Acquire) {
            core::hint::spin_loop();
        }
        if core.alive.load(Ordering::Acquire) {
            COUNT.store(index.saturating_add(1), Ordering::Release);
            let patience = time::tsc().saturating_add(time::micros(5_000_000));
            let wait = || {
                core::hint::spin_loop();
                time::tsc() < patience
            };
            let outcome = start.meetings.meet(Side::First, can_adjust, time::ordered_tsc, wait, |_| ());
            if outcome != Some(Outcome::default()) {
                all.clocks.push((index, outcome));
            }
        } else {
            // INIT stops the core wherever it is. So it cannot read the next core's parameters.
            apic::send_init(apic_id);
            if let Some(place) = CORES.get(index) {
                place.store(ptr::null_mut(), Ordering::Release);
            }
            all.silent.push(apic_id);
            spare = Some(stacks);
        }
    }
    Ok(())
}

extern "C" fn start_core(argument: u64) -> ! {
    // SAFETY: `start_others` leaked this for this core.
    let Start { core, stacks, meetings, can_adjust } =
        unsafe { &*ptr::with_exposed_provenance::<Start>(argument as usize) };
    // SAFETY: these are the tables that the trampoline loaded already.
    unsafe { mem::load_tables(mem::root()) };
    core.enter(stacks);
    core.alive.store(true, Ordering::Release);
    let wait = || {
        core::hint::spin_loop();
        true
    };
    // Core 0 reports the outcome, and its time limit ends the wait of both.
    _ = meetings.meet(Side::Second, *can_adjust, time::ordered_tsc, wait, time::add_to_tsc);
    core.serve()
}

/// Switches to another stack and calls `then`. Never returns.
pub fn continue_on(stack: u64, then: extern "C" fn() -> !) -> ! {
    // SAFETY: `stack` is the top of a mapped stack that nobody else uses. `then` never returns, so nothing on the old
    // stack is used again.
    unsafe {
        core::arch::asm!(
            "mov rsp, {stack}",
            "xor ebp, ebp",
            "call {then}",
            "ud2",
            stack = in(reg) stack,
            then = in(reg) then,
            options(noreturn),
        )
    }
}
