//! The cores: how each is started, how one reaches another, what each has been given to do.
//!
//! A core waits halted for a job and runs it: an engine's job never ends, a guest core's lasts as long as its vCPU.
//! Another core is reached by a kick: a flag, then an NMI. An NMI of the machine's own (memory and bus errors, on the boot
//! core) looks like a kick that was seen to already; the chipset's latch tells it, and it is counted.

#![allow(unsafe_code, reason = "per-core data is reached through GS; starting a core writes the trampoline page")]

use crate::{
    arch::{CoreIndex, MAX_CORES, apic, gdt, idle, idt, time},
    mem,
};
use alloc::boxed::Box;
use boot::trampoline::{self, Parameters};
use core::{
    ptr,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicUsize, Ordering},
};
use spin::Mutex;
use x86_64::registers::model_specific::GsBase;

type Job = Box<dyn FnOnce(&'static Core) + Send>;

/// One core.
pub struct Core {
    /// Its own address: what GS points to, so that a core finds itself.
    me: *const Core,
    /// Its number.
    pub index: CoreIndex,
    /// Its APIC ID.
    pub apic_id: u32,
    /// Someone wants it to look up from what it is doing.
    pub kick: AtomicBool,
    /// The kick was by a vector of the host's, and so many ticks of the control core less one have passed since.
    pub called: AtomicU8,
    /// Takes one interrupt for its guest: see [`crate::interrupts::take_one`].
    pub taking: AtomicU16,
    /// Its timer has fired since it last looked.
    pub timer_fired: AtomicBool,
    /// Virtualization is on.
    pub virtualizes: AtomicBool,
    alive: AtomicBool,
    busy: AtomicBool,
    job: Mutex<Option<Job>>,
}

// SAFETY: `me` is written once, before the value is shared, and only ever read; the rest is atomics and a lock.
unsafe impl Sync for Core {}
// SAFETY: as for Sync.
unsafe impl Send for Core {}

static CORES: [AtomicPtr<Core>; MAX_CORES] = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_CORES];
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A core by its number.
pub fn get(index: CoreIndex) -> Option<&'static Core> {
    let p = CORES.get(index)?.load(Ordering::Acquire);
    // SAFETY: entries are leaked boxes, set once.
    unsafe { p.as_ref() }
}

/// How many cores run.
pub fn count() -> usize {
    COUNT.load(Ordering::Acquire)
}

/// This core. None: before its per-core data is set up.
fn current() -> Option<&'static Core> {
    if COUNT.load(Ordering::Acquire) == 0 || GsBase::read().is_null() {
        return None;
    }
    let p: *const Core;
    // SAFETY: a GS base that is not null points to this core's `Core`, whose first field is its own address. `me` is
    // at offset 0 of a repr(Rust) struct only if laid out so; `offset_of` says where it is.
    unsafe {
        core::arch::asm!("mov {}, gs:[{}]", out(reg) p, const core::mem::offset_of!(Core, me), options(nostack, preserves_flags, readonly));
        p.as_ref()
    }
}

/// This core's number; 0 before it has one.
pub fn current_index() -> CoreIndex {
    current().map_or(0, |c| c.index)
}

/// Whether this is the core that booted.
pub fn is_boot_core() -> bool {
    current_index() == 0
}

/// Where this core wants one interrupt to be put, if it takes it for its guest.
pub fn taking() -> Option<&'static AtomicU16> {
    current().map(|c| &c.taking)
}

/// The timer's interrupt.
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
            virtualizes: AtomicBool::new(false),
            alive: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            job: Mutex::new(None),
        }));
        core.me = core;
        CORES[index].store(core, Ordering::Release);
        core
    }

    /// Sets this core's own tables up; runs on the core itself.
    fn enter(&self, stacks: &mem::Stacks) {
        gdt::load(stacks.interrupt);
        idt::load();
        GsBase::write(x86_64::VirtAddr::from_ptr(self));
        apic::enable();
    }

    /// Makes the core look up: out of HLT, or out of its guest.
    pub fn kick(&self) {
        self.kick.store(true, Ordering::SeqCst);
        apic::send_nmi(self.apic_id);
    }

    /// Makes the core look up by an interrupt, where its guest has a shadow IDT and this vector is the host's. The guest
    /// may keep it waiting: [`Core::answered`].
    pub fn call(&self, vector: u8) {
        self.kick.store(true, Ordering::SeqCst);
        self.called.store(1, Ordering::SeqCst);
        apic::send_fixed(self.apic_id, vector);
    }

    /// Once a tick, from the control core: whether the last call was answered, or is too young to tell. If not it is
    /// repeated by NMI.
    pub fn answered(&self) -> bool {
        match self.called.load(Ordering::SeqCst) {
            // The core may have looked up just now; then there is a tick more, or a kick too many.
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

    /// The core looks up: kicks from before are answered by what it does next.
    pub fn look_up(&self) {
        self.called.store(0, Ordering::SeqCst);
        self.kick.store(false, Ordering::SeqCst);
    }

    /// Gives a waiting core something to do. False: it has something already.
    pub fn give(&self, job: impl FnOnce(&'static Core) + Send + 'static) -> bool {
        if self.busy.swap(true, Ordering::AcqRel) {
            return false;
        }
        *self.job.lock() = Some(Box::new(job));
        self.kick();
        true
    }

    /// Whether it is doing something.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    fn serve(&'static self) -> ! {
        self.alive.store(true, Ordering::Release);
        loop {
            idle::wait(&self.kick);
            self.kick.store(false, Ordering::SeqCst);
            let job = self.job.lock().take();
            if let Some(job) = job {
                job(self);
                self.busy.store(false, Ordering::Release);
            }
        }
    }
}

/// Makes the boot core core 0, on the given stacks.
pub fn adopt_boot_core(stacks: &mem::Stacks) -> &'static Core {
    let core = Core::create(0, boot_apic_id());
    core.busy.store(true, Ordering::Relaxed);
    core.alive.store(true, Ordering::Relaxed);
    core.enter(stacks);
    COUNT.store(1, Ordering::Release);
    core
}

