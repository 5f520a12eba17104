//! Rules and addresses of a port.

use alloc::vec::Vec;
use core::net::IpAddr;

use crate::mac::Mac;

/// The storm limit of a port without `storm`, in frames a second. A machine sends some hundred broadcasts a second at most, and
/// each of them is copied to every port of its VLAN.
pub const DEFAULT_STORM: u32 = 10_000;

/// The rules of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Its VLANs.
    pub vlan: Vlan,
    /// Broadcasts, multicasts and frames to unknown addresses that it may send in a second. `None`: any number.
    pub storm: Option<u32>,
    /// Stages for frames that the guest sends or that leave by the uplink, in their order, as indexes of
    /// `Config::stages`.
    pub tx: Vec<usize>,
    /// Stages for frames that the guest receives or that come by the uplink, in their order, as indexes of
    /// `Config::stages`.
    pub rx: Vec<usize>,
}

impl Default for Rules {
    fn default() -> Self {
        Self { vlan: Vlan::Plain, storm: Some(DEFAULT_STORM), tx: Vec::new(), rx: Vec::new() }
    }
}

/// The VLANs of a port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Vlan {
    /// The port is in no VLAN. A tag is payload.
    #[default]
    Plain,
    /// The port is in one VLAN, and its frames have no tag.
    Access(u16),
    /// The port is in several VLANs, and its frames have a tag.
    Trunk {
        /// The VLANs of frames with a tag.
        vlans: Vec<u16>,
        /// The VLAN of frames without a tag.
        native: Option<u16>,
    },
}

/// The addresses of a guest's port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Whether the port may send only under the configured addresses.
    pub anti_spoofing: bool,
    /// Its IP addresses. If empty, IP addresses are not checked.
    pub addresses: Vec<IpAddr>,
    /// MAC addresses behind the port, besides its own.
    pub fixed: Vec<Mac>,
}

impl Default for Identity {
    fn default() -> Self {
        Self { anti_spoofing: true, addresses: Vec::new(), fixed: Vec::new() }
    }
}
