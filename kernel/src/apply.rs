//! Changes guests to what a file says, while the machine runs. `config::difference` checks the file and decides what changes;
//! `lifecycle::Rollout` says what is done when. This file carries it out, at most one order a tick.

use crate::{guests::Guests, heap, modules, virt};
use alloc::{string::String, vec::Vec};
use config::{Change, ChangeKind, Config, Machine, Sha256, apply_heap};
use control::{ApplyState, Event, NoMemory, Text, sentence};
use core::fmt::{self, Display};
use lifecycle::{Deed, Rollout};

/// Milliseconds for a guest to stop after its time limit, and to start.
const PATIENCE: u64 = 120_000;

/// What was applied.
#[derive(Default)]
pub struct Apply {
    /// What is being carried out.
    running: Option<Running>,
    /// What goes back without `confirm`.
    unconfirmed: Option<Unconfirmed>,
    state: ApplyState,
    /// What became of the last one, for a person.
    text: String,
}

struct Running {
    rollout: Rollout,
    changes: Vec<Change>,
    /// What ran before, and the milliseconds for `confirm`. `None`: it stays, or it is the way back.
    before: Option<(Config, u64)>,
    goes_back: bool,
}

struct Unconfirmed {
    /// What ran before.
    before: Config,
    /// It goes back at this time, in milliseconds.
    until: u64,
}

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

impl Apply {
    /// Checks a file, and begins to carry out what it changes of `runs`. Returns what it says of that to whoever asked.
    ///
    /// # Errors
    /// Nothing is changed; the text says why, each mistake in a line.
    pub fn begin(&mut self, wanted: &Wanted, runs: &Config) -> Result<(ApplyState, String), Text> {
        if !wanted.dry {
            self.is_free()?;
        }
        let changes = changes(&wanted.module, runs)?;
        if wanted.dry || changes.is_empty() {
            return Ok((ApplyState::Nothing, lines(&changes, "nothing was done")?));
        }
        if let Some(why) = config::needs_restart(&changes).filter(|_| !wanted.restart) {
            return Err(why);
        }
        let before = (wanted.confirm > 0).then(|| (runs.clone(), wanted.confirm.saturating_mul(1000)));
        let said = lines(&changes, "it is being carried out; nothing of it outlives a reboot")?;
        self.text = control::copy(&said)?;
        self.carry_out(changes, before, runs, false)?;
        Ok((self.state, said))
    }

    /// Whether nothing is being carried out, and nothing may go back.
    pub const fn is_idle(&self) -> bool {
        self.running.is_none() && self.unconfirmed.is_none()
    }

    /// # Errors
    /// Something is being carried out, or waits for `confirm`.
    fn is_free(&self) -> Result<(), Text> {
        match (&self.running, &self.unconfirmed) {
            (Some(_), _) => Err("what was applied before is still being carried out".into()),
            (None, Some(_)) => Err("what was applied before waits for `confirm`".into()),
            (None, None) => Ok(()),
        }
    }

    fn carry_out(
        &mut self,
        changes: Vec<Change>,
        before: Option<(Config, u64)>,
        runs: &Config,
        goes_back: bool,
    ) -> Result<(), Text> {
        let patience = u64::from(runs.control.stop_seconds).saturating_mul(1000).saturating_add(PATIENCE);
        let deeds = control::collect(changes.iter().map(|change| Ok(deed(change))))?;
        self.running = Some(Running { rollout: Rollout::new(deeds, patience), changes, before, goes_back });
        self.state = ApplyState::Running;
        Ok(())
    }

    /// Keeps what was applied.
    ///
    /// # Errors
    /// Nothing waits for it.
    pub fn confirm(&mut self) -> Result<(), Text> {
        if let Some(running) = &mut self.running
            && running.before.take().is_some()
        {
            return Ok(());
        }
        self.unconfirmed.take().ok_or("nothing waits for `confirm`")?;
        if self.state == ApplyState::Unconfirmed {
            self.state = ApplyState::Done;
        }
        Ok(())
    }

    /// Whether a guest uses a module: in what runs, in what is to run, and in what may come back.
    pub fn uses(&self, runs: &Config, module: &str) -> bool {
        let uses = |guest: &config::Guest| guest.modules().any(|name| name == module);
        let running = self.running.iter();
        let to_be = running.clone().flat_map(|running| &running.changes).map(|change| &change.guest);
        let before = running.filter_map(|running| running.before.as_ref()).map(|(before, _)| before);
        let before = before.chain(self.unconfirmed.iter().map(|unconfirmed| &unconfirmed.before));
        runs.guests.iter().chain(to_be).chain(before.flat_map(|before| &before.guests)).any(uses)
    }

