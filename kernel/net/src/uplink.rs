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
//! A NIC that can do checksums and segmentation does them. Otherwise they are done here. A frame that is segmented here
//! leaves as several frames, which together hold one request.
//!
//! The memory of a guest is not released while the NIC may read it. `Uplink::holds` returns whether the NIC may. The
//! engine ends a reset or a detachment only when it returns false.
//!
//! Frames from the wire are delivered to the addresses of guests only. Addresses outside are not learned, because every
//! other address is outside. `uplink_choice.rs` chooses between several uplinks.

mod egress_frame;
pub(crate) mod held;
mod nic;
mod none;
mod shared;
mod watched;

pub(crate) use egress_frame::{EgressFrame, EgressRoute};
pub use held::Held;
pub(crate) use nic::MAX_PIECE;
pub use nic::{MAX_UPLINKS, Uplink};
pub use none::NoNic;
pub use shared::UplinkShared;
pub(crate) use watched::Watched;
