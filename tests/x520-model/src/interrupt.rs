//! Causes, masks, messages and throttling of interrupts (data sheet 7.3, 8.2.3.5). Low latency interrupts are left out.

use crate::model::Model;
use crate::registers::Reg;
use crate::state::VECTORS;

/// IVAR: the entry is valid.
const VALID: u32 = 0x80;
/// GPIE: MSI-X, one vector for each cause.
const MSIX: u32 = 1 << 4;
/// GPIE: clear causes that are named in EIAC only, not by reading.
const OCD: u32 = 1 << 5;
/// GPIE: a message masks what EIAM names.
const EIAME: u32 = 1 << 30;
/// EICR: link status change.
pub(crate) const LSC: u32 = 1 << 20;
/// EICR: an edge of software definable pin 2.
pub(crate) const PIN_2: u32 = 1 << 26;
/// EICR: causes that belong to queues.
const QUEUES: u32 = 0xffff;
/// EITR: the interval, in 2.048 us; the counter, which CNT_WDIS keeps from being written.
const INTERVAL: u32 = 0xff8;
const COUNTER_SHIFT: u32 = 21;
const COUNTER: u32 = 0x7f;
const CNT_WDIS: u32 = 1 << 31;
impl Model {
    pub(crate) fn read_eicr(&mut self) -> u32 {
        let causes = self.get(Reg::Eicr, 0);
        let keep = if self.get(Reg::Gpie, 0) & OCD != 0 { causes & QUEUES & self.get(Reg::Eiac, 0) } else { 0 };
        self.set(Reg::Eicr, 0, keep);
        self.signalled &= keep;
        // Reading masks what EIAM names, unless messages do.
        if self.get(Reg::Gpie, 0) & EIAME == 0 {
            let mask = self.get(Reg::Eims, 0) & !self.get(Reg::Eiam, 0);
            self.set_mask(mask);
        }
        causes
    }

    pub(crate) fn write_interrupt(&mut self, reg: Reg, n: usize, value: u32) {
        match reg {
            // Causes are cleared by writing 1.
            Reg::Eicr => self.set_causes(self.get(Reg::Eicr, 0) & !value),
            Reg::Eics => self.set_causes(self.get(Reg::Eicr, 0) | value),
            // The first 16 vectors are the low half of EICR as well.
            Reg::EicsEx if n == 0 => self.set_causes(self.get(Reg::Eicr, 0) | value & QUEUES),
            Reg::Eims => self.set_mask(self.get(Reg::Eims, 0) | value),
            Reg::Eimc => self.set_mask(self.get(Reg::Eims, 0) & !value),
            Reg::EimsEx | Reg::EimcEx => {
                let was = self.get(Reg::EimsEx, n);
                let now = if reg == Reg::EimsEx { was | value } else { was & !value };
                self.set(Reg::EimsEx, n, now);
                if n == 0 {
                    self.set_mask(self.get(Reg::Eims, 0) & !QUEUES | now & QUEUES);
                }
            }
            _ => {}
        }
    }

    fn set_causes(&mut self, causes: u32) {
        self.set(Reg::Eicr, 0, causes);
        self.signalled &= causes;
    }

    fn set_mask(&mut self, mask: u32) {
        self.set(Reg::Eims, 0, mask);
        self.set(Reg::EimsEx, 0, self.get(Reg::EimsEx, 0) & !QUEUES | mask & QUEUES);
        self.signalled &= mask;
    }

    /// A queue has something to say: its vector, if it has one, becomes a cause. A queue's byte in IVAR: two queues a
    /// register, receive before transmit.
    pub(crate) fn raise(&mut self, queue: usize, transmit: bool) {
        let entry = self.get(Reg::Ivar, queue / 2) >> (16 * (queue % 2) + 8 * usize::from(transmit)) & 0xff;
        if entry & VALID != 0 && entry & 0x3f < 16 {
            self.raise_cause(1 << (entry & 0xf));
        }
    }

    pub(crate) fn raise_cause(&mut self, cause: u32) {
        let causes = self.get(Reg::Eicr, 0);
        // A cause that is set again is told again.
        self.signalled &= !cause;
        self.set(Reg::Eicr, 0, causes | cause);
    }

