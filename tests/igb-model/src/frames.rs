//! Frames in and out, by advanced descriptors (82576 data sheet 7.1, 7.2).

use x520_model::packet::sum;

use crate::kind::Diagnostic;
use crate::offsets as at;
use crate::state::Model;

const ENABLE: u32 = 1 << 25;
/// Second word of a descriptor that is written back.
const DONE: u64 = 1;
const END: u64 = 1 << 1;

impl Model {
    fn dma_read(&mut self, address: u64, into: &mut [u8]) -> bool {
        let good = self.memory.read(address, into);
        if !good {
            self.complain(Diagnostic::NotGranted { address, write: false });
        }
        good
    }

    fn dma_write(&mut self, address: u64, from: &[u8]) -> bool {
        let good = self.memory.write(address, from);
        if !good {
            self.complain(Diagnostic::NotGranted { address, write: true });
        }
        good
    }

    fn may_master(&self) -> bool {
        !self.faults.gone && self.reset_until.is_none() && self.get(at::CTRL) & 4 == 0
    }

    fn ring(&self, low: u32, high: u32, head: u32) -> u64 {
        (u64::from(self.get(high)) << 32 | u64::from(self.get(low))) + u64::from(self.get(head)) * 16
    }

    fn descriptor(&mut self, address: u64) -> Option<[u64; 2]> {
        let mut bytes = [0; 16];
        self.dma_read(address, &mut bytes)
            .then(|| [0, 8].map(|n| u64::from_le_bytes(std::array::from_fn(|i| bytes[n + i]))))
    }

    fn advance_head(&mut self, head: u32, length: u32) {
        let next = self.get(head) + 1;
        *self.at(head) = if next >= self.get(length) / 16 { 0 } else { next };
    }

    fn count(&mut self, register: u32) {
        *self.at(register) = self.get(register).saturating_add(1);
    }

    /// Lets the device work: it sends what is in the transmit ring.
    pub fn run(&mut self) {
        let on = |m: &Self| {
            m.may_master() && m.get(at::TCTL) & 2 != 0 && m.get(at::TXDCTL) & ENABLE != 0 && m.link().is_some()
        };
        while on(self)
            && !self.faults.transmit_stalled
            && !self.transmit_failed
            && self.get(at::TDH) != self.get(at::TDT)
        {
            let address = self.ring(at::TDBAL, at::TDBAH, at::TDH);
            let Some([first, second]) = self.descriptor(address) else {
                // The DMA engine stops.
                self.transmit_failed = true;
                return;
            };
            self.advance_head(at::TDH, at::TDLEN);
            self.take_descriptor([first, second]);
            if self.transmit_failed {
                // A frame that could not be read is not written back.
                return;
            }
            if second & 1 << 27 != 0 && !self.faults.no_write_back {
                let status = if self.faults.bad_write_back { !DONE & second } else { second | 1 << 32 };
                self.dma_write(address + 8, &status.to_le_bytes());
            }
        }
    }

    fn take_descriptor(&mut self, words: [u64; 2]) {
        let [_, second] = words;
        let complain = |m: &mut Self, what| m.complain(Diagnostic::Descriptor(what, words));
        if second & 1 << 29 == 0 {
            return complain(self, "not an advanced descriptor");
        }
        match second >> 20 & 15 {
            2 => self.contexts[(second >> 36 & 1) as usize] = words,
            3 => {
                if second & 1 << 39 != 0 {
                    complain(self, "a reserved bit is set");
                }
                self.outgoing.push(words);
                if second & 1 << 24 != 0 {
                    self.send();
                }
            }
            _ => complain(self, "an unknown type"),
        }
    }

