//! The arithmetic of emulated instructions: results and status flags (SDM vol. 2 for each instruction, vol. 1 3.4.3.1
//! for the flags). A test compares it with the CPU that runs the tests. Flags that the manual leaves undefined are as on
//! the CPUs of today: the logical operations clear AF, the bit operations change CF only.

use crate::decode::mask;

pub(super) const CF: u64 = 1 << 0;
pub(super) const PF: u64 = 1 << 2;
const AF: u64 = 1 << 4;
pub(super) const ZF: u64 = 1 << 6;
pub(super) const SF: u64 = 1 << 7;
pub(super) const OF: u64 = 1 << 11;
pub(super) const STATUS: u64 = CF | PF | AF | ZF | SF | OF;

/// An operation on two operands. One with a single operand ignores the right one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alu {
    Add,
    AddCarry,
    Sub,
    SubBorrow,
    /// The right operand is 1.
    Increment,
    /// The right operand is 1.
    Decrement,
    Negate,
    And,
    Or,
    Xor,
    Not,
    Bit,
    BitSet,
    BitReset,
    BitComplement,
}

impl Alu {
    /// Whether the right operand is the number of a bit.
    pub(super) fn is_of_bits(self) -> bool {
        matches!(self, Self::Bit | Self::BitSet | Self::BitReset | Self::BitComplement)
    }

    /// Returns the result and RFLAGS for operands of `size` bytes.
    pub(super) fn compute(self, left: u64, right: u64, size: u8, flags: u64) -> (u64, u64) {
        let bits = u32::from(size) * 8;
        let last = bits.saturating_sub(1);
        let sign = 1 << last;
        let cut = |value: u64| value & mask(size);
        let flag = |set: bool, flag: u64| if set { flag } else { 0 };
        let carry = flags & CF;
        let sum = |left: u64, right: u64, carry: u64| {
            let result = cut(left.wrapping_add(right).wrapping_add(carry));
            let own = flag(result < left || carry != 0 && result == left, CF)
                | flag((left ^ right ^ result) & 0x10 != 0, AF)
                | flag((left ^ result) & (right ^ result) & sign != 0, OF);
            (result, own)
        };
        let difference = |left: u64, right: u64, borrow: u64| {
            let result = cut(left.wrapping_sub(right).wrapping_sub(borrow));
            let own = flag(left < right || borrow != 0 && left == right, CF)
                | flag((left ^ right ^ result) & 0x10 != 0, AF)
                | flag((left ^ right) & (left ^ result) & sign != 0, OF);
            (result, own)
        };
        // INC and DEC keep CF.
        let kept = if matches!(self, Self::Increment | Self::Decrement) { CF } else { 0 };
        let (result, own) = match self {
            Self::Add | Self::Increment => sum(left, right, 0),
            Self::AddCarry => sum(left, right, carry),
            Self::Sub | Self::Decrement => difference(left, right, 0),
            Self::SubBorrow => difference(left, right, carry),
            Self::Negate => difference(0, left, 0),
            Self::And => (left & right, 0),
            Self::Or => (left | right, 0),
            Self::Xor => (left ^ right, 0),
            Self::Not => return (cut(!left), flags),
            Self::Bit | Self::BitSet | Self::BitReset | Self::BitComplement => {
                let bit = 1 << (right as u32 & last);
                let result = match self {
                    Self::BitSet => left | bit,
                    Self::BitReset => left & !bit,
                    Self::BitComplement => left ^ bit,
                    _ => left,
                };
                return (result, flags & !CF | flag(left & bit != 0, CF));
            }
        };
        let own = own
            | flag(result == 0, ZF)
            | flag(result & sign != 0, SF)
            | flag((result as u8).count_ones().is_multiple_of(2), PF);
        (result, flags & !(STATUS & !kept) | own & !kept)
    }
}

#[cfg(test)]
mod tests;
