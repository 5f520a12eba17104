//! The one copy routine between memories that others may be writing to at the same time.
//!
//! It is inline assembly because the compiler may assume of ordinary copies that nobody else writes to either side,
//! and because vector intrinsics are compiled to scalar code on x86_64-unknown-none. The wide variants, chosen by
//! CPUID, come with the engine's performance work; this one runs on every x86_64 CPU.

#![allow(unsafe_code, reason = "the copy routine is inline assembly on raw pointers")]

/// Copies `len` bytes from `src` to `dst`. Each byte is read once; a concurrent writer of `src` yields some mixture
/// of old and new bytes and nothing worse.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes, and the two must not overlap. Either may be written
/// by another CPU meanwhile; no Rust reference may exist to either range of memory that others write.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    #[cfg(not(miri))]
    // SAFETY: the caller promises both ranges; the direction flag is clear by the ABI, and `rep movs` reads and
    // writes exactly 8 * (len / 8) + len % 8 bytes, ascending.
    unsafe {
        core::arch::asm!(
            "rep movsq",
            "mov ecx, {tail:e}",
            "rep movsb",
            tail = in(reg) len & 7,
            inout("rcx") len >> 3 => _,
            inout("rsi") src => _,
            inout("rdi") dst => _,
            options(nostack, preserves_flags),
        );
    }
    #[cfg(miri)]
    // SAFETY: as above; miri has no inline assembly, so byte by byte.
    unsafe {
        for i in 0..len {
            dst.add(i).write_volatile(src.add(i).read_volatile());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::copy;

    #[test]
    fn copies_every_length_and_nothing_beyond() {
        for len in 0..70usize {
            let src: Vec<u8> = (0..len as u8).collect();
            let mut dst = vec![0xee; len + 8];
            // SAFETY: both vectors are at least `len` long and distinct.
            unsafe { copy(dst.as_mut_ptr(), src.as_ptr(), len) };
            assert_eq!(&dst[..len], &src[..]);
            assert!(dst[len..].iter().all(|&b| b == 0xee));
        }
    }
}