    /// Carries out the next order, or goes back if no `confirm` came. Called once a tick. `now`: milliseconds. `ends`: sidecore is
    /// about to end.
    pub fn tick(&mut self, now: u64, guests: &mut Guests, runs: &mut Config, ends: bool) {
        if let Some(running) = &mut self.running {
            if !running.rollout.is_over() {
                running.step(now, guests, runs);
            }
            if running.rollout.is_over() {
                self.finish(now);
            }
        } else if self.unconfirmed.as_ref().is_some_and(|unconfirmed| now >= unconfirmed.until && !ends) {
            self.go_back(runs);
        }
    }

    fn finish(&mut self, now: u64) {
        let Some(Running { rollout, changes, before, goes_back }) = self.running.take() else { return };
        let (done, rest) = changes.split_at_checked(rollout.step()).unwrap_or((&changes, &[]));
        let names = |changes: &[Change]| match changes {
            [] => "nothing".into(),
            changes => sentence(control::Joined(changes.iter())),
        };
        let what = if goes_back { "the way back" } else { "apply" };
        self.text = match (rollout.failure(), rest) {
            (Some(why), [failed, rest @ ..]) => {
                self.state = ApplyState::Failed;
                log::warn!("{what} has failed: {failed}: {why}");
                control::write(format_args!(
                    "{what} has failed: {failed}: {why}\ndone: {}\nnot done: {}\n",
                    names(done),
                    names(rest)
                ))
            }
            _ => {
                self.state = ApplyState::Done;
                log::info!("{what} is done: {}", names(done));
                control::write(format_args!("{what} is done: {}\n", names(done)))
            }
        }
        .unwrap_or_default();
        if let Some((before, wait)) = before {
            self.unconfirmed = Some(Unconfirmed { before, until: now.saturating_add(wait) });
            if self.state == ApplyState::Done {
                self.state = ApplyState::Unconfirmed;
            }
            log::warn!("what was applied goes back in {} s without `confirm`", wait / 1000);
            if let Ok(text) =
                control::write(format_args!("{}it goes back in {} s without `confirm`\n", self.text, wait / 1000))
            {
                self.text = text;
            }
        }
    }

    fn go_back(&mut self, runs: &Config) {
        let Some(Unconfirmed { before, .. }) = self.unconfirmed.take() else { return };
        log::warn!("no `confirm` came: what was applied goes back");
        let changes = config::way_back(runs, &before);
        if let Err(why) = self.carry_out(changes, None, runs, true) {
            self.state = ApplyState::Failed;
            log::error!("the way back: {why}");
        }
    }

    /// What became of the last one, for a person.
    pub fn text(&self) -> &str {
        if self.text.is_empty() { "nothing was applied yet\n" } else { &self.text }
    }

    /// The answer for request `id`.
    ///
    /// # Errors
    /// There is no memory for it.
    pub fn answer(&self, id: Option<u64>) -> Result<Event, NoMemory> {
        Ok(Event::Applied { id, state: self.state, text: control::copy(self.text())? })
    }
}

impl Running {
    fn step(&mut self, now: u64, guests: &mut Guests, runs: &mut Config) {
        let Some(change) = self.changes.get(self.rollout.step()) else { return };
        let number = runs.guests.iter().position(|guest| guest.name == change.guest.name);
        let Some((number, shown)) = number.and_then(|number| Some((number, runs.guests.get_mut(number)?))) else {
            return self.rollout.fail("there is no such guest".into());
        };
        if let Some(order) = self.rollout.next(now, guests.seen(number))
            && let Err(why) = guests.obey(order, number, &change.guest, shown)
        {
            self.rollout.fail(why);
        }
    }
}

const fn deed(change: &Change) -> Deed {
    match change.kind {
        ChangeKind::Remove => Deed::Remove,
        ChangeKind::AtOnce => Deed::Change,
        ChangeKind::Restart => Deed::Restart,
        ChangeKind::Add if change.guest.autostart => Deed::Start,
        ChangeKind::Add => Deed::Keep,
    }
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
    match config::difference(runs, module, text, machine) {
        Ok((changes, _)) => Ok(changes),
        Err(mistakes) => Err(sentence(fmt::from_fn(|f| {
            mistakes.iter().try_for_each(|mistake| writeln!(f, "{mistake}"))?;
            f.write_str("nothing was changed")
        }))),
    }
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
