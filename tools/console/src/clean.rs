//! Makes any text safe to show: one line of printable characters of known width, of limited length.

use unicode_width::UnicodeWidthChar as _;

/// What stands for a character that is not shown.
pub const REPLACEMENT: char = '\u{fffd}';
/// Most characters of a name.
pub const NAME: usize = 40;
/// Most characters of a line of the log.
pub const LINE: usize = 400;
/// Longest control sequence that is taken for one. The rest of a longer one is text.
const SEQUENCE: usize = 64;

/// Makes a text safe. Returns at most `most` characters; a longer text ends with `~`.
///
/// - Colours and other control sequences (ESC `[` ... letter; ECMA-48 5.4) are left out, and a tab becomes a space.
/// - Every other character that a terminal takes for more than a printable one becomes U+FFFD: controls, ESC, characters without
///   width, characters that turn the direction of writing, separators of lines, private ones.
///
/// ```
/// use sidecore_console::clean::clean;
/// assert_eq!(clean("\u{1b}[31mred\u{1b}[0m\tand\u{7}", 40), "red and\u{fffd}");
/// assert_eq!(clean("abcdef", 4), "abc~");
/// ```
#[must_use]
pub fn clean(text: &str, most: usize) -> String {
    let mut out = String::new();
    let mut length = 0_usize;
    let mut rest = text.chars();
    while let Some(character) = rest.next() {
        let shown = match character {
            '\t' => ' ',
            '\u{1b}' => match sequence(rest.as_str()) {
                Some(behind) => {
                    rest = behind.chars();
                    continue;
                }
                None => REPLACEMENT,
            },
            other if is_shown(other) => other,
            _ => REPLACEMENT,
        };
        if length >= most {
            out.pop();
            out.push('~');
            break;
        }
        out.push(shown);
        length = length.saturating_add(1);
    }
    out
}

/// What is behind a control sequence, whose ESC has been read. `None`: it is no whole sequence.
fn sequence(text: &str) -> Option<&str> {
    let parameters = text.strip_prefix('[')?;
    let (end, last) = parameters.char_indices().take(SEQUENCE).find(|(_, c)| !matches!(c, ' '..='?'))?;
    matches!(last, '@'..='~').then(|| parameters.get(end.saturating_add(1)..))?
}

/// Whether a character is shown as it is: printable, one or two columns wide, and without an effect on its neighbours.
#[must_use]
pub fn is_shown(character: char) -> bool {
    // Separators of lines, characters that turn the direction of writing, fillers, private use, variation selectors.
    let special = matches!(
        character,
        '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e000}'..='\u{f8ff}' | '\u{fe00}'..='\u{fe0f}' | '\u{1f1e6}'..='\u{1f1ff}' | '\u{1f3fb}'..='\u{1f3ff}'
            | '\u{e0000}'..='\u{10ffff}'
    );
    !special && !character.is_control() && matches!(character.width(), Some(1 | 2))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_clean(text: &str) -> bool {
        text.chars().all(is_shown)
    }

    #[test]
    fn what_a_terminal_obeys_is_not_shown() {
        for (text, shown) in [
            ("\u{1b}]0;title\u{7}", "\u{fffd}]0;title\u{fffd}"),
            ("\u{1b}[2J\u{1b}[1;1Hx", "x"),
            ("\u{1b}[", "\u{fffd}["),
            ("\u{1b}[31\u{1b}[mx", "\u{fffd}[31x"),
            ("a\u{202e}b\u{9b}31m\r\n", "a\u{fffd}b\u{fffd}31m\u{fffd}\u{fffd}"),
            ("e\u{301}", "e\u{fffd}"),
            ("Grüße 漢字 │", "Grüße 漢字 │"),
        ] {
            assert_eq!(clean(text, 80), shown, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn any_text_becomes_a_clean_one_of_limited_length(text in any::<String>(), most in 1_usize..50) {
            let cleaned = clean(&text, most);
            prop_assert!(is_clean(&cleaned) && cleaned.chars().count() <= most, "{:?}", cleaned);
            prop_assert_eq!(clean(&cleaned, most), cleaned.clone());
        }
    }
}
