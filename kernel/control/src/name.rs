//! Names of guests, ports and stages.

/// Whether a text is a name: 1 to 32 letters, digits, `-`, `_` and `.`.
#[must_use]
pub fn is_name(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=32).contains(&text.len()) && text.bytes().all(allowed)
}
