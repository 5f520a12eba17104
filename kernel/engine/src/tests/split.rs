//! What holds for rings of either form, on split rings.

use super::{Bench, Recorder};
use crate::shared::Features;
use crate::testing::SPLIT;

/// Every feature.
const ALL: Features = SPLIT;
/// No feature that need not be.
const PLAIN: Features = Features::VERSION_1;
/// Whether rings are packed.
const PACKED: bool = false;

#[path = "controlq.rs"]
mod controlq;
#[path = "net.rs"]
mod net;
#[path = "offload.rs"]
mod offload;
#[path = "policy.rs"]
mod policy;
#[path = "requests.rs"]
pub mod requests;
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
