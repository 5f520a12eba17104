//! Sizes of memory as people write them: `512M`, `2G`, `1536MiB`. The units are binary, as in other tools for virtual
//! machines.

use core::fmt;

/// Reads a size in bytes.
pub(crate) fn parse(text: &str) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim_start() {
        "M" | "MB" | "MiB" => 20,
        "G" | "GB" | "GiB" => 30,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(1 << shift)
}

/// Shows a size in the largest unit that keeps it exact. Rounds down to whole MiB.
pub(crate) fn show(bytes: u64) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        let mebibytes = bytes >> 20;
        if mebibytes.is_multiple_of(1024) && mebibytes > 0 {
            write!(f, "{}G", mebibytes >> 10)
        } else {
            write!(f, "{mebibytes}M")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary() {
        assert_eq!(parse("512M"), Some(512 << 20));
        assert_eq!(parse("2G"), Some(2 << 30));
        assert_eq!(parse("3 GiB"), Some(3 << 30));
    }

    #[test]
    fn what_is_no_size_is_refused() {
        for text in ["", "M", "512", "1X", "-1M", "1.5G", "0x10M", "99999999999999999999M", "18446744073709551615G"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_size_is_shown_as_it_would_be_written() {
        for text in ["64M", "1G", "1536M", "1024G"] {
            assert_eq!(show(parse(text).unwrap()).to_string(), text);
        }
    }
}
