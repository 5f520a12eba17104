//! A frame for an uplink, and the route that it takes.

use crate::cursor::Cursor;
use crate::offload::OffloadRequest;
use crate::policy::vlan::{Tagging, Vlan};

/// A guest's frame as the uplink gets it.
pub(crate) struct EgressFrame<'a> {
    /// The port that it comes from.
    pub port: usize,
    /// Its first bytes, as they were checked.
    pub header: &'a [u8],
    /// The rest in the guest's buffers.
    pub rest: Cursor<'a>,
    /// Bytes of the frame.
    pub len: u32,
    /// The offloads that it requests.
    pub request: OffloadRequest,
}

/// The route of a port's frames of one VLAN to an uplink.
#[derive(Clone, Copy)]
pub(crate) struct EgressRoute {
    /// The number of the uplink.
    pub uplink: usize,
    /// How they are tagged there.
    pub tagging: Tagging,
    /// The VLAN.
    pub vlan: Vlan,
}