/// The initial APIC ID by CPUID, which works before the APIC is in x2APIC mode.
pub fn boot_apic_id() -> u32 {
    let cpuid = raw_cpuid::CpuId::new();
    let by_topology = cpuid.get_extended_topology_info().and_then(|mut i| i.next()).map(|l| l.x2apic_id());
    by_topology.or_else(|| cpuid.get_feature_info().map(|f| u32::from(f.initial_local_apic_id()))).unwrap_or(0)
}

/// Starts all other processors. Gives the APIC IDs of those that did not answer.
///
/// # Errors
/// No page below 1 MiB, or no memory for stacks: what to say about it.
pub fn start_others(apic_ids: &[u32]) -> Result<alloc::vec::Vec<u32>, alloc::string::String> {
    let mut silent = alloc::vec::Vec::new();
    let boot = boot_apic_id();
    let page = mem::FRAMES.lock().low_page().ok_or("there is no free page below 1 MiB to start other cores on")?;
    let cr3 =
        u32::try_from(mem::root()).map_err(|_| "the page tables are above 4 GiB, where no core can start with them")?;
    mem::set_executable(page, true).map_err(|e| alloc::format!("the trampoline page cannot be mapped: {e}"))?;
    let started = start_each(apic_ids.iter().copied().filter(|&id| id != boot), page, cr3, &mut silent);
    mem::set_executable(page, false).map_err(|e| alloc::format!("the trampoline page: {e}"))?;
    started.map(|()| silent)
}

/// Starts one core after the other on the trampoline page. Those that do not answer are added to `silent`.
fn start_each(
    apic_ids: impl Iterator<Item = u32>,
    page: u64,
    cr3: u32,
    silent: &mut alloc::vec::Vec<u32>,
) -> Result<(), alloc::string::String> {
    let (code, offsets) = trampoline::template();
    // Stacks of a core that did not answer: the next one gets them.
    let mut spare = None;
    for apic_id in apic_ids.take(MAX_CORES - 1) {
        let index = count();
        let stacks = match spare.take() {
            Some(stacks) => stacks,
            None => mem::stacks(index).map_err(|e| alloc::format!("no stack for core {index}: {e}"))?,
        };
        let core = Core::create(index, apic_id);
        let start = Box::leak(Box::new((core, stacks)));
        let parameters = Parameters {
            page: page as u32,
            cr3,
            stack: stacks.main,
            argument: ptr::from_ref(start).expose_provenance() as u64,
            entry: start_core as *const () as u64,
        };
        let (block, len) = parameters.block(&offsets);
        // SAFETY: the page was taken from free memory below 1 MiB for this, is mapped, and the core that last used
        // it has answered or is given up (see below).
        unsafe {
            let p: *mut u8 = ptr::with_exposed_provenance_mut(page as usize);
            ptr::copy_nonoverlapping(code.as_ptr(), p, code.len());
            ptr::copy_nonoverlapping(block.as_ptr(), p.add(offsets.parameters), len);
        }
        apic::send_init(apic_id);
        time::delay_micros(10_000);
        for _ in 0..2 {
            apic::send_startup(apic_id, page as u32);
            let patience = time::tsc() + time::micros(200);
            while time::tsc() < patience && !core.alive.load(Ordering::Acquire) {
                core::hint::spin_loop();
            }
            if core.alive.load(Ordering::Acquire) {
                break;
            }
        }
        let patience = time::tsc() + time::micros(2_000_000);
        while time::tsc() < patience && !core.alive.load(Ordering::Acquire) {
            core::hint::spin_loop();
        }
        if core.alive.load(Ordering::Acquire) {
            COUNT.store(index + 1, Ordering::Release);
        } else {
            // INIT stops it wherever it is, so that it cannot run into the next core's parameters.
            apic::send_init(apic_id);
            CORES[index].store(ptr::null_mut(), Ordering::Release);
            silent.push(apic_id);
            spare = Some(stacks);
        }
    }
    Ok(())
}

extern "C" fn start_core(argument: u64) -> ! {
    // SAFETY: `start_others` leaked this pair for this core.
    let (core, stacks) = unsafe { &*ptr::with_exposed_provenance::<(&'static Core, mem::Stacks)>(argument as usize) };
    // SAFETY: these are the tables that the trampoline loaded already.
    unsafe { mem::load_tables(mem::root()) };
    core.enter(stacks);
    core.serve()
}

/// Continues on another stack, for good.
pub fn continue_on(stack: u64, then: extern "C" fn() -> !) -> ! {
    // SAFETY: `stack` is the top of a mapped stack that nobody else uses; `then` never returns, so nothing on the old
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
