//! Tests the read-modify-write instructions on a device's registers, which the hypervisor emulates. The registers are an
//! entry of the MSI-X table, because they hold what is written. Each instruction is executed on ordinary memory too,
//! where the CPU itself executes it. Contents, register and flags must be the same.

#![allow(unsafe_code, reason = "what is tested are single instructions")]

use core::arch::asm;

use bare::memory::{ARENA, read64, write64};
use bare::virtio_pci::Parts;

use crate::report::{Outcome, Why, ensure};

const CF: u64 = 1;
const PF: u64 = 1 << 2;
const AF: u64 = 1 << 4;
const ZF: u64 = 1 << 6;
const SF: u64 = 1 << 7;
const OF: u64 = 1 << 11;
const STATUS: u64 = CF | PF | AF | ZF | SF | OF;
/// After a logical operation AF is undefined, after a bit operation all but CF and ZF.
const LOGICAL: u64 = STATUS & !AF;
const OF_BITS: u64 = CF | ZF;

/// What an instruction leaves: the eight bytes of memory, RAX, RDX, and the flags that the manual defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct After {
    memory: u64,
    rax: u64,
    rdx: u64,
    flags: u64,
}

/// What an instruction finds.
#[derive(Clone, Copy, Debug)]
struct Before {
    memory: u64,
    rax: u64,
    rdx: u64,
    flags: u64,
}

/// Executes an instruction with its memory operand at RDI.
macro_rules! execute {
    ($text:literal, $defined:expr, $at:expr, $before:expr) => {{
        let at: u64 = $at;
        let Before { memory, mut rax, mut rdx, mut flags } = $before;
        write64(at, memory);
        // SAFETY: the memory belongs to no Rust object. The registers that the instruction changes are named.
        unsafe {
            asm!(
                "push {flags}",
                "popfq",
                $text,
                "pushfq",
                "pop {flags}",
                flags = inout(reg) flags,
                inout("rax") rax,
                inout("rdx") rdx,
                in("rdi") at,
            );
        }
        After { memory: read64(at), rax, rdx, flags: flags & $defined }
    }};
}

/// Compares the device's memory with ordinary memory.
macro_rules! compare {
    ($device:expr, $before:expr, $($text:literal / $defined:expr),+ $(,)?) => {
        $(
            let (device, memory) = (
                execute!($text, $defined, $device, $before),
                execute!($text, $defined, ARENA, $before),
            );
            ensure!(device == memory, "{}: {:x?} not {:x?}", $text, device, memory);
        )+
    };
}

/// Like `compare`, for instructions that store 1 or 2 bytes. An MSI-X table takes stores of 4 and 8 bytes only (PCI
/// Express 6.0, 6.1.4.2), so its contents stay. Registers and flags must be those of ordinary memory.
macro_rules! compare_narrow {
    ($device:expr, $before:expr, $($text:literal / $defined:expr),+ $(,)?) => {
        $(
            let (device, memory) = (
                execute!($text, $defined, $device, $before),
                execute!($text, $defined, ARENA, $before),
            );
            let expected = After { memory: $before.memory, ..memory };
            ensure!(device == expected, "{}: {:x?} not {:x?}", $text, device, expected);
        )+
    };
}

/// Values at which carries, signs and zeros change.
const VALUES: [u64; 6] = [0, 1, 0x8000_0000_8000_8080, 0x7fff_ffff_7fff_7f7f, u64::MAX, 0x0123_4567_89ab_cdef];

fn device() -> Result<u64, Why> {
    let parts = Parts::of_nets().next().ok_or_else(|| Why::try_from("no network device").unwrap_or_default())?;
    Ok(parts.msix_table())
}

/// Calls `test` with every pair of values, with and without a carry.
fn with_all(mut test: impl FnMut(Before) -> Outcome) -> Outcome {
    for memory in VALUES {
        for value in VALUES {
            for flags in [2, 2 | CF] {
                test(Before { memory, rax: value, rdx: value.rotate_left(8), flags })?;
            }
        }
    }
    Ok(())
}

pub fn every_read_modify_write_does_as_on_memory() -> Outcome {
    let device = device()?;
    let outcome = with_all(|before| {
        compare!(
            device,
            before,
            "adc [rdi], rax" / STATUS,
            "adc [rdi], edx" / STATUS,
            "sbb [rdi], rax" / STATUS,
            "sbb [rdi], edx" / STATUS,
            "sbb dl, [rdi]" / STATUS,
            "add [rdi], eax" / STATUS,
            "sub [rdi], eax" / STATUS,
            "cmp [rdi], eax" / STATUS,
            "cmp rax, [rdi]" / STATUS,
            "and [rdi], eax" / LOGICAL,
            "or [rdi], eax" / LOGICAL,
            "xor [rdi], eax" / LOGICAL,
            "test [rdi], eax" / LOGICAL,
            "inc dword ptr [rdi]" / STATUS,
            "neg dword ptr [rdi]" / STATUS,
            "not dword ptr [rdi]" / STATUS,
            "lock bts dword ptr [rdi], 31" / OF_BITS,
            "lock btr qword ptr [rdi], 63" / OF_BITS,
            "bt dword ptr [rdi], 7" / OF_BITS,
        );
        compare_narrow!(
            device,
            before,
            "adc [rdi], ax" / STATUS,
            "adc [rdi], dl" / STATUS,
            "sbb [rdi], ax" / STATUS,
            "dec word ptr [rdi]" / STATUS,
            "neg byte ptr [rdi]" / STATUS,
            "lock btc word ptr [rdi], 15" / OF_BITS,
        );
        Ok(())
    });
    write64(device, 0);
    outcome
}

pub fn exchanges_do_as_on_memory() -> Outcome {
    let device = device()?;
    let outcome = with_all(|before| {
        let equal = Before { rax: before.memory, ..before };
        compare!(
            device,
            before,
            "xchg [rdi], rax" / STATUS,
            "xchg [rdi], edx" / STATUS,
            "lock xadd [rdi], rax" / STATUS,
            "lock xadd [rdi], edx" / STATUS,
            "lock cmpxchg [rdi], rdx" / STATUS,
            "lock cmpxchg [rdi], edx" / STATUS,
        );
        compare!(device, equal, "lock cmpxchg [rdi], rdx" / STATUS, "lock cmpxchg [rdi], edx" / STATUS,);
        compare_narrow!(
            device,
            before,
            "xchg [rdi], al" / STATUS,
            "xadd [rdi], dl" / STATUS,
            "cmpxchg [rdi], dx" / STATUS,
        );
        compare_narrow!(device, equal, "cmpxchg [rdi], dl" / STATUS);
        Ok(())
    });
    write64(device, 0);
    outcome
}
