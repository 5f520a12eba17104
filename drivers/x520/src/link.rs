//! From the module in the cage to a link: what the module is, the EEPROM's words for it, mode and rate (data sheet 3.7.4,
//! 4.6.4, 6.3, 8.2.3.22).
//!
//! ```text
//!  look into the cage ─▶ capabilities ─▶ EEPROM's list ─▶ words to CORECTL ─▶ rate ─▶ AUTOC, restart ─▶ wait for the link
//!    ▲   │ nothing, or nothing that works                                      ▲                             │
//!    └───┴── 2 s ◀─────────────────────────────────────────────────────────────┴── the module's other rate ◀──┘
//! ```
//!
//! Each call of [`LinkSetup::poll`] takes one step and reads or writes a few registers. While there is no link the cage is
//! looked into again and again. With a link nothing is done here.
//!
//! A card for a backplane has no cage. It begins with AUTOC, whose mode stays what the EEPROM says, and the device negotiates
//! by itself from then on.

use core::fmt;

use crate::bits::{
    Anlp1, Autoc, Autoc2, CAPS_ANY_MODULE, CAPS_NO_CROSSTALK, Esdp, LMS_NEGOTIATION_BIT, LMS_ONE, LMS_ONE_NEGOTIATED,
    LMS_TEN, LMS_TEN_PARALLEL, Links,
};
use crate::cage::{Found, Look};
use crate::eeprom::Reader;
use crate::id::Medium;
use crate::module::{Module, Unsupported};
use crate::nic::Port;
use crate::registers::{ANLP1, AUTOC, AUTOC2, Bus, CORECTL, ESDP, LINKS, Registers};
use crate::semaphore;

/// Microseconds until the cage is looked into again, if there is no link.
const LOOK_AGAIN: u64 = 2_000_000;
/// Word of the EEPROM with the device's capabilities.
const CAPABILITIES: u16 = 0x2c;
/// Word of the EEPROM with the place of the list of modules.
const LIST: u16 = 0x2b;
/// Ends the list, and the words for CORECTL. As a place: there is nothing.
const END: u16 = 0xffff;
/// No entry of the list follows one at this word or behind it: the EEPROM has 0x4000 words, and an entry two.
const LAST_ENTRY: u16 = 0x3ffd;
/// Most words for CORECTL.
const MOST_WORDS: u16 = 256;
/// Microseconds for firmware to use the registers between two uses by the driver.
const GAP: u64 = 10_000;
/// Microseconds that a module needs after its rate was selected.
const RATE_TIME: u64 = 40_000;
/// Microseconds with the laser off that make the other end begin again too.
const FLAP_TIME: u64 = 200;
/// Most microseconds until auto-negotiation has left its first state.
const PIPELINE: u64 = 80_000;
/// Microseconds in which a link comes up. KR needs 500 ms, and SFI takes the same (802.3ap 73.10.2). A laser needs 100 ms.
const LINK_TIME: u64 = 700_000;
/// Microseconds until a backplane without a link is judged: both ends negotiate, and KR then trains its equalizers.
const BACKPLANE_TIME: u64 = 5_000_000;
/// The rates of a module with two, in the order in which they are tried.
const RATES: [Rate; 3] = [Rate::Ten, Rate::One, Rate::Ten];

/// The rate of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rate {
    Ten,
    One,
}

/// What is known of the cage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cage {
    /// It was not looked into yet.
    Unknown,
    /// There is no module.
    Empty,
    /// A module answers, but what it says cannot be read.
    Unreadable,
    /// A module that the NIC can use.
    Usable(Module),
    /// A module that the NIC cannot use.
    Unusable(Module, Unsupported),
}

/// What keeps a backplane's link down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// Negotiation does not end.
    Silent,
    /// Negotiation has ended, and there is no link.
    NoCommonMode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The device is not ready.
    Off,
    /// There is no link. Looks into the cage at that time, or how a backplane's negotiation stands.
    Idle { until: u64 },
    /// Looks into the cage.
    Look,
    /// Reads the device's capabilities.
    Capabilities(Module),
    /// Reads where the list is.
    List,
    /// Reads the number of an entry of the list.
    Entry(u16),
    /// Reads where the entry's words are.
    Place(u16),
    /// Waits for the MAC's registers, for the words at this place.
    TakeForWords { at: u16, deadline: u64 },
    /// Writes words to CORECTL, and holds the MAC's registers.
    Words { at: u16, left: u16 },
    /// Waits until the module has changed its rate, or firmware has had its time.
    Settle { until: u64 },
    /// Waits for the MAC's registers, for AUTOC.
    TakeForMode { deadline: u64 },
    /// AUTOC is written with another mode. Waits until auto-negotiation has begun. Holds the MAC's registers.
    Toggled { autoc: u32, deadline: u64 },
    /// The laser is off for a moment.
    Flap { until: u64 },
    /// Waits for the link.
    Wait { until: u64 },
}

