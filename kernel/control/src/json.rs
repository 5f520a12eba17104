//! Reads a flat JSON object (RFC 8259): its members are texts, integers, booleans or null. It needs no memory but the line
//! itself, in which it replaces escapes by what they stand for.

use core::fmt;
use core::mem;

/// A member's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Text(&'a str),
    Number(u64),
    Flag(bool),
    Null,
}

impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => write!(f, "\"{}\"", crate::shown::Shortened(text)),
            Self::Number(number) => write!(f, "{number}"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Null => f.write_str("null"),
        }
    }
}

/// What is wrong with a line, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bad {
    /// The column in bytes, from 1.
    column: usize,
    /// What was expected there.
    expected: &'static str,
    /// The byte there. `None`: the line ends.
    found: Option<u8>,
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: expected {}, but got ", self.column, self.expected)?;
        match self.found {
            Some(byte @ b' '..=b'~') => write!(f, "`{}`", char::from(byte)),
            Some(byte) => write!(f, "byte {byte:#04x}"),
            None => f.write_str("the end of the line"),
        }
    }
}

/// An object that is being read.
pub(crate) struct Object<'a> {
    /// What is not read yet.
    rest: &'a mut [u8],
    /// The column where `rest` begins.
    column: usize,
    state: State,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before the first member.
    First,
    /// After a member.
    Next,
    /// After the end of the object, or after a mistake.
    Over,
}

impl<'a> Object<'a> {
    /// Begins to read an object.
    ///
    /// # Errors
    /// The line does not begin with an object.
    pub fn new(line: &'a mut [u8]) -> Result<Self, Bad> {
        let mut object = Self { rest: line, column: 1, state: State::First };
        object.expect(b'{', "`{`")?;
        Ok(object)
    }

    /// Reads the next member: its name and its value. `None`: the object and the line have ended.
    ///
    /// # Errors
    /// It is not JSON, or the value is of another kind.
    pub fn next(&mut self) -> Result<Option<(&'a str, Value<'a>)>, Bad> {
        let state = mem::replace(&mut self.state, State::Over);
        match (self.peek(), state) {
            (_, State::Over) => return Ok(None),
            (Some(b'}'), _) => {
                self.skip(1);
                return match self.peek() {
                    None => Ok(None),
                    Some(_) => Err(self.bad("nothing after the object")),
                };
            }
            (_, State::First) => {}
            (_, State::Next) => self.expect(b',', "`,` or `}`")?,
        }
        let name = self.text("the name of a member in quotes")?;
        self.expect(b':', "`:`")?;
        let value = match self.peek() {
            Some(b'"') => Value::Text(self.text("a text")?),
            Some(b'0'..=b'9') => self.number()?,
            Some(b't') => self.word("true", Value::Flag(true))?,
            Some(b'f') => self.word("false", Value::Flag(false))?,
            Some(b'n') => self.word("null", Value::Null)?,
            _ => return Err(self.bad("a text, an integer from 0, true, false or null")),
        };
        self.state = State::Next;
        Ok(Some((name, value)))
    }

    /// The next byte that is no white space. It stays.
    fn peek(&mut self) -> Option<u8> {
        let blanks = self.rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
        self.skip(blanks);
        self.rest.first().copied()
    }

