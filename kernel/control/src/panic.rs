//! Writes the `panic` event without the heap, because the heap may be the cause of the panic.

use core::fmt::{self, Display, Write};

use crate::terminal::is_deceptive;

/// Writes the line of [`crate::Event::Panic`] to `out`. The backtrace is innermost first. An entry is anything that
/// implements `Display`.
///
/// # Errors
/// Those of `out`.
pub fn write_panic<T: Display>(
    out: &mut dyn Write,
    message: &dyn Display,
    location: &dyn Display,
    backtrace: impl Iterator<Item = T>,
) -> fmt::Result {
    out.write_str(r#"{"event":"panic","message":""#)?;
    write!(Escaping(out), "{message}")?;
    out.write_str(r#"","location":""#)?;
    write!(Escaping(out), "{location}")?;
    out.write_str(r#"","backtrace":["#)?;
    for (index, entry) in backtrace.enumerate() {
        out.write_str(if index == 0 { "\"" } else { ",\"" })?;
        write!(Escaping(out), "{entry}")?;
        out.write_char('"')?;
    }
    out.write_str("]}\n")
}

/// Escapes text for a JSON string (RFC 8259, 7).
struct Escaping<'a>(&'a mut dyn Write);

impl Write for Escaping<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            match character {
                '"' => self.0.write_str("\\\"")?,
                '\\' => self.0.write_str("\\\\")?,
                '\n' => self.0.write_str("\\n")?,
                c if c < ' ' || is_deceptive(c) => write!(self.0, "\\u{:04x}", u32::from(c))?,
                c => self.0.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Event;

    #[test]
    fn the_panic_line_reads_back_as_the_event() {
        for backtrace in [std::vec!["a::b<\"c\">".to_string(), "0x1234".to_string()], std::vec![]] {
            let mut line = String::new();
            write_panic(&mut line, &"bad \"value\"\n\\\u{1}", &"a.rs:1:2", backtrace.iter()).unwrap();
            let expected =
                Event::Panic { message: "bad \"value\"\n\\\u{1}".into(), location: "a.rs:1:2".into(), backtrace };
            assert_eq!(Event::from_line(&line), Ok(expected), "{line}");
        }
    }
}
