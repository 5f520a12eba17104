//! Classes: groups of events that are switched on and off together.
//!
//! A writer tests the [`Switch`] with one relaxed load before it makes a record.

use core::sync::atomic::{AtomicU32, Ordering};

use bitflags::bitflags;

use crate::Kind;

bitflags! {
    /// A set of classes.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Classes: u32 {
        /// Exits.
        const EXITS = 1 << 0;
        /// Entries.
        const ENTRIES = 1 << 1;
        /// Injection, delivery, kick.
        const INTERRUPTS = 1 << 2;
        /// Turns of engines that moved a request.
        const TURNS = 1 << 3;
        /// Turns of engines that moved nothing: up to millions a second.
        const IDLE_TURNS = 1 << 4;
        /// Visits to queues, completions, and when drivers took them.
        const VISITS = 1 << 5;
        /// Frames: in, switched, out.
        const FRAMES = 1 << 6;
        /// Requests of disks.
        const DISKS = 1 << 7;
        /// Lives of guests, moves of devices, NMIs of the machine, machine checks.
        const LIFE = 1 << 8;
        /// Histograms. They are no records.
        const HISTOGRAMS = 1 << 9;
        /// First bytes of frames. They are no records, and are in rings of their own.
        const CAPTURES = 1 << 10;
        /// Frames that were dropped at guests' ports.
        const DROPS = 1 << 11;
        /// Only one of so many exits of a vCPU for the same reason has a record. It is on with [`Classes::EXITS`], never alone.
        const SAMPLED = 1 << 12;
    }
}

/// Names of the classes in commands and in the configuration. They are an interface.
const NAMES: [(&str, Classes); 13] = [
    ("exits", Classes::EXITS),
    ("entries", Classes::ENTRIES),
    ("interrupts", Classes::INTERRUPTS),
    ("turns", Classes::TURNS),
    ("idle-turns", Classes::IDLE_TURNS),
    ("visits", Classes::VISITS),
    ("frames", Classes::FRAMES),
    ("disks", Classes::DISKS),
    ("life", Classes::LIFE),
    ("histograms", Classes::HISTOGRAMS),
    ("captures", Classes::CAPTURES),
    ("drops", Classes::DROPS),
    ("sampled", Classes::SAMPLED),
];

impl Classes {
    /// What `trace on` takes by name. [`Classes::CAPTURES`] is on as long as there is a filter, [`Classes::SAMPLED`] by `1/N`.
    pub const WRITTEN: Self = Self::EXITS
        .union(Self::ENTRIES)
        .union(Self::INTERRUPTS)
        .union(Self::TURNS)
        .union(Self::IDLE_TURNS)
        .union(Self::VISITS)
        .union(Self::LIFE)
        .union(Self::DROPS)
        .union(Self::FRAMES)
        .union(Self::DISKS)
        .union(Self::HISTOGRAMS);

    /// The class of a kind.
    #[must_use]
    pub const fn of(kind: Kind) -> Self {
        match kind {
            Kind::Exit => Self::EXITS,
            Kind::Entry => Self::ENTRIES,
            Kind::Injection | Kind::Delivery | Kind::Kick => Self::INTERRUPTS,
            Kind::Turn => Self::TURNS,
            Kind::Visit | Kind::Completion | Kind::Taken => Self::VISITS,
            Kind::FrameIn | Kind::FrameSwitched | Kind::FrameOut => Self::FRAMES,
            Kind::FrameDropped => Self::DROPS,
            Kind::DiskSubmitted | Kind::DiskCompleted => Self::DISKS,
            Kind::Moved | Kind::Life | Kind::Nmi | Kind::MachineCheck => Self::LIFE,
        }
    }

    /// The class with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        NAMES.iter().find(|(known, _)| *known == name).map(|&(_, class)| class)
    }

    /// The names of the classes in the set.
    pub fn names(self) -> impl Iterator<Item = &'static str> + Clone {
        NAMES.iter().filter(move |(_, class)| self.contains(*class)).map(|&(name, _)| name)
    }
}

/// The classes that are on. Any core may read it, and one may change it, at any time.
#[derive(Debug, Default)]
pub struct Switch(AtomicU32);

impl Switch {
    /// All off.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Whether one of these classes is on.
    #[must_use]
    #[inline(always)]
    pub fn has(&self, classes: Classes) -> bool {
        self.0.load(Ordering::Relaxed) & classes.bits() != 0
    }

    /// The classes that are on.
    #[must_use]
    pub fn get(&self) -> Classes {
        Classes::from_bits_retain(self.0.load(Ordering::Relaxed))
    }

    /// Switches these classes on and all others off. Each core sees it at one of its next events.
    pub fn set(&self, classes: Classes) {
        self.0.store(classes.bits(), Ordering::Relaxed);
    }
}

/// Who watches, and what is to be watched. `W` is the trait of those who watch.
#[derive(Debug)]
pub struct Watch<W: ?Sized + 'static> {
    /// The watcher.
    pub watcher: &'static W,
    /// The classes that are on.
    pub on: &'static Switch,
}

impl<W: ?Sized> Watch<W> {
    /// The watcher, if one of these classes is on.
    #[must_use]
    #[inline(always)]
    pub fn of(&self, classes: Classes) -> Option<&'static W> {
        self.on.has(classes).then_some(self.watcher)
    }
}

impl<W: ?Sized> Clone for Watch<W> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<W: ?Sized> Copy for Watch<W> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_has_one_name_and_is_found_by_it() {
        assert_eq!(Classes::all().names().count(), Classes::all().bits().count_ones() as usize);
        for name in Classes::all().names() {
            let class = Classes::named(name).unwrap();
            assert_eq!((class.bits().count_ones(), class.names().collect::<Vec<_>>()), (1, vec![name]));
        }
        assert_eq!(Classes::named("exit"), None);
        assert_eq!(Classes::empty().names().count(), 0);
    }

    #[test]
    fn each_kind_has_exactly_one_class() {
        assert!(Kind::ALL.iter().all(|&kind| Classes::of(kind).bits().count_ones() == 1));
    }

    #[test]
    fn all_classes_are_off_until_they_are_switched_on() {
        let switch = Switch::new();
        assert!(!switch.has(Classes::all()));
        switch.set(Classes::EXITS | Classes::VISITS);
        assert_eq!([Classes::EXITS, Classes::ENTRIES].map(|class| switch.has(class)), [true, false]);
        assert_eq!(switch.get(), Classes::EXITS | Classes::VISITS);
    }
}
