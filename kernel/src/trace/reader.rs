//! How the control core reads the rings of all cores, and sends what is in them.

use super::{
    BLOCK, EXITS_ONE_OF, FILTERS, ON, Of, PORTS,
    header::header,
    latency::{self, Time},
    make, on, owned,
    traced::{Role, Traced},
};
use crate::{
    arch::{CoreIndex, MAX_CORES, time},
    console,
};
use ::control::{
    CapturedPort, Durations, Latency, NoMemory, Text, TraceState, TracedCore, Way,
    capture::Wanted,
    sentence,
    trace::{TRACE_END, Wanted as WantedTrace, trace_line},
};
use ::trace::{
    Classes, Record,
    capture::filter::Filter,
    frames::FIRST_UPLINK,
    record::NO_GUEST,
    ring::{Cursor, WhenFull},
    saving::{Limits, Progress, Rings, Saving, Sink},
    stream::{Scope, collect_captures, collect_changed},
};
use alloc::{format, string::String, vec::Vec};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use config::{Config, Plan};
use machine::reason::Reason;

/// Bytes of a block in base64.
const ENCODED: usize = BLOCK.div_ceil(3) * 4;
/// Bytes of room on COM2 for the line of a block.
const LINE: usize = ENCODED + 64;

/// The control core.
const CONTROL_CORE: CoreIndex = 0;

/// How a trace is sent on COM2.
const ON_COM2: Limits = Limits { blocks: 2, quiet: 20, stuck: None };
/// How a trace is sent to the management guest. A guest that does not read the end keeps the others waiting for five seconds.
const ON_PORT: Limits = Limits { stuck: Some(5_000), ..ON_COM2 };

/// The control core's side.
pub struct Reader {
    /// The cores that have a ring.
    cores: Vec<Traced>,
    /// Names and clock, as blocks.
    header: Vec<Vec<u8>>,
    stops: bool,
    /// What is being sent: records and captured frames, each by at most one way, and never by the same one.
    sending: [Option<Sending>; 2],
    /// By the slot of a port: the way by which its capture was asked for.
    captured_by: [Option<Way>; PORTS],
}

/// A trace that is being sent.
struct Sending {
    saving: Saving,
    to: To,
    what: What,
    /// Of records: whether exits keep their RIPs, and what its reader knows of that.
    rips: bool,
    told: Scope,
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

    const fn name(self) -> &'static str {
        match self {
            Self::Records => "records",
            Self::Captures => "captured frames",
        }
    }
}

/// What has ended at the management guest's port.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum EndAtPort {
    /// Everything was sent, or the reader of records is gone.
    All,
    /// The reader of captured frames is gone, and ports are still captured.
    ReaderOfCaptures,
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

impl To {
    const fn name(self) -> &'static str {
        match self {
            Self::Com2 => "on COM2",
            Self::Port(_) => "to the management guest",
        }
    }

    /// Whether it is the same way. The management guest has one port, whichever opening of it this is.
    const fn is_way_of(self, other: Self) -> bool {
        matches!((self, other), (Self::Com2, Self::Com2) | (Self::Port(_), Self::Port(_)))
    }
}

/// The rings of the cores that are sent.
struct Sent<'a> {
    cores: &'a mut [Traced],
    what: What,
    /// What the records have, and what their reader knows of it.
    scope: Scope,
    told: &'a mut Scope,
}

impl Sent<'_> {
    /// Makes a block of what is left out, if that has changed. Returns its length in bytes; 0 if there is nothing to tell.
    fn scope(&mut self, buffer: &mut [u8]) -> usize {
        if self.what != What::Records || *self.told == self.scope {
            return 0;
        }
        *self.told = self.scope;
        // The buffer is larger.
        self.scope.write(buffer).map_or(0, <[u8]>::len)
    }
}

