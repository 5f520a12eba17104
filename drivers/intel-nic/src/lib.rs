//! What the drivers of Intel's network controllers share: the 82599 (`x520`), and the 82576 and the I350 (`igb`).
//!
//! These devices have the same "advanced" descriptors, in rings of the same form. So the whole data path is here, and
//! the drivers say by the trait [`family::Family`] what differs. The way to a reset device is here too; by [`life::Steps`] the
//! drivers say what follows. What a driver has of its own are its registers, their setup after a reset, its link and statistics.
//!
//! | | |
//! |---|---|
//! | [`mod@registers`] | registers as rows of a table, and the way to them |
//! | [`dma`], `tokens` | memory that the device reaches; tokens of frames in a transmit queue |
//! | `descriptor`, `offload`, [`transmit`], [`receive`] | the data path |
//! | [`filter`] | the receive filter, and how one list of addresses replaces another without a gap |
//! | [`semaphore`], [`lights`] | semaphores shared with firmware; the light of a port that blinks |
//! | [`state`], [`life`] | states of a device, and the way from one to the next |
//! | [`guarded`], [`id`] | control of bus mastering; PCI identifiers |

#![cfg_attr(not(test), no_std)]
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

extern crate alloc;

mod descriptor;
pub mod dma;
pub mod family;
pub mod filter;
pub mod guarded;
pub mod id;
pub mod life;
pub mod lights;
mod offload;
pub mod receive;
pub mod registers;
pub mod semaphore;
pub mod state;
mod tokens;
pub mod transmit;

pub use nic;
pub use offload::MAX_HEADER;
