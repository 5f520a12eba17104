// The tests of what holds for rings of either form. `packed.rs` and `split.rs` include them and say which form it is.

/// Every feature of a device that completes requests in any order.
const OUT_OF_ORDER: Features = ALL.difference(Features::IN_ORDER);

#[path = "attach.rs"]
mod attach;
#[path = "follow.rs"]
mod follow;
#[path = "interrupts.rs"]
mod interrupts;
#[path = "kicks_only.rs"]
mod kicks_only;
#[path = "lone_request.rs"]
mod lone_request;
#[path = "queue_reset.rs"]
mod queue_reset;
#[path = "requests.rs"]
mod requests;
#[path = "tokens.rs"]
mod tokens;
#[path = "turns.rs"]
mod turns;
