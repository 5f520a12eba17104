//! Causes, masks and messages of interrupts (data sheet 7.3, 8.2.3.5). Throttling (EITR) is left out: a message goes as
//! soon as it may.

use crate::model::Model;
use crate::registers::Reg;

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
/// EICR: causes that belong to queues.
const QUEUES: u32 = 0xffff;

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

    /// Causes that would interrupt now.
    #[must_use]
    pub fn pending_interrupts(&self) -> u32 {
        self.get(Reg::Eicr, 0) & self.get(Reg::Eims, 0)
    }

    /// The messages to send now, a bit for each vector; without MSI-X there is vector 0 alone.
    pub fn take_messages(&mut self) -> u64 {
        let new = self.pending_interrupts() & !self.signalled;
        self.signalled |= new;
        if new == 0 {
            return 0;
        }
        let gpie = self.get(Reg::Gpie, 0);
        if gpie & MSIX == 0 {
            return 1;
        }
        let mut vectors = u64::from(new & QUEUES);
        let other = self.get(Reg::IvarMisc, 0) >> 8 & 0xff;
        if new & !QUEUES != 0 && other & VALID != 0 {
            vectors |= 1 << (other & 0x3f);
        }
        self.set_causes(self.get(Reg::Eicr, 0) & !(new & self.get(Reg::Eiac, 0)));
        if gpie & EIAME != 0 {
            self.set_mask(self.get(Reg::Eims, 0) & !(new & self.get(Reg::Eiam, 0)));
        }
        vectors
    }
}

#[cfg(test)]
mod tests {
    use super::{EIAME, LSC, MSIX};
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
        m.write(Reg::Eicr.offset(0), 0x10);
        assert_eq!(m.read(Reg::Eicr.offset(0)), 0x20);
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
}
