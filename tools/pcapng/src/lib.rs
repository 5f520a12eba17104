//! Captured frames as pcap-ng (draft-ietf-opsawg-pcapng), for Wireshark, tshark and tcpdump.
//!
//! - Each port is an interface, an uplink's too. Its name is the port's.
//! - Each frame is an Enhanced Packet Block with its whole length. Its flags say whether the guest sent it (inbound: the port
//!   received it) or it was for the guest. At an uplink inbound is from the wire. Its comment says what became of it.
//! - A frame before which others are missing has their number too.
//! - At the end, each interface has a statistics block: frames that the filter took (`ifrecv`), and those of them that are missing
//!   (`ifdrop`).
//!
//! [`live`] writes frames while they come, and knows of losses only what came before. `sidecore-trace export` writes a whole trace in
//! the order of time. Both use [`block`]. [`pipe`] and [`filter`] are for those who capture, and [`only`] keeps out the frames of ports that
//! others capture.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

pub mod block;
pub mod clock;
pub mod filter;
pub mod live;
pub mod names;
pub mod only;
pub mod pipe;
