//! Single instructions as functions. One that may fault returns its outcome.
//!
//! These functions may break this guest, because a test tries to break out of it with them. They are sound for the Rust
//! program itself for two reasons. None accesses memory that the program uses. After a fault the program continues
//! behind the instruction, and the registers are as the compiler was told.

#![allow(unsafe_code, reason = "privileged instructions")]

use core::arch::asm;
use core::arch::x86_64::{__cpuid_count, _rdtsc, CpuidResult};

use crate::attempt::{self, RECOVER};

/// RDMSR. If it faults, returns the exception's vector.
pub fn read_msr(number: u32) -> Result<u64, u8> {
    let (low, high): (u32, u32);
    // SAFETY: see the module.
    unsafe {
        asm!(
            "lea {t}, [rip + 2f]",
            "mov [rip + {recover}], {t}",
            "rdmsr",
            "2:",
            t = out(reg) _,
            recover = sym RECOVER,
            in("ecx") number,
            inout("eax") 0 => low,
            inout("edx") 0 => high,
            options(nostack),
        );
    }
    attempt::outcome().map(|()| u64::from(high) << 32 | u64::from(low))
}

/// WRMSR. If it faults, returns the exception's vector.
pub fn write_msr(number: u32, value: u64) -> Result<(), u8> {
    // SAFETY: see the module. The values that a register accepts do not harm this program.
    unsafe {
        asm!(
            "lea {t}, [rip + 2f]",
            "mov [rip + {recover}], {t}",
            "wrmsr",
            "2:",
            t = out(reg) _,
            recover = sym RECOVER,
            in("ecx") number,
            in("eax") value as u32,
            in("edx") (value >> 32) as u32,
            options(nostack),
        );
    }
    attempt::outcome()
}

/// RDMSR of a register that exists. Unlike [`read_msr`] it may be used with interrupts open, and in interrupt handlers.
pub fn rdmsr(number: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: see the module. If the register does not exist, the guest ends with a message.
    unsafe { asm!("rdmsr", in("ecx") number, out("eax") low, out("edx") high, options(nostack, preserves_flags)) };
    u64::from(high) << 32 | u64::from(low)
}

/// WRMSR of a register that accepts the value; see [`rdmsr`].
pub fn wrmsr(number: u32, value: u64) {
    let (low, high) = (value as u32, (value >> 32) as u32);
    // SAFETY: as for `rdmsr`.
    unsafe { asm!("wrmsr", in("ecx") number, in("eax") low, in("edx") high, options(nostack, preserves_flags)) };
}

/// Executes the instruction `$text` with RAX = `$rax`, ECX and EDX zero, and RDI = `$memory`. Returns RAX, or the
/// vector of its exception.
#[macro_export]
macro_rules! instruction {
    ($text:expr, $rax:expr, $memory:expr) => {{
        let mut rax: u64 = $rax;
        // SAFETY: see the module. This machine lacks the instruction or refuses it.
        unsafe {
            core::arch::asm!(
                "lea {t}, [rip + 2f]",
                "mov [rip + {recover}], {t}",
                $text,
                "2:",
                t = out(reg) _,
                recover = sym $crate::attempt::RECOVER,
                inout("rax") rax,
                inout("rcx") 0_u64 => _,
                inout("rdx") 0_u64 => _,
                inout("rdi") $memory as u64 => _,
            );
        }
        $crate::attempt::outcome().map(|()| rax)
    }};
}

/// LIDT. If it faults, returns the exception's vector. Interrupts must be closed. No exception may occur until a good
/// table is loaded again.
pub fn load_idt(base: u64, limit: u16) -> Result<(), u8> {
    // Limit in the lowest two bytes, base in the eight after them.
    let pointer = [base << 16 | u64::from(limit), base >> 48];
    // SAFETY: see the module.
    unsafe {
        asm!(
            "lea {t}, [rip + 2f]",
            "mov [rip + {recover}], {t}",
            "lidt [{pointer}]",
            "2:",
            t = out(reg) _,
            recover = sym RECOVER,
            pointer = in(reg) &pointer,
            options(nostack),
        );
    }
    attempt::outcome()
}

/// Opens interrupts while one waits whose delivery faults. Then closes them again. Returns the exception's vector.
pub fn open_interrupts_expecting_a_fault() -> Result<(), u8> {
    // SAFETY: see the module.
    unsafe {
        asm!(
            "lea {t}, [rip + 2f]",
            "mov [rip + {recover}], {t}",
            "sti",
            "nop",
            "nop",
            "2:",
            "cli",
            t = out(reg) _,
            recover = sym RECOVER,
        );
    }
    attempt::outcome()
}

/// End of interrupt: x2APIC register 0x80B.
pub fn end_of_interrupt() {
    // Not `write_msr`, because this runs inside attempts and must not change their state.
    wrmsr(0x80b, 0);
}

