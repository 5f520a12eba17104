//! Switches the machine off by ACPI (6.5, 4.8.3.2 and 7.4.2): sleep state S5 through the PM1 control registers.
//!
//! The value that means S5 is in the DSDT's object `\_S5`, a package of numbers in AML. Firmware writes it as a
//! constant, so this module searches for that constant and needs no AML interpreter.

#![allow(unsafe_code, reason = "the registers are ports that the FADT names")]

use x86_64::instructions::port::Port;

/// How to switch the machine off, from its ACPI tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftOff {
    /// Port of PM1a_CNT, and port of PM1b_CNT if there is one.
    pub control: (u16, Option<u16>),
    /// SLP_TYP for each of the two, 0 to 7.
    pub sleep_type: (u8, u8),
    /// The port and the value that switch ACPI mode on. `None`: the machine has no other mode.
    pub enable: Option<(u16, u8)>,
}

const SCI_EN: u16 = 1 << 0;
const SLP_TYP: u16 = 7 << 10;
const SLP_EN: u16 = 1 << 13;

impl SoftOff {
    /// Switches the machine off. Returns only if that does not work.
    ///
    /// # Safety
    /// The ports are those of this machine's FADT, and nobody else uses them.
    pub unsafe fn switch_off(&self) {
        let mut a = Port::<u16>::new(self.control.0);
        // SAFETY: the caller's promise. SLP_TYP and SLP_EN are written together. PM1b comes first: the machine goes off
        // no later than at the write to PM1a.
        unsafe {
            if let Some((port, value)) = self.enable
                && a.read() & SCI_EN == 0
            {
                Port::<u8>::new(port).write(value);
                // Waits for firmware, at least one second: a read takes well over 100 ns. Firmware may need some
                // seconds.
                for _ in 0..10_000_000 {
                    if a.read() & SCI_EN != 0 {
                        break;
                    }
                }
            }
            let value = |old: u16, kind: u8| old & !(SLP_TYP | SLP_EN) | u16::from(kind & 7) << 10 | SLP_EN;
            if let Some(b) = self.control.1 {
                let mut b = Port::<u16>::new(b);
                let old = b.read();
                b.write(value(old, self.sleep_type.1));
            }
            let old = a.read();
            a.write(value(old, self.sleep_type.0));
        }
    }
}

const NAME_OP: u8 = 0x08;
const PACKAGE_OP: u8 = 0x12;

/// Finds SLP_TYPa and SLP_TYPb of `\_S5` in the AML of a DSDT (20.2). `None`: there is no `\_S5`, or it is not a
/// constant.
#[must_use]
pub fn sleep_type_s5(aml: &[u8]) -> Option<(u8, u8)> {
    let at = aml.windows(4).enumerate().find_map(|(i, name)| {
        let before = aml.get(..i)?;
        let named = before.ends_with(&[NAME_OP]) || before.ends_with(&[NAME_OP, b'\\']);
        (name == b"_S5_" && named).then_some(i.saturating_add(4))
    })?;
    let package = aml.get(at..)?.strip_prefix(&[PACKAGE_OP])?;
    // PkgLength: the two high bits of its first byte are the number of bytes that follow. After it comes the number of
    // elements.
    let more = usize::from(package.first()? >> 6);
    let mut elements = package.get(more + 2..)?;
    let a = constant(&mut elements)?;
    Some((a, constant(&mut elements).unwrap_or(a)))
}

/// Reads a constant: ZeroOp, OneOp, or a prefix and 1, 2 or 4 bytes. `None`: it is something else, or larger than a
/// byte.
fn constant(aml: &mut &[u8]) -> Option<u8> {
    let (&op, rest) = aml.split_first()?;
    let bytes = match op {
        0x00 | 0x01 => {
            *aml = rest;
            return Some(op);
        }
        0x0a => 1,
        0x0b => 2,
        0x0c => 4,
        _ => return None,
    };
    let (value, rest) = rest.split_at_checked(bytes)?;
    *aml = rest;
    let (first, upper) = value.split_first()?;
    upper.iter().all(|&b| b == 0).then_some(*first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s5_is_found_in_each_form_that_firmware_writes() {
        // QEMU's q35: Name (_S5, Package (4) { 0, 0, 0, 0 })
        let q35 = b"\x14\x08\x5f\x53\x33\x5f\x08_S5_\x12\x06\x04\x00\x00\x00\x00\x10";
        assert_eq!(sleep_type_s5(q35), Some((0, 0)));
        // A server board: byte constants, root prefix.
        let board = b"\x08\\_S5_\x12\x0a\x04\x0a\x07\x0a\x05\x00\x00";
        assert_eq!(sleep_type_s5(board), Some((7, 5)));
        // A package length of two bytes, and a second element that is no constant.
        assert_eq!(sleep_type_s5(b"\x08_S5_\x12\x40\x01\x02\x01\x70"), Some((1, 1)));
    }

    #[test]
    fn what_is_not_such_a_package_is_not_believed() {
        let bad: [&[u8]; 7] = [
            b"",
            b"_S5_\x12\x06\x04\x00\x00\x00\x00",
            b"\x08_S5_",
            b"\x08_S5_\x12",
            b"\x08_S5_\x12\xc6\x04",
            b"\x08_S5_\x14\x06\x04\x00\x00",
            b"\x08_S5_\x12\x06\x04\x0b\x05\x01",
        ];
        for aml in bad {
            assert_eq!(sleep_type_s5(aml), None, "{aml:02x?}");
        }
    }
}
