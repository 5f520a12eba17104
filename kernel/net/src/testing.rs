//! Test support for this crate and others: guests with a network device, whose driver behaves like Linux's, the load
//! whose instructions are counted, and attackers.

pub mod attackers;
pub mod forward;
mod guest;
mod idle;

pub use engine::testing::Recorder;
pub use guest::{BROADCAST, Guest, SPLIT};
pub use idle::Idle;
pub use virtio::testing::{AVAIL, BUFFER_STRIDE, BUFFERS, Buffer, DriverQueue, MEMORY, RING_AREA, TABLES, USED};
