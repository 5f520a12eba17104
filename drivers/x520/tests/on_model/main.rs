//! The driver on the model of its device: each test is one behaviour, and ends with a look at what the model has to say
//! against the driver.

#![allow(unsafe_code, reason = "memory is given to a device")]

mod bench;
mod bring_up;
#[path = "../../benches/instructions/cases.rs"]
mod cases;
mod data_path;
mod guarded;
mod offloads;
mod pools;
mod receive;
mod recovery;
mod registers;
mod transmit;
