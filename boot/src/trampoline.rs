//! The page on which an application processor starts: a copy of `ap.s` below 1 MiB, with its parameters.

#[cfg(target_os = "none")]
#[allow(unsafe_code, reason = "the trampoline is assembly; its bytes and offsets are linker symbols")]
mod image {
    unsafe extern "C" {
        static ap_start: u8;
        static ap_parameters: u8;
        static ap_end: u8;
        static ap_offsets: [u32; 2];
    }

    /// The trampoline as assembled, and the offsets in it.
    pub fn template() -> (&'static [u8], super::Offsets) {
        let start = &raw const ap_start as usize;
        let len = &raw const ap_end as usize - start;
        // SAFETY: two words of .rodata, never written.
        let [gdt, long_mode] = unsafe { ap_offsets };
        let offsets = super::Offsets { parameters: &raw const ap_parameters as usize - start, gdt, long_mode };
        // SAFETY: the symbols delimit bytes of .rodata, never written.
        (unsafe { core::slice::from_raw_parts(&raw const ap_start, len) }, offsets)
    }
}
#[cfg(target_os = "none")]
pub use image::template;

/// Offsets in the trampoline, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Offsets {
    /// The parameter block.
    pub parameters: usize,
    /// Its GDT.
    pub gdt: u32,
    /// Its first 64-bit instruction.
    pub long_mode: u32,
}

/// The parameters of one application processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Physical address of the page with the trampoline: 4 KiB aligned, below 1 MiB.
    pub page: u32,
    /// The page tables, below 4 GiB (CR3 is loaded in 32-bit mode).
    pub cr3: u32,
    /// Top of the stack.
    pub stack: u64,
    /// First argument of `entry`.
    pub argument: u64,
    /// `extern "C" fn(u64) -> !`.
    pub entry: u64,
}

/// Length of the parameter block in bytes.
const BLOCK: usize = 4 + 6 + 6 + 24;

impl Parameters {
    /// The parameter block in the layout of `ap.s`: GDT base, far pointer to 64-bit code, CR3, then (8-byte aligned in
    /// the page) stack, argument, entry. `at` is the block's own offset in the page.
    #[must_use]
    pub fn block(&self, offsets: &Offsets) -> ([u8; BLOCK + 8], usize) {
        let mut b = [0; BLOCK + 8];
        b[0..4].copy_from_slice(&(self.page + offsets.gdt).to_le_bytes());
        b[4..8].copy_from_slice(&(self.page + offsets.long_mode).to_le_bytes());
        b[8..10].copy_from_slice(&8u16.to_le_bytes());
        b[10..14].copy_from_slice(&self.cr3.to_le_bytes());
        let quads = (offsets.parameters + 16).next_multiple_of(8) - offsets.parameters;
        b[quads..quads + 8].copy_from_slice(&self.stack.to_le_bytes());
        b[quads + 8..quads + 16].copy_from_slice(&self.argument.to_le_bytes());
        b[quads + 16..quads + 24].copy_from_slice(&self.entry.to_le_bytes());
        (b, quads + 24)
    }
}

#[cfg(test)]
mod tests {
    use super::{Offsets, Parameters};

    #[test]
    fn the_quads_are_aligned_in_the_page_wherever_the_block_starts() {
        for parameters in 0x70..0x90 {
            let offsets = Offsets { parameters, gdt: 0x58, long_mode: 0x40 };
            let p = Parameters { page: 0x8000, cr3: 0x30_0000, stack: 1, argument: 2, entry: 3 };
            let (block, len) = p.block(&offsets);
            assert_eq!((parameters + len) % 8, 0, "the block ends with an aligned quad");
            assert_eq!(block[len - 8], 3);
            assert_eq!(block[len - 16], 2);
            assert_eq!(block[len - 24], 1);
            assert_eq!(block[0..4], 0x8058u32.to_le_bytes());
        }
    }
}
