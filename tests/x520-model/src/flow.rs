//! Link flow control. The device sends PAUSE frames when the packet buffer fills, and obeys them on the transmit side
//! (data sheet 3.7.7, 8.2.3.3; IEEE 802.3 annex 31B).

use crate::model::Model;
use crate::registers::Reg;

/// FCCFG: what is sent are PAUSE frames for the whole link.
const TFCE_LINK: u32 = 1 << 3;
const TFCE: u32 = 3 << 3;
/// MFLCN: PAUSE frames are obeyed.
const RFCE: u32 = 1 << 3;
/// FCRTH: the threshold is used. FCRTL: an end is sent as well.
const ENABLE: u32 = 1 << 31;
/// FCRTH, FCRTL: bytes, in units of 32.
const THRESHOLD: u32 = 0x7_ffe0;
/// A quantum is 512 bit times: 51.2 ns at 10 Gb/s.
const QUANTA_PER_10_US: u64 = 195;

const TO: [u8; 6] = [0x01, 0x80, 0xc2, 0, 0, 1];
const KIND: [u8; 4] = [0x88, 0x08, 0, 1];

fn microseconds(quanta: u32) -> u64 {
    u64::from(quanta) * 10 / QUANTA_PER_10_US
}

impl Model {
    /// Whether the device has sent PAUSE, and not yet told the other side that it may go on.
    #[must_use]
    pub fn asks_for_silence(&self) -> bool {
        self.flow.told.is_some()
    }

    /// Whether the other side has asked for silence.
    pub(crate) fn is_paused(&self) -> bool {
        self.now < self.flow.until
    }

    /// Takes a PAUSE frame out of what comes from the wire. False: it is another frame.
    pub(crate) fn take_pause(&mut self, frame: &[u8]) -> bool {
        let Some([high, low]) = frame.get(16..18) else { return false };
        if frame[..6] != TO || frame[12..16] != KIND || self.get(Reg::Mflcn, 0) & RFCE == 0 {
            return false;
        }
        let quanta = u32::from(u16::from_be_bytes([*high, *low]));
        self.count(if quanta == 0 { Reg::Lxonrxcnt } else { Reg::Lxoffrxcnt }, 0);
        self.flow.until = self.now + microseconds(quanta);
        true
    }

    /// Tells the other side to wait or to go on, as the bytes in the packet buffer demand.
    pub(crate) fn update_flow(&mut self, used: usize) {
        let (high, low) = (self.get(Reg::Fcrth, 0), self.get(Reg::Fcrtl, 0));
        if self.get(Reg::Fccfg, 0) & TFCE != TFCE_LINK || high & ENABLE == 0 || !self.link_is_up() {
            self.flow.told = None;
        } else if used > (high & THRESHOLD) as usize {
            if self.flow.told.is_none_or(|again| self.now >= again) {
                let quanta = self.get(Reg::Fcttv, 0) & 0xffff;
                let refresh = quanta.saturating_sub(self.get(Reg::Fcrtv, 0) & 0xffff);
                self.flow.told = Some(self.now + microseconds(refresh));
                self.count(Reg::Lxofftxc, 0);
                self.send_pause(quanta as u16);
            }
        } else if used <= (low & THRESHOLD) as usize && self.flow.told.take().is_some() && low & ENABLE != 0 {
            self.count(Reg::Lxontxc, 0);
            self.send_pause(0);
        }
    }

    fn send_pause(&mut self, quanta: u16) {
        let mut frame = TO.to_vec();
        frame.extend(self.get(Reg::Ral, 0).to_le_bytes());
        frame.extend(&self.get(Reg::Rah, 0).to_le_bytes()[..2]);
        frame.extend(KIND);
        frame.extend(quanta.to_be_bytes());
        frame.resize(60, 0);
        self.count_on_wire(&frame);
        self.control.push_back(frame);
    }
}

