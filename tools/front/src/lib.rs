//! Minimal virtio-net and virtio-blk drivers with vhost-user front-ends (virtio 1.3 ch. 2.7, 2.8, 5.1, 5.2). They play a
//! guest's part: tests of `sidecore-vhost` and the switch benchmarks send and receive frames, and read and write disks.
//!
//! [`Port`] connects to the back-end of a network device and negotiates. [`area`] lays out a queue's memory. [`ring`]
//! moves frames. [`disk`] is the driver of a disk.
//!
//! Descriptors and available ring are written once: if buffers come back in order, each descriptor keeps its buffer. The driver
//! also works with a back-end that returns buffers in another order.

pub mod area;
pub mod disk;
mod memory;
mod packed;
mod port;
pub mod ring;
mod ring_messages;

pub use memory::{Memory, Pages};
pub use port::{Connection, Options, Port, features};