/// The link's setup.
#[derive(Debug)]
pub(crate) struct LinkSetup {
    port: u8,
    medium: Medium,
    /// Optics of any vendor are taken, whatever the EEPROM says.
    any_module: bool,
    step: Step,
    look: Option<Look>,
    reader: Reader,
    cage: Cage,
    capabilities: u16,
    /// Mode and rate are set, for the module in the cage if there is a cage.
    configured: bool,
    /// What keeps the link down, once that is known. Only of a backplane.
    trouble: Option<Trouble>,
    /// Which of [`RATES`] is tried.
    tried: usize,
    /// AUTOC as the EEPROM has it.
    autoc: u32,
    forced: bool,
    unfinished: bool,
    changes: u32,
}

impl LinkSetup {
    pub(crate) fn new(medium: Medium, any_module: bool) -> Self {
        Self {
            port: 0,
            medium,
            any_module,
            step: Step::Off,
            look: None,
            reader: Reader::default(),
            cage: Cage::Unknown,
            capabilities: 0,
            configured: false,
            trouble: None,
            tried: 0,
            autoc: 0,
            forced: false,
            unfinished: false,
            changes: 0,
        }
    }

    /// What is in the cage.
    pub(crate) fn cage(&self) -> Cage {
        self.cage
    }

    /// Whether LINKS says something about the module in the cage, or about the backplane.
    pub(crate) fn is_configured(&self) -> bool {
        self.configured
    }

    /// Whether the cage was looked into, and everything was done for what is in it, or for the backplane. The link may be down.
    pub(crate) fn is_settled(&self) -> bool {
        let is_known = match self.medium {
            Medium::Cage => self.cage != Cage::Unknown,
            Medium::Backplane => self.configured,
        };
        is_known && matches!(self.step, Step::Idle { .. } | Step::Wait { .. })
    }

    /// Whether frames that seem to arrive without a module have to be ignored: the other port's signal may be seen.
    pub(crate) fn has_crosstalk(&self) -> bool {
        self.medium == Medium::Cage && self.capabilities & CAPS_NO_CROSSTALK == 0
    }

    /// The device was reset, and is ready. `unfinished`: its firmware did not say that it has configured the port.
    pub(crate) fn begin<R: Registers>(&mut self, bus: &Bus<R>, now: u64, port: u8, unfinished: bool) {
        if self.unfinished != unfinished {
            self.unfinished = unfinished;
            self.note_change();
        }
        self.port = port & 1;
        self.autoc = bus.read(&AUTOC, 0);
        self.end();
        self.step = match (self.medium, self.cage) {
            (Medium::Backplane, _) => Step::Settle { until: now.saturating_add(GAP) },
            // A module that is known needs its words again, but no look.
            (Medium::Cage, Cage::Usable(_)) => Step::List,
            (Medium::Cage, _) => Step::Idle { until: now },
        };
    }

    /// The device is being reset: nothing is held any more.
    pub(crate) fn end(&mut self) {
        self.step = Step::Off;
        self.look = None;
        self.reader.forget();
        (self.configured, self.tried) = (false, 0);
    }

    /// Gives back to firmware what is held of the device.
    pub(crate) fn leave<R: Registers>(&mut self, bus: &Bus<R>) {
        if let Some(look) = &mut self.look {
            look.leave(bus);
        }
        if matches!(self.step, Step::Words { .. } | Step::Toggled { .. }) {
            semaphore::MAC.release(bus);
        }
        self.end();
    }

