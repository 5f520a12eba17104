//! How deep a core sleeps that has no work.
//!
//! HLT is C1: the core stops, and keeps its voltage. In a deeper state it takes no power worth naming, which the engines' cores then have for
//! their turbo. The way back takes up to 0.2 ms, so such a core is one that nobody waits for: no guest, no engine, not the control
//! core. MWAIT is the way there (SDM vol. 2B MWAIT, vol. 3A 10.10 "Management of Idle and Blocked Conditions").

use crate::processor::{Features, Processor, Vendor};

/// The deepest state, as MWAIT numbers them. Processors have C6 there, or C3 where that is all they have. What is deeper is for a whole package,
/// which never sleeps while an engine polls.
const DEEPEST: u32 = 3;

/// A state for MWAIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sleep {
    /// EAX of MWAIT: the state less 1 in bits 7:4, its first variant in bits 3:0.
    pub hint: u32,
}

/// Why a core without work halts by HLT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halts {
    /// In a virtual machine it is up to what is beneath.
    Virtual,
    /// By HLT, AMD's cores go as deep as the firmware has set them up for; their MWAIT goes to C1 only.
    Vendor,
    /// The processor has no MWAIT, or the firmware has switched it off.
    NoMwait,
    /// It has no state that is deeper than C1, or the firmware has switched those off.
    NoDeeper,
}

impl Sleep {
    /// The state, as MWAIT numbers them.
    #[must_use]
    pub const fn state(self) -> u32 {
        (self.hint >> 4).saturating_add(1)
    }
}

/// Chooses how a core without work sleeps. `cpuid`: the words of a leaf and a sub-leaf.
///
/// # Errors
/// It halts by HLT.
pub fn sleep(processor: &Processor, cpuid: impl Fn(u32, u32) -> [u32; 4]) -> Result<Sleep, Halts> {
    /// ECX of leaf 5: EDX has the states.
    const STATES: u32 = 1;
    if processor.has(Features::VIRTUAL) {
        return Err(Halts::Virtual);
    }
    if processor.vendor != Vendor::Intel {
        return Err(Halts::Vendor);
    }
    if !processor.has(Features::MWAIT) {
        return Err(Halts::NoMwait);
    }
    let [_, _, extensions, variants] = cpuid(5, 0);
    // Four bits for each state from C0 on: how many variants it has.
    let has =
        |state: &u32| extensions & STATES != 0 && variants.checked_shr(state.saturating_mul(4)).unwrap_or(0) & 0xf != 0;
    match (2..=DEEPEST).rev().find(has) {
        Some(state) => Ok(Sleep { hint: state.saturating_sub(1) << 4 }),
        None => Err(Halts::NoDeeper),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTEL: [u32; 3] = [0x756e_6547, 0x6c65_746e, 0x4965_6e69];
    const AMD: [u32; 3] = [0x6874_7541, 0x444d_4163, 0x6974_6e65];

    /// A processor with these words: ECX of leaf 1, ECX and EDX of leaf 5.
    fn of([b, c, d]: [u32; 3], last: u32, leaf_1: u32, leaf_5: [u32; 2]) -> Result<Sleep, Halts> {
        let cpuid = |leaf: u32, _: u32| match leaf {
            0 => [last, b, c, d],
            1 => [0x50654, 0, leaf_1, 0],
            5 => [0x40, 0x40, leaf_5[0], leaf_5[1]],
            _ => [0; 4],
        };
        sleep(&Processor::new(cpuid), cpuid)
    }

    #[test]
    fn the_deepest_state_of_a_core_is_chosen() {
        for (name, variants, hint) in [
            ("Xeon Gold (Skylake-SP): C1, C1E, C6", 0x2020, 0x20),
            ("Xeon E5 v3 (Haswell-EP): C1, C1E, C3, C6", 0x2120, 0x20),
            ("Core i7 (Skylake): and C7 to C10 of the package", 0x1114_2120, 0x20),
            ("Xeon X5667 (Westmere): C1, C3, C6", 0x1120, 0x20),
            ("only C3", 0x0120, 0x10),
        ] {
            assert_eq!(of(INTEL, 0x16, 0x7ffe_fbff, [3, variants]), Ok(Sleep { hint }), "{name}");
        }
    }

    #[test]
    fn otherwise_it_halts_and_the_reason_is_known() {
        assert_eq!(of(INTEL, 0x16, 0xfffe_fbff, [3, 0x2020]), Err(Halts::Virtual));
        assert_eq!(of(AMD, 0x10, 0x7ffe_fbff, [3, 0x11]), Err(Halts::Vendor));
        assert_eq!(of(INTEL, 0x16, 0x7ffe_fbf7, [3, 0x2020]), Err(Halts::NoMwait));
        assert_eq!(of(INTEL, 4, 0x7ffe_fbff, [3, 0x2020]), Err(Halts::NoMwait));
        assert_eq!(of(INTEL, 0x16, 0x7ffe_fbff, [3, 0x20]), Err(Halts::NoDeeper), "C-states are off in the setup");
        assert_eq!(of(INTEL, 0x16, 0x7ffe_fbff, [0, 0x2020]), Err(Halts::NoDeeper), "the states are not told");
    }
}
