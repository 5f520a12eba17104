//! Counters that stick at their end until they are read (data sheet 8.2.3.23).

use crate::model::Model;
use crate::registers::Reg;

/// Bytes of FCS, which the counters include.
const FCS: usize = 4;

impl Model {
    /// Counts one up. It stays at all ones until it is read.
    pub(crate) fn count(&mut self, reg: Reg, n: usize) {
        self.set(reg, n, self.get(reg, n).saturating_add(1));
    }

    /// Adds bytes to a counter of 36 bits in two registers.
    pub(crate) fn count_bytes(&mut self, low: Reg, high: Reg, n: usize, bytes: usize) {
        let sum = (self.pair(low, high, n) + bytes as u64).min((1 << 36) - 1);
        self.set(low, n, sum as u32);
        self.set(high, n, (sum >> 32) as u32);
    }

    pub(crate) fn read_bytes_low(&mut self, low: Reg, n: usize) -> u32 {
        let value = self.pair(low, halves(low).1, n);
        self.latched.insert((low, n), value);
        value as u32
    }

    /// Reading the upper half clears both. What was counted since the lower half was read stays: a driver would never know
    /// of it.
    pub(crate) fn read_bytes_high(&mut self, high: Reg, n: usize) -> u32 {
        let low = halves(high).0;
        let value = self.pair(low, high, n);
        let read = self.latched.remove(&(low, n)).unwrap_or(value);
        let rest = value.saturating_sub(read);
        self.set(low, n, rest as u32);
        self.set(high, n, (rest >> 32) as u32);
        (read >> 32) as u32
    }

    /// A frame that passed the filters, without FCS.
    pub(crate) fn count_received(&mut self, frame: &[u8]) {
        let len = frame.len() + FCS;
        self.count(Reg::Gprc, 0);
        self.count_bytes(Reg::Gorcl, Reg::Gorch, 0, len);
        self.count(Reg::Prc, size_class(len));
        match cast(frame) {
            Cast::Broadcast => self.count(Reg::Bprc, 0),
            Cast::Multicast => self.count(Reg::Mprc, 0),
            Cast::Unicast => {}
        }
    }

    /// A frame that left, without FCS.
    pub(crate) fn count_sent(&mut self, queue: usize, frame: &[u8]) {
        self.count_on_wire(frame);
        let n = self.mapped(Reg::Tqsm, queue);
        self.count(Reg::Qptc, n);
        self.count_bytes(Reg::Qbtcl, Reg::Qbtch, n, frame.len() + FCS);
    }

    /// A frame that left, whether a queue's or the device's own, without FCS.
    pub(crate) fn count_on_wire(&mut self, frame: &[u8]) {
        let len = frame.len() + FCS;
        self.count(Reg::Gptc, 0);
        self.count(Reg::Tpt, 0);
        self.count_bytes(Reg::Gotcl, Reg::Gotch, 0, len);
        self.count(Reg::Ptc, size_class(len));
        match cast(frame) {
            Cast::Broadcast => self.count(Reg::Bptc, 0),
            Cast::Multicast => self.count(Reg::Mptc, 0),
            Cast::Unicast => {}
        }
    }

    /// Which of the 16 queue counters a queue uses: a byte for each queue in RQSMR or TQSM.
    pub(crate) fn mapped(&self, reg: Reg, queue: usize) -> usize {
        (self.get(reg, queue / 4) >> (queue % 4 * 8) & 0xf) as usize
    }
}

/// Both halves of a byte counter, of one of which it is asked.
fn halves(half: Reg) -> (Reg, Reg) {
    match half {
        Reg::Gorcl | Reg::Gorch => (Reg::Gorcl, Reg::Gorch),
        Reg::Gotcl | Reg::Gotch => (Reg::Gotcl, Reg::Gotch),
        Reg::Torl | Reg::Torh => (Reg::Torl, Reg::Torh),
        Reg::Qbrcl | Reg::Qbrch => (Reg::Qbrcl, Reg::Qbrch),
        _ => (Reg::Qbtcl, Reg::Qbtch),
    }
}

/// To whom a frame goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cast {
    Unicast,
    Multicast,
    Broadcast,
}

pub(crate) fn cast(frame: &[u8]) -> Cast {
    match frame.get(..6) {
        Some([0xff, 0xff, 0xff, 0xff, 0xff, 0xff]) => Cast::Broadcast,
        Some([first, ..]) if first & 1 == 1 => Cast::Multicast,
        _ => Cast::Unicast,
    }
}

/// Index into PRC and PTC: 64, 65 to 127, to 255, to 511, to 1,023, more.
fn size_class(len: usize) -> usize {
    [64, 127, 255, 511, 1023].into_iter().position(|end| len <= end).unwrap_or(5)
}

#[cfg(test)]
mod tests {
    use super::size_class;
    use crate::registers::Reg;
    use crate::testing::model;

    #[test]
    fn a_counter_sticks_at_its_end_and_clears_when_read() {
        let (mut m, _) = model();
        m.set(Reg::Gprc, 0, u32::MAX - 1);
        for _ in 0..3 {
            m.count(Reg::Gprc, 0);
        }
        assert_eq!((m.read(Reg::Gprc.offset(0)), m.read(Reg::Gprc.offset(0))), (u32::MAX, 0));
    }

    #[test]
    fn a_byte_counter_clears_with_its_upper_half() {
        let (mut m, _) = model();
        m.count_bytes(Reg::Gorcl, Reg::Gorch, 0, 0x1_0000_0005);
        assert_eq!((m.read(Reg::Gorcl.offset(0)), m.read(Reg::Gorcl.offset(0))), (5, 5));
        assert_eq!((m.read(Reg::Gorch.offset(0)), m.read(Reg::Gorcl.offset(0))), (1, 0));
        m.count_bytes(Reg::Gorcl, Reg::Gorch, 0, 7);
        assert_eq!(m.read(Reg::Gorcl.offset(0)), 7);
        m.count_bytes(Reg::Gorcl, Reg::Gorch, 0, 3);
        assert_eq!((m.read(Reg::Gorch.offset(0)), m.read(Reg::Gorcl.offset(0))), (0, 3), "what came between stays");
        m.read(Reg::Gorch.offset(0));
        m.count_bytes(Reg::Gorcl, Reg::Gorch, 0, 0x20_0000_0000);
        assert_eq!((m.read(Reg::Gorcl.offset(0)), m.read(Reg::Gorch.offset(0))), (u32::MAX, 0xf));
    }

    #[test]
    fn sizes_are_counted_in_their_classes() {
        assert_eq!([64, 65, 127, 128, 1023, 1024].map(size_class), [0, 1, 1, 2, 4, 5]);
    }
}
