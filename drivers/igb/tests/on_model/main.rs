//! The driver on a model of its device.

#![allow(unsafe_code, reason = "memory is given to a model of a device")]

mod bench;
mod bring_up;
mod link;
mod receive;
mod recovery;
mod transmit;
