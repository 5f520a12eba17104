//! The vector of `trace eoi`: a number, or `off`.
//!
//! A guest whose local APIC the CPU virtualizes ends its interrupts without an exit, so the trace does not see it. `trace eoi` has
//! the ends of one vector exit, for one guest, as long as the guest runs or until `off`.

use crate::Text;
use crate::argument::{Argument, Kind};
use crate::no_memory::sentence;
use crate::shown::Shortened;

/// The vector, as an argument of the command.
pub(crate) const VECTOR: Argument = Argument { member: Some("value"), shown: "VECTOR", needed: true, kind: Kind::Text };

/// The first vector that a local APIC delivers (SDM vol. 3A 11.5.2).
const FIRST: u8 = 16;

/// Reads a vector, decimal or with `0x`, from 16 to 255. `None`: it is `off`.
///
/// # Errors
/// The sentence to show.
pub fn vector(text: &str) -> Result<Option<u8>, Text> {
    if text == "off" {
        return Ok(None);
    }
    let number = match text.strip_prefix("0x") {
        Some(digits) if digits.bytes().all(|digit| digit.is_ascii_hexdigit()) => u8::from_str_radix(digits, 16).ok(),
        None if text.bytes().all(|digit| digit.is_ascii_digit()) => text.parse().ok(),
        _ => None,
    };
    let vector = number.filter(|&number| number >= FIRST).ok_or_else(|| {
        let got = Shortened(text);
        sentence(format_args!("`{got}` is no vector: expected 16 to 255, such as 0x31, or `off`"))
    });
    vector.map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_is_decimal_or_hexadecimal_and_off_is_none() {
        assert_eq!(
            ["49", "0x31", "16", "255", "0xFF", "off"].map(vector),
            [Some(49), Some(49), Some(16), Some(255), Some(255), None].map(Ok)
        );
        for wrong in ["", "0x", "15", "256", "0x100", "+49", "0x+1", "on", "3 1", "-1"] {
            assert!(vector(wrong).unwrap_err().contains("16 to 255"), "{wrong}");
        }
    }
}
