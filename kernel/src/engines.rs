//! The engine on its core, and how its completions reach guests.
//!
//! The guest's machine knows which way its interrupts go and says what to tell the vCPU's core: `inject` a kick, `direct`
//! the vector itself, `posted` the notification vector.

#![allow(unsafe_code, reason = "the engine finds a guest by a pointer that the control core set before it attached it")]

use crate::{
    arch::{time, vector},
    cores::Core,
    guests::target::Target,
    report,
    uplink::{self, ConfiguredUplink, any_nic::AnyNic},
};
use alloc::{boxed::Box, format, vec::Vec};
use config::Scheduling;
use core::{
    hint, ptr,
    sync::atomic::{AtomicPtr, AtomicU64, Ordering},
};
use engine::{
    backend::MAX_PORTS,
    control::{Attachment, Command, Control, Reply},
    engine::Engine,
    msix::Interrupt,
    net::Net,
    requests::{Rates, Requests},
    schedule::{Chosen, Fine, Limits, PerDevice, Share},
    shared::{Deliver, Shared},
};
use memory::{GuestMemory, copy::Copier};
use spin::{Mutex, Once};

/// With `scheduling = "per-device"`: requests at most from a queue in one visit.
const VISIT: u32 = 64;
/// With `scheduling = "fine"`: what a visit may take at most,
const VISIT_REQUESTS: u32 = 256;
const VISIT_BYTES: u64 = 256 << 10;
/// in nanoseconds too, for the guest of the greatest weight. It has to be less than a ring of 256 short frames lasts, which is
/// 9 us where a frame costs 36 ns: a queue that is emptied before its time is up cannot have its share. A frame may have to wait for as
/// many such visits as there are busy queues, unless somebody waits for it:
const VISIT_NANOSECONDS: u64 = 4000;
/// a visit is left early after so many requests
const LEAST: u32 = 16;
/// for a queue with fewer; if it had that many when it was served last, only when it got none for so many nanoseconds: a guest that
/// streams offers more in that time.
const STUCK_NANOSECONDS: u64 = 500;
/// When a queue of a guest with `requests = "adaptive"` is polled: from so many notifications on,
const KICKS: u32 = 10;
/// within so many milliseconds,
const WINDOW: u64 = 20;
/// until it has had no request for so many. An exit costs the guest a microsecond or two and polling a queue costs the
/// engine some tens of nanoseconds a turn, so polling is worth it early; and it is given up late, because the engine has
/// nothing better to do on its core.
const QUIET: u64 = 50;
/// Beyond so many microseconds a turn is a long one: a timer that the engine was to ring meanwhile (`posted`) may have been late. So
/// long after a deadline a vCPU's core sees to its timer itself (`machine/src/machine/virtualized.rs`).
const LONG_MICROSECONDS: u64 = 500;
/// Seconds after which the switch forgets a silent address (IEEE 802.1Q, 8.8.3).
const AGE: u64 = 300;

static CONTROL: Control = Control::new();
/// Whose interrupts the device at each port raises.
static TARGETS: [AtomicPtr<Target>; MAX_PORTS] = [const { AtomicPtr::new(ptr::null_mut()) }; MAX_PORTS];
/// Cores of the engines, for the counters.
static CORE: Mutex<Option<usize>> = Mutex::new(None);
/// Ports whose guests' timers the engine watches, one bit each.
static WATCHED: [AtomicU64; MAX_PORTS / 64] = [const { AtomicU64::new(0) }; MAX_PORTS / 64];
static COPIER: Once<Copier> = Once::new();

type NetEngine = Engine<Net<AnyNic>, Chosen, ToGuests>;

/// Completion by whatever way the guest's machine has.
pub struct ToGuests;

