//! A model of Intel's 82599 (X520) network controller, to test drivers on.
//!
//! It behaves as the data sheet (Intel document 331520) says and is written from that, not from a driver. A test has
//! three faces of it: registers ([`Model::read`], [`Model::write`]), a memory to DMA into ([`memory::Memory`], in which
//! only what was granted can be reached), and a wire ([`Model::deliver`], [`Model::take_sent`]). Nothing happens by
//! itself: [`Model::advance`] lets time pass, [`Model::run`] lets the device work.
//!
//! What a driver must not do is no panic but a [`Diagnostic`], which a test can assert on; a driver that is right causes
//! none. [`Faults`] makes the device fail.
//!
//! The driver's register table and this one are separate on purpose: a mistake in one shows as a difference.

mod access;
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
pub mod memory;
mod model;
pub mod packet;
pub mod pcap;
mod pools;
mod receive;
pub mod registers;
pub mod rss;
mod segment;
mod sfp;
mod state;
mod statistics;
mod steering;
#[cfg(test)]
mod testing;
mod transmit;

pub use diagnostic::{Diagnostic, Direction};
pub use faults::Faults;
pub use model::{Config, Model};
