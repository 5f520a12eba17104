// The tests of what holds for rings of either form. `packed.rs` and `split.rs` include them and say which form it is.

/// Every feature of a port whose frames can leave by an uplink, which holds their buffers until they are sent.
const LEAVING: Features = ALL.difference(Features::IN_ORDER);

#[path = "controlq.rs"]
mod controlq;
#[path = "leaving.rs"]
mod leaving;
#[path = "lone.rs"]
mod lone;
#[path = "net.rs"]
mod net;
#[path = "offload.rs"]
mod offload;
#[path = "policy.rs"]
mod policy;
#[path = "queue_reset.rs"]
mod queue_reset;
#[path = "requests.rs"]
pub mod requests;
#[path = "ring.rs"]
pub mod ring;
#[path = "runs.rs"]
mod runs;
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