impl Deliver for ToGuests {
    fn deliver(&self, device: usize, interrupt: Interrupt) -> bool {
        let Some(slot) = TARGETS.get(device) else { return false };
        // SAFETY: a target is set before its port is attached and freed only after the engine has answered that the
        // port is detached, and this is called by the engine for attached ports only.
        let target = unsafe { slot.load(Ordering::Acquire).as_ref() };
        target.is_some_and(|t| t.deliver(interrupt))
    }
}

fn new_engine(scheduling: Scheduling, uplinks: Vec<ConfiguredUplink>) -> Box<NetEngine> {
    let nanoseconds = |n| time::rates().tsc / 1_000_000 * n / 1000;
    let schedule = match scheduling {
        Scheduling::Fine => Chosen::Fine(Fine::new(Limits {
            requests: VISIT_REQUESTS,
            bytes: VISIT_BYTES,
            quantum: nanoseconds(VISIT_NANOSECONDS),
            least: LEAST,
            stuck: nanoseconds(STUCK_NANOSECONDS),
        })),
        Scheduling::PerDevice => Chosen::PerDevice(PerDevice::new(VISIT)),
    };
    let seed = time::tsc().wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let net = Net::new(seed, time::rates().tsc * AGE);
    let mut engine = Box::new(Engine::new(&CONTROL, net, schedule, ToGuests));
    engine.set_long_turn(nanoseconds(1000 * LONG_MICROSECONDS));
    for uplink in uplinks {
        // The engine takes as many as the configuration may have.
        match uplink {
            ConfiguredUplink::Nic(uplink) => engine.backend_mut().add_uplink(*uplink),
            ConfiguredUplink::Missing(policy) => engine.backend_mut().add_missing_uplink(policy),
        };
    }
    engine
}

/// The copy routine that the engine's core can use: the widest there is, once that core has its vector registers on. The
/// control core has them on too, because it asks, and because it may be the engine.
fn copier() -> Copier {
    *COPIER.call_once(|| {
        vector::enable();
        // SAFETY: the engine's core enables the same before its first turn; it and this core run no guest, and host code
        // keeps nothing in vector registers. All cores are alike.
        unsafe { Copier::widest() }
    })
}

/// Starts the engine on a core of its own.
pub fn start(core: &'static Core, scheduling: Scheduling, uplinks: Vec<ConfiguredUplink>) {
    *CORE.lock() = Some(core.index);
    // Made here because the boot core's stack has room for it on its way to the heap.
    let mut engine = new_engine(scheduling, uplinks);
    report::decision(format!("the engine copies with {}", copier().name()));
    core.give(move |_| {
        vector::enable();
        // It asks for the time at the end of each turn, and of each portion of work in it.
        engine::engine::run(&mut engine, || {
            let now = time::tsc();
            ring(now);
            now
        });
    });
}

/// Whether the engine can watch the guests' timers: not where it shares the control core, which at times is busy for long.
pub fn watches_timers() -> bool {
    CORE.lock().is_some_and(|core| core != 0)
}

/// Posts the interrupts of the timers that are due, of guests that have handed them over.
fn ring(now: u64) {
    for (group, watched) in WATCHED.iter().enumerate() {
        let mut ports = watched.load(Ordering::Acquire);
        while ports != 0 {
            let port = 64 * group + ports.trailing_zeros() as usize;
            ports &= ports - 1;
            // SAFETY: the bit is set after the engine has attached the port and cleared before the engine is told to detach
            // it, and the target is freed only after the engine has answered that it did. This runs on the engine's core,
            // which answers between two calls: one that began before the engine heard of it is over before the answer, and
            // one that begins after sees the bit cleared.
            if let Some(target) = TARGETS.get(port).and_then(|slot| unsafe { slot.load(Ordering::Acquire).as_ref() }) {
                target.ring(now);
            }
        }
    }
}

/// Makes the control core an engine as well, where there is no core to spare: it calls [`turn`] between its ticks.
pub fn start_on_control_core(scheduling: Scheduling, uplinks: Vec<ConfiguredUplink>) {
    *CORE.lock() = Some(0);
    report::decision(format!("the engine copies with {}", copier().name()));
    *LOCAL.lock() = Some(new_engine(scheduling, uplinks));
}

