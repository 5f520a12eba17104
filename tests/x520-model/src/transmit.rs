//! The transmit side: queues, descriptors and write-back (data sheet 4.6.8, 7.2.1, 7.2.3, 8.2.3.9).

use crate::descriptor::{Data, Legacy, PacketRequest, TYPE_CONTEXT, TYPE_DATA};
use crate::diagnostic::{Diagnostic, Direction};
use crate::model::Model;
use crate::registers::{ENABLE, Reg};
use crate::segment;
use crate::state::TransmitQueue;

/// DMATXCTL: transmit is on.
const TE: u32 = 1;
/// RTTDCS: the arbiter is off.
const ARBDIS: u32 = 1 << 6;
/// HLREG0: short frames are padded.
const PAD: u32 = 1 << 10;
/// TDWBAL: the head is written there in the place of descriptors.
const HEAD_WRITE_BACK: u32 = 1;
/// TXDCTL: write-back threshold.
const WTHRESH_SHIFT: u32 = 16;
/// Descriptors of a packet at most, the write-back threshold taken off (7.2.1.1).
const MOST_DESCRIPTORS: usize = 38;
/// Bytes of the longest frame: 15.5 KiB (8.2.3.9).
const LONGEST: usize = 15872;
/// Bytes of the shortest frame that the device pads (7.2.1.2).
const SHORTEST: usize = 17;

impl Model {
    /// Sends what the queues hold. False: nothing was there.
    pub(crate) fn run_transmit(&mut self) -> bool {
        let ready = (self.link_is_up() || self.loopback())
            && self.master_enabled()
            && self.get(Reg::Dmatxctl, 0) & TE != 0
            && !self.faults.transmit_stalled;
        let mut moved = false;
        for q in 0..if ready { 128 } else { 0 } {
            while self.get(Reg::Txdctl, q) & ENABLE != 0
                && self.may_send(q)
                && !self.transmit.queues[q].halted
                && self.get(Reg::Tdh, q) != self.get(Reg::Tdt, q)
                && self.sent_bytes < self.config.transmit_buffer
            {
                moved = true;
                self.take_descriptor(q);
            }
        }
        moved
    }

    fn take_descriptor(&mut self, q: usize) {
        let who = Direction::Transmit(q);
        let index = self.get(Reg::Tdh, q);
        let at = self.pair(Reg::Tdbal, Reg::Tdbah, q) + u64::from(index) * 16;
        let Some([low, high]) = self.read_descriptor(who, at) else { return self.halt_transmit(q) };
        let d = Data::from_bits(high);
        let started = self.transmit.queues[q].request;
        let ok = match (d.dext(), d.dtyp()) {
            (true, TYPE_CONTEXT) if started.is_none() => {
                let slot = usize::from(d.idx() & 1);
                self.transmit.queues[q].contexts[slot] = Some(segment::Context::from_words(low, high));
                true
            }
            (true, TYPE_CONTEXT) => self.bad_descriptor(q, index, "a context within a packet"),
            (true, TYPE_DATA) | (false, _) if started.is_some_and(|s| s.legacy == d.dext()) => {
                self.bad_descriptor(q, index, "legacy and advanced in one packet")
            }
            (true, TYPE_DATA) | (false, _) => self.take_data(q, index, low, d),
            _ => self.bad_descriptor(q, index, "no such type"),
        };
        if !ok {
            return self.halt_transmit(q);
        }
        let n = self.get(Reg::Tdlen, q) / 16;
        self.set(Reg::Tdh, q, (index + 1) % n);
        if d.eop() && !(d.dext() && d.dtyp() == TYPE_CONTEXT) {
            self.finish_packet(q, d, high);
        }
    }

    fn take_data(&mut self, q: usize, index: u32, address: u64, d: Data) -> bool {
        if d.len() == 0 {
            self.report(Diagnostic::ZeroLength { queue: q, index });
            // A null descriptor of its own, with EOP, is allowed for and transfers nothing.
            return d.eop() && self.transmit.queues[q].request.is_none();
        }
        let mut bytes = vec![0; usize::from(d.len())];
        if !self.dma_read(Direction::Transmit(q), address, &mut bytes) {
            return false;
        }
        let queue = &mut self.transmit.queues[q];
        queue.packet.extend(bytes);
        queue.descriptors += 1;
        queue.request.get_or_insert(PacketRequest { first: d, legacy: !d.dext() });
        if d.rs() {
            queue.report.push(index);
        }
        true
    }

