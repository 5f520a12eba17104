//! The link: a cable, a laser, and the time until the link is up (data sheet 3.7, 4.6.4, 8.2.3.22).

use crate::interrupt::LSC;
use crate::model::Model;
use crate::registers::Reg;

/// LINKS: link is up now, at 10 Gb/s, signal and lock seen.
const LINKS_UP: u32 = 1 << 30 | 3 << 28 | 1 << 7;
/// ESDP: the module's transmit-disable pin, as data and as output.
const LASER_OFF: u32 = 1 << 3 | 1 << 11;
/// ESDP: a module is in the cage, which crosses to input pin 2.
const MODULE_PRESENT: u32 = 1 << 2;
/// AUTOC: start again.
const RESTART: u32 = 1 << 12;
/// AUTOC.LMS: a mode with backplane auto-negotiation.
const NEGOTIATES: u32 = 1 << 15;
/// ANLP1: auto-negotiation has left its first state. With nobody to negotiate with it gets no further.
const NEGOTIATING: u32 = 1 << 16;
/// AUTOC: force link up.
const FORCE_UP: u32 = 1;
/// HLREG0: what is sent comes back.
const LOOPBACK: u32 = 1 << 15;

impl Model {
    /// Puts the cable in or pulls it out.
    pub fn set_cable(&mut self, present: bool) {
        if present != self.link.cable {
            self.link.cable = present;
            self.restart_link();
        }
    }

    /// Whether frames get through.
    #[must_use]
    pub fn link_is_up(&self) -> bool {
        self.get(Reg::Links, 0) & LINKS_UP == LINKS_UP
    }

    pub(crate) fn loopback(&self) -> bool {
        self.get(Reg::Hlreg0, 0) & LOOPBACK != 0 && self.get(Reg::Autoc, 0) & FORCE_UP != 0
    }

    pub(crate) fn restart_link(&mut self) {
        self.link.ready = self.now + self.config.link_time;
        self.update_link();
    }

    pub(crate) fn write_autoc(&mut self, value: u32) {
        self.set(Reg::Autoc, 0, value & !RESTART);
        if value & RESTART != 0 {
            self.set(Reg::Anlp1, 0, if value & NEGOTIATES != 0 { NEGOTIATING } else { 0 });
            self.restart_link();
        }
    }

    pub(crate) fn update_link(&mut self) {
        let esdp = self.get(Reg::Esdp, 0) | MODULE_PRESENT;
        self.set(Reg::Esdp, 0, esdp);
        let was = self.link_is_up();
        let up = self.link.cable && self.now >= self.link.ready && esdp & LASER_OFF != LASER_OFF;
        let forced = self.get(Reg::Autoc, 0) & FORCE_UP != 0;
        self.set(Reg::Links, 0, if up || forced { LINKS_UP } else { 0 });
        if was != (up || forced) {
            self.raise_cause(LSC);
        }
        let status = self.get(Reg::Status, 0) & !(1 << 7);
        self.set(Reg::Status, 0, status | u32::from(up || forced) << 7);
    }
}

#[cfg(test)]
mod tests {
    use super::LASER_OFF;
    use crate::registers::Reg;
    use crate::testing::model;

    #[test]
    fn link_takes_time_and_goes_at_once() {
        let (mut m, _) = model();
        assert!(m.link_is_up());
        m.set_cable(false);
        assert!(!m.link_is_up());
        m.set_cable(true);
        m.advance(400_000);
        assert_eq!(m.read(Reg::Links.offset(0)), 0);
        m.advance(100_000);
        assert_eq!(m.read(Reg::Links.offset(0)) >> 28, 7);
        assert_eq!(m.read(Reg::Status.offset(0)) & 0x80, 0x80);
    }

    #[test]
    fn no_link_with_the_laser_off_and_again_with_it_on() {
        let (mut m, _) = model();
        m.write(Reg::Esdp.offset(0), LASER_OFF);
        m.advance(1);
        assert!(!m.link_is_up());
        m.write(Reg::Esdp.offset(0), 1 << 11);
        m.advance(1);
        assert!(m.link_is_up());
        assert_eq!(m.read(Reg::Esdp.offset(0)) & 4, 4, "a module is there");
    }

    #[test]
    fn restarting_costs_the_link() {
        let (mut m, _) = model();
        let autoc = m.read(Reg::Autoc.offset(0));
        m.write(Reg::Autoc.offset(0), autoc | 1 << 12);
        assert!(!m.link_is_up());
        assert_eq!(m.read(Reg::Autoc.offset(0)), autoc, "restart clears itself");
        m.advance(500_000);
        assert!(m.link_is_up());
    }

    #[test]
    fn negotiation_begins_when_it_is_asked_for() {
        let (mut m, _) = model();
        let autoc = m.read(Reg::Autoc.offset(0));
        for (mode, state) in [(autoc ^ 1 << 15, 1), (autoc, 0)] {
            m.write(Reg::Autoc.offset(0), mode | 1 << 12);
            assert_eq!(m.read(Reg::Anlp1.offset(0)) >> 16 & 0xf, state);
        }
    }
}
