//! The only copy routine between memories that others may write at the same time.
//!
//! It is assembly for two reasons. For an ordinary copy the compiler may assume that nobody else writes either side.
//! And vector intrinsics become scalar code on x86_64-unknown-none. The variants are separate symbols,
//! `sidecore_copy_*`, in every binary with this crate. Their machine code is the same in the kernel image and in a
//! process. Each variant has its requirements:
//!
//! | variant | CPUID | vector state that must be enabled and free |
//! |---|---|---|
//! | plain | nothing | none |
//! | erms | ERMS | none |
//! | avx2 | AVX2 | XCR0 bits 1 and 2 |
//! | avx512 | AVX512F, AVX512BW, AVX512VL | XCR0 bits 1, 2, 5, 6 and 7 |
//!
//! `sidecore_copy_behind` makes two copies with any of the variants, and prefetches cache lines for writing
//! (PREFETCHW).
//!
//! Follows SDM vol. 1 ch. 14 (detection), vol. 1 13.3 (XCR0) and the optimization manual's 3.7.6 (ERMS).

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]
#![allow(unsafe_code, reason = "the copy routine is assembly on raw pointers")]

#[cfg(not(miri))]
use core::arch::{
    global_asm,
    x86_64::{__cpuid, __cpuid_count},
};

/// Copies `len` bytes from `src` to `dst` with general registers only. Works on any core at any time.
///
/// If somebody writes `src` at the same time, or if the ranges overlap, the result is a mixture of old and new bytes,
/// and nothing worse.
///
/// # Safety
/// `src` must be readable and `dst` writable for `len` bytes. Another CPU may write either meanwhile. No Rust reference
/// may exist to a range that others write.
#[inline]
pub unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: the caller's promise; the plain variant needs nothing of the CPU.
    unsafe { Copier::PLAIN.copy(dst, src, len) };
}

type Routine = unsafe extern "sysv64" fn(*mut u8, *const u8, usize);

/// A variant of the copy routine.
#[derive(Clone, Copy)]
pub struct Copier {
    routine: Routine,
    name: &'static str,
}

impl Default for Copier {
    fn default() -> Self {
        Self::PLAIN
    }
}

impl core::fmt::Debug for Copier {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.name)
    }
}

impl Copier {
    /// The plain variant: 8-byte moves and string instructions. It runs on every CPU and does not touch the vector
    /// registers.
    pub const PLAIN: Self = Self { routine: sidecore_copy_plain, name: "plain" };

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Returns the widest variant that this CPU has and that the system has enabled (CPUID leaves 1 and 7, XCR0).
    ///
    /// # Safety
    /// The user may overwrite the vector registers of every core that uses the result. This holds in a process, and on
    /// a core that runs no guest. All those cores must be like this one, XCR0 included.
    #[must_use]
    pub unsafe fn widest() -> Self {
        // SAFETY: the caller makes the same promise.
        unsafe { Self::all() }.last().unwrap_or(Self::PLAIN)
    }

    /// Returns every variant that can be used here, the widest last.
    ///
    /// # Safety
    /// As for [`Copier::widest`].
    pub unsafe fn all() -> impl Iterator<Item = Self> {
        #[cfg(miri)]
        let can = [false; 3];
        #[cfg(not(miri))]
        let can = {
            let (one, seven) = if __cpuid(0).eax < 7 { (0, 0) } else { (__cpuid(1).ecx, __cpuid_count(7, 0).ebx) };
            // OSXSAVE: XGETBV may be used, and XCR0 is valid.
            let xcr0 = if one & 1 << 27 != 0 { xgetbv() } else { 0 };
            let has = |bits: u32| seven & bits == bits;
            [has(1 << 9), has(1 << 5) && xcr0 & 0x6 == 0x6, has(1 << 16 | 1 << 30 | 1 << 31) && xcr0 & 0xe6 == 0xe6]
        };
        let wide = [
            Self { routine: sidecore_copy_erms, name: "erms" },
            Self { routine: sidecore_copy_avx2, name: "avx2" },
            Self { routine: sidecore_copy_avx512, name: "avx512" },
        ];
        core::iter::once(Self::PLAIN).chain(wide.into_iter().zip(can).filter(|&(_, can)| can).map(|(c, _)| c))
    }

    /// Copies `len` bytes from `src` to `dst`. Concurrent writers and overlap: as for [`copy`].
    ///
    /// # Safety
    /// As for [`copy`]. If this is not [`Copier::PLAIN`], also as for [`Copier::widest`].
    #[inline]
    pub unsafe fn copy(self, dst: *mut u8, src: *const u8, len: usize) {
        // SAFETY: the caller makes the same promises, and has vouched for the CPU.
        unsafe { (self.routine)(dst, src, len) };
    }