    /// Sends the frame whose descriptors have been read.
    fn send(&mut self) {
        let descriptors = std::mem::take(&mut self.outgoing);
        let second = descriptors[0][1];
        let mut frame = Vec::new();
        for [address, second] in &descriptors {
            let mut piece = vec![0; (second & 0xffff) as usize];
            if !self.dma_read(*address, &mut piece) {
                self.transmit_failed = true;
                return;
            }
            frame.extend(piece);
        }
        let context = self.contexts[(second >> 36 & 1) as usize];
        let paylen = (second >> 46) as usize;
        let segmented = second & 1 << 31 != 0;
        if !segmented && paylen != frame.len() {
            self.complain(Diagnostic::Descriptor("PAYLEN is not the frame's length", descriptors[0]));
        }
        let (maclen, iplen) = ((context[0] >> 9 & 0x7f) as usize, (context[0] & 0x1ff) as usize);
        if second & 1 << 41 != 0 && !segmented {
            // The checksum of the transport: what stands there is the pseudo header's sum.
            let start = maclen + iplen;
            let place = start + if context[1] >> 11 & 3 == 1 { 16 } else { 6 };
            if start == 0 || place + 2 > frame.len() {
                self.complain(Diagnostic::Descriptor("no context for this checksum", descriptors[0]));
            } else {
                let value = !sum(&frame[start..], 0);
                frame[place..place + 2].copy_from_slice(&value.to_be_bytes());
            }
        }
        if second & 1 << 30 != 0 && self.get(at::CTRL) & 1 << 30 != 0 {
            let tag = (context[0] >> 16) as u16;
            let [a, b] = tag.to_be_bytes();
            frame.splice(12..12, [0x81, 0, a, b]);
        }
        if frame.len() < 60 && self.get(at::TCTL) & 8 != 0 {
            frame.resize(60, 0);
        }
        self.count(at::GPTC);
        self.octets[1] += frame.len() as u64 + 4;
        self.sent.push_back(frame);
    }

    /// Whether the filters accept a frame.
    fn accepts(&self, frame: &[u8]) -> bool {
        let control = self.get(at::RCTL);
        let to: [u8; 6] = std::array::from_fn(|n| frame[n]);
        let second = self.second_part();
        let entries = (0..16).map(|n| at::RAL + 8 * n).chain((0..second).map(|n| at::RAL2 + 8 * n));
        let mut words = entries.map(|at| (self.get(at).to_le_bytes(), self.get(at + 4)));
        let exact = words.any(|([a, b, c, d], high)| {
            let [e, f, ..] = high.to_le_bytes();
            high >> 31 == 1 && to == [a, b, c, d, e, f]
        });
        let hash = u32::from(u16::from_le_bytes([to[4], to[5]]) >> 4);
        let bit = |table: u32| self.get(table + hash / 32 * 4) >> (hash % 32) & 1 == 1;
        let addressed = if to == [0xff; 6] {
            control & 1 << 15 != 0
        } else if to[0] & 1 != 0 {
            control & 1 << 4 != 0 || exact || bit(at::MTA)
        } else {
            control & 1 << 3 != 0 || exact || bit(at::UTA)
        };
        let tagged = frame[12..14] == [0x81, 0];
        let vlan = u32::from(u16::from_be_bytes([frame[14], frame[15]]) & 0xfff);
        let in_vlan = control & 1 << 18 == 0 || self.get(at::VFTA + vlan / 32 * 4) >> (vlan % 32) & 1 == 1;
        addressed && (!tagged || in_vlan)
    }

    /// A frame comes from the wire.
    pub fn deliver(&mut self, frame: &[u8]) {
        self.arrive(frame, false);
    }

    /// A frame comes whose FCS is wrong.
    pub fn deliver_damaged(&mut self, frame: &[u8]) {
        self.arrive(frame, true);
    }

