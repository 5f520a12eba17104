//! The receive side: packet buffer, queues, descriptors (data sheet 4.6.7, 7.1.4 to 7.1.6, 8.2.3.8).

use crate::diagnostic::{Diagnostic, Direction};
use crate::model::Model;
use crate::packet::{self, Headers, Protocol};
use crate::registers::{ENABLE, Reg};
use crate::rss::Hash;
use crate::state::{ReceiveQueue, Waiting};

/// RXCTRL: receive is on.
const RXEN: u32 = 1;
/// RXDCTL: tags are stripped.
const VME: u32 = 1 << 30;
/// SRRCTL: frames are dropped if there is no descriptor.
const DROP_EN: u32 = 1 << 28;
/// RXCSUM: the descriptor carries the RSS hash in the place of a checksum.
const PCSD: u32 = 1 << 13;
/// SECRXCTRL: the path is to be stopped.
const RX_DIS: u32 = 1 << 1;

impl Model {
    /// A frame comes from the wire.
    pub(crate) fn arrive(&mut self, frame: &[u8], good: bool) {
        let heard = !self.in_reset() && self.link_is_up() && !self.loopback();
        if heard && !(good && self.take_pause(frame)) {
            self.buffer_frame(frame, good, false);
        }
    }

    /// A frame comes from the transmit side.
    pub(crate) fn loop_back(&mut self, frame: &[u8]) {
        self.buffer_frame(frame, true, true);
    }

    fn buffer_frame(&mut self, frame: &[u8], good: bool, looped: bool) {
        if self.get(Reg::Rxctrl, 0) & RXEN == 0 || self.get(Reg::Secrxctrl, 0) & RX_DIS != 0 {
            return;
        }
        let headers = packet::parse(frame, self.get(Reg::Vlnctrl, 0) as u16);
        if !self.admits(frame, good, &headers) {
            return;
        }
        let room = (self.get(Reg::Rxpbsize, 0) >> 10 & 0x3ff) as usize * 1024;
        // Counted as good whether there is room for it or not: Linux's driver takes what was missed off again.
        if good {
            self.count_received(frame);
        }
        if self.receive.used + frame.len() > room {
            return self.count(Reg::Rxmpc, 0);
        }
        let (hash, queues) = self.steer(frame, &headers);
        for queue in queues {
            self.receive.used += frame.len();
            self.receive.buffer.push_back(Waiting { frame: frame.to_vec(), good, headers, hash, queue, looped });
        }
        self.update_flow(self.receive.used);
    }

    /// Moves frames from the packet buffer to memory, in order. False: none moved.
    pub(crate) fn run_receive(&mut self) -> bool {
        let mut moved = false;
        while !self.faults.receive_stalled && self.master_enabled() && self.get(Reg::Rxctrl, 0) & RXEN != 0 {
            let Some(waiting) = self.receive.buffer.pop_front() else { break };
            if self.store(&waiting) {
                self.receive.used -= waiting.frame.len();
                moved = true;
            } else {
                // The frames behind have to wait too: it is one buffer.
                self.receive.buffer.push_front(waiting);
                break;
            }
        }
        moved
    }

    /// Writes a frame to its queue, or drops it. False: it has to wait for descriptors.
    fn store(&mut self, w: &Waiting) -> bool {
        let q = w.queue;
        let rxdctl = self.get(Reg::Rxdctl, q);
        if rxdctl & ENABLE == 0 {
            return true;
        }
        let srrctl = self.get(Reg::Srrctl, q);
        let (kind, size) = (srrctl >> 25 & 7, (srrctl & 0x1f) as usize * 1024);
        if size == 0 || kind > 1 {
            if !self.receive.queues[q].halted {
                self.report(Diagnostic::BadBufferSize { queue: q, srrctl });
            }
            self.receive.queues[q].halted = true;
            return true;
        }
        let strip = rxdctl & VME != 0 && w.headers.tag.is_some();
        let mut bytes = w.frame.clone();
        if strip {
            bytes.drain(12..16);
        }
        if self.get(Reg::Hlreg0, 0) & 2 == 0 {
            bytes.extend([0; 4]);
        }
        let n = self.get(Reg::Rdlen, q) / 16;
        let (head, tail) = (self.get(Reg::Rdh, q), self.get(Reg::Rdt, q));
        // A queue whose DMA has failed gets no descriptors any more.
        let free = if self.receive.queues[q].halted { 0 } else { (tail + n - head) % n.max(1) };
        let wanted = bytes.len().div_ceil(size) as u32;
        if free < wanted {
            if srrctl & DROP_EN != 0 {
                let counter = self.mapped(Reg::Rqsmr, q);
                self.count(Reg::Qprdc, counter);
                return true;
            }
            return false;
        }
        self.store_pieces(w, &bytes, strip, kind == 0, size);
        let counter = self.mapped(Reg::Rqsmr, q);
        self.count(Reg::Qprc, counter);
        self.count_bytes(Reg::Qbrcl, Reg::Qbrch, counter, bytes.len() + 4);
        true
    }