    /// Copies `head_len` bytes from `head` to `dst`, and after them the bytes `head_len..len` of `src`.
    ///
    /// First it prefetches, for writing, the cache lines of the `len` bytes at `next`, up to 2,048 bytes. `next` is the
    /// destination of the next copy. Stores take effect in order. Without the prefetch, the stores of the next copy
    /// wait for one cache line after the other. The prefetch is a hint: any `next` is allowed.
    ///
    /// # Safety
    /// As for [`Copier::copy`], for both copies. `head_len` must not exceed `len`.
    #[inline]
    pub unsafe fn copy_behind(
        self,
        dst: *mut u8,
        src: *const u8,
        len: usize,
        head: *const u8,
        head_len: usize,
        next: *mut u8,
    ) {
        // SAFETY: the caller makes the same promises. PREFETCHW does not fault at any address. A CPU without it ignores
        // it.
        unsafe { sidecore_copy_behind(dst, src, len, head, head_len, next, self.routine) };
    }
}

#[cfg(not(miri))]
fn xgetbv() -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: CPUID says OSXSAVE, so the instruction is enabled; it only reads a register.
    unsafe {
        core::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags));
    }
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(not(miri))]
unsafe extern "sysv64" {
    fn sidecore_copy_plain(dst: *mut u8, src: *const u8, len: usize);
    fn sidecore_copy_erms(dst: *mut u8, src: *const u8, len: usize);
    fn sidecore_copy_avx2(dst: *mut u8, src: *const u8, len: usize);
    fn sidecore_copy_avx512(dst: *mut u8, src: *const u8, len: usize);
    fn sidecore_copy_behind(
        dst: *mut u8,
        src: *const u8,
        len: usize,
        head: *const u8,
        head_len: usize,
        next: *mut u8,
        by: Routine,
    );
}