    /// Takes bytes, and returns them.
    fn skip(&mut self, bytes: usize) -> &'a mut [u8] {
        let (taken, rest) = mem::take(&mut self.rest).split_at_mut_checked(bytes).unwrap_or_default();
        self.rest = rest;
        self.column = self.column.saturating_add(bytes);
        taken
    }

    /// The mistake here.
    fn bad(&self, expected: &'static str) -> Bad {
        Bad { column: self.column, expected, found: self.rest.first().copied() }
    }

    fn expect(&mut self, byte: u8, what: &'static str) -> Result<(), Bad> {
        if self.peek() != Some(byte) {
            return Err(self.bad(what));
        }
        self.skip(1);
        Ok(())
    }

    fn word(&mut self, word: &'static str, value: Value<'a>) -> Result<Value<'a>, Bad> {
        if !self.rest.starts_with(word.as_bytes()) {
            return Err(self.bad(word));
        }
        self.skip(word.len());
        Ok(value)
    }

    fn number(&mut self) -> Result<Value<'a>, Bad> {
        let digits = self.rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let (first, after) = (self.rest.first(), self.rest.get(digits));
        if digits > 1 && first == Some(&b'0') || matches!(after, Some(b'.' | b'e' | b'E')) {
            return Err(self.bad("an integer from 0"));
        }
        let value =
            self.rest.iter().take(digits).try_fold(0_u64, |value, digit| {
                value.checked_mul(10)?.checked_add(u64::from(digit.saturating_sub(b'0')))
            });
        let Some(value) = value else { return Err(self.bad("an integer below 2^64")) };
        self.skip(digits);
        Ok(Value::Number(value))
    }

    /// Reads a text in quotes.
    fn text(&mut self, what: &'static str) -> Result<&'a str, Bad> {
        self.expect(b'"', what)?;
        let start = self.column;
        let mut len = 0;
        loop {
            match self.rest.get(len) {
                Some(b'"') => break,
                Some(b'\\') => len = len.saturating_add(2),
                Some(b' '..) => len = len.saturating_add(1),
                _ => {
                    self.skip(len.min(self.rest.len()));
                    return Err(self.bad("the rest of a text, and its closing quote"));
                }
            }
        }
        let bytes = self.skip(len);
        self.skip(1);
        let bad = |at: usize, found, expected| Bad { column: start.saturating_add(at), expected, found };
        let len = unescape(bytes).map_err(|at| bad(at, bytes.get(at).copied(), "an escape of JSON"))?;
        let text: &'a [u8] = bytes.get(..len).unwrap_or_default();
        str::from_utf8(text).map_err(|e| {
            let at = e.valid_up_to();
            bad(at, text.get(at).copied(), "UTF-8")
        })
    }
}

/// Replaces escapes (RFC 8259, 7) by what they stand for. Returns the new length. It is not larger, because no character's
/// UTF-8 is longer than its escape.
///
/// # Errors
/// Where an escape is that is none.
fn unescape(bytes: &mut [u8]) -> Result<usize, usize> {
    let (mut from, mut to) = (0, 0);
    while let Some(&byte) = bytes.get(from) {
        let (taken, character) = match (byte, bytes.get(from.saturating_add(1))) {
            (b'\\', Some(b'n')) => (2, '\n'),
            (b'\\', Some(b'r')) => (2, '\r'),
            (b'\\', Some(b't')) => (2, '\t'),
            (b'\\', Some(b'b')) => (2, '\x08'),
            (b'\\', Some(b'f')) => (2, '\x0c'),
            (b'\\', Some(&same @ (b'"' | b'\\' | b'/'))) => (2, char::from(same)),
            (b'\\', Some(b'u')) => unicode(bytes, from).ok_or(from)?,
            (b'\\', _) => return Err(from),
            _ => {
                bytes.copy_within(from..=from, to);
                (from, to) = (from.saturating_add(1), to.saturating_add(1));
                continue;
            }
        };
        let mut buffer = [0; 4];
        let encoded = character.encode_utf8(&mut buffer).as_bytes();
        let end = to.saturating_add(encoded.len());
        bytes.get_mut(to..end).ok_or(from)?.copy_from_slice(encoded);
        (from, to) = (from.saturating_add(taken), end);
    }
    Ok(to)
}

