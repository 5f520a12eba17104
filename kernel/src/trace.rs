//! The trace: what each core writes about its work, and how the control core reads and sends it.
//!
//! A core that traces has a ring of its own: the control core, engines' cores, guests' cores. Only the core itself writes it.
//! The ring of a guest's core is in memory that only that guest's cores, and the control core, map. NMI and machine check
//! handlers write no records, because they may interrupt a write.
//!
//! [`on`] is the one test that a core makes when the trace is off.

pub mod latency;

use crate::{
    arch::{CoreIndex, MAX_CORES, time},
    console,
    cores::{self, Core},
    machine_check::{self, Told},
    mem::{self, TraceMemory},
};
use ::control::capture::Wanted;
use ::control::{
    CapturedPort, Durations, GuestState, Latency, NoMemory, StopReason, Text, TraceState, TracedCore,
    trace::{TRACE_END, trace_line},
};
use ::trace::{
    Captured, Classes, Kind, Record, Switch,
    capture::{
        WORDS,
        filter::{Filter, Filters},
    },
    frames::{FIRST_UPLINK, FIRST_UPLINK_CAUSE},
    histogram::Histogram,
    published::Published,
    queues::QueueHistograms,
    record::{
        BEFORE_START, BY_CALL, BY_NMI, DIRECT, ENDS_GUEST, EXCEPTION, INTERRUPT, NO_GUEST, NON_MASKABLE, POSTED,
        WITHHELD,
    },
    ring::{Cursor, Ring as AnyRing, Slot, WhenFull},
    saving::{Limits, Progress, Rings, Saving, Sink},
    stream::{Clock, Full, HeaderWriter, KernelAddresses, NOTHING, Table, collect, collect_captures},
};
use alloc::{boxed::Box, format, string::String, vec::Vec};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use config::{Config, Plan};
use engine::{follow::FOLLOWED, observe::QueueValue, slots::MAX_SLOTS};
use latency::Time;
use machine::{machine::Signal, observe::Exit, reason::Reason, vcpu::Event};
use memory::{frames::OutOfMemory, maps::Range};
use net::counters::{Drops, UplinkDrop};
use spin::Once;

/// The ring of a core.
pub type Ring = AnyRing<&'static [Slot]>;

/// The ring of an engine's core for captured frames.
type CaptureRing = AnyRing<&'static [Slot<WORDS>], WORDS>;

/// The classes that the cores write now.
pub static ON: Switch = Switch::new();

/// The filters of the ports, by the engine's slot. There is one engine.
static FILTERS: Filters<MAX_SLOTS> = Filters::new();

/// What a core has for its trace, in lines of the cache that no other core writes.
#[repr(align(128))]
struct OfCore(Owned);

struct Owned {
    ring: Ring,
    /// If it is an engine's core.
    captures: Option<CaptureRing>,
    /// Where its guest's kernel is: `since`, `read`, `lstar` and `page_fault` of [`KernelAddresses`].
    kernel: &'static Published,
    /// How long its exits take, by reason, or its turns and visits.
    histograms: &'static [Histogram],
    /// If it is an engine's core: what is measured of the queues that it follows.
    queues: &'static [QueueHistograms],
    /// The guest whose core it is, or [`NO_GUEST`].
    guest: u8,
}

/// By core.
static CORES: [Once<Box<OfCore>>; MAX_CORES] = [const { Once::new() }; MAX_CORES];

/// Most bytes of a block. Its line on COM2 has to fit in the share of guests' output. It has 126 records.
pub const BLOCK: usize = 4096;
/// Bytes of a block in base64.
const ENCODED: usize = BLOCK.div_ceil(3) * 4;
/// Bytes of room on COM2 for the line of a block.
const LINE: usize = ENCODED + 64;

/// How a trace is sent on COM2.
const ON_COM2: Limits = Limits { blocks: 2, quiet: 20, stuck: None };
/// How a trace is sent to the management guest. A guest that does not read the end keeps the others waiting for five seconds.
const ON_PORT: Limits = Limits { stuck: Some(5_000), ..ON_COM2 };

/// Whether a class is on.
#[inline(always)]
pub fn on(classes: Classes) -> bool {
    ON.has(classes)
}

