//! Tests of the driver on the model of its device. Each test is one behaviour, and ends with a check of the model's
//! diagnostics.

#![allow(unsafe_code, reason = "memory is given to a device")]

mod bench;
mod bring_up;
#[path = "../../benches/instructions/cases.rs"]
mod cases;
mod data_path;
mod guarded;
mod hostile_wire;
mod link;
mod offloads;
mod pools;
mod receive;
mod recovery;
mod registers;
mod transmit;
