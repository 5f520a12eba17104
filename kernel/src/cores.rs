//! The cores: starts them, gives them jobs, and sends kicks between them.
//!
//! A core halts until it gets a job, and then runs it. An engine's job never ends. A guest core's job ends with its
//! vCPU's life.
//!
//! A core reaches another by a kick: it sets a flag and sends an NMI. The machine also sends NMIs, for memory and bus
//! errors, to the boot core. Such an NMI looks like a kick that was already handled. The chipset's latch tells the
//! difference, or that no core has sent one, and the NMI is counted.

#![allow(unsafe_code, reason = "a core is a leaked box behind a pointer; starting one writes the trampoline page")]

use crate::{
    arch::{CoreIndex, MAX_CORES, apic, cpuid, gdt, idle, idt, msr, number, time},
    heap::{self, For},
    machine_check::{banks, slot::Slot},
    mem, nmi,
};
use alloc::{boxed::Box, string::String, sync::Arc, vec::Vec};
use boot::{
    startup,
    trampoline::{self, Fate, Parameters, Seat},
};
use clock::agree::{Meetings, Outcome, Side};
use config::Topology;
use core::{
    ptr,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering},
};
use findings::cores::{Absent, Kind};
use speed::{Processor, Refused};
use spin::{Mutex, Once};
use watchdog::Seen;

type Job = Box<dyn FnOnce(&'static Core) + Send>;

/// One core.
pub struct Core {
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
    /// What CPUID says of the core itself: see [`findings::cores::Kind`].
    kind: Once<Kind>,
    /// The revision of its microcode: see [`speed::microcode`].
    microcode: Once<Option<Result<u32, Refused>>>,
    /// What its last machine check was.
    pub machine_check: Slot,
    /// Its GDT and TSS.
    segments: gdt::Segments,
    busy: AtomicBool,
    job: Mutex<Option<Job>>,
}

static CORES: [AtomicPtr<Core>; MAX_CORES] = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_CORES];
/// Number of cores that run.
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Number of cores that have a number: those that run, and those that did not start.
static NUMBERED: AtomicUsize = AtomicUsize::new(0);

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

/// Returns the number of cores that have a number. A core that did not start keeps its own.
pub fn numbered() -> usize {
    NUMBERED.load(Ordering::Acquire)
}

/// The cores that run, by number.
pub fn all() -> impl Iterator<Item = &'static Core> {
    (0..numbered()).filter_map(get)
}

/// Returns which of the cores are threads of one physical core, and which do not run. `flat`: no core has threads.
pub fn topology(flat: bool) -> Topology {
    let seats = SEATS.get().map_or(&[][..], |seats| &seats[..]);
    let ids: Vec<u32> = get(0).map(|core| core.apic_id).into_iter().chain(seats.iter().map(Seat::apic_id)).collect();
    let absent: Vec<u32> = (0..ids.len()).filter(|&index| get(index).is_none()).map(|index| index as u32).collect();
    let topology = match flat {
        true => Topology::one_thread_each(ids.len() as u32),
        false => Topology::new(&ids, config::thread_bits(cpuid::words)),
    };
    topology.without(&absent)
}

/// Returns this core, or `None` if it has no number yet.
fn current() -> Option<&'static Core> {
    get(number::current())
}

/// Whether this is the core that booted.
pub fn is_boot_core() -> bool {
    number::current() == 0
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
    /// Makes the core with this number. Interrupts, and what it does between two jobs, need it. So it is in everybody's part of the heap.
    fn create(index: CoreIndex, apic_id: u32, stacks: &mem::Stacks) -> &'static Self {
        let _everybody = For::everybody();
        let core = Box::leak(Box::new(Self {
            index,
            apic_id,
            kick: AtomicBool::new(false),
            called: AtomicU8::new(0),
            taking: AtomicU16::new(0),
            timer_fired: AtomicBool::new(false),
            progress: AtomicU64::new(0),
            virtualizes: AtomicBool::new(false),
            kind: Once::new(),
            microcode: Once::new(),
            machine_check: Slot::new(),
            segments: gdt::Segments::new(stacks.interrupt),
            busy: AtomicBool::new(false),
            job: Mutex::new(None),
        }));
        if let Some(place) = CORES.get(index) {
            place.store(core, Ordering::Release);
        }
        core
    }

    /// Loads this core's tables and enables its local APIC. Runs on the core itself.
    fn enter(&'static self) {
        self.segments.load();
        idt::load();
        number::set(self.index);
        apic::enable();
        self.kind.call_once(|| Kind::find(cpuid::words));
        let processor = Processor::new(cpuid::words);
        self.microcode.call_once(|| speed::microcode(&processor, &mut msr::Physical, || _ = cpuid::words(1, 0)));
        banks::start(self.index);
    }

    /// Makes the core leave HLT or its guest.
    pub fn kick(&self) {
        self.kick.store(true, Ordering::SeqCst);
        self.nmi();
    }

    /// Sends the core an NMI. Those to the boot core are counted, so that its handler can tell the machine's own.
    pub fn nmi(&self) {
        if self.index == 0 {
            nmi::TO_BOOT_CORE.sent();
        }
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
                    self.nmi();
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

    /// Gives a waiting core a job. The box of the job is in everybody's part of the heap: the core takes it before it maps a
    /// guest's part. Returns false if it already has one.
    pub fn give(&self, job: impl FnOnce(&'static Core) + Send + 'static) -> bool {
        if self.busy.swap(true, Ordering::AcqRel) {
            return false;
        }
        let _everybody = For::everybody();
        *self.job.lock() = Some(Box::new(job));
        self.kick();
        true
    }

    /// Whether it has a job.
    pub fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Acquire)
    }

    /// What CPUID says of the core itself. `None`: it has not run yet.
    pub fn kind(&self) -> Option<Kind> {
        self.kind.get().copied()
    }

    /// The revision of its microcode. `None`: it has none, or has not run yet.
    pub fn microcode(&self) -> Option<Result<u32, Refused>> {
        self.microcode.get().copied().flatten()
    }

    fn serve(&'static self) -> ! {
        loop {
            idle::sleep(&self.kick);
            self.kick.store(false, Ordering::SeqCst);
            let job = self.job.lock().take();
            if let Some(job) = job {
                self.works();
                job(self);
                banks::poll(self.index);
                self.rests();
                self.busy.store(false, Ordering::Release);
            } else {
                // Woken without a job: see `wake_to_poll`.
                banks::poll(self.index);
            }
        }
    }
}