/// What a core is, when its trace is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// The control core, without an engine.
    Control,
    /// A core that runs an engine.
    Engine,
    /// A core of this guest.
    Guest(usize),
}

/// Most captured frames of a core's ring.
const MOST_CAPTURES: u64 = 4096;

/// How many captured frames the ring of an engine's core has room for, if the ring for records has so many bytes. With 128 KiB
/// these are 512 frames in 80 KiB, so that all rings and histograms of a core are below 256 KiB.
const fn captures(bytes: u64) -> u64 {
    let captures = bytes / 256;
    if captures > MOST_CAPTURES { MOST_CAPTURES } else { captures }
}

/// Makes the rings of a core with `bytes` of memory for records, and its histograms. Returns the memory that the core has to
/// map; nothing if `bytes` is 0. Call it once for a core, before the cores have their maps.
///
/// # Errors
/// There is no memory.
pub fn make(core: CoreIndex, of: Of, bytes: u64) -> Result<Option<Range>, OutOfMemory> {
    if bytes == 0 {
        return Ok(None);
    }
    let slots = bytes.checked_div(size_of::<Slot>() as u64).unwrap_or_default();
    let (guest, captures, queues) = match of {
        Of::Control => (None, 0, 0),
        Of::Engine => (None, captures(bytes), FOLLOWED as u64),
        Of::Guest(guest) => (Some(guest), 0, 0),
    };
    let TraceMemory { slots, captures, published: kernel, histograms, queues, range } =
        mem::trace(slots, captures, latency::histograms(guest.is_some()), queues)?;
    let guest = guest_number(guest);
    // The configuration has only powers of two, from 4 KiB.
    if let (Some(of), Some(ring)) = (CORES.get(core), Ring::new(slots)) {
        of.call_once(|| {
            let captures = CaptureRing::new(captures);
            Box::new(OfCore(Owned { ring, captures, kernel, histograms, queues, guest }))
        });
    }
    Ok(Some(range))
}

/// Bytes of memory that the rings and histograms of a plan take.
pub fn memory(config: &Config, cores: usize) -> u64 {
    if config.trace.memory == 0 {
        return 0;
    }
    let captured = captures(config.trace.memory).saturating_mul(size_of::<Slot<WORDS>>() as u64);
    let queues = size_of::<QueueHistograms>().saturating_mul(FOLLOWED) as u64;
    let of_engine = captured.saturating_add(queues).next_multiple_of(4096);
    let of_engines = of_engine.saturating_mul(config.engines.len().max(1) as u64);
    let histograms = latency::histograms(true).saturating_mul(size_of::<Histogram>() as u64);
    let histograms = histograms.saturating_add(size_of::<Published>() as u64).next_multiple_of(4096);
    // Idle cores have none: at most the control core, the engines' and the guests' have them. Other cores than guests' have
    // fewer histograms, so this is an upper limit.
    let vcpus = config.guests.iter().map(|guest| u64::from(guest.vcpus)).fold(0, u64::saturating_add);
    let busy = vcpus.saturating_add(config.engines.len().max(1) as u64).saturating_add(1).min(cores as u64);
    config.trace.memory.saturating_add(histograms).saturating_mul(busy).saturating_add(of_engines)
}

/// A guest as records have it. There are fewer guests than [`NO_GUEST`].
pub fn guest_number(guest: Option<usize>) -> u8 {
    guest.and_then(|guest| u8::try_from(guest).ok()).unwrap_or(NO_GUEST)
}

fn owned(core: CoreIndex) -> Option<&'static Owned> {
    Some(&CORES.get(core)?.get()?.0)
}

/// Returns the ring of a core, if it has one.
pub fn ring(core: CoreIndex) -> Option<&'static Ring> {
    Some(&owned(core)?.ring)
}

/// Captures a frame at a port, if the port's filter takes it. `captured` says all of it but its first bytes. Only the engine's
/// core `core` calls it.
pub fn capture(core: CoreIndex, captured: Captured, bytes: &[u8]) {
    if let Some(ring) = owned(core).and_then(|owned| owned.captures.as_ref())
        && let Some(taken) = FILTERS.take(captured, bytes)
    {
        ring.write_words(taken.to_words());
    }
}

