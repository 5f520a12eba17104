//! CPUID on the core that runs this (SDM vol. 2A).

use core::arch::x86_64::__cpuid_count;

/// EAX, EBX, ECX and EDX of a leaf and a sub-leaf.
pub fn words(leaf: u32, subleaf: u32) -> [u32; 4] {
    let r = __cpuid_count(leaf, subleaf);
    [r.eax, r.ebx, r.ecx, r.edx]
}
