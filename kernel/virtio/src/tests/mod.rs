//! Queues against a driver's half.

mod differential;
#[expect(clippy::duplicate_mod, reason = "the same tests on rings of the other form")]
mod packed;
mod packed_ring;
mod purpose;
mod span;
#[expect(clippy::duplicate_mod, reason = "the same tests on rings of the other form")]
mod split;
mod split_ring;
mod support;