#[cfg(test)]
mod tests {
    use crate::model::Model;
    use crate::registers::Reg;
    use crate::testing::{LAST, data, frame, model, receive_queue, transmit_queue};

    fn with_flow_control(m: &mut Model) {
        for (reg, value) in [
            (Reg::Fccfg, 1 << 3),
            (Reg::Mflcn, 1 << 3),
            (Reg::Fcrth, 1 << 31 | 0x100),
            (Reg::Fcrtl, 1 << 31 | 0x40),
            (Reg::Fcttv, 0xffff),
            (Reg::Fcrtv, 0x8000),
        ] {
            m.write(reg.offset(0), value);
        }
    }

    fn pause(quanta: u16) -> Vec<u8> {
        let mut f = vec![0x01, 0x80, 0xc2, 0, 0, 1, 2, 0, 0, 0, 0, 9, 0x88, 0x08, 0, 1];
        f.extend(quanta.to_be_bytes());
        f.resize(60, 0);
        f
    }

    #[test]
    fn a_full_buffer_asks_for_silence_again_and_again_and_an_empty_one_ends_it() {
        let (mut m, memory) = model();
        with_flow_control(&mut m);
        let ring = receive_queue(&mut m, &memory, 0, 16);
        let own = [0x02, 0x1b, 0x21, 0, 0, 1];
        let quanta = |f: Vec<u8>| (f[..6].to_vec(), u16::from_be_bytes([f[16], f[17]]));
        (0..4).for_each(|_| m.deliver(&frame(own)));
        assert_eq!(m.take_sent(), None, "240 bytes are below the threshold");
        m.deliver(&frame(own));
        m.deliver(&frame(own));
        assert_eq!(m.take_sent().map(quanta), Some((vec![0x01, 0x80, 0xc2, 0, 0, 1], 0xffff)));
        assert_eq!(m.take_sent(), None, "once");
        m.advance(2_000);
        m.run();
        assert_eq!(m.take_sent().map(|f| quanta(f).1), Some(0xffff), "before the first ends");
        for i in 0..8 {
            ring.put(i, [memory.granted(2048, 128).bus, 0]);
        }
        m.write(Reg::Rdt.offset(0), 8);
        m.run();
        assert_eq!(m.take_sent().map(|f| quanta(f).1), Some(0));
        let counted = [Reg::Lxofftxc, Reg::Lxontxc, Reg::Gptc, Reg::Mptc].map(|r| m.read(r.offset(0)));
        assert_eq!(counted, [2, 1, 3, 3]);
    }

    #[test]
    fn silence_is_kept_for_as_long_as_was_asked_but_not_by_pause_frames() {
        let (mut m, memory) = model();
        with_flow_control(&mut m);
        let ring = transmit_queue(&mut m, &memory, 0, 8);
        let buffer = memory.granted(60, 1);
        ring.put(0, [buffer.bus, data(60, 60, LAST, 0)]);
        m.deliver(&pause(0xffff));
        m.write(Reg::Tdt.offset(0), 1);
        m.advance(3_000);
        m.run();
        assert_eq!(m.take_sent(), None);
        let _ = receive_queue(&mut m, &memory, 0, 8);
        (0..5).for_each(|_| m.deliver(&frame([0x02, 0x1b, 0x21, 0, 0, 1])));
        assert_eq!((m.take_sent().map(|f| f[12]), m.take_sent()), (Some(0x88), None));
        m.advance(400);
        assert!(m.take_sent().is_some());
        assert_eq!((m.read(Reg::Lxoffrxcnt.offset(0)), m.read(Reg::Gprc.offset(0))), (1, 5));
        m.deliver(&pause(0xffff));
        m.deliver(&pause(0));
        ring.put(1, [buffer.bus, data(60, 60, LAST, 0)]);
        m.write(Reg::Tdt.offset(0), 2);
        m.run();
        assert!(m.take_sent().is_some(), "it was ended");
    }
}
