//! Causes and masks of interrupts (data sheet 7.3, 8.2.3.5). No message is sent: only a server to a machine would.

use crate::model::Model;
use crate::registers::Reg;

/// IVAR: the entry is valid.
const VALID: u32 = 0x80;
/// GPIE: clear causes that are named in EIAC only, not by reading.
const OCD: u32 = 1 << 5;

impl Model {
    pub(crate) fn read_eicr(&mut self) -> u32 {
        let causes = self.get(Reg::Eicr, 0);
        let keep = if self.get(Reg::Gpie, 0) & OCD != 0 { causes & 0xffff } else { 0 };
        self.set(Reg::Eicr, 0, keep);
        causes
    }

    pub(crate) fn write_interrupt(&mut self, reg: Reg, n: usize, value: u32) {
        let (target, set) = match reg {
            // Causes are cleared by writing 1.
            Reg::Eicr => (Reg::Eicr, false),
            Reg::Eics => (Reg::Eicr, true),
            Reg::Eims => (Reg::Eims, true),
            Reg::Eimc => (Reg::Eims, false),
            Reg::EimsEx => (Reg::EimsEx, true),
            Reg::EimcEx => (Reg::EimsEx, false),
            _ => return,
        };
        let was = self.get(target, n);
        self.set(target, n, if set { was | value } else { was & !value });
        // The first 16 vectors are the low half of EIMS as well.
        match target {
            Reg::Eims => {
                let upper = self.get(Reg::EimsEx, 0) & !0xffff;
                self.set(Reg::EimsEx, 0, upper | self.get(Reg::Eims, 0) & 0xffff);
            }
            Reg::EimsEx if n == 0 => {
                let upper = self.get(Reg::Eims, 0) & !0xffff;
                self.set(Reg::Eims, 0, upper | self.get(Reg::EimsEx, 0) & 0xffff);
            }
            _ => {}
        }
    }

    /// A queue has something to say: its vector, if it has one, becomes a cause. A queue's byte in IVAR: two queues a
    /// register, receive before transmit.
    pub(crate) fn raise(&mut self, queue: usize, transmit: bool) {
        let entry = self.get(Reg::Ivar, queue / 2) >> (16 * (queue % 2) + 8 * usize::from(transmit)) & 0xff;
        if entry & VALID != 0 && entry & 0x3f < 16 {
            self.set(Reg::Eicr, 0, self.get(Reg::Eicr, 0) | 1 << (entry & 0xf));
        }
    }

    /// Causes that would interrupt now.
    #[must_use]
    pub fn pending_interrupts(&self) -> u32 {
        self.get(Reg::Eicr, 0) & self.get(Reg::Eims, 0)
    }
}

#[cfg(test)]
mod tests {
    use crate::registers::Reg;
    use crate::testing::model;

    #[test]
    fn causes_are_cleared_by_reading_and_masked_by_their_masks() {
        let (mut m, _) = model();
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
}
