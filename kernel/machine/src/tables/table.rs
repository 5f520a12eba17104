//! What all tables have in common: the OEM fields, and the conversion to bytes.

extern crate alloc;

use acpi_tables::{Aml, sdt::Sdt};
use alloc::vec::Vec;

pub(super) const OEM: [u8; 6] = *b"SIDECR";
pub(super) const OEM_TABLE: [u8; 8] = *b"SIDECORE";
pub(super) const OEM_REVISION: u32 = 1;

/// The bytes of a table.
pub(super) fn bytes(table: &dyn Aml) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.to_aml_bytes(&mut bytes);
    bytes
}

/// Returns a table that has only its header. `length` is its length so far.
pub(super) fn header(signature: [u8; 4], length: u32, revision: u8) -> Sdt {
    Sdt::new(signature, length, revision, OEM, OEM_TABLE, OEM_REVISION)
}