    /// Takes a step. `up`: the link is up.
    pub(crate) fn poll<R: Registers>(&mut self, bus: &Bus<R>, now: u64, up: bool) {
        self.step = match self.step {
            Step::Off => Step::Off,
            Step::Idle { until } => self.idle(bus, now, up, until),
            Step::Look => self.look(bus, now, up),
            Step::Capabilities(module) => self.capabilities(bus, now, module),
            Step::List => self.list(bus, now),
            Step::Entry(at) => self.entry(bus, now, at),
            Step::Place(at) => self.place(bus, now, at),
            Step::TakeForWords { at, deadline } => match self.take(bus, now, deadline) {
                true => Step::Words { at, left: MOST_WORDS },
                false => self.step,
            },
            Step::Words { at, left } => self.words(bus, now, at, left),
            Step::Settle { until } if now < until => self.step,
            Step::Settle { .. } => Step::TakeForMode { deadline: now.saturating_add(semaphore::LIMIT) },
            Step::TakeForMode { deadline } => self.mode(bus, now, deadline),
            Step::Toggled { autoc, deadline } => self.toggled(bus, now, autoc, deadline),
            Step::Flap { until } if now < until => self.step,
            Step::Flap { .. } => {
                Self::set_laser(bus, true);
                Step::Wait { until: now.saturating_add(LINK_TIME) }
            }
            Step::Wait { until } => self.wait(bus, now, up, until),
        };
    }

    fn idle<R: Registers>(&mut self, bus: &Bus<R>, now: u64, up: bool, until: u64) -> Step {
        if self.configured && up {
            self.set_trouble(None);
            return self.rest(now);
        }
        if now < until {
            return self.step;
        }
        if self.medium == Medium::Backplane {
            self.judge(bus);
            return self.rest(now);
        }
        self.look = Some(Look::new(self.port, now));
        Step::Look
    }

    fn look<R: Registers>(&mut self, bus: &Bus<R>, now: u64, up: bool) -> Step {
        let Some(look) = &mut self.look else { return Step::Idle { until: now } };
        let found = look.poll(bus, now);
        let forced = look.forced;
        self.note_forced(forced);
        let Some(found) = found else { return self.step };
        self.look = None;
        match found {
            // The link came up meanwhile.
            Found::Module(module) if up && self.configured && self.cage == Cage::Usable(module) => self.rest(now),
            // The same module, or another one with the same name. Everything is done for it once more.
            Found::Module(module) if self.cage == Cage::Usable(module) => {
                self.configured = false;
                Step::List
            }
            Found::Module(module) => Step::Capabilities(module),
            Found::Nothing => self.unusable(bus, now, Cage::Empty),
            Found::Unreadable => self.unusable(bus, now, Cage::Unreadable),
        }
    }

    fn capabilities<R: Registers>(&mut self, bus: &Bus<R>, now: u64, module: Module) -> Step {
        let Some(word) = self.reader.read(bus, now, CAPABILITIES) else { return self.step };
        self.capabilities = word.filter(|&word| word != END).unwrap_or(0);
        self.configured = false;
        match module.check(self.any_module || self.capabilities & CAPS_ANY_MODULE != 0) {
            Ok(()) => {
                self.set_cage(Cage::Usable(module));
                Step::List
            }
            Err(why) => self.unusable(bus, now, Cage::Unusable(module, why)),
        }
    }

    fn list<R: Registers>(&mut self, bus: &Bus<R>, now: u64) -> Step {
        match self.reader.read(bus, now, LIST) {
            None => self.step,
            // The first word of the list is its length.
            Some(Some(at)) if at != 0 && at != END => Step::Entry(at.saturating_add(1)),
            // Without a list the EEPROM's own settings have to do.
            Some(_) => self.rate(bus, now),
        }
    }

    fn entry<R: Registers>(&mut self, bus: &Bus<R>, now: u64, at: u16) -> Step {
        let Cage::Usable(module) = self.cage else { return self.rest(now) };
        let Some(number) = self.reader.read(bus, now, at) else { return self.step };
        match number {
            Some(number) if number == module.sequence(self.port) => Step::Place(at.saturating_add(1)),
            Some(number) if number != END && at < LAST_ENTRY => Step::Entry(at.saturating_add(2)),
            _ => self.unusable(bus, now, Cage::Unusable(module, Unsupported::Initialisation)),
        }
    }

    fn place<R: Registers>(&mut self, bus: &Bus<R>, now: u64, at: u16) -> Step {
        let Cage::Usable(module) = self.cage else { return self.rest(now) };
        match self.reader.read(bus, now, at) {
            None => self.step,
            // The word there is not for CORECTL.
            Some(Some(at)) if at != 0 && at != END => {
                let deadline = now.saturating_add(semaphore::LIMIT);
                Step::TakeForWords { at: at.saturating_add(1), deadline }
            }
            Some(_) => self.unusable(bus, now, Cage::Unusable(module, Unsupported::Initialisation)),
        }
    }

