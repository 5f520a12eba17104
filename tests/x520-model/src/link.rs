//! The link: a module, a cable, a laser, and the time until the link is up (data sheet 3.7, 4.6.4, 8.2.3.22).
//!
//! A card for a backplane has neither module nor laser. There both ends say which of KR, KX4 and KX they have, and the first of
//! these that both have becomes the link (802.3 clause 73). In modes without negotiation the other end has to be the same.
//!
//! With a module the link needs: the rate that LMS chooses is one of the module's and the other end's; the module's rate
//! select input says the same; the words for this kind of module have gone from the EEPROM to CORECTL.

use crate::backplane::{KR, KX, KX4, Offers};
use crate::interrupt::{LSC, PIN_2};
use crate::model::Model;
use crate::registers::Reg;

/// LINKS: link is up now, signal and lock seen.
const LINKS_UP: u32 = 1 << 30 | 1 << 7;
/// LINKS: the rate.
const TEN: u32 = 3 << 28;
const ONE: u32 = 2 << 28;
/// ESDP: the module's transmit-disable pin, as data and as output.
const LASER_OFF: u32 = 1 << 3 | 1 << 11;
/// ESDP: the module's rate select pin, as data and as output: high for 10 Gb/s.
const RATE: u32 = 1 << 5 | 1 << 13;
const RATE_OUTPUT: u32 = 1 << 13;
/// ESDP: a module is in the cage, which crosses to input pin 2.
const MODULE_PRESENT: u32 = 1 << 2;
/// GPIE: an edge of pin 2 is a cause.
const PIN_2_ENABLED: u32 = 1 << 2;
/// AUTOC: start again.
const RESTART: u32 = 1 << 12;
/// AUTOC.LMS: 1 Gb/s without and with auto-negotiation, 10 Gb/s serial.
const LMS_SHIFT: u32 = 13;
const LMS_ONE: u32 = 0;
const LMS_ONE_NEGOTIATED: u32 = 2;
const LMS_TEN: u32 = 3;
/// AUTOC.LMS: a mode with backplane auto-negotiation.
const NEGOTIATES: u32 = 1 << 15;
/// AUTOC2: the link is off in the EEPROM.
const LINK_OFF: u32 = 7 << 28;
/// LINKS2: the other end of a backplane negotiates.
const PARTNER_NEGOTIATES: u32 = 1 << 6;
/// LINKS: negotiation over a backplane has ended.
const NEGOTIATED: u32 = 1 << 31;
/// AUTOC.LMS: 10 Gb/s over four lanes.
const LMS_TEN_PARALLEL: u32 = 1;
/// ANLP1: auto-negotiation has left its first state. With nobody to negotiate with it gets no further.
const NEGOTIATING: u32 = 1 << 16;
/// AUTOC: force link up.
const FORCE_UP: u32 = 1;
/// HLREG0: what is sent comes back.
const LOOPBACK: u32 = 1 << 15;

impl Model {
    /// What a backplane's other end offers.
    pub fn set_offers(&mut self, offers: Offers) {
        self.link.offers = offers;
        self.restart_link();
    }

    /// Puts the cable in or pulls it out.
    pub fn set_cable(&mut self, present: bool) {
        if present != self.link.cable {
            self.link.cable = present;
            self.restart_link();
        }
    }

    /// The rate of the other end in Mb/s: 1,000 or 10,000.
    pub fn set_partner(&mut self, rate: u32) {
        self.link.partner = rate;
        self.restart_link();
    }

    /// The module is gone, and LINKS shows the signal of the other port: from now on.
    pub fn feign_signal(&mut self) {
        self.link.feigned = true;
        self.module = None;
        self.update_link();
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

    /// A module was put in or taken out.
    pub(crate) fn tell_module(&mut self) {
        if self.get(Reg::Gpie, 0) & PIN_2_ENABLED != 0 {
            self.raise_cause(PIN_2);
        }
    }

    /// The bits of LINKS for the rate of the link if there is nothing in its way.
    fn rate(&self) -> Option<u32> {
        let module = self.module.as_ref()?;
        let (rate, bits, known) = match self.get(Reg::Autoc, 0) >> LMS_SHIFT & 7 {
            LMS_TEN => (10_000, TEN, module.ten),
            LMS_ONE | LMS_ONE_NEGOTIATED => (1_000, ONE, module.one),
            _ => return None,
        };
        let pin = self.get(Reg::Esdp, 0) & RATE;
        let selected = !module.has_rates() || pin == if rate == 10_000 { RATE } else { RATE_OUTPUT };
        (known && selected && rate == self.link.partner && self.is_set_up()).then_some(bits)
    }

    /// LINKS of a card for a backplane, if the other end is there and there was time enough.
    fn backplane(&self) -> u32 {
        let autoc = self.get(Reg::Autoc, 0);
        let negotiates = autoc & NEGOTIATES != 0;
        let mine = match autoc >> LMS_SHIFT & 7 {
            LMS_ONE | LMS_ONE_NEGOTIATED => KX,
            LMS_TEN_PARALLEL => KX4,
            LMS_TEN => KR,
            _ => autoc & (KR | KX4 | KX),
        };
        let both = mine & self.link.offers.bits();
        let link = if both & (KR | KX4) != 0 {
            LINKS_UP | TEN
        } else if both != 0 {
            LINKS_UP | ONE
        } else {
            0
        };
        link | if negotiates { NEGOTIATED } else { 0 }
    }

    fn update_backplane(&mut self) {
        let off = self.get(Reg::Autoc2, 0) & LINK_OFF != 0;
        let forced = self.get(Reg::Autoc, 0) & FORCE_UP != 0;
        let links = match self.link.cable && self.now >= self.link.ready && !off {
            true => self.backplane(),
            false if forced => LINKS_UP | TEN,
            false => 0,
        };
        self.set(Reg::Links2, 0, if links & NEGOTIATED != 0 { PARTNER_NEGOTIATES } else { 0 });
        self.show(links);
    }

    /// Shows the link in LINKS and STATUS. A change is a cause.
    fn show(&mut self, links: u32) {
        let was = self.link_is_up();
        self.set(Reg::Links, 0, links);
        let is = self.link_is_up();
        if was != is {
            self.raise_cause(LSC);
        }
        let status = self.get(Reg::Status, 0) & !(1 << 7);
        self.set(Reg::Status, 0, status | u32::from(is) << 7);
    }

    pub(crate) fn update_link(&mut self) {
        if self.config.backplane.is_some() {
            return self.update_backplane();
        }
        let esdp = self.get(Reg::Esdp, 0) & !MODULE_PRESENT | if self.module.is_some() { MODULE_PRESENT } else { 0 };
        self.set(Reg::Esdp, 0, esdp);
        let off = esdp & LASER_OFF == LASER_OFF || self.get(Reg::Autoc2, 0) & LINK_OFF != 0;
        let rate = self.rate().filter(|_| self.link.cable && self.now >= self.link.ready && !off);
        let forced = self.get(Reg::Autoc, 0) & FORCE_UP != 0;
        let rate = rate.or((forced || self.link.feigned).then_some(TEN));
        self.show(rate.map_or(0, |rate| LINKS_UP | rate));
    }
}

#[cfg(test)]
mod tests {
    use super::{LASER_OFF, LINKS_UP, NEGOTIATED, ONE, Offers, PARTNER_NEGOTIATES, RATE, RATE_OUTPUT, TEN};
    use crate::memory::Memory;
    use crate::model::{Config, Model};
    use crate::registers::Reg;
    use crate::sfp::Module;
    use crate::testing::{model, set_up};

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

