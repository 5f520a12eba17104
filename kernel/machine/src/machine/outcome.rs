//! How the handling of an exit ends.

use super::stop::Stop;
use crate::{
    decode::Undecodable,
    power::Request,
    vcpu::{Event, Interrupted},
};

/// How the handling of an exit ends.
pub(super) enum Outcome {
    /// The guest goes on.
    Done,
    /// The guest goes on with this event.
    Raise(Event),
    /// The instruction cannot be decoded. The guest gets a fault, or the instruction runs again.
    Undecodable(Undecodable),
    /// A triple fault. The event is the one that could not be delivered, if it is known.
    TripleFault(Option<Interrupted>),
    /// The guest stops.
    Stop(Stop),
}

impl From<Undecodable> for Outcome {
    fn from(u: Undecodable) -> Self {
        Self::Undecodable(u)
    }
}

impl From<Option<Request>> for Outcome {
    fn from(request: Option<Request>) -> Self {
        match request {
            None => Self::Done,
            Some(Request::PowerOff) => Self::Stop(Stop::PowerOff),
            Some(Request::Reset) => Self::Stop(Stop::Reset),
        }
    }
}
