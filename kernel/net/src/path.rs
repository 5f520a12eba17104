//! The paths of a frame, in the order in which to read them. [`crate::backend`] chooses between them.
//!
//! | file | from | to | takes |
//! |---|---|---|---|
//! | `fast` | a guest | a guest | a batch of frames of one flow |
//! | `egress_fast` | a guest | an uplink | a batch of frames with the same addresses |
//! | `slow` | a guest | guests, an uplink | one frame, of every form that the rules allow |
//! | `offloaded` | a guest | a guest that cannot take the frame as it is | one frame |
//! | `ingress` | an uplink | guests | one frame |
//! | `delivery` | - | - | what the paths share: counting a delivery, copying from guest to guest |
//! | `watched` | - | - | shows frames to whoever watches them |

mod delivery;
mod egress_fast;
mod fast;
pub(crate) mod ingress;
mod offloaded;
mod slow;
pub(crate) mod watched;