/// The trace of a vCPU's core.
pub struct VcpuTrace {
    ring: Option<&'static Ring>,
    kernel: Option<&'static Published>,
    /// TSC at which the vCPU's life has begun.
    since: u64,
    histograms: &'static [Histogram],
    guest: u8,
}

impl VcpuTrace {
    /// Makes it for a vCPU whose life begins, on the core of the vCPU.
    pub fn new(core: &Core) -> Self {
        let owned = owned(core.index);
        let (kernel, since) = (owned.map(|owned| owned.kernel), time::tsc());
        // Nothing is known of the kernel that comes.
        if let Some(kernel) = kernel {
            kernel.write([since, 0, 0, 0]);
        }
        Self {
            ring: owned.map(|owned| &owned.ring),
            kernel,
            since,
            histograms: owned.map_or(&[], |owned| owned.histograms),
            guest: owned.map_or(NO_GUEST, |owned| owned.guest),
        }
    }

    fn write(&self, vcpu: usize, record: Record) {
        if let Some(ring) = self.ring {
            // There are at most 255 vCPUs.
            ring.write(Record { guest: self.guest, unit: vcpu as u8, ..record });
        }
    }

    /// Writes the record of an exit, and records how long it took, if these classes are on. One of them was on when the exit
    /// began.
    #[inline(always)]
    pub fn exit(&self, exit: &Exit) {
        if on(Classes::HISTOGRAMS) {
            self.exit_with_histogram(exit);
        } else {
            self.exit_record(exit);
        }
    }

    /// Apart from [`VcpuTrace::exit_record`], which would save more registers otherwise.
    #[inline(never)]
    fn exit_with_histogram(&self, exit: &Exit) {
        latency::record(self.histograms, exit.reason as usize, exit.end.wrapping_sub(exit.begin));
        if on(Classes::EXITS) {
            self.exit_record(exit);
        }
    }

    /// Writes the record of an exit.
    #[inline(never)]
    fn exit_record(&self, exit: &Exit) {
        let &Exit { vcpu, reason, rip, qualification, begin, end } = exit;
        let record = Record { code: reason as u8, a: rip, b: qualification, ..Record::new(Kind::Exit, begin) };
        self.write(vcpu, record.until(end));
    }

    /// Writes the record of an entry.
    #[inline(never)]
    pub fn entry(&self, vcpu: usize) {
        self.write(vcpu, Record::new(Kind::Entry, time::tsc()));
    }

    /// Publishes where the guest's kernel is now.
    #[inline(never)]
    pub fn kernel(&self, addresses: &machine::kernel_addresses::KernelAddresses) {
        if let Some(kernel) = self.kernel {
            kernel.write([self.since, time::tsc(), addresses.lstar, addresses.page_fault]);
        }
    }

    /// Writes the record of an injection.
    #[inline(never)]
    pub fn injection(&self, vcpu: usize, event: Event) {
        let (code, b) = match event {
            Event::Interrupt(vector) => (vector, INTERRUPT),
            Event::Nmi => (2, NON_MASKABLE),
            Event::Exception(vector, _) => (vector, EXCEPTION),
        };
        self.write(vcpu, Record { code, b, ..Record::new(Kind::Injection, time::tsc()) });
    }
}

/// Records how many ticks something took on the engine's core `core`, which calls it.
pub fn engine_time(core: CoreIndex, what: Time, ticks: u64) {
    if let Some(owned) = owned(core) {
        latency::record(owned.histograms, what as usize, ticks);
    }
}

/// Records a value of a queue that the engine on core `core` follows. That core calls it.
pub fn queue_value(core: CoreIndex, value: &QueueValue) {
    if let Some(place) = owned(core).and_then(|owned| owned.queues.get(value.place)) {
        latency::record_queue(place, value);
    }
}

