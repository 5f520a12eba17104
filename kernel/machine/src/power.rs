//! Power: ACPI's sleep and reset registers on hardware-reduced machines, the status register of the power button's generic
//! event device, and two older ways to reset, which firmware uses.
//!
//! Follows ACPI 6.5 ch. 4.8.3.6 (reset register), 4.8.3.7 (SLEEP_CONTROL_REG, SLEEP_STATUS_REG) and 5.6.9 (GED). The
//! DSDT reads [`EVENT_STATUS`] when [`POWER_BUTTON_GSI`](crate::layout::POWER_BUTTON_GSI) fires, writes back what it
//! saw, and notifies the power button device. The reset control register (RST_CNT) follows the data sheets of Intel's chip
//! sets. EDK2 writes it first, and then sends the keyboard controller the command that pulses its reset line.

use bitfield_struct::bitfield;

use crate::layout::{EVENT_STATUS, KEYBOARD_COMMAND, RESET, RESET_CONTROL, RESET_VALUE, SLEEP_CONTROL, SLEEP_TYPE_S5};

/// Bit of [`EVENT_STATUS`]: the power button was pressed.
pub const POWER_BUTTON: u8 = 1;

/// Command to the keyboard controller: pulse the reset line.
pub const PULSE_RESET: u8 = 0xfe;

/// What the guest asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Soft off (S5).
    PowerOff,
    /// Reset.
    Reset,
}

/// SLEEP_CONTROL_REG.
#[bitfield(u8)]
struct SleepControl {
    #[bits(2)]
    __: u8,
    #[bits(3)]
    sleep_type: u8,
    enable: bool,
    #[bits(2)]
    __: u8,
}

/// RST_CNT.
#[bitfield(u8)]
struct ResetControl {
    __: bool,
    /// SYS_RST: the whole machine, not only its CPUs.
    system: bool,
    /// RST_CPU: a write of 1 resets.
    reset: bool,
    /// FULL_RST: with a power cycle.
    full: bool,
    #[bits(4)]
    __: u8,
}

/// The registers in [`ACPI_PORTS`](crate::layout::ACPI_PORTS), [`RESET_CONTROL`] and [`KEYBOARD_COMMAND`].
#[derive(Clone, Debug, Default)]
pub struct Power {
    events: u8,
    control: ResetControl,
}

impl Power {
    /// Makes the registers. No event waits.
    #[must_use]
    pub const fn new() -> Self {
        Self { events: 0, control: ResetControl::new() }
    }

    /// Presses the power button. The caller then pulses the button's GSI.
    pub fn press_button(&mut self) {
        self.events |= POWER_BUTTON;
    }

    /// Reads a byte from one of the ports. The control registers read as zero. WAK_STS does too, because this machine
    /// has no sleep state from which to wake.
    #[must_use]
    pub fn read(&self, port: u16) -> u8 {
        match port {
            EVENT_STATUS => self.events,
            RESET_CONTROL => self.control.into_bits(),
            _ => 0,
        }
    }

    /// Writes a byte to one of the ports. Returns what the guest asked for.
    pub fn write(&mut self, port: u16, value: u8) -> Option<Request> {
        match port {
            SLEEP_CONTROL => {
                let control = SleepControl::from_bits(value);
                (control.enable() && control.sleep_type() == SLEEP_TYPE_S5).then_some(Request::PowerOff)
            }
            RESET if value == RESET_VALUE => Some(Request::Reset),
            RESET_CONTROL => {
                let control = ResetControl::from_bits(value);
                self.control = ResetControl::new().with_system(control.system()).with_full(control.full());
                control.reset().then_some(Request::Reset)
            }
            KEYBOARD_COMMAND if value == PULSE_RESET => Some(Request::Reset),
            EVENT_STATUS => {
                self.events &= !value;
                None
            }
            // SLEEP_STATUS, whose WAK_STS is write-1-to-clear and is already clear, and ports without a register.
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_s5_with_the_enable_bit_switches_off() {
        let mut p = Power::new();
        for value in 0..=255 {
            let off = value & 0x20 != 0 && value >> 2 & 7 == SLEEP_TYPE_S5;
            assert_eq!(p.write(SLEEP_CONTROL, value), off.then_some(Request::PowerOff), "{value:#x}");
        }
    }

    #[test]
    fn only_the_reset_value_resets() {
        let mut p = Power::new();
        for value in 0..=255 {
            let reset = value == RESET_VALUE;
            assert_eq!(p.write(RESET, value), reset.then_some(Request::Reset), "{value:#x}");
        }
    }

    #[test]
    fn the_reset_control_register_resets_by_its_bit_2_and_keeps_the_kind_of_reset() {
        let mut p = Power::new();
        for value in 0..=255 {
            let reset = value & 4 != 0;
            assert_eq!(p.write(RESET_CONTROL, value), reset.then_some(Request::Reset), "{value:#x}");
            assert_eq!(p.read(RESET_CONTROL), value & 0x0a);
        }
    }

    #[test]
    fn the_keyboard_controller_has_only_the_command_to_reset() {
        let mut p = Power::new();
        for value in 0..=255 {
            let reset = value == 0xfe;
            assert_eq!(p.write(KEYBOARD_COMMAND, value), reset.then_some(Request::Reset), "{value:#x}");
        }
    }

    #[test]
    fn a_press_stands_until_it_is_written_back() {
        let mut p = Power::new();
        assert_eq!(p.read(EVENT_STATUS), 0);
        p.press_button();
        assert_eq!(p.read(EVENT_STATUS), POWER_BUTTON);
        assert_eq!(p.write(EVENT_STATUS, 0xfe), None);
        assert_eq!(p.read(EVENT_STATUS), POWER_BUTTON);
        assert_eq!(p.write(EVENT_STATUS, POWER_BUTTON), None);
        assert_eq!(p.read(EVENT_STATUS), 0);
    }

    #[test]
    fn empty_ports_read_zero_and_swallow_writes() {
        let mut p = Power::new();
        for port in (0..=u16::MAX).filter(|p| ![SLEEP_CONTROL, RESET, RESET_CONTROL, EVENT_STATUS].contains(p)) {
            assert_eq!((p.write(port, 0xff), p.read(port)), (None, 0));
        }
    }
}