// Each variant takes rdi (to), rsi (from) and rdx (length). Up to a length of 128 it reads everything before its last
// store. A tail overlaps what was copied before it. It uses only caller-saved registers. The AVX-512 variant uses zmm16
// and up only, so it needs no VZEROUPPER.
#[cfg(not(miri))]
global_asm!(
    ".pushsection .text.sidecore_copy,\"ax\",@progbits",
    ".p2align 6",
    ".globl sidecore_copy_plain",
    ".hidden sidecore_copy_plain",
    ".type sidecore_copy_plain,@function",
    "sidecore_copy_plain:",
    "cmp rdx, 16",
    "jae 2f",
    "test dl, 8",
    "jnz 3f",
    "test dl, 4",
    "jnz 4f",
    "test edx, edx",
    "jz 5f",
    "movzx eax, byte ptr [rsi]",
    "movzx ecx, byte ptr [rsi + rdx - 1]",
    "shr edx",
    "movzx r8d, byte ptr [rsi + rdx]",
    "mov byte ptr [rdi + rdx], r8b",
    // SHR left length / 2 in edx and the lowest bit of the length in CF. ADC makes the length of them again.
    "mov byte ptr [rdi], al",
    "adc edx, edx",
    "mov byte ptr [rdi + rdx - 1], cl",
    "5:",
    "ret",
    "3:",
    "mov rax, qword ptr [rsi]",
    "mov rcx, qword ptr [rsi + rdx - 8]",
    "mov qword ptr [rdi], rax",
    "mov qword ptr [rdi + rdx - 8], rcx",
    "ret",
    "4:",
    "mov eax, dword ptr [rsi]",
    "mov ecx, dword ptr [rsi + rdx - 4]",
    "mov dword ptr [rdi], eax",
    "mov dword ptr [rdi + rdx - 4], ecx",
    "ret",
    "2:",
    "cmp rdx, 512",
    "ja 6f",
    // Sixteen bytes at a time, then the last sixteen.
    "mov rax, qword ptr [rsi + rdx - 16]",
    "mov rcx, qword ptr [rsi + rdx - 8]",
    "lea r10, [rdi + rdx - 16]",
    "7:",
    "mov r8, qword ptr [rsi]",
    "mov r9, qword ptr [rsi + 8]",
    "mov qword ptr [rdi], r8",
    "mov qword ptr [rdi + 8], r9",
    "add rsi, 16",
    "add rdi, 16",
    "cmp rdi, r10",
    "jb 7b",
    "mov qword ptr [r10], rax",
    "mov qword ptr [r10 + 8], rcx",
    "ret",
    "6:",
    "mov rax, qword ptr [rsi + rdx - 8]",
    "lea r10, [rdi + rdx - 8]",
    "lea rcx, [rdx - 1]",
    "shr rcx, 3",
    "rep movsq",
    "mov qword ptr [r10], rax",
    "ret",
    ".size sidecore_copy_plain, . - sidecore_copy_plain",
    ".p2align 6",
    ".globl sidecore_copy_erms",
    ".hidden sidecore_copy_erms",
    ".type sidecore_copy_erms,@function",
    "sidecore_copy_erms:",
    "cmp rdx, 512",
    "jbe sidecore_copy_plain",
    "mov rcx, rdx",
    "rep movsb",
    "ret",
    ".size sidecore_copy_erms, . - sidecore_copy_erms",
    ".p2align 6",
    ".globl sidecore_copy_avx2",
    ".hidden sidecore_copy_avx2",
    ".type sidecore_copy_avx2,@function",
    "sidecore_copy_avx2:",
    "cmp rdx, 32",
    "jb sidecore_copy_plain",
    "vmovdqu ymm2, ymmword ptr [rsi + rdx - 32]",
    "cmp rdx, 64",
    "ja 2f",
    "vmovdqu ymm0, ymmword ptr [rsi]",
    "vmovdqu ymmword ptr [rdi], ymm0",
    "vmovdqu ymmword ptr [rdi + rdx - 32], ymm2",
    "vzeroupper",
    "ret",
    "2:",
    "vmovdqu ymm3, ymmword ptr [rsi + rdx - 64]",
    "lea rcx, [rdi + rdx - 64]",
    "3:",
    "vmovdqu ymm0, ymmword ptr [rsi]",
    "vmovdqu ymm1, ymmword ptr [rsi + 32]",
    "vmovdqu ymmword ptr [rdi], ymm0",
    "vmovdqu ymmword ptr [rdi + 32], ymm1",
    "add rsi, 64",
    "add rdi, 64",
    "cmp rdi, rcx",
    "jb 3b",
    "vmovdqu ymmword ptr [rcx], ymm3",
    "vmovdqu ymmword ptr [rcx + 32], ymm2",
    "vzeroupper",
    "ret",
    ".size sidecore_copy_avx2, . - sidecore_copy_avx2",
    ".p2align 6",
    ".globl sidecore_copy_avx512",
    ".hidden sidecore_copy_avx512",
    ".type sidecore_copy_avx512,@function",
    "sidecore_copy_avx512:",
    "cmp rdx, 64",
    "ja 2f",
    // Exactly 64 bytes have a path without a mask, because store forwarding works only from a store without one.
    "je 6f",
    // The mask is all ones, shifted right by 64 - length. For length zero nothing is copied.
    "xor eax, eax",
    "mov ecx, 64",
    "sub ecx, edx",
    "test edx, edx",
    "jz 4f",
    "mov rax, -1",
    "shr rax, cl",
    "kmovq k1, rax",
    "vmovdqu8 zmm16{{k1}}{{z}}, zmmword ptr [rsi]",
    "vmovdqu8 zmmword ptr [rdi]{{k1}}, zmm16",
    "4:",
    "ret",
    "6:",
    "vmovdqu64 zmm16, zmmword ptr [rsi]",
    "vmovdqu64 zmmword ptr [rdi], zmm16",
    "ret",
    "2:",
    "vmovdqu64 zmm17, zmmword ptr [rsi + rdx - 64]",
    "lea rcx, [rdi + rdx - 64]",
    "3:",
    "vmovdqu64 zmm16, zmmword ptr [rsi]",
    "vmovdqu64 zmmword ptr [rdi], zmm16",
    "add rsi, 64",
    "add rdi, 64",
    "cmp rdi, rcx",
    "jb 3b",
    "vmovdqu64 zmmword ptr [rcx], zmm17",
    "ret",
    ".size sidecore_copy_avx512, . - sidecore_copy_avx512",
    // First it prefetches each cache line of the rdx bytes at r9. It prefetches no line twice: that costs more than all
    // prefetches gain. It stops at 2,048 bytes: a longer frame gains nothing, and its prefetches displace other lines
    // from the cache. Then the routine whose address is on the stack copies the bytes after the first r8. Last, it
    // copies r8 bytes from rcx.
    ".p2align 6",
    ".globl sidecore_copy_behind",
    ".hidden sidecore_copy_behind",
    ".type sidecore_copy_behind,@function",
    "sidecore_copy_behind:",
    "mov eax, 2048",
    "cmp rdx, rax",
    "cmovb rax, rdx",
    "mov r10d, r9d",
    "and r10d, 63",
    "lea rax, [rax + r10 + 63]",
    "shr eax, 6",
    "2:",
    "prefetchw [r9]",
    "add r9, 64",
    "dec eax",
    "jg 2b",
    "mov rax, qword ptr [rsp + 8]",
    "push rdi",
    "push rcx",
    "push r8",
    "add rdi, r8",
    "add rsi, r8",
    "sub rdx, r8",
    "call rax",
    "pop rdx",
    "pop rsi",
    "pop rdi",
    "jmp qword ptr [rsp + 8]",
    ".size sidecore_copy_behind, . - sidecore_copy_behind",
    ".popsection",
);

