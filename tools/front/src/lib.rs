//! A guest without a guest: the front-end's half of vhost-user and the driver's half of virtio-net, as bare as they can
//! be, to test `sidecore-vhost` with and to measure switches by (virtio 1.3 ch. 2.7, 2.8, 5.1).
//!
//! [`Port`] connects and negotiates; [`ring`] moves frames. Descriptors and available rings are written once, since a queue
//! of which everything comes back in order has the same buffer at the same place for ever; a switch that gives buffers
//! back in another order is noticed, and served.

pub mod area;
mod memory;
mod packed;
mod port;
pub mod ring;

pub use memory::{Memory, Pages};
pub use port::{Kept, Options, Port, features};
