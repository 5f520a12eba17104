//! The driver on the model of its device.

#![allow(unsafe_code, reason = "memory is given to a model of a device")]
#![allow(missing_docs, reason = "tests say by their names what they check")]

mod bench;
mod bring_up;
mod data;
mod events;
mod faults;
mod prp;