/// Writes the record of a signal that this core sends to the core of a vCPU. `receiver`: that core.
#[inline(never)]
pub fn signal(receiver: CoreIndex, signal: Signal) {
    let Some(ring) = ring(cores::current_index()) else { return };
    let (kind, vcpu, code, a) = match signal {
        Signal::Kick(vcpu) => (Kind::Kick, vcpu, BY_NMI, 0),
        Signal::Call(vcpu, vector) => (Kind::Kick, vcpu, BY_CALL, vector.into()),
        Signal::Interrupt(vcpu, vector) => (Kind::Delivery, vcpu, DIRECT, vector.into()),
        Signal::Notify(vcpu) => (Kind::Delivery, vcpu, POSTED, 0),
    };
    let guest = owned(receiver).map_or(NO_GUEST, |owned| owned.guest);
    ring.write(Record { code, guest, unit: vcpu as u8, a, ..Record::new(kind, time::tsc()) });
}

/// Writes a record of a guest on the control core, if its class is on.
fn tell(classes: Classes, record: Record) {
    if on(classes)
        && let Some(ring) = ring(cores::current_index())
    {
        ring.write(record);
    }
}

/// Writes the record of a guest's state. `reason`: why it has stopped. Call it on the control core.
pub fn life(guest: usize, state: GuestState, reason: Option<StopReason>) {
    let guest = guest_number(Some(guest));
    let a = reason.map_or(0, |reason| stop_number(reason).into());
    tell(Classes::LIFE, Record { guest, code: state as u8, a, ..Record::new(Kind::Life, time::tsc()) });
}

/// The number of a reason in the header's table.
const fn stop_number(reason: StopReason) -> u32 {
    (reason as u32).saturating_add(1)
}

/// Writes the record of `count` NMIs of the machine. Call it on the control core.
pub fn machine_nmi(code: u8, count: u64) {
    tell(Classes::LIFE, Record { code, a: count, ..Record::new(Kind::Nmi, time::tsc()) });
}

/// Writes the record of a machine check. `guest`: whose memory it is. Call it on the control core.
pub fn machine_check(told: &Told, guest: Option<usize>) {
    let code = match told.kind {
        machine_check::Kind::LeftByFirmware => BEFORE_START,
        machine_check::Kind::Withhold => WITHHELD,
        machine_check::Kind::EndGuest => ENDS_GUEST,
        // The machine stops, and nobody is told.
        machine_check::Kind::Stop => return,
    };
    let record = Record {
        guest: guest_number(guest),
        unit: told.core as u8,
        code,
        a: told.error.location.map_or(0, |location| location.address),
        b: told.error.status.into_bits(),
        ..Record::new(Kind::MachineCheck, time::tsc())
    };
    tell(Classes::LIFE, record);
}

/// The control core's side.
pub struct Reader {
    cores: Cores,
    /// Names and clock, as blocks.
    header: Vec<Vec<u8>>,
    stops: bool,
    saving: Option<Sending>,
}

/// A trace that is being sent.
struct Sending {
    saving: Saving,
    to: To,
    what: What,
}

/// What is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// Records, until all classes of records are off.
    Records,
    /// Captured frames, until no port is captured.
    Captures,
}

impl What {
    /// Whether no more will be written.
    fn is_off(self) -> bool {
        match self {
            Self::Records => ON.get().difference(Classes::CAPTURES).is_empty(),
            Self::Captures => !on(Classes::CAPTURES),
        }
    }
}

/// One of the management guest's openings of its port: the number of the guest's life, and the number of the opening.
pub type Opening = (u64, u64);

/// Where a trace is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum To {
    Com2,
    /// The management guest's port, as long as the guest has it open.
    Port(Opening),
}

/// The cores that have a ring.
struct Cores(Vec<Traced>);

/// The rings of the cores that are sent.
struct Sent<'a>(&'a mut Cores, What);

impl Rings for Sent<'_> {
    fn count(&self) -> usize {
        self.0.0.len()
    }

    fn collect(&mut self, number: usize, buffer: &mut [u8]) -> usize {
        let Some(traced) = self.0.0.get_mut(number) else { return 0 };
        let core = traced.core as u32;
        let kernel = if self.1 == What::Records { traced.kernel(buffer) } else { 0 };
        if kernel > 0 {
            return kernel;
        }
        let block = match (self.1, traced.captures) {
            (What::Records, _) => collect(traced.ring, &mut traced.cursor, core, buffer),
            (What::Captures, Some(ring)) => collect_captures(ring, &mut traced.captured, core, buffer),
            (What::Captures, None) => None,
        };
        block.map_or(0, <[u8]>::len)
    }
}

