//! What a file changes of the configuration that runs, for `apply`. It decides; the kernel carries out.
//!
//! Only `[[guest]]` tables may change, and of them only what a place of a guest can take: its cores, its memory and its devices
//! are those of the boot. A guest that is to come has its place in the boot's file, with `spare = true`. So the addresses that
//! guests may use, the engine's slots and the maps of the cores are what they were checked to be at boot.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use control::Text;
use toml::de::DeTable;

use crate::check::{check_completion, check_modules};
use crate::config::Config;
use crate::guest::{Completion, Guest, Places};
use crate::limits::MAX_APPLIED;
use crate::mistake::{Mistake, Place, Source};
use crate::module::Sha256;
use crate::module_check::check_hashes;
use crate::read::parse;

/// What becomes of a guest, in the order in which it is carried out: what is taken away first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChangeKind {
    /// It is stopped, and its place becomes spare.
    Remove,
    /// Its values are changed while it runs.
    AtOnce,
    /// It is stopped, and starts with the new values. A guest that is down gets them, and stays down.
    Restart,
    /// Its place was spare. It starts, unless it has `autostart = false`.
    Add,
}

/// The change of one guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What becomes of it.
    pub kind: ChangeKind,
    /// The keys whose values change. Empty for [`ChangeKind::Remove`] and [`ChangeKind::Add`].
    pub keys: Vec<&'static str>,
    /// The guest as it is to be.
    pub guest: Guest,
}

impl core::fmt::Display for Change {
    /// `guest web: added`, `guest db: changed, with a restart: kernel, cmdline`.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "guest {}: ", self.guest.name)?;
        let keys = control::Joined(self.keys.iter());
        match self.kind {
            ChangeKind::Remove => f.write_str("removed"),
            ChangeKind::AtOnce => write!(f, "changed at once: {keys}"),
            ChangeKind::Restart => write!(f, "changed, with a restart: {keys}"),
            ChangeKind::Add => f.write_str("added"),
        }
    }
}

/// What the machine has, for the checks.
#[derive(Clone, Copy, Debug)]
pub struct Machine<M, H, R> {
    /// Names of the modules that there are now.
    pub modules: M,
    /// Returns the SHA-256 of the module of a name.
    pub hash_of: H,
    /// Says why the machine does not have a way to complete I/O.
    pub refusal: R,
}

/// Reads `text`, the contents of `file`, checks it as the boot checks its file, and returns what it changes of the configuration
/// that runs, in the order in which it is to be carried out. `runs` has no places ([`Config::written`]).
///
/// What the boot checks of memory, disks, compressed modules and cores is not checked again, because it cannot change.
///
/// # Errors
/// The mistakes of the file, and changes that need a reboot, each with its line. Nothing may be changed then.
pub fn difference(
    runs: &Config,
    file: &str,
    text: &[u8],
    machine: Machine<&[&str], impl Fn(&str) -> Option<Sha256>, impl Fn(Completion) -> Option<String>>,
) -> Result<Vec<Change>, Vec<Mistake>> {
    if text.len() > MAX_APPLIED {
        let place = Place { line: 1, column: 1, value: format!("{} bytes", text.len()) };
        let message = format!("the file is too large: expected at most {MAX_APPLIED} bytes");
        return Err([Mistake::new(file, &place, message)].into());
    }
    let parsed = parse(file, text);
    let (mut wanted, mut mistakes) = (parsed.config, parsed.mistakes);
    mistakes.extend(check_modules(&mut wanted, machine.modules));
    // A hash may be named before its module comes. The boot has told that there is none.
    let named = wanted.modules.clone();
    wanted.modules.retain(|module| (machine.hash_of)(&module.name).is_some());
    mistakes.extend(check_hashes(&mut wanted, machine.hash_of));
    wanted.modules = named;
    mistakes.extend(check_completion(&mut wanted, machine.refusal));
    // A guest with a mistake is left out of `wanted`, so nothing can be said of the difference.
    if mistakes.is_empty() {
        let places: Vec<Places> = wanted.guests.iter().map(|guest| guest.places.clone()).collect();
        let wanted = wanted.written();
        mistakes.extend(tables(runs, &wanted, file, text));
        let (changes, more) = guests(runs, &wanted, &places, file);
        mistakes.extend(more);
        if mistakes.is_empty() {
            return Ok(changes);
        }
    }
    mistakes.sort_by_key(|mistake| (mistake.line, mistake.column));
    // No guest is left out because of a mistake: nothing is changed at all.
    mistakes.iter_mut().for_each(|mistake| mistake.guest = None);
    Err(mistakes)
}

