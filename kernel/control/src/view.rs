//! What `show` shows.

use crate::Text;
use crate::argument::{Argument, Given, Kind, Value};

/// The view, as an argument of `show`. On COM2 it is always the default.
pub(crate) const VIEW: Argument =
    Argument { member: None, shown: "[WHAT]", needed: false, kind: Kind::Choice { what: "view", words: &View::NAMES } };

/// Makes [`View`], its names, and both directions between them.
macro_rules! views {
    ($($(#[$about:meta])* $name:ident = $word:literal;)+) => {
        /// What `show` shows.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum View {
            $($(#[$about])* $name,)+
        }

        impl View {
            /// The views as they are typed.
            pub const NAMES: [&'static str; [$($word),+].len()] = [$($word),+];

            /// All views.
            pub const ALL: [Self; Self::NAMES.len()] = [$(Self::$name),+];

            /// As it is typed.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $word),+
                }
            }
        }
    };
}

views! {
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
}

impl Value for View {
    fn read(given: Given<'_>) -> Result<Self, Text> {
        // Other words are refused before.
        let is_it = |view: &Self| given == Given::Text(view.name());
        Ok(Self::ALL.into_iter().find(is_it).unwrap_or(Self::Counters))
    }

    fn given(&self) -> Given<'_> {
        Given::Text(self.name())
    }
}