    /// The causes that would interrupt now.
    #[must_use]
    pub fn pending_interrupts(&self) -> u32 {
        self.get(Reg::Eicr, 0) & self.get(Reg::Eims, 0)
    }

    pub(crate) fn write_eitr(&mut self, n: usize, value: u32) {
        let counter = value >> COUNTER_SHIFT & COUNTER;
        if value & CNT_WDIS == 0
            && let Some(at) = self.throttle.0.get_mut(n)
        {
            // Its low bits are not in the register.
            *at = self.now + microseconds(counter << 5);
        }
        self.set(Reg::Eitr, n, value & INTERVAL);
    }

    /// Whether a vector may be told now; it counts as told.
    fn pass(&mut self, vector: usize) -> bool {
        let interval = microseconds(self.get(Reg::Eitr, vector) & INTERVAL) / 8;
        match self.throttle.0.get_mut(vector) {
            Some(at) if self.now < *at => false,
            Some(at) => {
                *at = self.now + interval;
                true
            }
            None => false,
        }
    }

    /// Takes the messages to send now, a bit for each vector. Without MSI-X there are none.
    pub fn take_messages(&mut self) -> u64 {
        let mut new = self.pending_interrupts() & !self.signalled;
        let gpie = self.get(Reg::Gpie, 0);
        if new == 0 || gpie & MSIX == 0 {
            return 0;
        }
        let other = self.get(Reg::IvarMisc, 0) >> 8 & 0xff;
        let other = (other & VALID != 0).then_some((other & 0x3f) as usize);
        let mut vectors = 0;
        for vector in 0..VECTORS {
            let mut causes = if vector < 16 { 1 << vector } else { 0 };
            if other == Some(vector) {
                causes |= !QUEUES;
            }
            if new & causes != 0 {
                if self.pass(vector) { vectors |= 1 << vector } else { new &= !causes }
            }
        }
        if other.is_none() {
            new &= QUEUES;
        }
        self.signalled |= new;
        self.set_causes(self.get(Reg::Eicr, 0) & !(new & self.get(Reg::Eiac, 0)));
        if gpie & EIAME != 0 {
            self.set_mask(self.get(Reg::Eims, 0) & !(new & self.get(Reg::Eiam, 0)));
        }
        vectors
    }

    /// Whether the interrupt pin is asserted. That happens only without MSI-X, from the end of vector 0's interval
    /// until no cause is left.
    pub fn pin(&mut self) -> bool {
        let pending = self.pending_interrupts();
        if self.get(Reg::Gpie, 0) & MSIX != 0 || pending == 0 {
            return false;
        }
        let asserted = pending & self.signalled != 0 || self.pass(0);
        if asserted {
            self.signalled |= pending;
        }
        asserted
    }

    /// Microseconds until a waiting vector may send its message. `None`: no vector waits.
    #[must_use]
    pub fn throttled(&self) -> Option<u64> {
        let waiting = self.pending_interrupts() & !self.signalled != 0;
        let next = self.throttle.0.iter().filter(|at| **at > self.now).min();
        next.filter(|_| waiting).map(|at| at - self.now)
    }
}

/// Microseconds of an interval in units of 2.048 us.
fn microseconds(units: u32) -> u64 {
    u64::from(units) * 2048 / 1000
}

#[cfg(test)]
mod tests {
    use super::{EIAME, LSC, MSIX};
    use crate::model::Model;
    use crate::registers::Reg;
    use crate::testing::model;

    #[test]
    fn causes_are_cleared_by_reading_and_masked_by_their_masks() {
        let (mut m, _) = model();
        m.read(Reg::Eicr.offset(0));
        m.write(Reg::Ivar.offset(1), 0x8100_0000 | 0x82);
        m.raise(3, true);
        m.raise(2, false);
        m.raise(0, false);
        assert_eq!(m.pending_interrupts(), 0);
        m.write(Reg::Eims.offset(0), 0xf);
        m.write(Reg::Eimc.offset(0), 0x9);
        assert_eq!((m.read(Reg::Eims.offset(0)), m.read(Reg::EimsEx.offset(0))), (6, 6));
        assert_eq!(m.pending_interrupts(), 6);
        assert_eq!((m.read(Reg::Eicr.offset(0)), m.read(Reg::Eicr.offset(0))), (6, 0));
        m.write(Reg::Eics.offset(0), 0x30);
        assert_eq!((m.read(Reg::Eics.offset(0)), m.read(Reg::Eics.offset(0))), (0x30, 0x30));
        m.write(Reg::Eicr.offset(0), 0x10);
        assert_eq!(m.read(Reg::Eicr.offset(0)), 0x20);
    }

