//! The SHA-256 of a module (FIPS 180-4).

use core::fmt;

/// The SHA-256 of some bytes. It is shown as `sha256sum` prints it: 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Sha256(pub [u8; 32]);

impl Sha256 {
    /// Reads 64 hexadecimal digits, of either case. `None` for any other text.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 32];
        let digits = text.as_bytes();
        if digits.len() != const { 2 * size_of::<Self>() } {
            return None;
        }
        let value = |digit: u8| u8::try_from(char::from(digit).to_digit(16)?).ok();
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let &[high, low] = pair else { return None };
            *byte = value(high)? << 4 | value(low)?;
        }
        Some(Self(bytes))
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_64_digits_and_is_shown_as_it_is_read() {
        let shown = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
        assert_eq!(Sha256::parse(shown).unwrap().to_string(), shown);
        assert_eq!(Sha256::parse(&shown.to_uppercase()).unwrap().to_string(), shown);
        for wrong in ["", &shown[1..], &format!("{shown}0"), &shown.replace('a', "g"), &"é".repeat(32)] {
            assert_eq!(Sha256::parse(wrong), None, "{wrong}");
        }
    }
}
