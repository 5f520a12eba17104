//! Blinks the light of a port, so that a person finds the port (82599 data sheet 8.2.3.1.6; 82576 data sheet 8.2).

use crate::registers::{Bus, Register, Registers};

/// Microseconds that the light is on, and that it is off.
const HALF: u64 = 250_000;
/// Lights of a port.
const LIGHTS: u32 = 4;
/// Bits of a light in LEDCTL. The lowest four are its mode, bit 7 has the device blink it.
const WIDTH: u32 = 8;
const FIELD: u32 = 0x8f;
const MODE: u32 = 0xf;
/// Modes: link and activity; on; off.
const LINK_ACTIVITY: u32 = 4;
const ON: u32 = 0xe;
const OFF: u32 = 0xf;
/// The light that is taken if none shows link and activity.
const DEFAULT: u32 = 2;

/// A light that blinks.
#[derive(Debug)]
struct Blinking {
    /// Until when.
    until: u64,
    /// When it changes.
    change: u64,
    on: bool,
    /// LEDCTL as it was.
    before: u32,
}

/// The lights of a port.
#[derive(Debug, Default)]
pub struct Lights {
    wanted: Option<u64>,
    blinking: Option<Blinking>,
}

impl Lights {
    /// Has the light blink until that time.
    pub fn blink(&mut self, until: u64) {
        match &mut self.blinking {
            Some(blinking) => blinking.until = until,
            None => self.wanted = Some(until),
        }
    }

    /// The device was reset: LEDCTL is as the EEPROM has it.
    pub fn forget(&mut self) {
        if let Some(blinking) = self.blinking.take() {
            self.wanted = Some(blinking.until);
        }
    }

    /// Changes the light if it is time. `ledctl`: the device's register of that name.
    pub fn poll<R: Registers>(&mut self, bus: &Bus<R>, ledctl: &Register, now: u64) {
        if let Some(until) = self.wanted.take() {
            self.blinking = Some(Blinking { until, change: now, on: false, before: bus.read(ledctl, 0) });
        }
        let Some(blinking) = &mut self.blinking else { return };
        if now >= blinking.until {
            bus.write(ledctl, 0, blinking.before);
            self.blinking = None;
        } else if now >= blinking.change {
            blinking.on = !blinking.on;
            blinking.change = now.saturating_add(HALF);
            bus.write(ledctl, 0, with_light(blinking.before, blinking.on));
        }
    }
}

/// LEDCTL with the light on or off.
fn with_light(before: u32, on: bool) -> u32 {
    let shows_link = |light: &u32| before >> light.wrapping_mul(WIDTH) & MODE == LINK_ACTIVITY;
    let at = (0..LIGHTS).find(shows_link).unwrap_or(DEFAULT).wrapping_mul(WIDTH);
    before & !(FIELD << at) | if on { ON } else { OFF } << at
}

#[cfg(test)]
mod tests {
    use super::with_light;

    #[test]
    fn the_light_that_shows_the_link_is_taken_and_the_others_stay() {
        assert_eq!(with_light(0x0502_0184, true), 0x0502_010e);
        assert_eq!(with_light(0x0502_8401, false), 0x0502_0f01);
        assert_eq!(with_light(0x0102_0300, true), 0x010e_0300);
    }
}