/// COM2, which gets a block as a line.
struct Com2;

impl Sink for Com2 {
    fn has_room(&self) -> bool {
        console::room_com2().is_some_and(|room| room >= LINE)
    }

    fn send(&mut self, block: &[u8]) {
        let mut encoded = [0; ENCODED];
        let len = STANDARD.encode_slice(block, &mut encoded).unwrap_or(0);
        let text = encoded.get(..len).and_then(|bytes| str::from_utf8(bytes).ok()).unwrap_or_default();
        console::send_pieces(trace_line(text));
    }

    /// The line of the end follows in the same queue.
    fn is_drained(&self) -> bool {
        true
    }
}

/// A core that has a ring.
struct Traced {
    core: CoreIndex,
    role: Role,
    /// The name of the guest, or of the role.
    user: String,
    ring: &'static Ring,
    kernel: &'static Published,
    /// What the present saving has of it: `since`, `lstar` and `page_fault`.
    told: Option<[u64; 3]>,
    cursor: Cursor,
    captures: Option<&'static CaptureRing>,
    captured: Cursor,
    /// Records written and dropped before `trace on`.
    before: u64,
}

/// What a core is for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Control,
    Engine,
    /// It runs a vCPU of this guest.
    Guest(u8),
}

impl Role {
    const fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Engine => "engine",
            Self::Guest(_) => "guest",
        }
    }
}

impl Traced {
    /// Makes a block of where the guest's kernel is, if that has changed. Returns its length in bytes; 0 if there is nothing to
    /// tell.
    fn kernel(&mut self, buffer: &mut [u8]) -> usize {
        let Role::Guest(guest) = self.role else { return 0 };
        // While it is being written, the next call has it.
        let Some([since, read, lstar, page_fault]) = self.kernel.read() else { return 0 };
        if self.told == Some([since, lstar, page_fault]) {
            return 0;
        }
        self.told = Some([since, lstar, page_fault]);
        let addresses = KernelAddresses { core: self.core as u32, guest: guest.into(), since, read, lstar, page_fault };
        // The buffer is larger.
        addresses.write(buffer).map_or(0, <[u8]>::len)
    }

    fn all(&self) -> u64 {
        self.ring.written().wrapping_add(self.ring.dropped())
    }
}

impl Reader {
    /// Makes the rings of the control core and of the engines' cores, and the side that reads all of them. The guests' cores
    /// have theirs. Switches on what the configuration wants from the start.
    ///
    /// # Errors
    /// There is no memory; the text says so.
    pub fn new(config: &Config, plan: &Plan) -> Result<Self, String> {
        let engines = || plan.engines.iter().map(|&core| core as usize);
        let control = if engines().any(|core| core == 0) { Of::Engine } else { Of::Control };
        let others = engines().filter(|&core| core != 0).map(|core| (core, Of::Engine));
        for (core, of) in core::iter::once((0, control)).chain(others) {
            make(core, of, config.trace.memory).map_err(|e| format!("the trace of core {core}: {e}"))?;
        }
        let traced = |core| {
            let owned = owned(core)?;
            let role = match owned.guest {
                NO_GUEST if core == 0 => Role::Control,
                NO_GUEST => Role::Engine,
                guest => Role::Guest(guest),
            };
            let user = match role {
                Role::Guest(guest) => config.guests.get(usize::from(guest))?.name.clone(),
                role => role.name().into(),
            };
            Some(Traced {
                core,
                role,
                user,
                ring: &owned.ring,
                cursor: Cursor::new(),
                captures: owned.captures.as_ref(),
                captured: Cursor::new(),
                kernel: owned.kernel,
                told: None,
                before: 0,
            })
        };
        let cores: Vec<_> = (0..MAX_CORES).filter_map(traced).collect();
        Self::switch(config.trace.on);
        Ok(Self { header: header(config, &cores), cores: Cores(cores), stops: false, saving: None })
    }

