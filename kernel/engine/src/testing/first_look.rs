//! What others can see during a turn, for tests of this crate and others.

use core::cell::Cell;

use crate::backend::Backend;
use crate::deliver::Deliver;
use crate::engine::Engine;
use crate::observe::Unobserved;
use crate::schedule::Schedule;

/// Runs a counted turn that begins at time 1. Returns what `look` sees when the turn first reads the clock, and at its
/// end. The clock advances by one for each time it is read.
///
/// # Panics
/// If the turn does not read the clock.
pub fn looks_in_a_turn<B: Backend, S: Schedule, D: Deliver, T: Copy>(
    engine: &mut Engine<B, S, D>,
    look: impl Fn() -> T,
) -> [T; 2] {
    let (reads, first) = (Cell::new(0), Cell::new(None));
    engine.counted_turn(
        1,
        &|| {
            if reads.replace(reads.get() + 1) == 0 {
                first.set(Some(look()));
            }
            1 + reads.get()
        },
        &Unobserved,
    );
    [first.get().expect("the turn reads the clock"), look()]
}