/// Miri cannot run assembly. It copies byte by byte and has no prefetch.
#[cfg(miri)]
unsafe extern "sysv64" fn sidecore_copy_plain(dst: *mut u8, src: *const u8, len: usize) {
    for i in 0..len {
        // SAFETY: the caller's promise.
        unsafe { dst.add(i).write_volatile(src.add(i).read_volatile()) };
    }
}
#[cfg(miri)]
unsafe extern "sysv64" fn sidecore_copy_behind(
    dst: *mut u8,
    src: *const u8,
    len: usize,
    head: *const u8,
    head_len: usize,
    _next: *mut u8,
    by: Routine,
) {
    // SAFETY: the caller's promise.
    unsafe {
        by(dst.add(head_len), src.add(head_len), len - head_len);
        by(dst, head, head_len);
    }
}
#[cfg(miri)]
use sidecore_copy_plain as sidecore_copy_erms;
#[cfg(miri)]
use {sidecore_copy_plain as sidecore_copy_avx2, sidecore_copy_plain as sidecore_copy_avx512};

#[cfg(test)]
mod tests {
    use super::{Copier, copy};

    fn lengths() -> impl Iterator<Item = usize> {
        // Miri goes byte by byte, in a loop that has no special lengths.
        let (all, long) = if cfg!(miri) { (20, &[600][..]) } else { (1200, &[1514, 2047, 4096, 9014, 65_550][..]) };
        (0..all).chain(long.iter().copied())
    }

    #[test]
    fn every_variant_copies_every_length_and_nothing_beyond() {
        // SAFETY: a test process: the vector registers are its own and the system has enabled them.
        for variant in unsafe { Copier::all() } {
            for (n, len) in lengths().enumerate() {
                let (from, to) = (n % 67, n % 61);
                let src: Vec<u8> = (0..from + len).map(|i| (i * 7 + i / 251) as u8).collect();
                let mut dst = vec![0xee; to + len + 80];
                // SAFETY: both vectors are long enough and distinct.
                unsafe { variant.copy(dst.as_mut_ptr().add(to), src.as_ptr().add(from), len) };
                assert!(dst[..to].iter().all(|&b| b == 0xee), "{variant:?} {len}: before");
                assert_eq!(&dst[to..to + len], &src[from..], "{variant:?} {len}");
                assert!(dst[to + len..].iter().all(|&b| b == 0xee), "{variant:?} {len}: beyond");
            }
        }
    }

    #[test]
    fn a_copy_ends_at_the_last_readable_byte() {
        // Vectors of exactly the length: a read beyond would be found by the sanitizers and by valgrind.
        for len in 1..200usize {
            let src: Vec<u8> = (0..len as u8).collect();
            let mut dst = vec![0; len];
            // SAFETY: as above.
            unsafe { copy(dst.as_mut_ptr(), src.as_ptr(), len) };
            assert_eq!(dst, src);
        }
    }

    #[test]
    fn a_head_and_what_is_behind_it_are_copied_whatever_is_fetched() {
        // SAFETY: as above.
        for variant in unsafe { Copier::all() } {
            for (len, head) in [(0, 0), (1, 1), (64, 0), (64, 63), (64, 64), (1512, 76), (2049, 2048), (9012, 140)] {
                for next in [0, 1, 0x1000, usize::MAX] {
                    let src: Vec<u8> = (0..len).map(|i| (i % 251) as u8).collect();
                    let (heads, mut dst) = (vec![0xdd; head], vec![0xee; len + 1]);
                    let next = core::ptr::without_provenance_mut(next);
                    // SAFETY: as above.
                    unsafe { variant.copy_behind(dst.as_mut_ptr(), src.as_ptr(), len, heads.as_ptr(), head, next) };
                    assert_eq!(
                        (&dst[..head], &dst[head..len], dst[len]),
                        (&heads[..], &src[head..], 0xee),
                        "{variant:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_widest_variant_is_the_one_the_cpu_has() {
        // SAFETY: as above.
        let widest = unsafe { Copier::widest() };
        let wanted = if is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512vl") {
            "avx512"
        } else if is_x86_feature_detected!("avx2") {
            "avx2"
        } else {
            widest.name()
        };
        assert_eq!(widest.name(), wanted);
    }
}
