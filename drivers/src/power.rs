//! Switches the machine off by ACPI (6.5, 4.8.3.2 and 7.4.2): sleep state S5 through the PM1 control registers. Resets it.
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

/// Where ACPI's reset register is (4.8.3.6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResetRegister {
    /// An I/O port.
    Port(u16),
    /// A physical address.
    Memory(u64),
}

/// What a reset needs of the machine. Each method returns also if it had no effect.
pub trait ResetAccess {
    /// Reads a port.
    fn read_port(&mut self, port: u16) -> u8;
    /// Writes to a port.
    fn write_port(&mut self, port: u16, value: u8);
    /// Writes a byte to a physical address. It does nothing if that cannot be mapped.
    fn write_memory(&mut self, address: u64, value: u8);
    /// Waits.
    fn delay_micros(&mut self, micros: u64);
}

/// The reset control register of Intel's and AMD's chipsets: SYS_RST chooses a reset of all of the machine, RST_CPU begins it when it
/// changes from 0 to 1.
const RESET_CONTROL: u16 = 0xcf9;
const SYS_RST: u8 = 1 << 1;
const RST_CPU: u8 = 1 << 2;
/// Microseconds between the two.
const RESET_PAUSE: u64 = 50;
/// The keyboard controller's command port, its status bit "input buffer full", and its command that pulses the reset line.
const KEYBOARD: u16 = 0x64;
const INPUT_FULL: u8 = 1 << 1;
const PULSE_RESET: u8 = 0xfe;
/// Microseconds until a way counts as one that does nothing.
const RESET_TIME: u64 = 50_000;
/// Looks at the keyboard controller until it counts as absent, and microseconds between two of them.
const KEYBOARD_LOOKS: u32 = 100;
const KEYBOARD_PAUSE: u64 = 100;

/// Resets the machine: by ACPI's register and its value, if there is one, then by port 0xCF9, then by the keyboard controller. Returns only if nothing
/// of that works. Then a triple fault is left.
pub fn reset(machine: &mut impl ResetAccess, acpi: Option<(ResetRegister, u8)>) {
    match acpi {
        Some((ResetRegister::Port(port), value)) => machine.write_port(port, value),
        Some((ResetRegister::Memory(address), value)) => machine.write_memory(address, value),
        None => {}
    }
    if acpi.is_some() {
        machine.delay_micros(RESET_TIME);
    }
    let control = machine.read_port(RESET_CONTROL) & !(SYS_RST | RST_CPU);
    machine.write_port(RESET_CONTROL, control | SYS_RST);
    machine.delay_micros(RESET_PAUSE);
    machine.write_port(RESET_CONTROL, control | SYS_RST | RST_CPU);
    machine.delay_micros(RESET_TIME);
    for _ in 0..KEYBOARD_LOOKS {
        if machine.read_port(KEYBOARD) & INPUT_FULL == 0 {
            break;
        }
        machine.delay_micros(KEYBOARD_PAUSE);
    }
    machine.write_port(KEYBOARD, PULSE_RESET);
    machine.delay_micros(RESET_TIME);
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

    /// A machine that resets by one of its ways.
    #[derive(Default)]
    struct Machine {
        /// The register and the value that reset it.
        port: Option<(u16, u8)>,
        memory: Option<(u64, u8)>,
        /// Whether port 0xCF9 and the keyboard controller do.
        chipset: bool,
        keyboard: bool,
        control: u8,
        /// Looks at the keyboard controller until its input buffer is empty.
        busy: u32,
        now: u64,
        /// When it was reset.
        reset: Option<u64>,
        /// The ports written to before that.
        written: Vec<u16>,
    }

    impl Machine {
        fn begin_reset(&mut self) {
            self.reset.get_or_insert(self.now);
        }
    }

    impl ResetAccess for Machine {
        fn read_port(&mut self, port: u16) -> u8 {
            match port {
                0xcf9 => self.control,
                0x64 => {
                    self.busy = self.busy.saturating_sub(1);
                    if self.busy > 0 { 0x1e } else { 0x1c }
                }
                _ => panic!("a read of {port:#x}"),
            }
        }

        fn write_port(&mut self, port: u16, value: u8) {
            if self.reset.is_none() {
                self.written.push(port);
            }
            if self.port == Some((port, value)) {
                self.begin_reset();
            }
            match port {
                0xcf9 => {
                    // A hard reset, chosen before, and begun by an edge.
                    if self.chipset && self.control & 0b110 == 0b010 && value & 0b110 == 0b110 {
                        self.begin_reset();
                    }
                    self.control = value;
                }
                0x64 if self.keyboard && self.busy == 0 && value == 0xfe => self.begin_reset(),
                _ => {}
            }
        }

        fn write_memory(&mut self, address: u64, value: u8) {
            if self.memory == Some((address, value)) {
                self.begin_reset();
            }
        }

        fn delay_micros(&mut self, micros: u64) {
            self.now += micros;
        }
    }

    #[test]
    fn acpis_register_comes_first() {
        let mut machine = Machine { port: Some((0xb2, 0x73)), chipset: true, keyboard: true, ..Default::default() };
        reset(&mut machine, Some((ResetRegister::Port(0xb2), 0x73)));
        assert_eq!((machine.reset, machine.written), (Some(0), vec![0xb2]));
        let mut machine = Machine { memory: Some((0xfed8_0000, 1)), chipset: true, ..Default::default() };
        reset(&mut machine, Some((ResetRegister::Memory(0xfed8_0000), 1)));
        assert_eq!((machine.reset, machine.written), (Some(0), vec![]));
    }

    #[test]
    fn each_way_is_tried_after_those_that_do_nothing() {
        for acpi in [None, Some((ResetRegister::Port(0xb2), 1)), Some((ResetRegister::Memory(1 << 52), 1))] {
            // Whatever the register has held before, also what another way has left there.
            for control in [0, 0x02, 0x06, 0x0e] {
                let mut machine = Machine { chipset: true, keyboard: true, control, ..Default::default() };
                reset(&mut machine, acpi);
                assert!(
                    machine.reset.is_some() && machine.written.ends_with(&[0xcf9, 0xcf9]),
                    "{acpi:?}, {control:#x}"
                );
            }
            let mut machine = Machine { keyboard: true, busy: 30, ..Default::default() };
            reset(&mut machine, acpi);
            assert!(machine.reset.is_some() && machine.written.ends_with(&[0x64]));
        }
    }

    #[test]
    fn a_machine_that_does_not_reset_is_left_after_a_fifth_of_a_second() {
        let mut machine = Machine { busy: u32::MAX, ..Default::default() };
        reset(&mut machine, Some((ResetRegister::Port(0xb2), 1)));
        assert!(machine.reset.is_none() && machine.now < 200_000, "{} us", machine.now);
    }

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
