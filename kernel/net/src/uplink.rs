//! Uplinks: NICs that connect the switch to the network outside.
//!
//! ```text
//!  guest ─▶ Frame: header checked and copied ─▶ Uplink::send ─▶ NIC reads the rest in guest memory ─▶ wire
//!                                                  │ holds the guest's token until the NIC is done
//!  guest ◀── token completed ◀── Uplink::reclaim ◀─┘
//!
//!  wire ─▶ NIC's own buffers ─▶ Uplink::poll ─▶ one copy into the receiver's buffers ─▶ guest
//! ```
//!
//! Checksums and segmentation are left to a NIC that can do them, and otherwise done here. A frame that is segmented
//! here leaves as several frames, which together hold one request.
//!
//! The memory of a guest is not released while the NIC may read it. `Uplink::holds` says whether it may; the engine
//! waits for that before a reset or a detach is done.
//!
//! Frames from the wire are delivered to the addresses of guests only. Addresses outside are not learned, because every
//! other address is outside. `uplink_choice.rs` chooses between several uplinks.

mod egress_frame;
pub(crate) mod held;
mod nic;
mod none;

pub(crate) use egress_frame::{EgressFrame, EgressRoute};
pub use held::Held;
pub(crate) use nic::MAX_PIECE;
pub use nic::{MAX_UPLINKS, Uplink};
pub use none::NoNic;