/// Wakes the next core without a job, so that it reads its banks of machine checks and sleeps again. Each gets its turn. The control core
/// calls it once a second.
pub fn wake_to_poll() {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.load(Ordering::Acquire);
    let begin = NEXT.load(Ordering::Relaxed);
    let in_turn = (0..count).filter_map(|step| get(begin.wrapping_add(step).checked_rem(count)?));
    if let Some(core) = in_turn.into_iter().find(|core| !core.is_busy()) {
        NEXT.store(core.index.wrapping_add(1), Ordering::Relaxed);
        core.kick();
    }
}

/// Makes the boot core number 0, with these stacks.
pub fn adopt_boot_core(stacks: &mem::Stacks) -> &'static Core {
    let core = Core::create(0, boot_apic_id(), stacks);
    core.busy.store(true, Ordering::Relaxed);
    core.enter();
    NUMBERED.store(1, Ordering::Release);
    COUNT.store(1, Ordering::Release);
    core
}

/// Returns the boot core's APIC ID. Its APIC is in x2APIC mode before, so that the ID has all of its 32 bits.
fn boot_apic_id() -> u32 {
    apic::enable();
    apic::id()
}

/// What has come of starting the other cores.
#[derive(Debug, Default)]
pub struct Started {
    /// Those that did not start. Their nodes are not known here.
    pub absent: Vec<Absent>,
    /// Numbers of the cores whose TSC did not agree with core 0's, or that did not come to compare them (`None`).
    pub clocks: Vec<(u32, Option<Outcome>)>,
    /// Why no more cores were started.
    pub trouble: Option<String>,
}

/// What a core needs to start.
struct Start {
    core: &'static Core,
    /// Number of its seat.
    seat: usize,
}

/// The seats of all cores but this one.
static SEATS: Once<Box<[Seat]>> = Once::new();

