//! What the frames of a port may do, and who it is.

use alloc::vec::Vec;
use core::net::IpAddr;

use crate::mac::Mac;

/// The rules of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// Its VLANs.
    pub vlan: Vlan,
    /// Frames for many that it may send in a second.
    pub storm: Option<u32>,
    /// Stages for what the guest sends, or for what goes out, in their order: their numbers in the configuration.
    pub tx: Vec<usize>,
    /// Stages for what the guest gets, or for what comes from outside.
    pub rx: Vec<usize>,
}

/// The VLANs of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Vlan {
    /// It knows of none.
    #[default]
    Plain,
    /// In one, without a tag.
    Access(u16),
    /// In several, with a tag.
    Trunk {
        /// Which.
        vlans: Vec<u16>,
        /// The one of frames without a tag.
        native: Option<u16>,
    },
}

/// Who a guest's port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Whether frames have to come from the addresses that are configured.
    pub anti_spoofing: bool,
    /// Its addresses of the network layer; none: they are not looked at.
    pub addresses: Vec<IpAddr>,
    /// Addresses of the link layer that are always behind it, besides its own.
    pub fixed: Vec<Mac>,
}

impl Default for Identity {
    fn default() -> Self {
        Self { anti_spoofing: true, addresses: Vec::new(), fixed: Vec::new() }
    }
}