    /// Takes the MAC's registers, by force after the deadline. Returns false if that takes longer.
    fn take<R: Registers>(&mut self, bus: &Bus<R>, now: u64, deadline: u64) -> bool {
        if semaphore::MAC.take(bus) {
            return true;
        }
        if now < deadline {
            return false;
        }
        semaphore::MAC.force(bus);
        self.note_forced(true);
        true
    }

    fn words<R: Registers>(&mut self, bus: &Bus<R>, now: u64, at: u16, left: u16) -> Step {
        match self.reader.read(bus, now, at) {
            None => return self.step,
            Some(Some(word)) if word != END && left > 0 => {
                bus.write(&CORECTL, 0, word.into());
                return Step::Words { at: at.saturating_add(1), left: left.saturating_sub(1) };
            }
            Some(_) => semaphore::MAC.release(bus),
        }
        self.tried = 0;
        self.rate(bus, now)
    }

    /// Whether the module in the cage has two rates.
    fn has_rates(&self) -> bool {
        matches!(self.cage, Cage::Usable(module) if module.has_rates())
    }

    /// The rate that is tried.
    fn wanted(&self) -> Rate {
        match self.cage {
            Cage::Usable(module) if module.is_slow() => Rate::One,
            Cage::Usable(module) if module.has_rates() => RATES.get(self.tried).copied().unwrap_or(Rate::Ten),
            _ => Rate::Ten,
        }
    }

    /// Selects the module's rate.
    fn rate<R: Registers>(&mut self, bus: &Bus<R>, now: u64) -> Step {
        let Cage::Usable(module) = self.cage else { return self.rest(now) };
        if !module.has_rates() {
            return Step::Settle { until: now.saturating_add(GAP) };
        }
        let ten = self.wanted() == Rate::Ten;
        bus.update(&ESDP, 0, |v| Esdp::from_bits(v).with_rate_output(true).with_rate(ten).into_bits());
        Step::Settle { until: now.saturating_add(RATE_TIME) }
    }

    /// Sets the mode, and restarts the link with another one, so that the whole pipeline begins again.
    fn mode<R: Registers>(&mut self, bus: &Bus<R>, now: u64, deadline: u64) -> Step {
        if !self.take(bus, now, deadline) {
            return self.step;
        }
        // The EEPROM may have it off.
        let off = Autoc2::from_bits(bus.read(&AUTOC2, 0));
        if off.link_off() != 0 {
            bus.write(&AUTOC2, 0, off.with_link_off(0).into_bits());
        }
        let autoc = Autoc::from_bits(self.autoc).with_restart(true);
        if self.medium == Medium::Backplane {
            // The driver does not pause.
            bus.write(&AUTOC, 0, autoc.with_pause(0).into_bits());
            semaphore::MAC.release(bus);
            self.configured = true;
            self.note_change();
            return Step::Idle { until: now.saturating_add(BACKPLANE_TIME) };
        }
        let mode = match self.wanted() {
            Rate::Ten => LMS_TEN,
            Rate::One => LMS_ONE_NEGOTIATED,
        };
        let autoc = autoc.with_lms(mode);
        bus.write(&AUTOC, 0, autoc.with_lms(mode ^ LMS_NEGOTIATION_BIT).into_bits());
        Step::Toggled { autoc: autoc.into_bits(), deadline: now.saturating_add(PIPELINE) }
    }

    fn toggled<R: Registers>(&mut self, bus: &Bus<R>, now: u64, autoc: u32, deadline: u64) -> Step {
        if Anlp1::from_bits(bus.read(&ANLP1, 0)).state() == 0 && now < deadline {
            return self.step;
        }
        bus.write(&AUTOC, 0, autoc);
        semaphore::MAC.release(bus);
        self.configured = true;
        // The other end begins again too if the light goes off for a moment.
        if self.has_rates() {
            Self::set_laser(bus, false);
            return Step::Flap { until: now.saturating_add(FLAP_TIME) };
        }
        Self::set_laser(bus, true);
        Step::Wait { until: now.saturating_add(LINK_TIME) }
    }

