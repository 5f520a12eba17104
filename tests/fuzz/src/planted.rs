//! Planted faults. A run of a target with a planted fault has a harness that shows the oracle something wrong, once or often,
//! and the oracle has to see it. Only tests make such runs.

#[cfg(test)]
use std::cell::Cell;

#[cfg(test)]
thread_local! {
    static PLANTED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this run has a planted fault.
#[cfg(test)]
pub fn planted() -> bool {
    PLANTED.get()
}

/// Whether this run has a planted fault: never outside of tests.
#[cfg(not(test))]
pub const fn planted() -> bool {
    false
}

/// Runs a target on random inputs with the planted fault until its oracle panics. The inputs are the same each time, and they
/// take less than a minute.
///
/// # Panics
/// The oracle has seen nothing.
#[cfg(test)]
pub fn is_found(run: impl Fn(&[u8])) {
    const INPUTS: u64 = 500;
    PLANTED.set(true);
    let found = (1..=INPUTS).any(|seed| {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // Xorshift (Marsaglia).
        let bytes: Vec<u8> = std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .take(100 + (seed as usize * 37) % 900)
        .collect();
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(&bytes))).is_err()
    });
    PLANTED.set(false);
    assert!(found, "the oracle does not see the planted fault");
}

/// Runs a target on the inputs that the repository keeps for it: `corpus/NAME`, inputs one after another, before each two bytes with
/// its length.
///
/// # Panics
/// An input does not pass, or the file is cut off.
#[cfg(test)]
pub fn kept_inputs(module: &str, run: fn(&[u8])) {
    let name = module.split("::").nth(1).expect("a module of this crate").replace('_', "-");
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
    let packed = std::fs::read(&path).expect("each target has kept inputs");
    let mut rest = &packed[..];
    while let Some((len, behind)) = rest.split_first_chunk() {
        let (input, behind) = behind.split_at(usize::from(u16::from_le_bytes(*len)));
        run(input);
        rest = behind;
    }
    assert!(rest.is_empty(), "{} is cut off", path.display());
}

/// The tests of a target: the planted fault is found, the kept inputs pass, and so do so many random inputs of such lengths.
macro_rules! tests {
    ($name:ident, $cases:literal, $bytes:expr) => {
        #[cfg(test)]
        mod tests {
            use proptest::prelude::*;

            #[test]
            fn a_planted_fault_is_found() {
                crate::planted::is_found(super::run);
            }

            #[test]
            fn the_kept_inputs_pass() {
                crate::planted::kept_inputs(module_path!(), super::run);
            }

            proptest! {
                #![proptest_config(ProptestConfig { cases: $cases, failure_persistence: None, ..ProptestConfig::default() })]

                #[test]
                fn $name(bytes in prop::collection::vec(any::<u8>(), $bytes)) {
                    super::run(&bytes);
                }
            }
        }
    };
}
pub(crate) use tests;
