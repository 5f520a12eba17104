//! What holds for rings of either form, on packed rings.

use super::{Bench, Recorder};
use crate::shared::Features;

/// Every feature.
const ALL: Features = Features::all();
/// No feature that need not be.
const PLAIN: Features = Features::VERSION_1.union(Features::RING_PACKED);
/// Whether rings are packed.
const PACKED: bool = true;

#[path = "controlq.rs"]
mod controlq;
#[path = "net.rs"]
mod net;
#[path = "offload.rs"]
mod offload;
#[path = "policy.rs"]
mod policy;
#[path = "requests.rs"]
mod requests;
#[path = "ring.rs"]
pub mod ring;
#[path = "threads.rs"]
mod threads;
#[path = "tokens.rs"]
mod tokens;
#[path = "uplink.rs"]
mod uplink;
#[path = "uplink_rules.rs"]
mod uplink_rules;
#[path = "uplinks.rs"]
mod uplinks;
#[path = "ways.rs"]
mod ways;