/// What leads from the configuration that runs back to one that ran before. Both have the same places.
#[must_use]
pub fn way_back(runs: &Config, before: &Config) -> Vec<Change> {
    let places: Vec<Places> = before.guests.iter().map(|_| Places::default()).collect();
    guests(runs, before, &places, "").0
}

/// The configuration that runs after changes of `runs`. Its guests keep their order, which is that of their places.
#[must_use]
pub fn after(runs: &Config, changes: &[Change]) -> Config {
    let mut after = runs.clone();
    for guest in &mut after.guests {
        if let Some(change) = changes.iter().find(|change| change.guest.name == guest.name) {
            guest.clone_from(&change.guest);
        }
    }
    after
}

/// Refuses what changes outside of `[[guest]]`.
fn tables(runs: &Config, wanted: &Config, file: &str, text: &[u8]) -> Vec<Mistake> {
    // Each field has to be named here, so that none is forgotten.
    let Config { file: _, log, control, management, com2, trace, smt, modules, engines, uplinks, stages, guests: _ } =
        runs;
    let same = [
        ("smt", "smt", *smt == wanted.smt),
        ("log", "[log]", *log == wanted.log),
        ("control", "[control]", *control == wanted.control),
        ("com2", "[com2]", *com2 == wanted.com2),
        ("management", "[management]", *management == wanted.management),
        ("trace", "[trace]", *trace == wanted.trace),
        ("module", "[[module]]", *modules == wanted.modules),
        ("engine", "[[engine]]", *engines == wanted.engines),
        ("port", "[[port]]", *uplinks == wanted.uplinks),
        ("stage", "[[stage]]", *stages == wanted.stages),
    ];
    // It was read before.
    let text = str::from_utf8(text).unwrap_or_default();
    let source = Source { file, text };
    let table = DeTable::parse(text);
    let at = |key: &str| {
        let found = table.as_ref().ok().and_then(|table| {
            table.get_ref().keys().find(|name| name.get_ref() == key).map(|name| source.place(name.span()))
        });
        found.unwrap_or_else(|| source.place(text.len()..text.len()))
    };
    let changed = same.iter().filter(|(.., same)| !same);
    let refused = changed.map(|(key, shown, _)| {
        let message = format!("{shown} is not what runs; expected only changes of [[guest]]: others need a reboot");
        Mistake::new(file, &at(key), message)
    });
    refused.collect()
}

/// The changes of guests in their order, and what needs a reboot. `places`: those of the guests of `wanted`.
fn guests(runs: &Config, wanted: &Config, places: &[Places], file: &str) -> (Vec<Change>, Vec<Mistake>) {
    let (mut changes, mut mistakes) = (Vec::new(), Vec::new());
    for (guest, places) in wanted.guests.iter().zip(places) {
        let Some(old) = runs.guests.iter().find(|old| old.name == guest.name) else {
            let spare = || runs.guests.iter().filter(|old| old.spare).map(|old| &old.name);
            let message = match spare().next() {
                None => "no place is kept for this guest, and none is spare: a guest that comes later is in the boot's file \
                         with `spare = true`"
                    .into(),
                Some(_) => format!("no place is kept for this guest; spare are: {}", control::Joined(spare())),
            };
            mistakes.push(Mistake::new(file, &places.name, message));
            continue;
        };
        let keys = Keys::of(old, guest);
        for (key, place) in keys.fixed(places) {
            let message =
                format!("`{key}` of guest `{}` is not what its place was made for; that needs a reboot", guest.name);
            mistakes.push(Mistake::new(file, place, message));
        }
        let (kind, keys) = match (old.spare, guest.spare) {
            (true, true) if keys.all().is_empty() => continue,
            (true, true) => (ChangeKind::AtOnce, keys.all()),
            (true, false) => (ChangeKind::Add, Vec::new()),
            (false, true) => (ChangeKind::Remove, Vec::new()),
            (false, false) if !keys.restart.is_empty() => (ChangeKind::Restart, keys.all()),
            (false, false) if !keys.at_once.is_empty() => (ChangeKind::AtOnce, keys.at_once),
            (false, false) => continue,
        };
        changes.push(Change { kind, keys, guest: guest.clone() });
    }
    let missing = |old: &&Guest| !old.spare && wanted.guests.iter().all(|guest| guest.name != old.name);
    for old in runs.guests.iter().filter(missing) {
        changes.push(Change { kind: ChangeKind::Remove, keys: Vec::new(), guest: spare(old) });
    }
    changes.sort_by_key(|change| change.kind);
    (changes, mistakes)
}

