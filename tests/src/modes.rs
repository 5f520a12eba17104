//! The modes of requests and completions, and the platforms that have each. Scenarios and benchmarks take the modes
//! from here, so a new mode is one new line.

use crate::platform::{ALSO_NESTED, Platform};

/// A value of `completion` in sidecore.toml.
#[derive(Clone, Copy, Debug)]
pub struct Completion {
    /// The word in sidecore.toml.
    pub name: &'static str,
    /// The platforms that have it.
    platforms: &'static [Platform],
    /// Whether a completion makes the guest exit.
    pub exits: bool,
    /// Whether the guest owns its cores' local APICs. Then its timer does not exit either.
    pub owns_apic: bool,
}

/// A value of `requests`.
#[derive(Clone, Copy, Debug)]
pub struct Requests {
    /// The word in sidecore.toml.
    pub name: &'static str,
    /// Whether a request makes the guest exit. `None`: that depends on the load.
    pub exits: Option<bool>,
}

/// All modes of completion. `auto` takes the first of them that the platform has; `inject` is everywhere, so `auto`
/// never takes those after it.
const COMPLETIONS: &[Completion] = &[
    Completion { name: "posted", platforms: &[Platform::Bochs], exits: false, owns_apic: false },
    Completion { name: "eli", platforms: ALSO_NESTED, exits: false, owns_apic: true },
    Completion { name: "inject", platforms: ALSO_NESTED, exits: true, owns_apic: false },
    Completion { name: "direct", platforms: ALSO_NESTED, exits: false, owns_apic: true },
];

const REQUESTS: &[Requests] = &[
    Requests { name: "poll", exits: Some(false) },
    Requests { name: "notify", exits: Some(true) },
    Requests { name: "adaptive", exits: None },
];

/// All modes of requests.
pub fn requests() -> impl Iterator<Item = Requests> {
    REQUESTS.iter().copied()
}

/// All modes of completion that a platform has.
pub fn completions(platform: Platform) -> impl Iterator<Item = Completion> {
    COMPLETIONS.iter().copied().filter(move |mode| mode.platforms.contains(&platform))
}

/// The mode of completion with this name.
pub fn named(name: &str) -> Completion {
    *COMPLETIONS.iter().find(|mode| mode.name == name).expect("a name of the list above")
}

/// The mode that `completion = "auto"` takes on a platform.
pub fn best(platform: Platform) -> Completion {
    completions(platform).next().expect("inject is everywhere")
}