    fn store_pieces(&mut self, w: &Waiting, bytes: &[u8], strip: bool, legacy: bool, size: usize) {
        let (q, who) = (w.queue, Direction::Receive(w.queue));
        let base = self.pair(Reg::Rdbal, Reg::Rdbah, q);
        let n = self.get(Reg::Rdlen, q) / 16;
        let pieces = bytes.len().div_ceil(size);
        for (i, piece) in bytes.chunks(size).enumerate() {
            let head = self.get(Reg::Rdh, q);
            let at = base + u64::from(head) * 16;
            let Some([address, _]) = self.read_descriptor(who, at) else { return self.halt_receive(q) };
            if address == 0 {
                self.report(Diagnostic::NullBuffer { queue: q, index: head });
                return self.halt_receive(q);
            }
            if !self.dma_write(who, address, piece) {
                return self.halt_receive(q);
            }
            let last = i + 1 == pieces;
            let words =
                if legacy { legacy_words(w, piece, last, strip) } else { self.advanced_words(w, piece, last, strip) };
            let wrong = if self.faults.bad_write_back { 0xffff << 32 | 1 << 29 } else { 0 };
            let mut out = [0; 16];
            out[..8].copy_from_slice(&words[0].to_le_bytes());
            out[8..].copy_from_slice(&(words[1] | wrong).to_le_bytes());
            if !self.faults.no_write_back && !self.dma_write(who, at, &out) {
                return self.halt_receive(q);
            }
            self.set(Reg::Rdh, q, (head + 1) % n);
        }
        self.raise(q, false);
    }

    fn halt_receive(&mut self, queue: usize) {
        self.receive.queues[queue].halted = true;
    }

    /// An advanced descriptor as it is written back (7.1.6.2).
    fn advanced_words(&self, w: &Waiting, piece: &[u8], last: bool, strip: bool) -> [u64; 2] {
        let hash = if self.get(Reg::Rxcsum, 0) & PCSD != 0 { w.hash } else { Hash::default() };
        let mut low = u64::from(hash.kind) | u64::from(packet_type(&w.headers)) << 4;
        low |= u64::from(hash.value) << 32;
        let mut high = 1 | (piece.len() as u64) << 32;
        if last {
            let (checked, wrong) = checksums(w);
            high |= 1 << 1;
            high |= u64::from(strip) << 3 | u64::from(w.looped) << 18;
            high |= u64::from(checked.transport) << 5 | u64::from(checked.ip) << 6;
            high |= u64::from(!w.good) << 29 | u64::from(wrong.transport) << 30 | u64::from(wrong.ip) << 31;
            if strip {
                high |= u64::from(w.headers.tag.unwrap_or(0)) << 48;
            }
        }
        [low, high]
    }

    pub(crate) fn write_rxctrl(&mut self, value: u32) {
        self.set(Reg::Rxctrl, 0, value);
        let strips = (self.get(Reg::Hlreg0, 0) >> 1 & 1, self.get(Reg::Rdrxctl, 0) >> 1 & 1);
        if value & RXEN != 0 && strips.0 != strips.1 {
            self.report(Diagnostic::CrcStripDiffers);
        }
        if value & RXEN != 0 && !self.agrees_on_pools() {
            self.report(Diagnostic::PoolsDiffer);
        }
    }

    /// Stopping takes until the next look: the path is empty at once here.
    pub(crate) fn write_secrxctrl(&mut self, value: u32) {
        self.set(Reg::Secrxctrl, 0, value);
        self.set(Reg::Secrxstat, 0, 1);
    }