    fn bad_descriptor(&mut self, queue: usize, index: u32, what: &'static str) -> bool {
        self.report(Diagnostic::BadDescriptor { queue, index, what });
        false
    }

    fn halt_transmit(&mut self, q: usize) {
        self.transmit.queues[q].halted = true;
    }

    fn finish_packet(&mut self, q: usize, last: Data, high: u64) {
        let queue = &mut self.transmit.queues[q];
        let packet = core::mem::take(&mut queue.packet);
        let report = core::mem::take(&mut queue.report);
        let descriptors = core::mem::take(&mut queue.descriptors);
        let contexts = queue.contexts;
        let request = queue.request.take();
        let most = MOST_DESCRIPTORS - (self.get(Reg::Txdctl, q) >> WTHRESH_SHIFT & 0x7f) as usize;
        if descriptors > most {
            self.report(Diagnostic::BadPacket { queue: q, what: "too many descriptors" });
        }
        if let Some(w) = request {
            let options = if w.legacy { last } else { w.first };
            if !options.ifcs() {
                self.report(Diagnostic::BadPacket { queue: q, what: "no FCS asked for" });
            }
            let frames = if w.legacy {
                legacy_frame(packet, last, Legacy::from_bits(high))
            } else {
                advanced_frames(self, packet, w.first, contexts)
            };
            match frames {
                Ok(frames) => frames.into_iter().for_each(|f| self.send(q, f)),
                Err(what) => {
                    self.report(Diagnostic::BadPacket { queue: q, what });
                    return self.halt_transmit(q);
                }
            }
        }
        self.write_back(q, &report);
    }

    fn send(&mut self, q: usize, mut frame: Vec<u8>) {
        if frame.len() < SHORTEST {
            self.report(Diagnostic::BadPacket { queue: q, what: "shorter than 17 bytes" });
        }
        if frame.len() > LONGEST {
            return self.report(Diagnostic::BadPacket { queue: q, what: "longer than 15.5 KiB" });
        }
        if self.get(Reg::Hlreg0, 0) & PAD != 0 && frame.len() < 60 {
            frame.resize(60, 0);
        }
        self.count_sent(q, &frame);
        if self.loopback() {
            self.loop_back(&frame);
        } else {
            self.sent_bytes += frame.len();
            self.sent.push_back(frame);
        }
    }

    fn write_back(&mut self, q: usize, report: &[u32]) {
        if report.is_empty() || self.faults.no_write_back {
            return;
        }
        let who = Direction::Transmit(q);
        let base = self.pair(Reg::Tdbal, Reg::Tdbah, q);
        if self.get(Reg::Tdwbal, q) & HEAD_WRITE_BACK != 0 {
            let at = self.pair(Reg::Tdwbal, Reg::Tdwbah, q) & !3;
            let head = self.get(Reg::Tdh, q).to_le_bytes();
            if !self.dma_write(who, at, &head) {
                return self.halt_transmit(q);
            }
        } else {
            for index in report {
                // All but DD is reserved in a descriptor that was written back.
                let mut words = [0; 16];
                words[12] = 1;
                if !self.dma_write(who, base + u64::from(*index) * 16, &words) {
                    return self.halt_transmit(q);
                }
            }
        }
        self.raise(q, true);
    }

    pub(crate) fn write_arbitrated(&mut self, reg: Reg, value: u32) {
        let on = self.get(Reg::Dmatxctl, 0) & TE != 0 || self.get(Reg::Rttdcs, 0) & ARBDIS == 0;
        if on && value != self.get(reg, 0) {
            self.report(Diagnostic::ChangedWhileRunning { register: reg.row().name });
        }
        self.set(reg, 0, value);
    }

