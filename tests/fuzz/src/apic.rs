//! The guest's local APIC and IOAPIC, against models that are written here from SDM vol. 3A ch. 11 and the 82093AA data sheet:
//! arrays of bits and a count that runs down. After each step every register, the next interrupt, the timer's deadline and what
//! was sent have to be the same.

mod ioapic;
mod local;

use crate::input::Input;

/// Runs one input.
///
/// # Panics
/// An APIC is wrong.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    if input.byte().is_multiple_of(4) {
        ioapic::run(&mut input);
    } else {
        local::run(&mut input);
    }
}

crate::planted::tests!(apics_do_what_their_models_do, 512, 0..600);