    pub(crate) fn write_receive_queue(&mut self, reg: Reg, q: usize, value: u32) {
        let who = Direction::Receive(q);
        let enabled = self.get(Reg::Rxdctl, q) & ENABLE != 0;
        match reg {
            Reg::Rdt => {
                // Putting it where the head is, which shows no descriptor, is no bump.
                if !enabled && value == self.get(Reg::Rdh, q) {
                    return self.set(reg, q, value);
                }
                if !enabled || !self.receive.queues[q].seen_enabled {
                    self.report(Diagnostic::TailBeforeEnable { who });
                }
                let descriptors = self.get(Reg::Rdlen, q) / 16;
                if value >= descriptors {
                    self.report(Diagnostic::TailBeyondRing { who, tail: value, descriptors });
                    // With the queue off it is a number that nobody follows.
                    if enabled {
                        return;
                    }
                }
            }
            Reg::Rxdctl => {
                let base = self.pair(Reg::Rdbal, Reg::Rdbah, q);
                if value & ENABLE != 0 && !enabled && !self.check_ring(who, base, self.get(Reg::Rdlen, q)) {
                    return;
                }
                let value = self.enable_value(value, self.get(reg, q));
                if value & ENABLE == 0 {
                    self.receive.queues[q] = ReceiveQueue::default();
                }
                return self.set(reg, q, value);
            }
            Reg::Srrctl => {}
            _ if enabled => self.report(Diagnostic::RingMovedWhileEnabled { who }),
            Reg::Rdbal | Reg::Rdlen if !value.is_multiple_of(128) => {
                let (base, len) = if reg == Reg::Rdbal { (u64::from(value), 0) } else { (0, value) };
                self.report(Diagnostic::BadRing { who, base, len });
            }
            _ => {}
        }
        self.set(reg, q, value & reg.bits());
    }
}

/// A legacy descriptor as it is written back (7.1.5).
fn legacy_words(w: &Waiting, piece: &[u8], last: bool, strip: bool) -> [u64; 2] {
    let mut high = piece.len() as u64 | 1 << 32;
    if last {
        let (checked, wrong) = checksums(w);
        high |= 1 << 33 | u64::from(strip) << 35;
        high |= u64::from(checked.transport) << 37 | u64::from(checked.ip) << 38;
        high |= u64::from(!w.good) << 40 | u64::from(wrong.transport) << 46 | u64::from(wrong.ip) << 47;
        if strip {
            high |= u64::from(w.headers.tag.unwrap_or(0)) << 48;
        }
    }
    [0, high]
}

#[derive(Clone, Copy, Default)]
struct Sums {
    ip: bool,
    transport: bool,
}

/// Which checksums were looked at, and which of them are wrong.
fn checksums(w: &Waiting) -> (Sums, Sums) {
    let (mut checked, mut wrong) = (Sums::default(), Sums::default());
    if let Some(ip) = w.headers.ip {
        checked.ip = ip.v4;
        wrong.ip = ip.v4 && !packet::ip_checksum_good(&w.frame, &ip);
        if let Some(transport) = w.headers.transport {
            checked.transport = true;
            wrong.transport = !packet::transport_checksum_good(&w.frame, &ip, &transport);
        }
    }
    (checked, wrong)
}

/// Packet type bits of the advanced descriptor: IPv4, IPv4 with options, IPv6, IPv6 with extensions, TCP, UDP, SCTP.
fn packet_type(headers: &Headers) -> u16 {
    let Some(ip) = headers.ip else { return 0 };
    let network = match (ip.v4, ip.extended) {
        (true, false) => 1,
        (true, true) => 1 | 2,
        (false, false) => 4,
        (false, true) => 4 | 8,
    };
    let transport = match headers.transport.map(|t| t.protocol) {
        Some(Protocol::Tcp) => 0x10,
        Some(Protocol::Udp) => 0x20,
        Some(Protocol::Sctp) => 0x40,
        None => 0,
    };
    network | transport
}

#[cfg(test)]
mod tests {
    use crate::diagnostic::{Diagnostic, Direction};
    use crate::model::Model;
    use crate::registers::{ENABLE, Reg};
    use crate::testing::{frame, model, receive_queue};

    const OWN: [u8; 6] = [0x02, 0x1b, 0x21, 0, 0, 1];

    fn post(m: &mut Model, ring: &crate::testing::Ring, memory: &crate::memory::Memory, count: u32) -> Vec<u64> {
        let buffers: Vec<u64> = (0..count).map(|_| memory.granted(2048, 128).bus).collect();
        for (i, b) in buffers.iter().enumerate() {
            ring.put(i as u32, [*b, 0]);
        }
        m.write(Reg::Rdt.offset(0), count);
        buffers
    }

    #[test]
    fn a_frame_is_written_and_its_descriptor_written_back() {
        let (mut m, memory) = model();
        let ring = receive_queue(&mut m, &memory, 0, 8);
        let buffers = post(&mut m, &ring, &memory, 2);
        let f = frame(OWN);
        m.deliver(&f);
        m.run();
        assert_eq!(ring.get(0)[1], 60 << 32 | 3);
        assert_eq!(memory.copy(buffers[0], 60), f);
        assert_eq!(ring.get(1), [buffers[1], 0]);
        assert_eq!((m.read(Reg::Rdh.offset(0)), m.read(Reg::Qprc.offset(0))), (1, 1));
        assert_eq!(m.take_diagnostics(), []);
    }

