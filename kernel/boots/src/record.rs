//! The record of a boot: 64 bytes with a check.
//!
//! ```text
//!  0   8   "sidecor1"
//!  8   8   number of the boot, one more than that of the boot before; little-endian, as all numbers
//! 16   4   attempts of the configuration
//! 20   4   how far the boot came: State
//! 24  32   SHA-256 of sidecore.toml
//! 56   4   CRC-32 (ISO HDLC) of bytes 0 to 55
//! 60   4   its complement
//! ```

use crc::{CRC_32_ISO_HDLC, Crc};

/// Bytes of a record.
pub const BYTES: usize = 64;

const MAGIC: [u8; 8] = *b"sidecor1";
const CRC: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

/// How far a boot came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Not to the control loop.
    Booting,
    /// To the control loop.
    Running,
    /// It was shut down or rebooted by a command, or all guests had ended.
    Ended,
    /// It ended by a panic, or could not go on.
    Failed,
}

impl State {
    const ALL: [Self; 4] = [Self::Booting, Self::Running, Self::Ended, Self::Failed];

    /// The words for the report, of the boot before.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Booting => "did not come to its control loop",
            Self::Running => "was running when the machine was reset",
            Self::Ended => "ended in order",
            Self::Failed => "ended by a failure",
        }
    }
}

/// What a boot leaves for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of the boot, from 1.
    pub boot: u64,
    /// How often `config` was tried, this boot included, since it last came to run.
    pub attempts: u32,
    /// How far it came.
    pub state: State,
    /// SHA-256 of `sidecore.toml`; zeroes if there is none, or none was read yet.
    pub config: [u8; 32],
}

impl Record {
    /// The bytes of the record.
    #[must_use]
    pub fn bytes(&self) -> [u8; BYTES] {
        let state = State::ALL.iter().position(|&state| state == self.state).unwrap_or_default() as u32;
        let mut bytes = [0; BYTES];
        let fields: [&[u8]; 5] =
            [&MAGIC, &self.boot.to_le_bytes(), &self.attempts.to_le_bytes(), &state.to_le_bytes(), &self.config];
        let (body, check) = bytes.split_at_mut(BYTES - 8);
        body.iter_mut().zip(fields.into_iter().flatten()).for_each(|(to, from)| *to = *from);
        let crc = CRC.checksum(body);
        let crcs = [crc.to_le_bytes(), (!crc).to_le_bytes()];
        check.iter_mut().zip(crcs.as_flattened()).for_each(|(to, from)| *to = *from);
        bytes
    }

    /// Reads a record. `None`: it is none, or damaged.
    #[must_use]
    pub fn read(bytes: &[u8; BYTES]) -> Option<Self> {
        let (body, check) = bytes.split_last_chunk::<8>()?;
        let crc = CRC.checksum(body);
        if !body.starts_with(&MAGIC) || *check != *[crc.to_le_bytes(), (!crc).to_le_bytes()].as_flattened() {
            return None;
        }
        let word = |at: usize| Some(u32::from_le_bytes(*body.get(at..)?.first_chunk()?));
        Some(Self {
            boot: u64::from_le_bytes(*body.get(8..)?.first_chunk()?),
            attempts: word(16)?,
            state: *State::ALL.get(word(20)? as usize)?,
            config: *body.get(24..)?.first_chunk()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record() -> impl Strategy<Value = Record> {
        (any::<u64>(), any::<u32>(), 0..4_usize, any::<[u8; 32]>()).prop_map(|(boot, attempts, state, config)| Record {
            boot,
            attempts,
            state: State::ALL[state],
            config,
        })
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(record in record()) {
            prop_assert_eq!(Record::read(&record.bytes()), Some(record));
        }

        #[test]
        fn one_wrong_bit_makes_it_none(record in record(), bit in 0..BYTES * 8) {
            let mut bytes = record.bytes();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(Record::read(&bytes), None);
        }

        #[test]
        fn any_bytes_are_none(bytes in any::<[u8; 32]>()) {
            let mut all = [0; BYTES];
            all[..32].copy_from_slice(&bytes);
            prop_assert_eq!(Record::read(&all), None);
        }
    }

    #[test]
    fn memory_of_zeroes_or_ones_is_none() {
        for fill in [0, 0xff] {
            assert_eq!(Record::read(&[fill; BYTES]), None);
        }
    }

    #[test]
    fn a_state_that_is_not_known_makes_it_none() {
        let mut bytes = Record { boot: 1, attempts: 1, state: State::Failed, config: [7; 32] }.bytes();
        bytes[20] = 4;
        let crc = CRC.checksum(&bytes[..56]);
        bytes[56..60].copy_from_slice(&crc.to_le_bytes());
        bytes[60..].copy_from_slice(&(!crc).to_le_bytes());
        assert_eq!(Record::read(&bytes), None);
    }
}