    /// Switches classes on. The engines have to choose their loops afterwards. If the trace was off, what is in the rings is forgotten.
    ///
    /// # Errors
    /// No core has a ring.
    pub fn start(&mut self, classes: Classes, stops: bool) -> Result<(), Text> {
        self.has_rings()?;
        self.stops = stops;
        let was_off = What::Records.is_off();
        for traced in &mut self.cores.0 {
            traced.ring.when_full(if stops { WhenFull::Stop } else { WhenFull::Overwrite });
            if was_off {
                traced.cursor.skip_all(traced.ring);
                traced.before = traced.all();
            }
        }
        Self::switch(classes | ON.get() & Classes::CAPTURES);
        Ok(())
    }

    /// Sets the filter of a port by the engine's slot, or removes it. If no port was captured, what is in the rings is forgotten.
    ///
    /// # Errors
    /// No core has a ring.
    pub fn capture(&mut self, slot: usize, filter: Option<Filter>) -> Result<(), Text> {
        self.has_rings()?;
        if What::Captures.is_off() && filter.is_some() {
            for traced in &mut self.cores.0 {
                if let Some(ring) = traced.captures {
                    traced.captured.skip_all(ring);
                }
            }
        }
        FILTERS.set(slot, filter);
        let is_any = (0..MAX_SLOTS).any(|slot| FILTERS.get(slot).is_some());
        ON.set(if is_any { ON.get() | Classes::CAPTURES } else { ON.get().difference(Classes::CAPTURES) });
        Ok(())
    }

    /// Switches these classes on and all others off.
    fn switch(classes: Classes) {
        if classes.contains(Classes::HISTOGRAMS) && !on(Classes::HISTOGRAMS) {
            latency::begin();
        }
        ON.set(classes);
    }

