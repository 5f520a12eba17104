//! Addresses in a guest's kernel, from which a reader finds out how far KASLR has moved it.

use super::{
    KERNEL, KERNEL_BYTES,
    write::{Full, Writer},
};

/// What a vCPU's core has read of its guest's kernel: where the CPU enters it. The guest may be hostile, and both addresses
/// are its own words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelAddresses {
    /// The core that has read them.
    pub core: u32,
    /// Number of the guest.
    pub guest: u32,
    /// TSC from which on they hold: the beginning of the vCPU's life.
    pub since: u64,
    /// TSC at which they were read. 0: nothing was read in this life yet, and both addresses are 0.
    pub read: u64,
    /// IA32_LSTAR: where SYSCALL goes. 0: the kernel has not set it.
    pub lstar: u64,
    /// Where the gate of #PF in the IDT goes. 0: there is no such gate.
    pub page_fault: u64,
}

impl KernelAddresses {
    /// Writes the block into a buffer.
    ///
    /// # Errors
    /// The buffer has no room for it.
    pub fn write(self, buffer: &mut [u8]) -> Result<&[u8], Full> {
        let Self { core, guest, since, read, lstar, page_fault } = self;
        let mut writer = Writer::new(buffer)?;
        let words = [since, read, lstar, page_fault].map(u64::to_le_bytes);
        writer.push(&[&core.to_le_bytes(), &guest.to_le_bytes(), words.as_flattened()])?;
        Ok(writer.finish(KERNEL))
    }

    /// The addresses in the content of a block. None: it has another length.
    pub(super) fn of_content(content: &[u8]) -> Option<Self> {
        let content: &[u8; KERNEL_BYTES] = content.try_into().ok()?;
        let (&[core, guest, ..], []) = content.as_chunks::<4>() else { return None };
        let (&[_, since, read, lstar, page_fault], []) = content.as_chunks::<8>() else { return None };
        let [core, guest] = [core, guest].map(u32::from_le_bytes);
        let [since, read, lstar, page_fault] = [since, read, lstar, page_fault].map(u64::from_le_bytes);
        Some(Self { core, guest, since, read, lstar, page_fault })
    }
}
