//! A minimal virtio-net driver with a vhost-user front-end (virtio 1.3 ch. 2.7, 2.8, 5.1). It plays a guest's part: tests of
//! `sidecore-vhost` and the switch benchmarks send and receive frames with it.
//!
//! [`Port`] connects to the back-end and negotiates. [`area`] lays out a queue's memory. [`ring`] moves frames.
//!
//! Descriptors and available ring are written once: if buffers come back in order, each descriptor keeps its buffer. The driver
//! also works with a back-end that returns buffers in another order.

pub mod area;
mod memory;
mod packed;
mod port;
pub mod ring;

pub use memory::{Memory, Pages};
pub use port::{Connection, Options, Port, features};
