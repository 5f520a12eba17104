//! What `show` shows.

use crate::argument::{Argument, Kind, words};

/// The view, as an argument of `show`. On COM2 it is always the default.
pub(crate) const VIEW: Argument =
    Argument { member: None, shown: "[WHAT]", needed: false, kind: Kind::Choice { what: "view", words: &View::NAMES } };

words! {
    /// What `show` shows.
    View or Counters {
        /// All counters.
        Counters = "counters";
        /// Exits by guest, vCPU and reason.
        Exits = "exits";
        /// Engine utilisation.
        Engine = "engine";
        /// Network ports.
        Ports = "ports";
        /// Memory of the hypervisor and of the guests.
        Memory = "memory";
        /// Who changed what.
        Audit = "audit";
        /// The configuration that runs.
        Config = "config";
        /// How long exits, turns and visits took.
        Latency = "latency";
        /// The modules.
        Modules = "modules";
        /// What was applied last.
        Apply = "apply";
    }
}
