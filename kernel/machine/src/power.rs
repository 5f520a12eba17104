//! Power: ACPI's sleep and reset registers on hardware-reduced machines, and the status register of the power button's
//! generic event device.
//!
//! Follows ACPI 6.5 ch. 4.8.3.6 (reset register), 4.8.3.7 (SLEEP_CONTROL_REG, SLEEP_STATUS_REG) and 5.6.9 (GED). The
//! DSDT reads [`EVENT_STATUS`] when [`POWER_BUTTON_GSI`](crate::layout::POWER_BUTTON_GSI) fires, writes back what it
//! saw, and notifies the power button device.

use bitfield_struct::bitfield;

use crate::layout::{EVENT_STATUS, RESET, RESET_VALUE, SLEEP_CONTROL, SLEEP_TYPE_S5};

/// Bit of [`EVENT_STATUS`]: the power button was pressed.
pub const POWER_BUTTON: u8 = 1;

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

/// The registers in [`ACPI_PORTS`](crate::layout::ACPI_PORTS).
#[derive(Clone, Debug, Default)]
pub struct Power {
    events: u8,
}

impl Power {
    /// Makes the registers. No event waits.
    #[must_use]
    pub const fn new() -> Self {
        Self { events: 0 }
    }

    /// Presses the power button. The caller then pulses the button's GSI.
    pub fn press_button(&mut self) {
        self.events |= POWER_BUTTON;
    }

    /// Reads a byte from one of the ports. The control registers read as zero. WAK_STS does too, because this machine
    /// has no sleep state from which to wake.
    #[must_use]
    pub fn read(&self, port: u16) -> u8 {
        if port == EVENT_STATUS { self.events } else { 0 }
    }

    /// Writes a byte to one of the ports. Returns what the guest asked for.
    pub fn write(&mut self, port: u16, value: u8) -> Option<Request> {
        match port {
            SLEEP_CONTROL => {
                let control = SleepControl::from_bits(value);
                (control.enable() && control.sleep_type() == SLEEP_TYPE_S5).then_some(Request::PowerOff)
            }
            RESET if value == RESET_VALUE => Some(Request::Reset),
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
        for port in (0..=u16::MAX).filter(|p| ![SLEEP_CONTROL, RESET, EVENT_STATUS].contains(p)) {
            assert_eq!((p.write(port, 0xff), p.read(port)), (None, 0));
        }
    }
}
