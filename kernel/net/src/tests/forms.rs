// The tests of what holds for rings of either form. `packed.rs` and `split.rs` include them and say which form it is.

/// Every feature of a port whose frames can leave by an uplink, which holds their buffers until they are sent.
const LEAVING: Features = ALL.difference(Features::IN_ORDER);

#[path = "batch_regions.rs"]
mod batch_regions;
#[path = "between_guests.rs"]
mod between_guests;
#[path = "both_paths.rs"]
mod both_paths;
#[path = "both_paths_egress.rs"]
mod both_paths_egress;
#[path = "control_queue.rs"]
mod control_queue;
#[path = "kicks_only.rs"]
mod kicks_only;
#[path = "lone_frame.rs"]
mod lone_frame;
#[path = "offload.rs"]
mod offload;
#[path = "policy.rs"]
mod policy;
#[path = "resized_rings.rs"]
mod resized_rings;
#[path = "several_uplinks.rs"]
mod several_uplinks;
#[path = "threads.rs"]
mod threads;
#[path = "uplink.rs"]
mod uplink;
#[path = "uplink_rules.rs"]
mod uplink_rules;
#[path = "uplink_watched.rs"]
mod uplink_watched;
#[path = "wire.rs"]
mod wire;