/// What is left of a guest that is removed: its place.
fn spare(guest: &Guest) -> Guest {
    let (kernel, cmdline) = (String::new(), String::new());
    Guest { spare: true, kernel, firmware: false, initrd: None, cmdline, ..guest.clone() }
}

/// The keys of a guest that differ, by what a change of them needs.
#[derive(Default)]
struct Keys {
    /// Nothing.
    at_once: Vec<&'static str>,
    /// A restart of the guest.
    restart: Vec<&'static str>,
    /// A reboot of the machine.
    reboot: Vec<&'static str>,
}

impl Keys {
    fn of(old: &Guest, new: &Guest) -> Self {
        // Each field has to be named here, so that none is forgotten.
        let Guest {
            name: _,
            spare: _,
            vcpus,
            memory,
            kernel,
            firmware,
            initrd,
            cmdline,
            completion,
            requests,
            split_lock,
            notify_bar,
            weight,
            share,
            restart,
            autostart,
            cores,
            devices,
            places: _,
        } = old;
        let mut keys = Self::default();
        let differing = |all: &[(&'static str, bool)]| {
            all.iter().filter(|(_, same)| !same).map(|(key, _)| *key).collect::<Vec<_>>()
        };
        keys.at_once = differing(&[
            ("weight", *weight == new.weight),
            ("restart", *restart == new.restart),
            ("autostart", *autostart == new.autostart),
        ]);
        keys.restart = differing(&[
            (if new.firmware { "firmware" } else { "kernel" }, (kernel, firmware) == (&new.kernel, &new.firmware)),
            ("initrd", *initrd == new.initrd),
            ("cmdline", *cmdline == new.cmdline),
            ("requests", *requests == new.requests),
            ("split_lock", *split_lock == new.split_lock),
            ("notify_bar", *notify_bar == new.notify_bar),
        ]);
        keys.reboot = differing(&[
            ("memory", *memory == new.memory),
            ("vcpus", *vcpus == new.vcpus),
            ("cores", *cores == new.cores),
            ("completion", *completion == new.completion),
            ("cache", share.cache == new.share.cache),
            ("bandwidth", share.bandwidth == new.share.bandwidth),
            ("net", old.nets().eq(new.nets())),
            ("block", old.blocks().eq(new.blocks())),
            ("entropy", old.entropies().eq(new.entropies())),
        ]);
        // The devices of the other kinds are named above.
        if keys.reboot.is_empty() && *devices != new.devices {
            keys.reboot.push("console");
        }
        keys
    }

    /// Those that need no reboot.
    fn all(&self) -> Vec<&'static str> {
        self.restart.iter().chain(&self.at_once).copied().collect()
    }

    /// Those that need a reboot, with their places.
    fn fixed<'a>(&'a self, places: &'a Places) -> impl Iterator<Item = (&'static str, &'a Place)> {
        self.reboot.iter().map(|&key| {
            let place = match key {
                "memory" => &places.memory,
                "vcpus" | "cores" => &places.cores,
                "completion" => &places.completion,
                _ => &places.name,
            };
            (key, place)
        })
    }
}

/// Says why changes are not carried out without leave to restart guests. `None`: they need none.
#[must_use]
pub fn needs_restart(changes: &[Change]) -> Option<Text> {
    let change = changes.iter().find(|change| change.kind == ChangeKind::Restart)?;
    let keys = control::Joined(change.keys.iter());
    Some(control::sentence(format_args!(
        "guest {} has to restart for: {keys}; give `--restart` to allow it",
        change.guest.name
    )))
}

#[cfg(test)]
mod tests;
