//! The ways in which a guest's I/O can be asked for and completed, and where each is to be had. Scenarios and benches that
//! try them all take them from here: a new one is a new line.

use crate::platform::{EVERYWHERE, Platform};

/// A value of `completion` in sidecore.toml.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The word.
    pub name: &'static str,
    /// Where it is to be had.
    platforms: &'static [Platform],
    /// Whether a completion makes the guest exit.
    pub exits: bool,
    /// Whether the guest has its cores' own local APICs, so that its timer does not exit either.
    pub owns_apic: bool,
}

/// A value of `requests`.
#[derive(Clone, Copy, Debug)]
pub struct Requests {
    /// The word.
    pub name: &'static str,
    /// Whether a request makes the guest exit; None: it depends on how many there are.
    pub exits: Option<bool>,
}

/// In the order in which `auto` prefers them, up to `inject`.
const COMPLETIONS: &[Completion] = &[
    Completion { name: "posted", platforms: &[Platform::Bochs], exits: false, owns_apic: false },
    Completion { name: "eli", platforms: EVERYWHERE, exits: false, owns_apic: true },
    Completion { name: "inject", platforms: EVERYWHERE, exits: true, owns_apic: false },
    Completion { name: "direct", platforms: EVERYWHERE, exits: false, owns_apic: true },
];

const REQUESTS: &[Requests] = &[
    Requests { name: "poll", exits: Some(false) },
    Requests { name: "notify", exits: Some(true) },
    Requests { name: "adaptive", exits: None },
];

/// Every way to ask.
pub fn requests() -> impl Iterator<Item = Requests> {
    REQUESTS.iter().copied()
}

/// Every way of completion that a platform has.
pub fn completions(platform: Platform) -> impl Iterator<Item = Completion> {
    COMPLETIONS.iter().copied().filter(move |mode| mode.platforms.contains(&platform))
}

/// The way of completion with this name.
pub fn named(name: &str) -> Completion {
    *COMPLETIONS.iter().find(|mode| mode.name == name).expect("a name of the list above")
}

/// The way that `completion = "auto"` stands for on a platform.
pub fn best(platform: Platform) -> Completion {
    completions(platform).next().expect("inject is everywhere")
}
