//! Tests of the whole crate: engine, queues and net back-end together with a driver's half.

mod attackers;
mod hostile_packed;
mod hostile_split;
#[expect(clippy::duplicate_mod, reason = "the same tests on rings of the other form")]
mod packed;
#[expect(clippy::duplicate_mod, reason = "the same tests on rings of the other form")]
mod split;
mod support;