    /// Returns how long exits, turns and visits took in this period, for the request `id`: exits by guest and reason, then what the
    /// engines did, then the queues that they followed. `engines`: their ids and cores. `device` gives the guest of the device
    /// in a slot, its kind, and its number among the guest's devices of that kind.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn latency<'a>(
        &self,
        id: Option<u64>,
        engines: impl Iterator<Item = (usize, CoreIndex)> + Clone,
        device: impl Fn(usize) -> Option<(&'a str, &'a str, usize)>,
    ) -> Result<Latency, NoMemory> {
        let cores = self.cores.0.as_slice();
        let of_core = |core| owned(core).map(|owned| owned.histograms);
        // Another guest's core may be between two cores of a guest.
        let is_first = |at: usize, role: Role| cores.iter().take(at).all(|before| before.role != role);
        let guests = cores.iter().enumerate().filter(|&(at, traced)| match traced.role {
            Role::Guest(_) => is_first(at, traced.role),
            Role::Control | Role::Engine => false,
        });
        let exits = guests.flat_map(|(_, traced)| {
            let own =
                move || cores.iter().filter(|other| other.role == traced.role).filter_map(move |it| of_core(it.core));
            let of =
                move |(number, reason): (usize, &Reason)| Durations::of(reason.name(), &latency::totals(own(), number));
            let named = |durations| Ok(Durations { guest: Some(::control::copy(&traced.user)?), ..durations });
            Reason::ALL.iter().enumerate().filter_map(of).map(named)
        });
        let queues =
            engines.clone().flat_map(|(_, core)| owned(core)).flat_map(|owned| owned.queues).flat_map(|place| {
                let found = latency::of_queue(place);
                let (slot, queue) = place.queue();
                // A guest that was removed is not named any more.
                let of = device(slot.into());
                let named = move |durations| {
                    let (guest, kind, number) = of?;
                    let name = ::control::write(format_args!("{kind}{number} queue {queue}"));
                    let named =
                        |name| Ok(Durations { guest: Some(::control::copy(guest)?), queue: Some(name), ..durations });
                    Some(name.and_then(named))
                };
                found.into_iter().flatten().filter_map(named)
            });
        let engines = engines.flat_map(|(id, core)| {
            let of = move |what: Time| {
                Durations::of(what.name(), &latency::totals(of_core(core).into_iter(), what as usize))
            };
            let named = move |durations| Ok(Durations { engine: Some(id as u64), ..durations });
            Time::ALL.into_iter().filter_map(of).map(named)
        });
        let rows = ::control::collect(exits.chain(engines).chain(queues))?;
        Ok(Latency { id, on: on(Classes::HISTOGRAMS), tsc_hz: time::rates().tsc, rows })
    }

    /// Switches all classes off, and ends all captures. The engines may choose their loops afterwards. What is in the rings stays
    /// there.
    pub fn stop(&self) {
        FILTERS.clear();
        ON.set(Classes::empty());
    }

    fn has_rings(&self) -> Result<(), Text> {
        if self.cores.0.is_empty() { Err("no core has a ring: `memory` of [trace] is 0K".into()) } else { Ok(()) }
    }

    /// Begins to send the records on COM2.
    ///
    /// # Errors
    /// No core has a ring, it is being done already, or there is no COM2.
    pub fn save(&mut self) -> Result<(), Text> {
        if !console::has_com2() {
            return Err("records are sent on COM2, which this machine does not have".into());
        }
        self.begin(What::Records, ON_COM2, || Ok(To::Com2))
    }

    /// Begins to send the captured frames on COM2.
    ///
    /// # Errors
    /// As for [`Reader::save`].
    pub fn save_captures(&mut self) -> Result<(), Text> {
        if !console::has_com2() {
            return Err("captured frames are sent on COM2, which this machine does not have".into());
        }
        self.begin(What::Captures, ON_COM2, || Ok(To::Com2))
    }

    /// Begins to send the captured frames to the management guest.
    ///
    /// # Errors
    /// As for [`Reader::save_to_port`].
    pub fn save_captures_to_port(&mut self, open: impl FnOnce() -> Result<Opening, Text>) -> Result<(), Text> {
        self.begin(What::Captures, ON_PORT, || open().map(To::Port))
    }

    /// Begins to send the records to the management guest. `open` opens its port on this side.
    ///
    /// # Errors
    /// No core has a ring, it is being done already, or the port cannot be opened.
    pub fn save_to_port(&mut self, open: impl FnOnce() -> Result<Opening, Text>) -> Result<(), Text> {
        self.begin(What::Records, ON_PORT, || open().map(To::Port))
    }

    fn begin(&mut self, what: What, limits: Limits, to: impl FnOnce() -> Result<To, Text>) -> Result<(), Text> {
        self.has_rings()?;
        match self.saving.as_ref().map(|sending| sending.to) {
            Some(To::Com2) => return Err("records are being sent on COM2 already; `trace off` ends it".into()),
            Some(To::Port(_)) => {
                return Err("records are being sent to the management guest already; `trace off` ends it".into());
            }
            None => {}
        }
        let to = to()?;
        self.cores.0.iter_mut().for_each(|traced| traced.told = None);
        self.saving = Some(Sending { saving: Saving::new(limits), to, what });
        Ok(())
    }

    /// Sends what there is and what its receiver has room for, within a tick's limit. Call it once a tick. `port` gives the
    /// management guest's port, if the guest has it open. Returns whether sending to that port has ended. It also ends when the
    /// guest closes the port or opens it again, or has another life.
    pub fn tick<S: Sink>(&mut self, port: impl FnOnce() -> Option<(Opening, S)>) -> bool {
        let Some(Sending { saving, to, what }) = &mut self.saving else { return false };
        let (to, is_off) = (*to, what.is_off());
        let mut rings = Sent(&mut self.cores, *what);
        let mut buffer = [0; BLOCK];
        let progress = match to {
            To::Com2 => saving.tick(is_off, &self.header, &mut rings, &mut Com2, &mut buffer),
            To::Port(opening) => match port().filter(|&(now, _)| now == opening) {
                Some((_, mut port)) => saving.tick(is_off, &self.header, &mut rings, &mut port, &mut buffer),
                None => Progress::GivenUp,
            },
        };
        if progress == Progress::Going {
            return false;
        }
        self.saving = None;
        match to {
            To::Com2 => {
                console::send_pieces([TRACE_END]);
                false
            }
            To::Port(_) => true,
        }
    }

    /// Returns the state, for the request `id`.
    ///
    /// # Errors
    /// There is no memory for it.
    /// `name` gives the name of the guest whose device is in a slot of the engine, and the number of its network device.
    pub fn state<'a>(
        &self,
        id: Option<u64>,
        name: impl Fn(usize) -> Option<(&'a str, usize)>,
    ) -> Result<TraceState, NoMemory> {
        let cores = self.cores.0.iter().map(|traced| {
            let mut cursor = traced.cursor;
            cursor.skip_lost(traced.ring);
            Ok(TracedCore {
                core: traced.core as u64,
                user: ::control::copy(&traced.user)?,
                capacity: traced.ring.capacity(),
                records: traced.all().wrapping_sub(traced.before),
                lost: cursor.lost(),
            })
        });
        let captures = (0..MAX_SLOTS).filter_map(|slot| {
            let (filter, (guest, net)) = (FILTERS.get(slot)?, name(slot)?);
            let filter = ::control::sentence(format_args!("{}", Wanted { net, filter: Some(filter) }));
            let frames = FILTERS.taken(slot);
            Some(::control::copy(guest).map(|guest| CapturedPort { guest, filter, frames }))
        });
        Ok(TraceState {
            id,
            classes: ::control::collect(ON.get().names().map(|name| Ok(name.into())))?,
            stop: self.stops,
            saving: self.saving.is_some(),
            cores: ::control::collect(cores)?,
            captures: ::control::collect(captures)?,
        })
    }
}

