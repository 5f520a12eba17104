//! Tests of the whole crate: the loop, its schedules and its commands together with a driver's half and a back-end that
//! stands for any.

mod clock;
mod errand;
mod idle;
mod observe;
#[expect(clippy::duplicate_mod, reason = "the same tests on rings of the other form")]
mod packed;
mod pair;
#[expect(clippy::duplicate_mod, reason = "the same tests on rings of the other form")]
mod split;
mod split_ring;
mod support;