impl Rings for Sent<'_> {
    fn count(&self) -> usize {
        self.cores.len()
    }

    fn collect(&mut self, number: usize, buffer: &mut [u8]) -> usize {
        let scope = self.scope(buffer);
        if scope > 0 {
            return scope;
        }
        let rips = self.scope.rips;
        let Some(traced) = self.cores.get_mut(number) else { return 0 };
        let core = traced.core as u32;
        let kernel = if self.what == What::Records && rips { traced.kernel(buffer) } else { 0 };
        if kernel > 0 {
            return kernel;
        }
        let change = |record: Record| if rips { record } else { record.without_rip() };
        let block = match (self.what, traced.captures) {
            (What::Records, _) => collect_changed(traced.ring, &mut traced.cursor, core, buffer, change),
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
        Ok(Self {
            header: header(config, &cores),
            cores,
            stops: false,
            sending: [None, None],
            captured_by: [None; PORTS],
        })
    }

    /// Switches classes on. The engines have to choose their loops afterwards. If the trace was off, what is in the rings is forgotten.
    ///
    /// # Errors
    /// No core has a ring; or the trace is on, and has records of another part of exits.
    pub fn start(&mut self, wanted: WantedTrace, stops: bool) -> Result<(), Text> {
        let WantedTrace { classes, exits_one_of } = wanted;
        self.has_rings()?;
        let (was_off, now) = (What::Records.is_off(), EXITS_ONE_OF.get());
        if !was_off && exits_one_of != now {
            // What is in the rings would be taken for samples of the other kind.
            return Err(sentence(format_args!(
                "one of {now} exits has a record while this trace is on, not one of {exits_one_of}; `trace off` first"
            )));
        }
        EXITS_ONE_OF.set(exits_one_of);
        self.stops = stops;
        for traced in &mut self.cores {
            traced.ring.when_full(if stops { WhenFull::Stop } else { WhenFull::Overwrite });
            if was_off {
                traced.cursor.skip_all(traced.ring);
                traced.before = traced.all();
            }
        }
        Self::switch(classes | ON.get() & Classes::CAPTURES);
        Ok(())
    }

    /// Sets the filter of a port by the engine's slot, or removes it. `way`: the way in by which the command came. If no port was captured,
    /// what is in the rings is forgotten.
    ///
    /// # Errors
    /// No core has a ring.
    pub fn capture(&mut self, slot: usize, filter: Option<Filter>, way: Way) -> Result<(), Text> {
        self.has_rings()?;
        if What::Captures.is_off() && filter.is_some() {
            for traced in &mut self.cores {
                if let Some(ring) = traced.captures {
                    traced.captured.skip_all(ring);
                }
            }
        }
        FILTERS.set(slot, filter);
        if let Some(by) = self.captured_by.get_mut(slot) {
            *by = filter.map(|_| way);
        }
        Self::switch_captures();
        Ok(())
    }

    /// Switches the class of captures on if a port has a filter, and off otherwise.
    fn switch_captures() {
        let is_any = (0..PORTS).any(|slot| FILTERS.get(slot).is_some());
        ON.set(if is_any { ON.get() | Classes::CAPTURES } else { ON.get().difference(Classes::CAPTURES) });
    }

    /// Switches these classes on and all others off.
    fn switch(classes: Classes) {
        if classes.contains(Classes::HISTOGRAMS) && !on(Classes::HISTOGRAMS) {
            latency::begin();
        }
        ON.set(classes);
    }

    /// Returns how long exits, turns and visits took in this period, for the request `id`: exits by guest and reason, then the control
    /// core's ticks, then what the engines did, then the queues that they followed. `engines`: their ids and cores. `device` gives the guest of the device
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
        let cores = self.cores.as_slice();
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
            Time::ALL.into_iter().filter(|what| !matches!(what, Time::Tick)).filter_map(of).map(named)
        });
        let ticks = latency::totals(of_core(CONTROL_CORE).into_iter(), Time::Tick as usize);
        let ticks = Durations::of(Time::Tick.name(), &ticks).map(Ok);
        let rows = ::control::collect(exits.chain(ticks).chain(engines).chain(queues))?;
        Ok(Latency { id, on: on(Classes::HISTOGRAMS), tsc_hz: time::rates().tsc, rows })
    }

    /// Switches all classes off, and ends all captures. The engines may choose their loops afterwards. What is in the rings stays
    /// there.
    pub fn stop(&mut self) {
        FILTERS.clear();
        self.captured_by.fill(None);
        ON.set(Classes::empty());
    }

    fn has_rings(&self) -> Result<(), Text> {
        if self.cores.is_empty() { Err("no core has a ring: `memory` of [trace] is 0K".into()) } else { Ok(()) }
    }

    /// Begins to send the records on COM2. `rips`: with guests' RIPs and where their kernels are.
    ///
    /// # Errors
    /// No core has a ring, it is being done already, or there is no COM2.
    pub fn save(&mut self, rips: bool) -> Result<(), Text> {
        if !console::has_com2() {
            return Err("records are sent on COM2, which this machine does not have".into());
        }
        self.begin(What::Records, rips, ON_COM2, || Ok(To::Com2))
    }

    /// Begins to send the captured frames on COM2.
    ///
    /// # Errors
    /// As for [`Reader::save`].
    pub fn save_captures(&mut self) -> Result<(), Text> {
        if !console::has_com2() {
            return Err("captured frames are sent on COM2, which this machine does not have".into());
        }
        self.begin(What::Captures, false, ON_COM2, || Ok(To::Com2))
    }

    /// Begins to send the captured frames to the management guest.
    ///
    /// # Errors
    /// As for [`Reader::save_to_port`].
    pub fn save_captures_to_port(&mut self, open: impl FnOnce() -> Result<Opening, Text>) -> Result<(), Text> {
        self.begin(What::Captures, false, ON_PORT, || open().map(To::Port))
    }

    /// Begins to send the records to the management guest. `rips`: as for [`Reader::save`]. `open` opens its port on this side.
    ///
    /// # Errors
    /// No core has a ring, it is being done already, or the port cannot be opened.
    pub fn save_to_port(&mut self, rips: bool, open: impl FnOnce() -> Result<Opening, Text>) -> Result<(), Text> {
        self.begin(What::Records, rips, ON_PORT, || open().map(To::Port))
    }

    fn begin(
        &mut self,
        what: What,
        rips: bool,
        limits: Limits,
        to: impl FnOnce() -> Result<To, Text>,
    ) -> Result<(), Text> {
        self.has_rings()?;
        let busy = |sending: &Sending| {
            let (sent, way) = (sending.what.name(), sending.to.name());
            let ends = if sending.what == What::Records { "`trace off`" } else { "the end of its captures" };
            Err(sentence(format_args!("{sent} are being sent {way} already; {ends} ends that")))
        };
        if let Some(same) = self.sending.iter().flatten().find(|sending| sending.what == what) {
            return busy(same);
        }
        let to = to()?;
        // A way carries one of them. The end of what it carries tells its reader that all is over.
        if let Some(other) = self.sending.iter().flatten().find(|sending| sending.to.is_way_of(to)) {
            return busy(other);
        }
        if what == What::Records {
            self.cores.iter_mut().for_each(|traced| traced.told = None);
        }
        if let Some(place) = self.sending.get_mut(what as usize) {
            *place = Some(Sending { saving: Saving::new(limits), to, what, rips, told: Scope::default() });
        }
        Ok(())
    }

    /// Sends what there is and what its receivers have room for, within a tick's limit. Call it once a tick. `port` gives the
    /// management guest's port, if the guest has it open. Returns what has ended at that port, if something has. Sending also ends
    /// when the guest closes the port or opens it again, or has another life.
    pub fn tick<S: Sink>(&mut self, port: impl Fn() -> Option<(Opening, S)>) -> Option<EndAtPort> {
        let mut ended = None;
        for place in &mut self.sending {
            let Some(Sending { saving, to, what, rips, told }) = place else { continue };
            let (to, what, is_off) = (*to, *what, what.is_off());
            let scope = Scope { exits_one_of: EXITS_ONE_OF.get(), rips: *rips };
            let mut rings = Sent { cores: &mut self.cores, what, scope, told };
            let mut buffer = [0; BLOCK];
            let progress = match to {
                To::Com2 => saving.tick(is_off, &self.header, &mut rings, &mut Com2, &mut buffer),
                To::Port(opening) => match port().filter(|&(now, _)| now == opening) {
                    Some((_, mut port)) => saving.tick(is_off, &self.header, &mut rings, &mut port, &mut buffer),
                    None => Progress::GivenUp,
                },
            };
            if progress == Progress::Going {
                continue;
            }
            *place = None;
            match to {
                To::Com2 => console::send_pieces([TRACE_END]),
                To::Port(_) if what == What::Captures && !is_off => ended = Some(EndAtPort::ReaderOfCaptures),
                To::Port(_) => ended = Some(EndAtPort::All),
            }
        }
        ended
    }

    /// Ends the captures that were asked for by this way. Those of others go on. Returns whether there were any.
    pub fn end_captures(&mut self, way: Way) -> bool {
        let mut any = false;
        for (slot, by) in self.captured_by.iter_mut().enumerate().filter(|(_, by)| **by == Some(way)) {
            FILTERS.set(slot, None);
            *by = None;
            any = true;
        }
        Self::switch_captures();
        any
    }

    /// Returns the state, for the request `id`.
    ///
    /// # Errors
    /// There is no memory for it.
    /// `name` gives the name of the guest whose device is in a slot of the engine, and the number of its network device; or the name of
    /// the uplink, and 0.
    pub fn state<'a>(
        &self,
        id: Option<u64>,
        name: impl Fn(usize) -> Option<(&'a str, usize)>,
    ) -> Result<TraceState, NoMemory> {
        let cores = self.cores.iter().map(|traced| {
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
        let captures = (0..PORTS).filter_map(|slot| {
            let (filter, (name, net)) = (FILTERS.get(slot)?, name(slot)?);
            let filter = sentence(format_args!("{}", Wanted { net, filter: Some(filter) }));
            let (frames, uplink) = (FILTERS.taken(slot), slot >= FIRST_UPLINK.into());
            Some(::control::copy(name).map(|name| CapturedPort { guest: name, uplink, filter, frames }))
        });
        let on = ON.get();
        Ok(TraceState {
            id,
            classes: ::control::collect(on.difference(Classes::SAMPLED).names().map(|name| Ok(name.into())))?,
            exits_one_of: on.contains(Classes::SAMPLED).then(|| EXITS_ONE_OF.get()),
            stop: self.stops,
            saving: self.sending.iter().any(Option::is_some),
            cores: ::control::collect(cores)?,
            captures: ::control::collect(captures)?,
        })
    }
}