    #[test]
    fn head_equal_to_tail_means_no_descriptor_and_the_frame_waits_or_is_dropped() {
        let (mut m, memory) = model();
        let ring = receive_queue(&mut m, &memory, 0, 8);
        m.deliver(&frame(OWN));
        m.run();
        assert_eq!(m.read(Reg::Rdh.offset(0)), 0);
        let _ = post(&mut m, &ring, &memory, 1);
        m.run();
        assert_eq!(ring.get(0)[1], 60 << 32 | 3, "it has waited");
        m.write(Reg::Srrctl.offset(0), 1 << 28 | 1 << 25 | 2);
        m.deliver(&frame(OWN));
        m.run();
        assert_eq!((m.read(Reg::Qprdc.offset(0)), m.read(Reg::Rxmpc.offset(0))), (1, 0));
    }

    #[test]
    fn a_full_packet_buffer_misses_frames() {
        let (mut m, memory) = model();
        let _ring = receive_queue(&mut m, &memory, 0, 8);
        m.write(Reg::Rxpbsize.offset(0), 2 << 10);
        for _ in 0..40 {
            m.deliver(&frame(OWN));
        }
        m.run();
        assert_eq!((m.read(Reg::Rxmpc.offset(0)), m.read(Reg::Gprc.offset(0))), (6, 40));
    }

    #[test]
    fn a_long_frame_takes_several_descriptors() {
        let (mut m, memory) = model();
        m.write(Reg::Hlreg0.offset(0), 0x407);
        m.write(Reg::Maxfrs.offset(0), 9018 << 16);
        let ring = receive_queue(&mut m, &memory, 0, 8);
        let _ = post(&mut m, &ring, &memory, 3);
        let mut f = frame(OWN);
        f.resize(5000, 7);
        m.deliver(&f);
        m.run();
        let ends: Vec<u64> = (0..3).map(|i| ring.get(i)[1]).collect();
        assert_eq!(ends, [2048 << 32 | 1, 2048 << 32 | 1, 904 << 32 | 3]);
    }

    #[test]
    fn legacy_descriptors_are_written_back_in_their_own_form() {
        let (mut m, memory) = model();
        let ring = receive_queue(&mut m, &memory, 0, 8);
        m.write(Reg::Srrctl.offset(0), 2);
        m.write(Reg::Rxdctl.offset(0), ENABLE | 1 << 30);
        let buffers = post(&mut m, &ring, &memory, 1);
        let mut f = frame(OWN);
        f[12..16].copy_from_slice(&[0x81, 0x00, 0x60, 0x45]);
        f.resize(64, 0);
        m.deliver(&f);
        m.run();
        assert_eq!(ring.get(0)[1], 0x6045 << 48 | 0x0b << 32 | 60);
        assert_eq!(memory.copy(buffers[0] + 10, 4), [f[10], f[11], f[16], f[17]]);
    }

    #[test]
    fn misuse_is_told_and_halts_the_queue() {
        let (mut m, memory) = model();
        let ring = receive_queue(&mut m, &memory, 0, 8);
        let who = Direction::Receive(0);
        m.write(Reg::Rdt.offset(0), 8);
        m.write(Reg::Rdlen.offset(0), 256);
        m.write(Reg::Rdt.offset(1), 0);
        m.write(Reg::Rdt.offset(1), 1);
        m.write(Reg::Rxdctl.offset(2), ENABLE);
        assert_eq!(
            m.take_diagnostics(),
            [
                Diagnostic::TailBeyondRing { who, tail: 8, descriptors: 8 },
                Diagnostic::RingMovedWhileEnabled { who },
                Diagnostic::TailBeforeEnable { who: Direction::Receive(1) },
                Diagnostic::TailBeyondRing { who: Direction::Receive(1), tail: 1, descriptors: 0 },
                Diagnostic::BadRing { who: Direction::Receive(2), base: 0, len: 0 },
            ]
        );
        assert_eq!(m.read(Reg::Rxdctl.offset(2)), 0);
        ring.put(0, [0x6666_0000, 0]);
        m.write(Reg::Rdt.offset(0), 1);
        m.deliver(&frame(OWN));
        m.deliver(&frame(OWN));
        m.run();
        assert_eq!(
            m.take_diagnostics(),
            [Diagnostic::NotGranted { who, address: 0x6666_0000, len: 60, write: true }],
            "once: the queue stands still"
        );
        assert_eq!(ring.get(0), [0x6666_0000, 0]);
    }

