//! The views: each makes a sheet of what is known.

mod device;
mod disk;
mod engine;
mod guest;
mod latency;
mod log;
mod machine;
mod nothing;
mod port;

use crate::sheet::Sheet;
use crate::state::State;

/// A view.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum View {
    /// Cores by their role, and the hypervisor itself.
    #[default]
    Machine,
    /// Engines: turns, time, batches, and how queues are looked at.
    Engine,
    /// Guests, and a guest's exits by reason.
    Guest,
    /// Network ports and uplinks.
    Port,
    /// Disks.
    Disk,
    /// Events, and guests' output.
    Log,
}

impl View {
    /// All views, in the order of their keys.
    pub const ALL: [Self; 6] = [Self::Machine, Self::Engine, Self::Guest, Self::Port, Self::Disk, Self::Log];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::Engine => "engine",
            Self::Guest => "guest",
            Self::Port => "port",
            Self::Disk => "disk",
            Self::Log => "log",
        }
    }

    /// What the view shows. `detail`: of one row of its main table only, and more of it.
    #[must_use]
    pub fn sheet(self, state: &State, detail: Option<&str>) -> Sheet {
        match (self, detail, &state.pair()) {
            // The log needs no counters.
            (Self::Log, None, _) => log::sheet(state),
            (Self::Log, Some(id), _) => log::detail(state, id),
            (_, _, None) => nothing::yet(self.name()),
            (Self::Machine, None, Some(pair)) => machine::sheet(state, pair),
            (Self::Machine, Some(_), Some(_)) => machine::report(state),
            (Self::Engine, None, Some(pair)) => engine::sheet(state, pair),
            (Self::Engine, Some(id), Some(pair)) => engine::detail(state, pair, id),
            (Self::Guest, None, Some(pair)) => guest::sheet(state, pair),
            (Self::Guest, Some(id), Some(pair)) => guest::detail(state, pair, id),
            (Self::Port, None, Some(pair)) => port::sheet(state, pair),
            (Self::Port, Some(id), Some(pair)) => port::detail(state, pair, id),
            (Self::Disk, None, Some(pair)) => disk::sheet(pair),
            (Self::Disk, Some(id), Some(pair)) => disk::detail(pair, id),
        }
    }
}