/// Reads the character of `\uXXXX` at `at`, or of two of them if it has 17 to 21 bits. Returns the bytes of the escape too.
fn unicode(bytes: &[u8], at: usize) -> Option<(usize, char)> {
    let unit = |at: usize| {
        let escape = bytes.get(at..at.checked_add(6)?)?.strip_prefix(b"\\u")?;
        escape.iter().try_fold(0, |value, &digit| Some(value << 4 | char::from(digit).to_digit(16)?))
    };
    let first = unit(at)?;
    if let Some(character) = char::from_u32(first) {
        return Some((6, character));
    }
    // A surrogate pair: the higher ten bits come first.
    let second = unit(at.saturating_add(6))?;
    let high = first.checked_sub(0xd800).filter(|high| *high < 0x400)?;
    let low = second.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
    Some((12, char::from_u32((high << 10 | low).saturating_add(0x1_0000))?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value as Known;

    use super::*;

    /// What this reader reads, in the form of `serde_json`.
    fn read(line: &[u8]) -> Result<serde_json::Map<String, Known>, String> {
        let mut line = line.to_vec();
        let mut object = Object::new(&mut line).map_err(|bad| bad.to_string())?;
        let mut members = serde_json::Map::new();
        while let Some((name, value)) = object.next().map_err(|bad| bad.to_string())? {
            let value = match value {
                Value::Text(text) => text.into(),
                Value::Number(number) => number.into(),
                Value::Flag(flag) => flag.into(),
                Value::Null => Known::Null,
            };
            members.insert(name.into(), value);
        }
        Ok(members)
    }

    #[test]
    fn mistakes_name_the_column_and_what_was_expected() {
        let error = |line: &str| read(line.as_bytes()).unwrap_err();
        assert_eq!(error(""), "column 1: expected `{`, but got the end of the line");
        assert_eq!(error("{"), "column 2: expected the name of a member in quotes, but got the end of the line");
        assert_eq!(error(r#"{"a" 1}"#), "column 6: expected `:`, but got `1`");
        assert_eq!(
            error(r#"{"a":-1}"#),
            "column 6: expected a text, an integer from 0, true, false or null, but got `-`"
        );
        assert_eq!(error(r#"{"a":01}"#), "column 6: expected an integer from 0, but got `0`");
        assert_eq!(error(r#"{"a":1.5}"#), "column 6: expected an integer from 0, but got `1`");
        assert_eq!(error(r#"{"a":18446744073709551616}"#), "column 6: expected an integer below 2^64, but got `1`");
        assert_eq!(error(r#"{"a":"b\x"}"#), r"column 8: expected an escape of JSON, but got `\`");
        assert_eq!(error(r#"{"a":"\ud800"}"#), r"column 7: expected an escape of JSON, but got `\`");
        assert_eq!(
            error("{\"a\":\"b\tc\"}"),
            "column 8: expected the rest of a text, and its closing quote, but got byte 0x09"
        );
        assert_eq!(error("{} x"), "column 4: expected nothing after the object, but got `x`");
        assert_eq!(error(r#"{"a":1,}"#), "column 8: expected the name of a member in quotes, but got `}`");
    }

    /// Texts of a line: pieces of JSON in any order.
    fn line() -> impl Strategy<Value = Vec<u8>> {
        const PIECES: &[&str] = &[
            r#"{"#,
            "}",
            ":",
            ",",
            "\"",
            r#"{"a":"#,
            r#""b":"#,
            "1",
            "0",
            "18446744073709551615",
            "true",
            "false",
            "null",
            r#""text""#,
            r#""\n\"\\\/\b\f\r\t""#,
            r#""\u0041\ud83d\ude00""#,
            r#""\ud83d\ud83d""#,
            "\\",
            " ",
            "x",
            "é",
            "\u{1}",
        ];
        let piece = prop_oneof![
            8 => proptest::sample::select(PIECES).prop_map(|piece| piece.as_bytes().to_vec()),
            1 => any::<u8>().prop_map(|byte| vec![byte]),
        ];
        proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn it_reads_what_serde_json_reads(bytes in line()) {
            let known = serde_json::from_slice::<serde_json::Map<String, Known>>(&bytes);
            let flat = |value: &Known| !value.is_array() && !value.is_object() && (!value.is_number() || value.is_u64());
            match (read(&bytes), known) {
                (Ok(members), Ok(known)) => prop_assert_eq!(members, known),
                (Err(_), Err(_)) => {}
                (Err(why), Ok(known)) => {
                    // A member that comes twice hides the first one from serde_json.
                    let hidden = bytes.windows(2).any(|two| two == b":{" || two == b":-");
                    prop_assert!(hidden || known.values().any(|value| !flat(value)), "{}", why)
                }
                (Ok(members), Err(error)) => prop_assert!(false, "{:?}, but {}", members, error),
            }
        }

        #[test]
        fn every_text_comes_back(text: String, number: u64, flag: bool) {
            let object = serde_json::json!({"text": text, "number": number, "flag": flag, "null": null});
            prop_assert_eq!(Known::Object(read(object.to_string().as_bytes()).unwrap()), object);
        }
    }
}
