//! Records of the firmware's store (UEFI 2.10, appendix N: Common Platform Error Record). A log is kept in the form of Linux's
//! pstore, so that a Linux shows what sidecore has left in `/sys/fs/pstore`, and sidecore reads what a Linux has left.
//!
//! ```text
//!   0  128   header: "CPER", lengths, who made it, the record's identifier
//! 128   72   the descriptor of its only section: where it is, how long, and of which type
//! 200        the section: the text, or a record (`record`)
//! ```

use miniz_oxide::inflate::{
    TINFLStatus,
    core::{DecompressorOxide, decompress, inflate_flags},
};

/// Bytes before the section.
pub const HEAD: usize = 200;

/// Linux's pstore, as the maker of a record (75a574e3-5052-4b29-8a8e-be2c6490b89d).
pub const PSTORE: [u8; 16] = guid(0x75a5_74e3, 0x5052, 0x4b29, [0x8a, 0x8e, 0xbe, 0x2c, 0x64, 0x90, 0xb8, 0x9d]);
/// Lines of a kernel's log, as the type of a section (c197e04e-d545-4a70-9c17-a5549419eb12).
pub const LOG: [u8; 16] = guid(0xc197_e04e, 0xd545, 0x4a70, [0x9c, 0x17, 0xa5, 0x54, 0x94, 0x19, 0xeb, 0x12]);
/// The same, compressed with raw DEFLATE (4f118707-04dd-4055-b5dd-956d34ddfac6).
pub const PACKED_LOG: [u8; 16] = guid(0x4f11_8707, 0x04dd, 0x4055, [0xb5, 0xdd, 0x95, 0x6d, 0x34, 0xdd, 0xfa, 0xc6]);
/// sidecore, as the maker of a record and the type of its section (7c0c1f0a-6a1c-4d5e-9a55-51dec03e0001).
pub const SIDECORE: [u8; 16] = guid(0x7c0c_1f0a, 0x6a1c, 0x4d5e, [0x9a, 0x55, 0x51, 0xde, 0xc0, 0x3e, 0, 1]);

/// The identifier of the record of a boot in the store.
pub const BOOT_ID: u64 = u64::from_be_bytes(*b"SIDEBOOT");
/// The identifier of the log of the last boot that failed.
pub const LOG_ID: u64 = u64::from_be_bytes(*b"SIDELOG1");

/// "Notification type": MCE (N.2.1.1), as Linux's pstore has it.
const NOTIFICATION: [u8; 16] = guid(0xe8f5_6ffe, 0x919c, 0x4cc5, [0xba, 0x88, 0x65, 0xab, 0xe1, 0x49, 0x13, 0xbb]);

const REVISION: u16 = 0x0101;
const SECTION_REVISION: u16 = 0x0100;
const FATAL: u32 = 1;
const INFORMATIONAL: u32 = 3;
/// The error is of a former boot (HW_ERROR_FLAGS_PREVERR).
const PREVIOUS: u32 = 2;
/// Flags of a section: it is the primary one.
const PRIMARY: u32 = 1;
/// The record's "persistence information" begins so in a store.
const PERSISTENT: [u8; 2] = *b"ER";

/// A GUID as it is in memory: its first three parts are little-endian.
const fn guid(a: u32, b: u16, c: u16, d: [u8; 8]) -> [u8; 16] {
    let ([a0, a1, a2, a3], [b0, b1], [c0, c1]) = (a.to_le_bytes(), b.to_le_bytes(), c.to_le_bytes());
    let [d0, d1, d2, d3, d4, d5, d6, d7] = d;
    [a0, a1, a2, a3, b0, b1, c0, c1, d0, d1, d2, d3, d4, d5, d6, d7]
}

/// What a record is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The record of a boot.
    Boot,
    /// The log of a boot that failed.
    Log,
}

/// Writes the head of a record whose section has `len` bytes.
#[must_use]
pub fn head(kind: Kind, len: u16) -> [u8; HEAD] {
    let (creator, section, id, severity) = match kind {
        Kind::Boot => (SIDECORE, SIDECORE, BOOT_ID, INFORMATIONAL),
        Kind::Log => (PSTORE, LOG, LOG_ID, FATAL),
    };
    let section_len = u32::from(len);
    let whole = section_len.saturating_add(HEAD as u32);
    let mut head = [0; HEAD];
    let mut put = |at: usize, bytes: &[u8]| {
        head.iter_mut().skip(at).zip(bytes).for_each(|(to, from)| *to = *from);
    };
    put(0, b"CPER");
    put(4, &REVISION.to_le_bytes());
    put(6, &u32::MAX.to_le_bytes());
    put(10, &1_u16.to_le_bytes());
    put(12, &severity.to_le_bytes());
    put(20, &whole.to_le_bytes());
    put(64, &creator);
    put(80, &NOTIFICATION);
    put(96, &id.to_le_bytes());
    put(104, &PREVIOUS.to_le_bytes());
    put(108, &PERSISTENT);
    put(128, &(HEAD as u32).to_le_bytes());
    put(132, &section_len.to_le_bytes());
    put(136, &SECTION_REVISION.to_le_bytes());
    put(140, &PRIMARY.to_le_bytes());
    put(144, &section);
    put(176, &severity.to_le_bytes());
    head
}

/// A record that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found<'a> {
    /// Who made it.
    pub creator: [u8; 16],
    /// The type of its first section.
    pub section: [u8; 16],
    /// The first section.
    pub body: &'a [u8],
}