    pub(crate) fn write_transmit_queue(&mut self, reg: Reg, q: usize, value: u32) {
        let who = Direction::Transmit(q);
        let enabled = self.get(Reg::Txdctl, q) & ENABLE != 0;
        match reg {
            Reg::Tdt => {
                // Putting it where the head is, which shows no descriptor, is no bump.
                if !enabled && value == self.get(Reg::Tdh, q) {
                    return self.set(reg, q, value);
                }
                if !enabled || !self.transmit.queues[q].seen_enabled {
                    self.report(Diagnostic::TailBeforeEnable { who });
                }
                let descriptors = self.get(Reg::Tdlen, q) / 16;
                if value >= descriptors {
                    self.report(Diagnostic::TailBeyondRing { who, tail: value, descriptors });
                    // With the queue off it is a number that nobody follows.
                    if enabled {
                        return;
                    }
                }
            }
            Reg::Txdctl => {
                let base = self.pair(Reg::Tdbal, Reg::Tdbah, q);
                if value & ENABLE != 0 && !enabled {
                    if self.get(Reg::Dmatxctl, 0) & TE == 0 {
                        return self.report(Diagnostic::QueueBeforeTransmitEnable { queue: q });
                    }
                    if !self.check_ring(who, base, self.get(Reg::Tdlen, q)) {
                        return;
                    }
                }
                let value = self.enable_value(value, self.get(reg, q));
                if value & ENABLE == 0 {
                    self.transmit.queues[q] = TransmitQueue::default();
                }
                return self.set(reg, q, value);
            }
            _ if enabled => self.report(Diagnostic::RingMovedWhileEnabled { who }),
            Reg::Tdbal | Reg::Tdlen if !value.is_multiple_of(128) => {
                let (base, len) = if reg == Reg::Tdbal { (u64::from(value), 0) } else { (0, value) };
                self.report(Diagnostic::BadRing { who, base, len });
            }
            _ => {}
        }
        self.set(reg, q, value & reg.bits());
    }
}

/// The frame of legacy descriptors: VLAN and checksum are the last one's.
fn legacy_frame(mut packet: Vec<u8>, last: Data, fields: Legacy) -> Result<Vec<Vec<u8>>, &'static str> {
    if last.ic() {
        segment::insert_at(&mut packet, usize::from(fields.css()), usize::from(fields.cso()))?;
    }
    if last.vle() {
        segment::insert_tag(&mut packet, 0x8100, fields.vlan())?;
    }
    Ok(vec![packet])
}

