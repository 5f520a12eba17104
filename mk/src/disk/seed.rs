//! Identifiers from a hash of the inputs, and the image's date: the same inputs give the same image.

use std::path::Path;
use std::{env, fs, io};

use anyhow::{Context as _, Result};
use gpt_disk_types::Guid;
use sha2::{Digest as _, Sha256};

/// The variable with the image's date, in seconds since 1970 (reproducible-builds.org).
pub const DATE: &str = "SOURCE_DATE_EPOCH";
/// The date if the variable is not set: 2026-01-01.
const DEFAULT_DATE: u64 = 1_767_225_600;

/// A hash of all inputs.
#[derive(Clone)]
pub struct Seed(Sha256);

impl Seed {
    /// A hash of no input.
    pub fn new() -> Self {
        Self(Sha256::new())
    }

    /// Adds an input. Its length is part of the hash, so that two inputs are never taken for one.
    pub fn add(&mut self, input: impl AsRef<[u8]>) {
        let input = input.as_ref();
        self.0.update((input.len() as u64).to_le_bytes());
        self.0.update(input);
    }

    /// Adds the content of a file as an input.
    pub fn add_file(&mut self, path: &Path) -> Result<()> {
        self.add(sha256(path)?);
        Ok(())
    }

    /// The hash in hexadecimal.
    pub fn text(&self) -> String {
        self.0.clone().finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// A GUID for this use.
    pub fn guid(&self, of: &str) -> Guid {
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&self.digest(of)[..16]);
        Guid::from_random_bytes(bytes)
    }

    /// A 32-bit number for this use.
    pub fn number(&self, of: &str) -> u32 {
        let digest = self.digest(of);
        u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]])
    }

    fn digest(&self, of: &str) -> [u8; 32] {
        let mut seed = self.clone();
        seed.add(of);
        seed.0.finalize().into()
    }
}

/// The SHA-256 of a file's content, of which 64 KiB are in memory at a time.
pub fn sha256(path: &Path) -> Result<[u8; 32]> {
    let cannot_read = || format!("cannot read {}", path.display());
    let (mut file, mut hash) = (fs::File::open(path).with_context(cannot_read)?, Sha256::new());
    let mut buffer = vec![0; 1 << 16];
    loop {
        match io::Read::read(&mut file, &mut buffer).with_context(cannot_read)? {
            0 => return Ok(hash.finalize().into()),
            length => hash.update(&buffer[..length]),
        }
    }
}

/// The image's date in seconds since 1970.
pub fn date() -> Result<u64> {
    parse(env::var(DATE).ok().as_deref())
}

fn parse(text: Option<&str>) -> Result<u64> {
    let Some(text) = text else { return Ok(DEFAULT_DATE) };
    text.parse().with_context(|| format!("{DATE}={text:?} is not a number of seconds since 1970; unset it or set one"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(inputs: &[&str]) -> Seed {
        let mut seed = Seed::new();
        inputs.iter().for_each(|input| seed.add(input));
        seed
    }

    #[test]
    fn each_input_and_each_use_has_its_own_identifiers() {
        let seed = of(&["a", "b"]);
        assert_eq!(seed.guid("disk"), of(&["a", "b"]).guid("disk"));
        assert_ne!(seed.guid("disk"), seed.guid("root"));
        assert_ne!(seed.guid("disk"), of(&["ab"]).guid("disk"));
        assert_ne!(seed.number("esp"), of(&["a", "c"]).number("esp"));
        assert_eq!((seed.guid("disk").version(), seed.text().len()), (4, 64));
    }

    #[test]
    fn a_date_that_is_no_number_is_refused() {
        assert_eq!(parse(None).unwrap(), DEFAULT_DATE);
        assert_eq!(parse(Some("7")).unwrap(), 7);
        assert!(parse(Some("today")).unwrap_err().to_string().contains("\"today\""));
    }
}