/// Reads a record. `None`: it is none, or its lengths make no sense.
#[must_use]
pub fn read(bytes: &[u8]) -> Option<Found<'_>> {
    let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let id = |at: usize| bytes.get(at..)?.first_chunk().copied();
    if !bytes.starts_with(b"CPER") || word(6)? != u32::MAX {
        return None;
    }
    let whole = bytes.get(..word(20)? as usize)?;
    let start = word(128)? as usize;
    let body = whole.get(start..start.checked_add(word(132)? as usize)?).filter(|_| start >= HEAD)?;
    Some(Found { creator: id(64)?, section: id(144)?, body })
}

impl<'a> Found<'a> {
    /// The text of a record of Linux's pstore. It is unpacked into `room` if it is compressed, as far as it fits. `None`: it is no
    /// log, or damaged.
    pub fn text<'b>(&self, room: &'b mut [u8]) -> Option<&'b [u8]>
    where
        'a: 'b,
    {
        if self.creator != PSTORE {
            return None;
        }
        if self.section == LOG {
            return Some(self.body);
        }
        if self.section != PACKED_LOG {
            return None;
        }
        let mut inflater = DecompressorOxide::new();
        let flags = inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF;
        let (status, _, len) = decompress(&mut inflater, self.body, room, 0, flags);
        matches!(status, TINFLStatus::Done | TINFLStatus::HasMoreOutput).then(|| room.get(..len))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn record(kind: Kind, body: &[u8]) -> Vec<u8> {
        [&head(kind, body.len() as u16)[..], body].concat()
    }

    #[test]
    fn a_log_is_what_pstore_takes_for_one() {
        let bytes = record(Kind::Log, b"panic\n");
        // Offsets of the specification's tables N.1 and N.2, and what Linux's pstore compares.
        assert_eq!(&bytes[..4], b"CPER");
        assert_eq!(bytes[6..10], [0xff; 4]);
        assert_eq!(bytes[10..12], [1, 0]);
        assert_eq!(bytes[20..24], 206_u32.to_le_bytes());
        assert_eq!(
            bytes[64..80],
            [0xe3, 0x74, 0xa5, 0x75, 0x52, 0x50, 0x29, 0x4b, 0x8a, 0x8e, 0xbe, 0x2c, 0x64, 0x90, 0xb8, 0x9d]
        );
        assert_eq!(bytes[96..104], LOG_ID.to_le_bytes());
        assert_eq!(bytes[108..110], *b"ER");
        assert_eq!(
            bytes[144..160],
            [0x4e, 0xe0, 0x97, 0xc1, 0x45, 0xd5, 0x70, 0x4a, 0x9c, 0x17, 0xa5, 0x54, 0x94, 0x19, 0xeb, 0x12]
        );
        assert_eq!(read(&bytes), Some(Found { creator: PSTORE, section: LOG, body: b"panic\n" }));
        assert_eq!(read(&[&bytes[..], b"behind"].concat()).unwrap().body, b"panic\n");
    }

    #[test]
    fn a_record_that_is_cut_off_is_none() {
        let bytes = record(Kind::Boot, &[7; 64]);
        for len in 0..bytes.len() {
            assert_eq!(read(&bytes[..len]), None, "{len}");
        }
        assert_eq!(read(&bytes).unwrap().section, SIDECORE);
    }

    #[test]
    fn a_log_that_linux_has_compressed_is_unpacked() {
        let text = b"<6>[    1.000000] one line\n".repeat(40);
        let packed = miniz_oxide::deflate::compress_to_vec(&text, 6);
        let found = |section, body| Found { creator: PSTORE, section, body };
        let mut room = [0; 2_000];
        assert_eq!(found(PACKED_LOG, &packed).text(&mut room), Some(&text[..]));
        assert_eq!(found(PACKED_LOG, &packed).text(&mut [0; 100]), Some(&text[..100]), "as far as there is room");
        assert_eq!(found(PACKED_LOG, &packed[..10]).text(&mut room), None, "it is cut off");
        assert_eq!(found(PACKED_LOG, &[0xff; 50]).text(&mut room), None);
        assert_eq!(found(LOG, b"as it is").text(&mut room), Some(&b"as it is"[..]));
        assert_eq!(found(SIDECORE, &packed).text(&mut room), None);
        assert_eq!(Found { creator: SIDECORE, section: LOG, body: b"" }.text(&mut room), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_unpacked_within_the_room(body in prop::collection::vec(any::<u8>(), 0..200), room in 0..300_usize) {
            let found = Found { creator: PSTORE, section: PACKED_LOG, body: &body };
            let mut room = vec![0; room];
            let len = room.len();
            prop_assert!(found.text(&mut room).is_none_or(|text| text.len() <= len));
        }

        #[test]
        fn any_bytes_are_read_within_them(mut bytes in prop::collection::vec(any::<u8>(), 0..400), lens in any::<[u32; 3]>()) {
            bytes.splice(..4.min(bytes.len()), *b"CPER");
            let mut put = |at: usize, word: u32| {
                if let Some(to) = bytes.get_mut(at..at + 4) {
                    to.copy_from_slice(&word.to_le_bytes());
                }
            };
            put(6, u32::MAX);
            for (at, len) in [20, 128, 132].into_iter().zip(lens) {
                put(at, len % 500);
            }
            if let Some(found) = read(&bytes) {
                prop_assert!(found.body.len() + HEAD <= bytes.len());
            }
        }
    }
}
