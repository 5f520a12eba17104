//! Compares the results and flags with those of the CPU that runs the tests.

#![allow(unsafe_code, reason = "the instructions are executed, to compare with them")]

use core::arch::asm;

use super::*;
use proptest::prelude::*;

/// An instruction on registers of 1, 2, 4 and 8 bytes, executed with the flags given. Returns the left operand and the
/// flags afterwards.
macro_rules! on_the_cpu {
    (@one $text:expr, $left:ident, $right:ident, $flags:ident) => {{
        let (mut left, mut flags): (u64, u64) = ($left, $flags & STATUS | 2);
        // SAFETY: the instruction changes only the named register and the status flags. What is pushed is popped.
        unsafe {
            asm!(
                "push {flags}",
                "popfq",
                $text,
                "pushfq",
                "pop {flags}",
                flags = inout(reg) flags,
                inout("rax") left,
                in("rdx") $right,
            );
        }
        (left, flags & STATUS)
    }};
    ($size:expr, $left:ident, $right:ident, $flags:ident, $byte:expr, $word:expr, $dword:expr, $qword:expr) => {
        match $size {
            1 => on_the_cpu!(@one $byte, $left, $right, $flags),
            2 => on_the_cpu!(@one $word, $left, $right, $flags),
            4 => on_the_cpu!(@one $dword, $left, $right, $flags),
            _ => on_the_cpu!(@one $qword, $left, $right, $flags),
        }
    };
}

/// Executes the instruction. Returns its result and flags, and the flags that the manual defines.
fn executed(alu: Alu, size: u8, left: u64, right: u64, flags: u64) -> (u64, u64, u64) {
    macro_rules! two {
        ($name:literal) => {
            on_the_cpu!(
                size,
                left,
                right,
                flags,
                concat!($name, " al, dl"),
                concat!($name, " ax, dx"),
                concat!($name, " eax, edx"),
                concat!($name, " rax, rdx")
            )
        };
    }
    macro_rules! one {
        ($name:literal) => {
            on_the_cpu!(
                size,
                left,
                right,
                flags,
                concat!($name, " al"),
                concat!($name, " ax"),
                concat!($name, " eax"),
                concat!($name, " rax")
            )
        };
    }
    // There is no bit operation on bytes.
    macro_rules! bit {
        ($name:literal) => {
            on_the_cpu!(
                size,
                left,
                right,
                flags,
                concat!($name, " ax, dx"),
                concat!($name, " ax, dx"),
                concat!($name, " eax, edx"),
                concat!($name, " rax, rdx")
            )
        };
    }
    let (result, after) = match alu {
        Alu::Add => two!("add"),
        Alu::AddCarry => two!("adc"),
        Alu::Sub => two!("sub"),
        Alu::SubBorrow => two!("sbb"),
        Alu::And => two!("and"),
        Alu::Or => two!("or"),
        Alu::Xor => two!("xor"),
        Alu::Increment => one!("inc"),
        Alu::Decrement => one!("dec"),
        Alu::Negate => one!("neg"),
        Alu::Not => one!("not"),
        Alu::Bit => bit!("bt"),
        Alu::BitSet => bit!("bts"),
        Alu::BitReset => bit!("btr"),
        Alu::BitComplement => bit!("btc"),
    };
    let defined = match alu {
        Alu::And | Alu::Or | Alu::Xor => STATUS & !AF,
        // ZF does not change. OF, SF, AF and PF are undefined.
        _ if alu.is_of_bits() => CF | ZF,
        _ => STATUS,
    };
    (result & mask(size), after, defined)
}

const ALL: [Alu; 15] = [
    Alu::Add,
    Alu::AddCarry,
    Alu::Sub,
    Alu::SubBorrow,
    Alu::Increment,
    Alu::Decrement,
    Alu::Negate,
    Alu::And,
    Alu::Or,
    Alu::Xor,
    Alu::Not,
    Alu::Bit,
    Alu::BitSet,
    Alu::BitReset,
    Alu::BitComplement,
];

/// Operands at which flags change, and any others.
fn operand() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0..64_u32).prop_map(|bit| 1 << bit),
        (0..64_u32).prop_map(|bit| (1 << bit) - 1),
        (0..64_u32).prop_map(|bit| !(1_u64 << bit)),
        Just(u64::MAX),
        Just(0),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn results_and_flags_are_those_of_the_cpu(left in operand(), right in operand(), flags: u64) {
        for alu in ALL {
            for size in [1, 2, 4, 8].into_iter().filter(|&size| size != 1 || !alu.is_of_bits()) {
                let right = if matches!(alu, Alu::Increment | Alu::Decrement) { 1 } else { right };
                let (left, right) = (left & mask(size), right & mask(size));
                let (result, after, defined) = executed(alu, size, left, right, flags);
                let (ours, our_flags) = alu.compute(left, right, size, flags);
                prop_assert_eq!(ours, result, "{:?} of {} bytes: {:#x}, {:#x}", alu, size, left, right);
                prop_assert_eq!(
                    our_flags & defined, after & defined, "{:?} of {} bytes: {:#x}, {:#x}, {:#x}",
                    alu, size, left, right, flags
                );
                prop_assert_eq!(our_flags & !STATUS, flags & !STATUS, "other flags stay");
            }
        }
    }
}
