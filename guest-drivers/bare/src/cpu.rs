//! Single instructions, those that may fault with their outcome.
//!
//! What they can break is this guest, and breaking out of it is what they are for. Against the Rust program itself they
//! are sound: none touches memory that it uses, and one that faults goes on behind the instruction with the registers
//! as the compiler was told.

#![allow(unsafe_code, reason = "privileged instructions")]

use core::arch::asm;
use core::arch::x86_64::{__cpuid_count, _rdtsc, CpuidResult};

use crate::attempt::{self, RECOVER};

/// RDMSR; the exception's vector if it faulted.
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

/// WRMSR; the exception's vector if it faulted.
pub fn write_msr(number: u32, value: u64) -> Result<(), u8> {
    // SAFETY: see the module; values that a register may take are such as this program can live with.
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

/// RDMSR of a register that is there. Unlike [`read_msr`] it may be used where interrupts are open, and by what they run.
pub fn rdmsr(number: u32) -> u64 {
    let (low, high): (u32, u32);
    // SAFETY: see the module; if the register is not there, that ends the guest with a message.
    unsafe { asm!("rdmsr", in("ecx") number, out("eax") low, out("edx") high, options(nostack, preserves_flags)) };
    u64::from(high) << 32 | u64::from(low)
}

/// WRMSR of a register that takes the value; see [`rdmsr`].
pub fn wrmsr(number: u32, value: u64) {
    let (low, high) = (value as u32, (value >> 32) as u32);
    // SAFETY: as for `rdmsr`.
    unsafe { asm!("wrmsr", in("ecx") number, in("eax") low, in("edx") high, options(nostack, preserves_flags)) };
}

/// Runs one instruction given as text, with EAX, ECX and EDX zero and RDI at `$memory`; its outcome and RAX.
#[macro_export]
macro_rules! instruction {
    ($text:expr, $rax:expr, $memory:expr) => {{
        let mut rax: u64 = $rax;
        // SAFETY: see the module; the instruction is one that this machine lacks or refuses.
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

/// LIDT; the exception's vector if it faulted. Interrupts are closed, and no exception is expected until there is a good
/// table again.
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

/// Opens interrupts, where one waits that faults in its delivery; that exception's vector. They are closed again.
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
    // Not `write_msr`: this runs inside attempts and must leave their state alone.
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
    // SAFETY: writes exactly the four bytes of `bytes`.
    unsafe {
        asm!("rep insb", in("dx") port, inout("rdi") bytes.as_mut_ptr() => _, inout("rcx") 4_u64 => _, options(nostack, preserves_flags));
    }
    bytes
}

/// REP OUTSB.
pub fn out_string(port: u16, bytes: &[u8]) {
    // SAFETY: reads exactly the bytes of `bytes`.
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

/// Whether CPUID says "GenuineIntel".
pub fn is_intel() -> bool {
    // "Genu"
    cpuid(0).ebx == 0x756e_6547
}

/// Time stamp counter.
pub fn tsc() -> u64 {
    // SAFETY: every x86-64 CPU has RDTSC, and CR4.TSD is clear.
    unsafe { _rdtsc() }
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

/// Loads CR4. What the program needs of it is the caller's to keep.
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

/// RFLAGS.IF.
pub fn interrupts_are_open() -> bool {
    let flags: u64;
    // SAFETY: the stack has room for the flags.
    unsafe { asm!("pushfq", "pop {}", out(reg) flags) };
    flags & 1 << 9 != 0
}

/// Loads CR3.
///
/// # Safety
/// The tables at `tables` map the image, and all else that the program uses, one to one.
pub unsafe fn set_cr3(tables: u64) {
    // SAFETY: the caller's.
    unsafe { asm!("mov cr3, {}", in(reg) tables, options(nostack, preserves_flags)) };
}

/// INVLPG.
pub fn invalidate(address: u64) {
    // SAFETY: see the module.
    unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) };
}

/// Opens interrupts for `spins` turns of PAUSE, then closes them.
pub fn open_interrupts(spins: u32) {
    // SAFETY: the IDT is complete; its entries save and restore what they change.
    unsafe { asm!("sti", options(nostack)) };
    for _ in 0..spins {
        core::hint::spin_loop();
    }
    // SAFETY: as above.
    unsafe { asm!("cli", options(nostack)) };
}

/// Keeps the CPU for ever, with interrupts off and without an exit.
pub fn spin() -> ! {
    // SAFETY: see the module.
    unsafe { asm!("cli", "2:", "pause", "jmp 2b", options(noreturn, nostack)) };
}

/// Opens interrupts and halts until one has been taken, then closes them. STI's shadow covers HLT, so one that waits
/// already is taken there and not before (SDM vol. 2B, STI).
pub fn wait_for_interrupt() {
    // SAFETY: as for `open_interrupts`.
    unsafe { asm!("sti", "hlt", "cli", options(nostack)) };
}

/// HLT with interrupts closed.
pub fn halt() {
    // SAFETY: see the module.
    unsafe { asm!("cli", "hlt", options(nostack, preserves_flags)) };
}