    /// LINKS with a module and a mode of AUTOC, when time has passed.
    fn links(m: &mut Model, module: &str, cable: bool, lms: u32) -> u32 {
        m.set_module(Module::named(module));
        set_up(m, cable);
        m.write(Reg::Autoc.offset(0), 0xc09c_0004 | lms << 13 | 1 << 12);
        m.advance(1_000_000);
        m.read(Reg::Links.offset(0))
    }

    #[test]
    fn the_link_has_the_rate_of_the_module_and_of_the_other_end() {
        let (mut m, _) = model();
        for (module, ten, one) in [("sr", true, false), ("passive", true, false), ("sx", false, true)] {
            for (rate, lms) in [(10_000, 3), (1_000, 0), (1_000, 2), (1_000, 4)] {
                m.set_partner(rate);
                let expected = match lms {
                    3 if ten => LINKS_UP | TEN,
                    0 | 2 if one => LINKS_UP | ONE,
                    _ => 0,
                };
                assert_eq!(links(&mut m, module, module == "passive", lms), expected, "{module} {rate} {lms}");
            }
        }
        m.set_partner(1_000);
        assert_eq!(links(&mut m, "sr", false, 3), 0, "the other end has another rate");
    }

    #[test]
    fn a_backplane_negotiates_for_as_long_as_a_link_takes_and_needs_an_other_end() {
        let config = Config { module: None, backplane: Some(Offers::KR.autoc()), ..Config::default() };
        let mut m = Model::new(config, Box::new(Memory::new(1 << 20)));
        m.set_cable(true);
        m.advance(499_000);
        assert_eq!(m.read(Reg::Links.offset(0)), 0);
        m.advance(1_000);
        assert_eq!(m.read(Reg::Links.offset(0)), NEGOTIATED | LINKS_UP | TEN);
        assert_eq!(m.read(Reg::Links2.offset(0)), PARTNER_NEGOTIATES);
        assert_eq!(m.read(Reg::Esdp.offset(0)) & 4, 0, "no module");
        m.set_offers(Offers::KX);
        m.advance(500_000);
        assert_eq!(m.read(Reg::Links.offset(0)), NEGOTIATED);
        m.set_cable(false);
        m.advance(500_000);
        assert_eq!(m.read(Reg::Links.offset(0)), 0);
        assert_eq!(
            (Offers::named("kr,kx4,kx"), Offers::named("kr kx5"), Offers::named("")),
            (Some(Offers::ALL), None, None)
        );
    }

    #[test]
    fn a_module_with_two_rates_wants_the_select_pin_to_say_which() {
        let (mut m, _) = model();
        for (rate, lms, right, wrong) in [(10_000, 3, RATE, RATE_OUTPUT), (1_000, 2, RATE_OUTPUT, RATE)] {
            m.set_partner(rate);
            m.write(Reg::Esdp.offset(0), wrong);
            assert_eq!(links(&mut m, "dual-sr", false, lms), 0);
            m.write(Reg::Esdp.offset(0), right);
            assert_ne!(links(&mut m, "dual-sr", false, lms), 0);
        }
    }

    #[test]
    fn no_link_without_a_module_and_before_the_words_for_its_kind() {
        let (mut m, _) = model();
        m.set_module(None);
        m.advance(1_000_000);
        assert!(!m.link_is_up() && m.read(Reg::Esdp.offset(0)) & 4 == 0);
        m.set_module(Module::named("passive"));
        m.advance(1_000_000);
        assert!(!m.link_is_up() && m.read(Reg::Esdp.offset(0)) & 4 != 0);
        set_up(&mut m, false);
        m.advance(1_000_000);
        assert!(!m.link_is_up(), "the words for optics");
        set_up(&mut m, true);
        m.advance(1_000_000);
        assert!(m.link_is_up());
    }
}
