//! The configuration as a whole, with what stands in it once: `[log]`, `[control]` and `[[engine]]`.

use alloc::string::String;
use alloc::vec::Vec;

use control::Level;

use crate::guest::Guest;
use crate::mistake::Place;
use crate::port::Port;
use crate::stage::Stage;

/// The configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Config {
    /// Name of the file that it comes from, for mistakes found later; empty for the default.
    pub file: String,
    /// `[log] level`.
    pub log: Level,
    /// `[control]`.
    pub control: Control,
    /// `[[engine]]`; empty means one engine on a core of sidecore's choice.
    pub engines: Vec<Engine>,
    /// `[[port]]`; empty means that guests reach each other and nobody else.
    pub ports: Vec<Port>,
    /// `[[stage]]` in the order of the file.
    pub stages: Vec<Stage>,
    /// `[[guest]]` in the order of the file.
    pub guests: Vec<Guest>,
}

/// `[control]`: the control core's duties.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Control {
    /// Powers the machine off when every guest has stopped and none will be restarted.
    pub end_when_guests_stop: bool,
    /// Seconds between the power button and the kill of `stop`.
    pub stop_seconds: u32,
}

impl Default for Control {
    fn default() -> Self {
        Self { end_when_guests_stop: false, stop_seconds: 30 }
    }
}

/// `[[engine]]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Engine {
    /// Its core; none: sidecore chooses. 0 is the control core, which then is an engine as well.
    pub core: Option<u32>,
    /// In which order it works.
    pub scheduling: Scheduling,
    /// Where the file says so.
    pub place: Place,
}

/// In which order an engine works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scheduling {
    /// Queue by queue: time shared by weight, and who waits for a reply is served early.
    #[default]
    Fine,
    /// Device by device, a fixed number of requests each.
    PerDevice,
}
