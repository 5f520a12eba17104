//! A model of Intel's 82599 (X520) network controller, to test drivers on.
//!
//! It is written from the data sheet (Intel document 331520), not from a driver. A test sees three things: registers
//! ([`Model::read`], [`Model::write`]), a memory for DMA of which the device reaches only granted parts
//! ([`memory::Memory`]), and a wire ([`Model::deliver`], [`Model::take_sent`]). Nothing happens by itself:
//! [`Model::advance`] lets time pass, [`Model::run`] lets the device work.
//!
//! The model reports a driver's mistake as a [`Diagnostic`], not by a panic, so that a test can assert on it. A correct
//! driver causes none. [`Faults`] makes the device fail.
//!
//! The driver's register table and this one are separate on purpose: a mistake in one shows as a difference.

mod access;
mod backplane;
mod control;
mod descriptor;
pub mod diagnostic;
pub mod eeprom;
mod faults;
mod filter;
mod flow;
mod i2c;
mod interrupt;
mod link;
pub mod made;
pub mod memory;
mod model;
pub mod packet;
pub mod pcap;
mod pools;
mod receive;
pub mod registers;
pub mod rss;
mod segment;
pub mod sfp;
mod state;
mod statistics;
mod steering;
#[cfg(test)]
mod testing;
mod transmit;
mod two_wire;

pub use backplane::Offers;
pub use diagnostic::{Diagnostic, Direction};
pub use faults::Faults;
pub use model::{Config, Model};
