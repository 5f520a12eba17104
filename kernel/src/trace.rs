//! The trace: what each core writes about its work. `reader.rs` has how the control core reads and sends it.
//!
//! A core that traces has a ring of its own: the control core, engines' cores, guests' cores. Only the core itself writes it.
//! The ring of a guest's core is in memory that only that guest's cores, and the control core, map. NMI and machine check
//! handlers write no records, because they may interrupt a write.
//!
//! [`on`] is the one test that a core makes when the trace is off.

mod header;
pub mod latency;
pub mod reader;
mod traced;

use crate::{
    arch::{CoreIndex, MAX_CORES, number, time},
    cores::Core,
    machine_check::{self, Told},
    mem::{self, TraceMemory},
};
use ::control::{GuestState, StopReason};
use ::trace::{
    Captured, Classes, Kind, Record, Switch,
    capture::{WORDS, filter::Filters},
    frames::FIRST_UPLINK,
    histogram::Histogram,
    published::Published,
    queues::QueueHistograms,
    record::{
        BEFORE_START, BY_CALL, BY_NMI, DIRECT, ENDS_GUEST, EXCEPTION, INTERRUPT, NO_GUEST, NON_MASKABLE, POSTED,
        WITHHELD,
    },
    ring::{Ring as AnyRing, Slot},
    sampling::{OneOf, Sampler},
};
use alloc::boxed::Box;
use config::{Config, MAX_UPLINKS};
use engine::{follow::FOLLOWED, observe::QueueValue};
use latency::Time;
use machine::{machine::Signal, observe::Exit, reason::Reason, vcpu::Event};
use memory::{frames::OutOfMemory, maps::Range};
use spin::Once;

/// The ring of a core.
pub type Ring = AnyRing<&'static [Slot]>;

/// The ring of an engine's core for captured frames.
type CaptureRing = AnyRing<&'static [Slot<WORDS>], WORDS>;

/// The classes that the cores write now.
pub static ON: Switch = Switch::new();

/// For how many exits of a vCPU for the same reason there is a record, while [`Classes::SAMPLED`] is on. It changes only while no
/// class of records is on.
static EXITS_ONE_OF: OneOf = OneOf::new();

/// Slots of ports that can be captured: those of devices, and those of uplinks from [`FIRST_UPLINK`] on.
const PORTS: usize = FIRST_UPLINK as usize + MAX_UPLINKS;

/// The filters of the ports, by their slots. There is one engine.
static FILTERS: Filters<PORTS> = Filters::new();

/// What a core has for its trace, in lines of the cache that no other core writes.
#[repr(align(128))]
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
    /// Which exits have records, while they are sampled. Only the core of the guest's vCPU uses it.
    sampler: Sampler<{ Reason::ALL.len() }>,
    /// The guest whose core it is, or [`NO_GUEST`].
    guest: u8,
}

/// By core.
static CORES: [Once<Box<Owned>>; MAX_CORES] = [const { Once::new() }; MAX_CORES];

/// Most bytes of a block. Its line on COM2 has to fit in the share of guests' output. It has 126 records.
pub const BLOCK: usize = 4096;

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
            Box::new(Owned { ring, captures, kernel, histograms, queues, sampler: Sampler::new(), guest })
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
    CORES.get(core)?.get().map(Box::as_ref)
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

/// Records how long a tick of the control core took, if histograms are on. Only the control core calls it.
pub fn tick(core: CoreIndex, ticks: u64) {
    if on(Classes::HISTOGRAMS)
        && let Some(owned) = owned(core)
    {
        latency::record(owned.histograms, Time::Tick as usize, ticks);
    }
}

/// The trace of a vCPU's core.
pub struct VcpuTrace {
    ring: Option<&'static Ring>,
    kernel: Option<&'static Published>,
    /// TSC at which the vCPU's life has begun.
    since: u64,
    histograms: &'static [Histogram],
    /// Which exits have records, while they are sampled.
    sampler: Option<&'static Sampler<{ Reason::ALL.len() }>>,
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
        let sampler = owned.map(|owned| &owned.sampler);
        if let Some(sampler) = sampler {
            sampler.restart();
        }
        Self {
            ring: owned.map(|owned| &owned.ring),
            kernel,
            since,
            histograms: owned.map_or(&[], |owned| owned.histograms),
            sampler,
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
        // One test for both, so that neither costs whoever has only records.
        if on(Classes::HISTOGRAMS.union(Classes::SAMPLED)) {
            self.exit_otherwise(exit);
        } else {
            self.exit_record(exit);
        }
    }

    /// Apart from [`VcpuTrace::exit_record`], which would save more registers otherwise. There are as many tests as if exits could
    /// not be sampled for whoever has only histograms.
    #[inline(never)]
    fn exit_otherwise(&self, exit: &Exit) {
        if on(Classes::EXITS) {
            self.exit_chosen(exit);
            // So that the call is no jump. Then the compiler makes the frame here only, and histograms alone pay for none.
            core::hint::black_box(());
        } else {
            self.exit_histogram(exit);
        }
    }

    #[inline(always)]
    fn exit_histogram(&self, exit: &Exit) {
        latency::record(self.histograms, exit.reason as usize, exit.end.wrapping_sub(exit.begin));
    }

    /// Records how long an exit took if histograms are on, and writes its record unless exits are sampled and it is none of the
    /// samples.
    #[inline(never)]
    fn exit_chosen(&self, exit: &Exit) {
        if on(Classes::HISTOGRAMS) {
            self.exit_histogram(exit);
        }
        if !on(Classes::SAMPLED) || self.takes(exit.reason) {
            self.exit_record(exit);
        }
    }

    /// Counts an exit that is sampled. Returns whether it is one of the samples.
    #[inline(always)]
    fn takes(&self, reason: Reason) -> bool {
        self.sampler.is_none_or(|sampler| sampler.takes(reason as usize, EXITS_ONE_OF.get()))
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
    let Some(ring) = ring(number::current()) else { return };
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
        && let Some(ring) = ring(number::current())
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