    #[test]
    fn after_a_dma_fault_frames_are_dropped_or_wait_and_a_queue_that_is_enabled_anew_works() {
        for drop in [0, 1 << 28] {
            let (mut m, memory) = model();
            let ring = receive_queue(&mut m, &memory, 0, 8);
            m.write(Reg::Srrctl.offset(0), drop | 1 << 25 | 2);
            let buffers = post(&mut m, &ring, &memory, 4);
            memory.revoke(buffers[0], 2048);
            m.deliver(&frame(OWN));
            m.run();
            assert!(matches!(m.take_diagnostics()[..], [Diagnostic::NotGranted { write: true, .. }]));
            (0..10_000).for_each(|_| m.deliver(&frame(OWN)));
            m.run();
            let (missed, dropped) = (m.read(Reg::Rxmpc.offset(0)), m.read(Reg::Qprdc.offset(0)));
            assert_eq!((missed > 0, dropped > 0), (true, drop != 0), "{missed} missed, {dropped} dropped");
            assert_eq!((m.read(Reg::Rdh.offset(0)), m.take_diagnostics()), (0, vec![]));
            m.write(Reg::Rxdctl.offset(0), 0);
            m.run();
            memory.grant(buffers[0], 2048, crate::memory::Access::ReadWrite);
            m.write(Reg::Rxdctl.offset(0), ENABLE);
            m.read(Reg::Rxdctl.offset(0));
            m.deliver(&frame(OWN));
            m.run();
            assert_eq!(ring.get(0)[1], 60 << 32 | 3);
        }
    }

    #[test]
    fn what_is_known_of_checksums_stands_in_the_descriptor() {
        let (mut m, memory) = model();
        let ring = receive_queue(&mut m, &memory, 0, 8);
        let _ = post(&mut m, &ring, &memory, 4);
        // TCP over IPv4 with 6 bytes, from 10.0.0.1 to 10.0.0.2.
        let mut f = frame(OWN);
        let head = [8, 0, 0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 6, 0x26, 0xc8, 10, 0, 0, 1, 10, 0, 0, 2];
        f[12..34].copy_from_slice(&head);
        f[34..54].copy_from_slice(&[0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
        f[54..].fill(0);
        let sum = |words: &[u8]| words.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum::<u32>();
        let check = sum(&f[26..60]) + 6 + 26;
        let check = !((check & 0xffff) + (check >> 16)) as u16;
        f[50..52].copy_from_slice(&check.to_be_bytes());
        let (mut wrong_tcp, mut wrong_ip) = (f.clone(), f.clone());
        wrong_tcp[59] ^= 1;
        wrong_ip[24] ^= 1;
        for f in [&f, &wrong_tcp, &wrong_ip] {
            m.deliver(f);
        }
        m.run();
        // L4I and IPCS say what was looked at, the error bits TCPE and IPE what was wrong.
        let bits = |i| (ring.get(i)[0] >> 4 & 0x1fff, ring.get(i)[1] >> 5 & 3, ring.get(i)[1] >> 30 & 3);
        assert_eq!([0, 1, 2].map(bits), [(0x11, 3, 0), (0x11, 3, 1), (0x11, 3, 2)]);
    }

    #[test]
    fn a_buffer_nowhere_and_a_tail_before_the_handshake_are_told() {
        let (mut m, memory) = model();
        let ring = receive_queue(&mut m, &memory, 0, 8);
        ring.put(0, [0, 0]);
        m.write(Reg::Rdt.offset(0), 1);
        m.deliver(&frame(OWN));
        m.run();
        assert_eq!(m.take_diagnostics(), [Diagnostic::NullBuffer { queue: 0, index: 0 }]);
        let block = memory.granted(128, 128);
        m.write(Reg::Rdbal.offset(1), block.bus as u32);
        m.write(Reg::Rdbah.offset(1), (block.bus >> 32) as u32);
        m.write(Reg::Rdlen.offset(1), 128);
        m.write(Reg::Rxdctl.offset(1), ENABLE);
        m.write(Reg::Rdt.offset(1), 1);
        assert_eq!(m.take_diagnostics(), [Diagnostic::TailBeforeEnable { who: Direction::Receive(1) }]);
        m.write(Reg::Hlreg0.offset(0), 0x401);
        m.write(Reg::Rxctrl.offset(0), 1);
        assert_eq!(m.take_diagnostics(), [Diagnostic::CrcStripDiffers]);
    }
}