macro_rules! ports {
    ($in:ident $out:ident $type:ty, $register:tt) => {
        /// IN.
        pub fn $in(port: u16) -> $type {
            let value: $type;
            // SAFETY: see the module.
            unsafe {
                asm!(concat!("in ", $register, ", dx"), in("dx") port, out($register) value, options(nostack, preserves_flags));
            }
            value
        }

        /// OUT.
        pub fn $out(port: u16, value: $type) {
            // SAFETY: see the module.
            unsafe {
                asm!(concat!("out dx, ", $register), in("dx") port, in($register) value, options(nostack, preserves_flags));
            }
        }
    };
}

ports!(in8 out8 u8, "al");
ports!(in16 out16 u16, "ax");
ports!(in32 out32 u32, "eax");

/// REP INSB of four bytes.
pub fn in_string(port: u16) -> [u8; 4] {
    let mut bytes = [0; 4];
    // SAFETY: it writes exactly the four bytes of `bytes`.
    unsafe {
        asm!("rep insb", in("dx") port, inout("rdi") bytes.as_mut_ptr() => _, inout("rcx") 4_u64 => _, options(nostack, preserves_flags));
    }
    bytes
}

/// REP OUTSB.
pub fn out_string(port: u16, bytes: &[u8]) {
    // SAFETY: it reads exactly the bytes of `bytes`.
    unsafe {
        asm!("rep outsb", in("dx") port, inout("rsi") bytes.as_ptr() => _, inout("rcx") bytes.len() => _, options(nostack, preserves_flags));
    }
}

/// CPUID.
pub fn cpuid(leaf: u32) -> CpuidResult {
    cpuid_of(leaf, 0)
}

/// CPUID with a sub-leaf.
pub fn cpuid_of(leaf: u32, subleaf: u32) -> CpuidResult {
    __cpuid_count(leaf, subleaf)
}

/// Whether CPUID's vendor is "GenuineIntel".
pub fn is_intel() -> bool {
    // "Genu"
    cpuid(0).ebx == 0x756e_6547
}

/// Reads the time stamp counter.
pub fn tsc() -> u64 {
    // SAFETY: every x86-64 CPU has RDTSC, and CR4.TSD is clear.
    unsafe { _rdtsc() }
}

/// CR0.
pub fn cr0() -> u64 {
    let value;
    // SAFETY: see the module.
    unsafe { asm!("mov {}, cr0", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// CR2.
pub fn cr2() -> u64 {
    let value;
    // SAFETY: see the module.
    unsafe { asm!("mov {}, cr2", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// CR3.
pub fn cr3() -> u64 {
    let value;
    // SAFETY: see the module.
    unsafe { asm!("mov {}, cr3", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// CR4.
pub fn cr4() -> u64 {
    let value;
    // SAFETY: see the module.
    unsafe { asm!("mov {}, cr4", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Loads CR4. The caller must keep the bits that the program needs.
pub fn set_cr4(value: u64) {
    // SAFETY: see the module.
    unsafe { asm!("mov cr4, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// CR8: the upper half of the APIC's task priority.
pub fn cr8() -> u64 {
    let value;
    // SAFETY: see the module.
    unsafe { asm!("mov {}, cr8", out(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Loads CR8.
pub fn set_cr8(value: u64) {
    // SAFETY: see the module.
    unsafe { asm!("mov cr8, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// Whether RFLAGS.IF is set.
pub fn interrupts_are_open() -> bool {
    let flags: u64;
    // SAFETY: the stack has room for the flags.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags) };
    flags & 1 << 9 != 0
}

/// Loads CR3.
///
/// # Safety
/// The tables at `tables` map everything that the program uses one to one, the image included.
pub unsafe fn set_cr3(tables: u64) {
    // SAFETY: the caller's promise.
    unsafe { asm!("mov cr3, {}", in(reg) tables, options(nostack, preserves_flags)) };
}

/// INVLPG.
pub fn invalidate(address: u64) {
    // SAFETY: see the module.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// Opens interrupts for `spins` turns of PAUSE, then closes them.
pub fn open_interrupts(spins: u32) {
    // SAFETY: the IDT is complete. Its handlers save and restore what they change.
    unsafe { asm!("sti", options(nostack)) };
    for _ in 0..spins {
        core::hint::spin_loop();
    }
    // SAFETY: as above.
    unsafe { asm!("cli", options(nostack)) };
}

/// Keeps the CPU for ever, with interrupts off and without an exit. R15 is `marker`, so that somebody who sees the
/// registers of all CPUs knows this one.
pub fn spin_marked(marker: u64) -> ! {
    // SAFETY: see the module.
    unsafe { asm!("cli", "2:", "pause", "jmp 2b", in("r15") marker, options(noreturn, nostack)) };
}

/// Keeps the CPU for ever, with interrupts off and without an exit.
pub fn spin() -> ! {
    // SAFETY: see the module.
    unsafe { asm!("cli", "2:", "pause", "jmp 2b", options(noreturn, nostack)) };
}

/// Opens interrupts and halts until one was taken, then closes them. STI's shadow covers HLT. So an interrupt that
/// waits already is taken at the HLT and not before it (SDM vol. 2B, STI).
pub fn wait_for_interrupt() {
    // SAFETY: as for `open_interrupts`.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
}

/// HLT with interrupts closed.
pub fn halt() {
    // SAFETY: see the module.
    unsafe { asm!("cli", "hlt", options(nostack, preserves_flags)) };
}
