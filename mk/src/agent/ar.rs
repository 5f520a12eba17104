//! Writes an archive of the format `ar`, as deb(5) has it: a line, and a header of 60 bytes in text before each member.

use anyhow::{Result, ensure};

/// Makes an archive of files with these names. `date`: seconds since 1970. Their owner is root.
///
/// # Errors
/// A name or a file is too long for its header.
pub fn archive(members: &[(&str, &[u8])], date: u64) -> Result<Vec<u8>> {
    let mut archive = b"!<arch>\n".to_vec();
    for (name, content) in members {
        let size = content.len();
        let header = format!("{name:<16}{date:<12}{:<6}{:<6}{:<8}{size:<10}`\n", 0, 0, "100644");
        ensure!(header.len() == 60, "`{name}` with {size} bytes does not fit into a header of ar");
        archive.extend_from_slice(header.as_bytes());
        archive.extend_from_slice(content);
        // Each member begins at an even place.
        if size % 2 == 1 {
            archive.push(b'\n');
        }
    }
    Ok(archive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_begin_at_even_places() {
        let archive = archive(&[("a", b"xyz"), ("b", b"12")], 7).unwrap();
        let header = |name: &str, size: u64| format!("{name:<16}7           0     0     100644  {size:<10}`\n");
        assert_eq!(archive, format!("!<arch>\n{}xyz\n{}12", header("a", 3), header("b", 2)).into_bytes());
    }

    #[test]
    fn what_does_not_fit_into_a_header_is_refused() {
        assert!(archive(&[("a-name-of-17-byte", b"")], 7).is_err_and(|why| why.to_string().contains("a-name-of")));
    }
}