    fn wait<R: Registers>(&mut self, bus: &Bus<R>, now: u64, up: bool, until: u64) -> Step {
        if up {
            self.tried = 0;
            return self.rest(now);
        }
        if now < until {
            return self.step;
        }
        let next = self.tried.saturating_add(1);
        if self.has_rates() && next < RATES.len() {
            self.tried = next;
            return self.rate(bus, now);
        }
        self.tried = 0;
        self.rest(now)
    }

    /// Finds out what keeps a backplane's link down.
    fn judge<R: Registers>(&mut self, bus: &Bus<R>) {
        if Autoc::from_bits(self.autoc).lms() & LMS_NEGOTIATION_BIT == 0 {
            return;
        }
        let ended = Links::from_bits(bus.read(&LINKS, 0)).negotiated();
        self.set_trouble(Some(if ended { Trouble::NoCommonMode } else { Trouble::Silent }));
    }

    fn rest(&self, now: u64) -> Step {
        Step::Idle { until: now.saturating_add(LOOK_AGAIN) }
    }

    /// Nothing in the cage can be used.
    fn unusable<R: Registers>(&mut self, bus: &Bus<R>, now: u64, cage: Cage) -> Step {
        self.configured = false;
        self.set_cage(cage);
        // The other end must not see a link.
        Self::set_laser(bus, false);
        self.rest(now)
    }

    fn set_laser<R: Registers>(bus: &Bus<R>, on: bool) {
        bus.update(&ESDP, 0, |v| Esdp::from_bits(v).with_laser_off(!on).into_bits());
    }

    fn set_cage(&mut self, cage: Cage) {
        if self.cage != cage {
            self.cage = cage;
            self.note_change();
        }
    }

    fn set_trouble(&mut self, trouble: Option<Trouble>) {
        if self.trouble != trouble {
            self.trouble = trouble;
            self.note_change();
        }
    }

    /// Writes what the link of a backplane may be.
    fn write_backplane(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let autoc = Autoc::from_bits(self.autoc);
        match autoc.lms() {
            _ if !self.configured => return f.write_str("backplane, not set up yet"),
            LMS_ONE => return f.write_str("backplane: KX, not negotiated"),
            LMS_TEN_PARALLEL => return f.write_str("backplane: KX4, not negotiated"),
            mode if mode & LMS_NEGOTIATION_BIT == 0 => {
                return write!(f, "backplane: mode {mode} of AUTOC, by the EEPROM");
            }
            _ => f.write_str("backplane: offers")?,
        }
        for (_, name) in [(autoc.kr(), " KR"), (autoc.kx4(), " KX4"), (autoc.kx(), " KX")].iter().filter(|(is, _)| *is)
        {
            f.write_str(name)?;
        }
        match self.trouble {
            None => Ok(()),
            Some(Trouble::Silent) => f.write_str("; the other end does not negotiate"),
            Some(Trouble::NoCommonMode) => f.write_str("; the other end has negotiated, and no link comes of it"),
        }
    }

    /// What is said of the port is another text now.
    fn note_change(&mut self) {
        self.changes = self.changes.wrapping_add(1);
    }

    fn note_forced(&mut self, forced: bool) {
        if forced && !self.forced {
            self.forced = true;
            self.note_change();
        }
    }
}

impl Port for LinkSetup {
    fn changes(&self) -> u32 {
        self.changes
    }

    fn is_obstructed(&self) -> bool {
        match self.medium {
            Medium::Cage => !matches!(self.cage, Cage::Unknown | Cage::Usable(_)),
            Medium::Backplane => false,
        }
    }
}

impl fmt::Display for LinkSetup {
    /// What is in the cage, or how a backplane is connected, and what firmware did not do.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cage {
            _ if self.medium == Medium::Backplane => self.write_backplane(f)?,
            Cage::Unknown => f.write_str("the SFP+ cage was not looked into yet")?,
            Cage::Empty => f.write_str("no SFP+ module in the cage")?,
            Cage::Unreadable => f.write_str("the SFP+ module answers, but what it says cannot be read")?,
            Cage::Usable(module) => write!(f, "SFP+ module {module}")?,
            Cage::Unusable(module, why) => write!(f, "this module is not supported by the NIC: {module}: {why}")?,
        }
        if self.unfinished {
            f.write_str("; the NIC's firmware never said that it has configured the port")?;
        }
        if self.forced {
            f.write_str("; the NIC's firmware did not release a semaphore, so it was taken")?;
        }
        Ok(())
    }
}