fn advanced_frames(
    model: &Model,
    packet: Vec<u8>,
    d: Data,
    contexts: [Option<segment::Context>; 2],
) -> Result<Vec<Vec<u8>>, &'static str> {
    let paylen = d.paylen() as usize;
    if !(d.tse() || d.ixsm() || d.txsm() || d.vle() || d.cc()) {
        return if paylen == packet.len() { Ok(vec![packet]) } else { Err("PAYLEN is not the frame's length") };
    }
    let context = contexts[usize::from(d.idx() & 1)].ok_or("no context in that slot")?;
    let mut frames = if d.tse() {
        let flags = segment::FlagMasks::new(model.get(Reg::Dtxtcpflgl, 0), model.get(Reg::Dtxtcpflgh, 0));
        if !d.txsm() || d.ixsm() != context.is_ipv4() {
            return Err("TSE needs TXSM, and IXSM for IPv4 alone");
        }
        segment::segments(&packet, &context, paylen, &flags)?
    } else if paylen == packet.len() {
        let mut packet = packet;
        segment::insert_checksums(&mut packet, &context, d.ixsm(), d.txsm())?;
        vec![packet]
    } else {
        return Err("PAYLEN is not the frame's length");
    };
    if d.vle() {
        let kind = (model.get(Reg::Dmatxctl, 0) >> 16) as u16;
        for frame in &mut frames {
            segment::insert_tag(frame, kind, context.tag())?;
        }
    }
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use crate::diagnostic::{Diagnostic, Direction};
    use crate::registers::{ENABLE, Reg};
    use crate::testing::{LAST, data, frame, model, receive_queue, transmit_queue};

    #[test]
    fn a_frame_of_two_buffers_leaves_whole_and_is_reported_done() {
        let (mut m, memory) = model();
        let ring = transmit_queue(&mut m, &memory, 3, 8);
        let f = frame([2, 0, 0, 0, 0, 7]);
        let buffer = memory.granted(60, 1);
        memory.fill(buffer.bus, &f);
        ring.put(0, [buffer.bus, data(20, 60, 2, 0)]);
        ring.put(1, [buffer.bus + 20, data(40, 60, LAST, 0)]);
        m.write(Reg::Tdt.offset(3), 1);
        m.run();
        assert_eq!(m.take_sent(), None, "no end of packet yet");
        m.write(Reg::Tdt.offset(3), 2);
        m.run();
        assert_eq!(m.take_sent(), Some(f));
        assert_eq!((ring.get(0)[1] >> 32 & 1, ring.get(1)), (0, [0, 1 << 32]));
        assert_eq!((m.read(Reg::Tdh.offset(3)), m.read(Reg::Gptc.offset(0)), m.read(Reg::Gotcl.offset(0))), (2, 1, 64));
        assert_eq!(m.take_diagnostics(), []);
    }

    #[test]
    fn without_link_descriptors_stay_where_they_are() {
        let (mut m, memory) = model();
        let ring = transmit_queue(&mut m, &memory, 0, 8);
        let buffer = memory.granted(60, 1);
        ring.put(0, [buffer.bus, data(60, 60, LAST, 0)]);
        m.set_cable(false);
        m.write(Reg::Tdt.offset(0), 1);
        m.run();
        assert_eq!((m.take_sent(), m.read(Reg::Tdh.offset(0))), (None, 0));
    }

    #[test]
    fn the_head_is_written_to_memory_on_wish() {
        let (mut m, memory) = model();
        let head = memory.granted(4, 4);
        m.write(Reg::Tdwbal.offset(0), head.bus as u32 | 1);
        m.write(Reg::Tdwbah.offset(0), (head.bus >> 32) as u32);
        let ring = transmit_queue(&mut m, &memory, 0, 8);
        let buffer = memory.granted(60, 1);
        for i in 0..3 {
            ring.put(i, [buffer.bus, data(60, 60, LAST, 0)]);
        }
        m.write(Reg::Tdt.offset(0), 3);
        m.run();
        assert_eq!(memory.copy(head.bus, 4), [3, 0, 0, 0]);
        assert_ne!(ring.get(2), [0, 1 << 32]);
    }

    #[test]
    fn legacy_descriptors_carry_tag_and_checksum_themselves() {
        let (mut m, memory) = model();
        let ring = transmit_queue(&mut m, &memory, 0, 8);
        let buffer = memory.granted(60, 1);
        let mut f = frame([2, 0, 0, 0, 0, 7]);
        f[20..22].fill(0);
        memory.fill(buffer.bus, &f);
        ring.put(0, [buffer.bus, 60 | 20 << 16 | 0x4f << 24 | 14 << 40 | 0x0123 << 48]);
        m.write(Reg::Tdt.offset(0), 1);
        m.run();
        let sent = m.take_sent().unwrap();
        assert_eq!(&sent[12..18], &[0x81, 0x00, 0x01, 0x23, 0x88, 0xb5]);
        assert_eq!(crate::packet::sum(&sent[18..], 0), 0xffff);
        assert_eq!(m.take_diagnostics(), []);
    }

    #[test]
    fn loopback_brings_frames_back() {
        let (mut m, memory) = model();
        let rx = receive_queue(&mut m, &memory, 0, 8);
        let tx = transmit_queue(&mut m, &memory, 0, 8);
        m.set_cable(false);
        m.write(Reg::Hlreg0.offset(0), 0x8403);
        m.write(Reg::Autoc.offset(0), 0x6001);
        let (buffer, into) = (memory.granted(60, 1), memory.granted(2048, 16));
        let f = frame([0x02, 0x1b, 0x21, 0, 0, 1]);
        memory.fill(buffer.bus, &f);
        rx.put(0, [into.bus, 0]);
        m.write(Reg::Rdt.offset(0), 1);
        tx.put(0, [buffer.bus, data(60, 60, LAST, 0)]);
        m.write(Reg::Tdt.offset(0), 1);
        m.run();
        assert_eq!(memory.copy(into.bus, 60), f);
        assert_eq!(rx.get(0)[1] >> 18 & 1, 1, "reported as looped back");
        assert_eq!(m.take_sent(), None);
    }

    #[test]
    fn misuse_is_told() {
        let (mut m, memory) = model();
        let who = Direction::Transmit(0);
        m.write(Reg::Txdctl.offset(0), ENABLE);
        m.write(Reg::Mtqc.offset(0), 1);
        let ring = transmit_queue(&mut m, &memory, 0, 8);
        m.write(Reg::Tdt.offset(0), 8);
        m.write(Reg::Tdbal.offset(0), 0);
        assert_eq!(
            m.take_diagnostics(),
            [
                Diagnostic::QueueBeforeTransmitEnable { queue: 0 },
                Diagnostic::ChangedWhileRunning { register: "MTQC" },
                Diagnostic::TailBeyondRing { who, tail: 8, descriptors: 8 },
                Diagnostic::RingMovedWhileEnabled { who },
            ]
        );
        let _ = ring;
    }

    #[test]
    fn bad_descriptors_are_told_and_halt_their_queue() {
        let bad: [([u64; 2], Diagnostic); 6] = [
            ([0x9999_0000, data(60, 60, LAST, 0)], {
                let who = Direction::Transmit(0);
                Diagnostic::NotGranted { who, address: 0x9999_0000, len: 60, write: false }
            }),
            ([0, data(0, 60, LAST & !1, 0)], Diagnostic::ZeroLength { queue: 0, index: 0 }),
            ([0, 60 | 5 << 20 | 0x2b << 24], Diagnostic::BadDescriptor { queue: 0, index: 0, what: "no such type" }),
            ([1, data(60, 61, LAST, 0)], Diagnostic::BadPacket { queue: 0, what: "PAYLEN is not the frame's length" }),
            ([1, data(60, 60, LAST, 1 << 41)], Diagnostic::BadPacket { queue: 0, what: "no context in that slot" }),
            ([1, data(60, 60, 9, 0)], Diagnostic::BadPacket { queue: 0, what: "no FCS asked for" }),
        ];
        for ([address, word], diagnostic) in bad {
            let (mut m, memory) = model();
            let ring = transmit_queue(&mut m, &memory, 0, 8);
            let buffer = memory.granted(64, 1);
            ring.put(0, [if address == 1 { buffer.bus } else { address }, word]);
            m.write(Reg::Tdt.offset(0), 1);
            m.run();
            assert_eq!(m.take_diagnostics(), [diagnostic]);
        }
    }

    #[test]
    fn a_dma_fault_stops_its_queue_and_no_other_until_it_is_enabled_anew() {
        let (mut m, memory) = model();
        let rings = [0, 1].map(|q| transmit_queue(&mut m, &memory, q, 8));
        let buffer = memory.granted(60, 1);
        rings[0].put(0, [buffer.bus, data(60, 60, LAST, 0)]);
        rings[1].put(0, [buffer.bus, data(60, 60, LAST, 0)]);
        memory.revoke(rings[0].block.bus, 128);
        for q in 0..2 {
            m.write(Reg::Tdt.offset(q), 1);
        }
        m.run();
        let who = Direction::Transmit(0);
        let address = rings[0].block.bus;
        assert_eq!(m.take_diagnostics(), [Diagnostic::NotGranted { who, address, len: 16, write: false }]);
        assert_eq!([0, 1].map(|q| m.read(Reg::Tdh.offset(q))), [0, 1]);
        memory.grant(address, 128, crate::memory::Access::ReadWrite);
        m.run();
        assert_eq!(m.read(Reg::Tdh.offset(0)), 0);
        m.write(Reg::Txdctl.offset(0), 0);
        m.write(Reg::Txdctl.offset(0), ENABLE);
        m.run();
        assert_eq!((m.read(Reg::Tdh.offset(0)), m.take_diagnostics()), (1, vec![]));
    }

    #[test]
    fn a_packet_of_too_many_descriptors_is_told() {
        let (mut m, memory) = model();
        let ring = transmit_queue(&mut m, &memory, 0, 64);
        let buffer = memory.granted(64, 1);
        for i in 0..39 {
            ring.put(i, [buffer.bus, data(2, 78, if i == 38 { LAST } else { 2 }, 0)]);
        }
        m.write(Reg::Tdt.offset(0), 39);
        m.run();
        assert_eq!(m.take_diagnostics(), [Diagnostic::BadPacket { queue: 0, what: "too many descriptors" }]);
        assert!(m.take_sent().is_some());
    }

    #[test]
    fn a_wire_that_does_not_take_frames_stops_the_queues() {
        let (mut m, memory) = model();
        m.config.transmit_buffer = 100;
        let ring = transmit_queue(&mut m, &memory, 0, 8);
        let buffer = memory.granted(60, 1);
        (0..4).for_each(|i| ring.put(i, [buffer.bus, data(60, 60, LAST, 0)]));
        m.write(Reg::Tdt.offset(0), 4);
        m.run();
        assert_eq!(m.read(Reg::Tdh.offset(0)), 2);
        assert!(m.take_sent().is_some());
        m.run();
        assert_eq!(m.read(Reg::Tdh.offset(0)), 3);
    }
}