    fn arrive(&mut self, frame: &[u8], damaged: bool) {
        if self.get(at::RCTL) & 2 == 0 || self.link().is_none() || self.faults.gone || self.reset_until.is_some() {
            return;
        }
        self.count(at::TPR);
        if damaged {
            return self.count(at::CRCERRS);
        }
        let longest = if self.get(at::RCTL) & 1 << 5 != 0 { self.get(at::RLPML) } else { 1522 };
        if frame.len() as u32 + 4 > longest {
            return self.count(at::ROC);
        }
        if !self.accepts(frame) {
            return;
        }
        self.count(at::GPRC);
        self.octets[0] += frame.len() as u64 + 4;
        if frame[..6] == [0xff; 6] {
            self.count(at::BPRC);
        } else if frame[0] & 1 != 0 {
            self.count(at::MPRC);
        }
        let able = self.may_master()
            && self.get(at::RXDCTL) & ENABLE != 0
            && !self.faults.receive_stalled
            && !self.receive_failed;
        let count = self.get(at::RDLEN) / 16;
        let free = if count == 0 { 0 } else { (self.get(at::RDT) + count - self.get(at::RDH)) % count };
        let (mut frame, mut vlan) = (frame.to_vec(), None);
        if self.get(at::CTRL) & 1 << 30 != 0 && frame[12..14] == [0x81, 0] {
            vlan = Some(u16::from_be_bytes([frame[14], frame[15]]));
            frame.drain(12..16);
        }
        let buffer = (self.get(at::SRRCTL) & 0x7f) as usize * 1024;
        let needed = frame.len().div_ceil(buffer.max(1));
        if !able || needed > free as usize {
            if able {
                self.count(at::RNBC);
            }
            return self.count(at::MPC);
        }
        self.store(&frame, buffer, vlan);
    }

    fn store(&mut self, frame: &[u8], buffer: usize, vlan: Option<u16>) {
        let pieces: Vec<&[u8]> = frame.chunks(buffer).collect();
        let last = pieces.len() - 1;
        for (n, piece) in pieces.into_iter().enumerate() {
            let address = self.ring(at::RDBAL, at::RDBAH, at::RDH);
            let stored = self.descriptor(address).is_some_and(|[to, _]| self.dma_write(to, piece));
            if !stored {
                self.receive_failed = true;
                return;
            }
            self.advance_head(at::RDH, at::RDLEN);
            let mut status = DONE | (piece.len() as u64) << 32;
            let mut info = 0_u64;
            if n == last {
                status |= END;
                if let Some(tag) = vlan {
                    status |= 1 << 3 | u64::from(tag) << 48;
                }
                let (checks, packet) = self.checked(frame);
                status |= checks;
                info |= packet;
            }
            if self.faults.bad_write_back {
                status = DONE | 0xffff << 32;
            }
            if !self.faults.no_write_back {
                let words = [info.to_le_bytes(), status.to_le_bytes()].concat();
                self.dma_write(address, &words);
            }
        }
    }

    /// What the device says of a frame's checksums, and its packet type.
    fn checked(&self, frame: &[u8]) -> (u64, u64) {
        let checks = self.get(at::RXCSUM);
        if frame.len() < 34 || frame[12..14] != [8, 0] || frame[14] != 0x45 {
            return (0, 0);
        }
        let (mut status, mut info) = (0, 1 << 4);
        if checks & 1 << 8 != 0 {
            status |= 1 << 6;
            // IPE: bit 30 of the status word.
            status |= u64::from(sum(&frame[14..34], 0) != 0xffff) << 30;
        }
        let end = 14 + usize::from(u16::from_be_bytes([frame[16], frame[17]]));
        let (number, Some(transport)) = (frame[23], frame.get(34..end)) else { return (status, info) };
        if ![6, 17].contains(&number) || checks & 1 << 9 == 0 {
            return (status, info);
        }
        info |= if number == 6 { 1 << 8 } else { 1 << 9 };
        let mut all = frame[26..34].to_vec();
        all.extend([0, number]);
        all.extend((transport.len() as u16).to_be_bytes());
        all.extend(transport);
        // L4E: bit 29.
        status |= 1 << 5 | u64::from(sum(&all, 0) != 0xffff) << 29;
        (status, info)
    }
}
