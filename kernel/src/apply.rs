//! Changes guests to what a file says, while the machine runs. `config::difference` checks the file and decides what changes;
//! `lifecycle::Apply` says what is done when. This file carries it out, at most one order a tick.

use crate::{guests::Guests, heap, modules, virt};
use alloc::{string::String, vec::Vec};
use config::{Change, ChangeKind, Config, Machine, Sha256, apply_heap};
use control::{ApplyState, Event, NoMemory, Text, sentence};
use core::fmt::{self, Display};
use lifecycle::{Deed, Order, Seen};

/// Milliseconds for a guest to stop after its time limit, and to start.
const PATIENCE: u64 = 120_000;

/// What was applied.
#[derive(Default)]
pub struct Apply(lifecycle::Apply<Change, Config>);

/// What the operator wants of a file.
pub struct Wanted {
    /// The module that is the file.
    pub module: String,
    /// Only show what it would change.
    pub dry: bool,
    /// Guests may be restarted.
    pub restart: bool,
    /// Seconds after which everything goes back without `confirm`. 0: it stays.
    pub confirm: u64,
}

/// The guests, and what is shown of them.
struct Places<'a> {
    guests: &'a mut Guests,
    runs: &'a mut Config,
}

impl Places<'_> {
    /// The number of a guest: its place in the configuration.
    fn number(&self, change: &Change) -> Option<usize> {
        self.runs.guests.iter().position(|guest| guest.name == change.guest.name)
    }
}

impl lifecycle::Guests<Change> for Places<'_> {
    fn seen(&self, change: &Change) -> Seen {
        self.number(change).map_or(Seen::Down, |number| self.guests.seen(number))
    }

    fn obey(&mut self, order: Order, change: &Change) -> Result<(), Text> {
        let number = self.number(change).ok_or("there is no such guest")?;
        let shown = self.runs.guests.get_mut(number).ok_or("there is no such guest")?;
        self.guests.obey(order, number, &change.guest, shown)
    }
}

impl Apply {
    /// Checks a file, and begins to carry out what it changes of `runs`. Returns what it says of that to whoever asked. `now`:
    /// milliseconds.
    ///
    /// # Errors
    /// Nothing is changed; the text says why, each mistake in a line.
    pub fn begin(&mut self, now: u64, wanted: &Wanted, runs: &Config) -> Result<(ApplyState, String), Text> {
        if !wanted.dry {
            self.0.check_idle()?;
        }
        self.0.read(now)?;
        let changes = changes(&wanted.module, runs)?;
        if wanted.dry || changes.is_empty() {
            return Ok((ApplyState::Nothing, lines(&changes, "nothing was done")?));
        }
        if let Some(why) = config::needs_restart(&changes).filter(|_| !wanted.restart) {
            return Err(why);
        }
        let before = (wanted.confirm > 0).then(|| (runs.clone(), wanted.confirm.saturating_mul(1000)));
        let said = lines(&changes, "it is being carried out; nothing of it outlives a reboot")?;
        let deeds = deeds(&changes)?;
        self.0.begin(changes, deeds, before, patience(runs), control::copy(&said)?)?;
        Ok((self.0.state(), said))
    }

    /// Whether nothing is being carried out, and nothing may go back.
    pub const fn is_idle(&self) -> bool {
        self.0.is_idle()
    }

    /// Keeps what was applied.
    ///
    /// # Errors
    /// Nothing waits for it.
    pub fn confirm(&mut self) -> Result<(), Text> {
        self.0.confirm()
    }

    /// Whether a guest uses a module: in what runs, in what is to run, and in what may come back.
    pub fn uses(&self, runs: &Config, module: &str) -> bool {
        let to_be = self.0.changes().map(|change| &change.guest);
        let before = self.0.before().flat_map(|before| &before.guests);
        runs.guests.iter().chain(to_be).chain(before).any(|guest| guest.modules().any(|name| name == module))
    }

    /// Carries out the next order, or goes back if no `confirm` came. Called once a tick. `now`: milliseconds. `ends`: sidecore is
    /// about to end.
    pub fn tick(&mut self, now: u64, guests: &mut Guests, runs: &mut Config, ends: bool) {
        if self.0.tick(now, &mut Places { guests, runs }) {
            let level = if self.0.state() == ApplyState::Done { log::Level::Info } else { log::Level::Warn };
            self.0.text().lines().for_each(|line| log::log!(level, "{line}"));
        }
        if !ends && let Some(before) = self.0.due(now) {
            log::warn!("no `confirm` came: what was applied goes back");
            let changes = config::way_back(runs, &before);
            match deeds(&changes) {
                Ok(deeds) => self.0.go_back(changes, deeds, patience(runs)),
                Err(no_memory) => log::error!("it does not go back: {no_memory}"),
            }
        }
    }

    /// What became of the last one, for a person.
    pub fn text(&self) -> &str {
        self.0.text()
    }

    /// The answer for request `id`.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn answer(&self, id: Option<u64>) -> Result<Event, NoMemory> {
        Ok(Event::Applied { id, state: self.0.state(), text: control::copy(self.text())? })
    }
}

fn patience(runs: &Config) -> u64 {
    u64::from(runs.control.stop_seconds).saturating_mul(1000).saturating_add(PATIENCE)
}

fn deeds(changes: &[Change]) -> Result<Vec<Deed>, NoMemory> {
    control::collect(changes.iter().map(|change| {
        Ok(match change.kind {
            ChangeKind::Remove => Deed::Remove,
            ChangeKind::AtOnce => Deed::Change,
            ChangeKind::Restart => Deed::Restart,
            ChangeKind::Add if change.guest.autostart => Deed::Start,
            ChangeKind::Add => Deed::Keep,
        })
    }))
}

/// What the file changes.
fn changes(module: &str, runs: &Config) -> Result<Vec<Change>, Text> {
    let modules = modules::all();
    let text = modules.contents(module)?;
    // The parser cannot refuse for want of memory.
    heap::has_room(apply_heap(text.len().min(config::MAX_APPLIED)))?;
    let names: Vec<&str> = control::collect(modules.hashes().map(|(name, _)| Ok(name)))?;
    let hash_of =
        |name: &str| -> Option<Sha256> { modules.hashes().find(|(known, _)| *known == name).map(|(_, sha256)| sha256) };
    let machine = Machine { modules: &*names, hash_of, refusal: virt::refusal };
    config::difference(runs, module, text, machine).map_err(|mistakes| {
        sentence(fmt::from_fn(|f| {
            mistakes.iter().try_for_each(|mistake| writeln!(f, "{mistake}"))?;
            f.write_str("nothing was changed")
        }))
    })
}

/// The changes as lines, and what becomes of them.
fn lines(changes: &[Change], end: impl Display) -> Result<String, NoMemory> {
    control::write(fmt::from_fn(|f| {
        if changes.is_empty() {
            f.write_str("the file changes nothing\n")?;
        }
        changes.iter().try_for_each(|change| writeln!(f, "{change}"))?;
        writeln!(f, "{end}")
    }))
}