/// Starts all other processors, all together. They get their numbers in the order of `apic_ids`, from 1 on. Those beyond
/// [`MAX_CORES`] are left alone. `last_is_silent`: the last one gets no start-up IPI, as if it did not listen.
///
/// # Errors
/// There is no page below 1 MiB for it; the text says so.
pub fn start_others(apic_ids: &[u32], last_is_silent: bool) -> Result<Started, String> {
    let mut all = Started::default();
    let boot = get(0).map_or(0, |core| core.apic_id);
    let page = mem::FRAMES.lock().low_page().ok_or("there is no free page below 1 MiB to start other cores on")?;
    let cr3 =
        u32::try_from(mem::root()).map_err(|_| "the page tables are above 4 GiB, where no core can start with them")?;
    heap::extend_for_cores(apic_ids.len().min(MAX_CORES))
        .map_err(|e| alloc::format!("there is no memory to start other cores: {e}"))?;
    let (mut seats, mut starts) = (Vec::new(), Vec::new());
    for &apic_id in apic_ids.iter().filter(|&&id| id != boot).take(MAX_CORES - 1) {
        let index = seats.len().saturating_add(1);
        let stacks = match mem::stacks(index) {
            Ok(stacks) => stacks,
            Err(e) => {
                all.trouble = Some(alloc::format!("no core from number {index} on is started: no stack: {e}"));
                break;
            }
        };
        let start: &_ = Box::leak(Box::new(Start { core: Core::create(index, apic_id, &stacks), seat: seats.len() }));
        seats.push(Seat::new(apic_id, stacks.main, ptr::from_ref(start).expose_provenance() as u64));
        starts.push(start);
    }
    NUMBERED.store(seats.len().saturating_add(1), Ordering::Release);
    let seats = SEATS.call_once(|| seats.into());
    if seats.is_empty() {
        return Ok(all);
    }
    mem::set_executable(page, true).map_err(|e| alloc::format!("the trampoline page cannot be mapped: {e}"))?;
    let parameters = Parameters {
        page: page as u32,
        cr3,
        seats: seats.as_ptr().expose_provenance() as u64,
        count: seats.len() as u64,
        entry: start_core as *const () as u64,
    };
    let (code, offsets) = trampoline::template();
    let (block, len) = parameters.block(&offsets);
    // SAFETY: the page was taken from free memory below 1 MiB for this, and it is mapped. No core uses it yet.
    unsafe {
        let p: *mut u8 = ptr::with_exposed_provenance_mut(page as usize);
        ptr::copy_nonoverlapping(code.as_ptr(), p, code.len());
        ptr::copy_nonoverlapping(block.as_ptr(), p.add(offsets.parameters), len);
    }
    let silent = seats.last().filter(|_| last_is_silent).map(Seat::apic_id);
    startup::start(seats, &mut Apic { page: page as u32, silent });
    for (seat, start) in seats.iter().zip(&starts) {
        match seat.fate() {
            Fate::Started => _ = COUNT.fetch_add(1, Ordering::AcqRel),
            fate => all.absent.push(remove(start.core, fate == Fate::Stuck)),
        }
    }
    // INIT has stopped those that did not come, so nobody executes the page any more.
    mem::set_executable(page, false).map_err(|e| alloc::format!("the trampoline page: {e}"))?;
    compare_clocks(&mut all);
    Ok(all)
}

/// Takes its place from a core that does not run.
fn remove(core: &Core, stuck: bool) -> Absent {
    if let Some(place) = CORES.get(core.index) {
        place.store(ptr::null_mut(), Ordering::Release);
    }
    Absent { number: core.index as u32, apic_id: core.apic_id, node: None, stuck }
}

/// Compares the TSC of each core with this one's, one after the other. The others halt meanwhile. A core that does not come
/// is stopped.
fn compare_clocks(all: &mut Started) {
    const PATIENCE: u64 = 5_000_000;
    let can_adjust = raw_cpuid::CpuId::new().get_extended_feature_info().is_some_and(|f| f.has_tsc_adjust_msr());
    for core in self::all().skip(1) {
        let meetings = Arc::new(Meetings::new());
        let its = meetings.clone();
        // Core 0 reports the outcome, and its time limit ends the wait of both.
        core.give(move |_| _ = its.meet(Side::Second, can_adjust, time::ordered_tsc, spins, time::add_to_tsc));
        let until = time::tsc().saturating_add(time::micros(PATIENCE));
        let wait = || spins() && time::tsc() < until;
        let outcome = meetings.meet(Side::First, can_adjust, time::ordered_tsc, wait, |_| ());
        let until = time::tsc().saturating_add(time::micros(PATIENCE));
        while core.is_busy() && time::tsc() < until {
            core::hint::spin_loop();
        }
        if core.is_busy() {
            apic::send_init(core.apic_id);
            COUNT.fetch_sub(1, Ordering::AcqRel);
            all.absent.push(remove(core, true));
        } else if outcome != Some(Outcome::default()) {
            all.clocks.push((core.index as u32, outcome));
        }
    }
}

fn spins() -> bool {
    core::hint::spin_loop();
    true
}

/// The local APIC, as starting cores needs it.
struct Apic {
    /// The trampoline's page.
    page: u32,
    /// The core that gets no start-up IPI, as if it did not listen.
    silent: Option<u32>,
}

impl startup::Machine for Apic {
    fn init(&mut self, apic_id: u32) {
        apic::send_init(apic_id);
    }

    fn startup(&mut self, apic_id: u32) {
        if self.silent != Some(apic_id) {
            apic::send_startup(apic_id, self.page);
        }
    }

    fn micros(&mut self) -> u64 {
        time::tsc().checked_div(time::micros(1)).unwrap_or_default()
    }
}

extern "C" fn start_core(argument: u64) -> ! {
    // SAFETY: `start_others` leaked this for this core.
    let Start { core, seat } = unsafe { &*ptr::with_exposed_provenance::<Start>(argument as usize) };
    // SAFETY: these are the tables that the trampoline loaded already.
    unsafe { mem::load_tables(mem::root()) };
    core.enter();
    if SEATS.get().and_then(|seats| seats.get(*seat)).is_some_and(Seat::started) {
        core.serve()
    }
    // It came too late, and has no number any more.
    loop {
        x86_64::instructions::hlt();
    }
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
