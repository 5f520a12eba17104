//! `requests`: how the engine learns of a device's requests.

use serde::Deserialize;

/// `requests`.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Requests {
    /// The engine polls the queues in each turn.
    #[default]
    Poll,
    /// Drivers write to their kick eventfds.
    Notify,
    /// Either, depending on the load.
    Adaptive,
}
