//! Keys of a guest's configuration that can be changed while it runs. The crate `config` reads their values.

use crate::argument::{Argument, Kind, words};

/// The key, as an argument of `set`.
pub(crate) const KEY: Argument = Argument {
    member: Some("key"),
    shown: "KEY",
    needed: true,
    kind: Kind::Choice { what: "key that can be set", words: &SettingKey::NAMES },
};

words! {
    /// A key that can be set.
    SettingKey or Weight {
        /// Its share of the engine's time, relative to the other guests.
        Weight = "weight";
        /// Whether it starts again when it ends.
        Restart = "restart";
    }
}
