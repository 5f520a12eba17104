//! What a test driver does with its device's MSI-X table.

use crate::msix::MsixTable;

/// Sets up the first entries of an MSI-X table with these vectors, for local APIC 0, and enables MSI-X. As Linux does,
/// it masks the function meanwhile.
pub fn set_up_interrupts<const N: usize>(msix: &MsixTable<N>, vectors: impl IntoIterator<Item = u8>) {
    msix.set_function_control(true, true);
    for (entry, vector) in (0..).zip(vectors) {
        msix.write(16 * entry, 8, 0xfee0_0000);
        msix.write(16 * entry + 8, 8, vector.into());
    }
    msix.set_function_control(true, false);
}