/// Makes the blocks with names and clock.
fn header(config: &Config, cores: &[Traced]) -> Vec<Vec<u8>> {
    let mut names: Vec<(Table, u32, u32, String)> = Vec::new();
    for traced in cores {
        let belongs_to = match traced.role {
            Role::Control => NOTHING,
            // There is one engine.
            Role::Engine => 0,
            Role::Guest(guest) => guest.into(),
        };
        names.push((Table::Core, traced.core as u32, belongs_to, traced.role.name().into()));
    }
    for (number, guest) in (0_u32..).zip(&config.guests) {
        names.push((Table::Guest, number, NOTHING, guest.name.clone()));
        for (device, slot) in guest.devices.iter().zip(config.device_number(number as usize, 0)..) {
            let kind = device.kind();
            let same = names
                .iter()
                .filter(|(table, _, of, name)| *table == Table::Device && *of == number && name.starts_with(kind));
            let name = format!("{kind}{}", same.count());
            names.push((Table::Device, slot as u32, number, name));
        }
    }
    for (number, uplink) in (FIRST_UPLINK.into()..).zip(&config.uplinks) {
        names.push((Table::Device, number, NOTHING, format!("uplink {}", uplink.name)));
    }
    names.extend((0..).zip(Reason::ALL).map(|(code, reason)| (Table::Reason, code, NOTHING, reason.name().into())));
    names.extend(Kind::ALL.iter().map(|kind| (Table::Kind, *kind as u32, NOTHING, kind.name().into())));
    names.extend(GuestState::ALL.map(|state| (Table::State, state as u32, NOTHING, state.name().into())));
    names.extend(StopReason::ALL.map(|reason| (Table::Stop, stop_number(reason), NOTHING, reason.name().into())));
    let causes = Drops::new();
    names.extend((0..).zip(causes.iter()).map(|(code, (name, _))| (Table::Cause, code, NOTHING, name.into())));
    let at_uplinks = (FIRST_UPLINK_CAUSE.into()..).zip(UplinkDrop::ALL);
    names.extend(at_uplinks.map(|(code, drop)| (Table::Cause, code, NOTHING, drop.name().into())));

    let (tsc, wall) = time::boot();
    let clock = Clock { tsc_khz: time::rates().tsc / 1000, wall, tsc };
    let mut blocks = Vec::new();
    let mut rest = names.as_slice();
    while !rest.is_empty() {
        let mut buffer = [0; BLOCK];
        let Ok(mut block) = HeaderWriter::new(&mut buffer, clock) else { break };
        while let [(table, number, belongs_to, name), after @ ..] = rest
            && block.name(*table, *number, *belongs_to, name) != Err(Full)
        {
            rest = after;
        }
        blocks.push(block.finish().into());
    }
    blocks
}
