//! The check of the protective MBR (UEFI 2.10, 5.2.3).

use crate::disk::field;

/// Offset of the four partition records.
const RECORDS: usize = 446;
/// Bytes of a record.
const RECORD: usize = 16;
/// Partition type of the record that protects a GUID partition table.
const PROTECTIVE: u8 = 0xee;

/// Whether block 0 is a protective MBR: it has the signature, and a record of type 0xEE that begins at block 1. Further
/// records may exist: some tools make hybrid MBRs.
pub fn is_protective(block: &[u8]) -> bool {
    let protects = |at: usize| {
        let record: [u8; RECORD] = field(block, at);
        record[4] == PROTECTIVE && field::<4>(&record, 8) == 1_u32.to_le_bytes()
    };
    field::<2>(block, 510) == [0x55, 0xaa] && (RECORDS..).step_by(RECORD).take(4).any(protects)
}