static LOCAL: Mutex<Option<Box<NetEngine>>> = Mutex::new(None);

/// The operator's word for how the engine is to learn of requests, with this machine's times.
fn requests(requests: config::Requests) -> Requests {
    let milliseconds = |n| time::rates().tsc / 1000 * n;
    match requests {
        config::Requests::Poll => Requests::Poll,
        config::Requests::Notify => Requests::Notify,
        config::Requests::Adaptive => {
            Requests::Adaptive(Rates { kicks: KICKS, window: milliseconds(WINDOW), quiet: milliseconds(QUIET) })
        }
    }
}

/// One turn of the engine that shares the control core. False: there is none, the engine has a core of its own.
pub fn turn() -> bool {
    let mut local = LOCAL.lock();
    let Some(engine) = local.as_mut() else { return false };
    engine.counted_turn(time::tsc(), time::tsc);
    true
}

/// Tells the engine something and waits for its answer: a few turns, because it waits for nobody.
fn command(mut command: Command) -> Reply {
    while let Err(back) = CONTROL.submit(command) {
        command = back;
        turn();
    }
    loop {
        if let Some(reply) = CONTROL.reply() {
            return reply;
        }
        if !turn() {
            hint::spin_loop();
        }
    }
}

/// Gives the engine a device to serve at `port`, which learns of its requests in that way. Its interrupts go to `target`.
///
/// # Errors
/// The port is taken or does not exist.
#[allow(clippy::result_large_err, reason = "the engine's reply, made once in a guest's life")]
pub fn attach(
    port: usize,
    shared: &'static Shared,
    memory: GuestMemory,
    way: config::Requests,
    share: Share,
    target: Target,
) -> Result<(), Reply> {
    let slot = TARGETS.get(port).ok_or(Reply::NoSuchPort)?;
    if !slot.load(Ordering::Acquire).is_null() {
        return Err(Reply::Occupied);
    }
    let watched = target.is_watched();
    slot.store(Box::into_raw(Box::new(target)), Ordering::Release);
    let requests = requests(way);
    let memory = memory.copied_by(copier());
    match command(Command::Attach(Attachment { port, number: port, shared, memory, requests, share, state: None })) {
        Reply::Attached => {
            WATCHED[port / 64].fetch_or(u64::from(watched) << (port % 64), Ordering::Release);
            Ok(())
        }
        other => {
            forget_target(port);
            Err(other)
        }
    }
}

/// Takes a device away from the engine, once the cores of its guest have stopped. Afterwards nothing touches the
/// guest's memory.
pub fn detach(port: usize) -> Reply {
    if let Some(watched) = WATCHED.get(port / 64) {
        watched.fetch_and(!(1 << (port % 64)), Ordering::AcqRel);
    }
    let reply = command(Command::Detach { port });
    forget_target(port);
    reply
}

fn forget_target(port: usize) {
    let Some(slot) = TARGETS.get(port) else { return };
    let target = slot.swap(ptr::null_mut(), Ordering::AcqRel);
    if !target.is_null() {
        // SAFETY: made by `attach` from a box; the engine has no device at this port, so it does not use it.
        drop(unsafe { Box::from_raw(target) });
    }
}

/// What the engine did with its time.
pub fn counters() -> Option<control::Engine> {
    let core = (*CORE.lock())?;
    let c = &CONTROL.counters;
    Some(control::Engine {
        core: core as u64,
        busy_turns: c.busy_turns.get(),
        idle_turns: c.idle_turns.get(),
        busy_cycles: c.busy_cycles.get(),
        idle_cycles: c.idle_cycles.get(),
        long_turns: c.long_turns.get(),
        uplinks: uplink::counters(),
    })
}