    #[test]
    fn with_the_pin_reading_the_causes_masks_what_eiam_names() {
        let (mut m, _) = model();
        m.read(Reg::Eicr.offset(0));
        m.write(Reg::Eims.offset(0), LSC | 7);
        m.write(Reg::Eiam.offset(0), 5);
        m.write(Reg::Eics.offset(0), 1);
        assert!(m.pin());
        assert_eq!((m.read(Reg::Eicr.offset(0)), m.read(Reg::Eims.offset(0))), (1, LSC | 2));
        m.write(Reg::Eics.offset(0), 4);
        assert!(!m.pin(), "masked");
        m.set_cable(false);
        assert!(m.pin(), "the link's cause is not");
    }

    #[test]
    fn a_message_is_sent_once_for_each_time_a_cause_is_set() {
        let (mut m, _) = model();
        m.read(Reg::Eicr.offset(0));
        m.write(Reg::Gpie.offset(0), MSIX | EIAME);
        m.write(Reg::Ivar.offset(0), 0x8180);
        m.write(Reg::IvarMisc.offset(0), 0x8500);
        m.write(Reg::Eiac.offset(0), 3);
        m.write(Reg::Eiam.offset(0), 2);
        m.raise(0, false);
        assert_eq!(m.take_messages(), 0, "masked");
        m.write(Reg::EimsEx.offset(0), 3);
        assert_eq!((m.take_messages(), m.take_messages()), (1, 0));
        assert_eq!(m.read(Reg::Eicr.offset(0)), 0, "cleared by its message");
        m.raise(0, true);
        assert_eq!(m.take_messages(), 2);
        m.raise(0, true);
        assert_eq!(m.take_messages(), 0, "masked by its message");
        m.write(Reg::Eims.offset(0), LSC | 2);
        m.set_cable(false);
        assert_eq!(m.take_messages(), 1 << 5 | 2);
        assert_eq!(m.read(Reg::Eicr.offset(0)) & LSC, LSC);
    }

    #[test]
    fn a_vector_is_told_no_more_often_than_its_interval_says() {
        let (mut m, _) = model();
        m.read(Reg::Eicr.offset(0));
        m.write(Reg::Gpie.offset(0), MSIX);
        m.write(Reg::Ivar.offset(0), 0x8180);
        m.write(Reg::Eims.offset(0), 3);
        m.write(Reg::Eitr.offset(0), 50 << 3 | 1 << 31);
        m.write(Reg::Eiac.offset(0), 3);
        let raise = |m: &mut Model| {
            m.raise(0, false);
            m.raise(0, true);
        };
        raise(&mut m);
        assert_eq!(m.take_messages(), 3);
        raise(&mut m);
        assert_eq!(m.take_messages(), 2, "the other has no interval");
        assert_eq!((m.throttled(), m.take_messages()), (Some(102), 0));
        m.advance(101);
        assert_eq!(m.take_messages(), 0);
        m.advance(1);
        assert_eq!((m.take_messages(), m.throttled()), (1, None));
    }

    #[test]
    fn the_pin_stays_asserted_until_its_causes_are_gone() {
        let (mut m, _) = model();
        m.read(Reg::Eicr.offset(0));
        m.write(Reg::Eitr.offset(0), 50 << 3 | 1 << 31);
        m.write(Reg::Eims.offset(0), 3);
        m.write(Reg::Eics.offset(0), 1);
        assert_eq!((m.pin(), m.pin(), m.take_messages()), (true, true, 0));
        m.read(Reg::Eicr.offset(0));
        assert!(!m.pin());
        m.write(Reg::Eics.offset(0), 2);
        assert!(!m.pin(), "too early");
        m.advance(102);
        assert!(m.pin());
        m.write(Reg::Eimc.offset(0), 2);
        assert!(!m.pin());
    }
}
