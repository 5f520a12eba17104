//! The driver's half of a disk's ring, split (virtio 1.3 ch. 2.7) or packed (ch. 2.8). A request is a chain of up to four
//! descriptors: header, one or two for data, status byte.

use std::sync::atomic::{Ordering, fence};

use super::area::{Area, CHAIN, HEADER, RINGS};

const TABLE: usize = RINGS[0];
const DRIVER: usize = RINGS[1];
const DEVICE: usize = RINGS[2];
const NEXT: u16 = 1;
const WRITE: u16 = 2;
const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;
const WRAP: u16 = 1 << 15;
/// Values of a packed ring's event suppression flags.
const DISABLE: u32 = 1;
const DESC: u32 = 2;
/// What a status byte holds before the device writes it.
const UNTOUCHED: u8 = 0xaa;

/// The data of a request.
#[derive(Clone, Copy, Debug)]
pub enum Buffer<'b> {
    /// None.
    Nothing,
    /// Bytes for the device.
    Out(&'b [u8]),
    /// Room for so many bytes from the device, in one descriptor or, if there are two or more, in two.
    In(usize),
}

/// One ring.
pub struct Queue {
    area: Area,
    packed: bool,
    event_idx: bool,
    /// Slots without a request.
    free: Vec<u16>,
    /// Descriptors of each slot's chain.
    chains: Vec<u16>,
    /// Split: requests offered. Packed: descriptors offered, modulo twice the size.
    offered: u16,
    /// The same of those that came back.
    seen: u16,
}

impl Queue {
    /// An empty ring.
    pub fn new(area: Area, packed: bool, event_idx: bool) -> Self {
        let slots = area.size / CHAIN;
        Self {
            packed,
            event_idx,
            free: (0..slots).rev().collect(),
            chains: vec![0; slots.into()],
            offered: 0,
            seen: 0,
            area,
        }
    }

    const fn mask(&self) -> u16 {
        self.area.size - 1
    }

    /// The buffers of a slot's chain: offset, length, flags without NEXT.
    fn chain(&self, slot: u16, buffer: &Buffer<'_>) -> Vec<(usize, usize, u16)> {
        let data = self.area.data(slot);
        let mut chain = vec![(Area::header(slot), HEADER, 0)];
        match *buffer {
            Buffer::Nothing => {}
            Buffer::Out(bytes) => chain.push((data, bytes.len(), 0)),
            Buffer::In(len @ (0 | 1)) => chain.push((data, len, WRITE)),
            Buffer::In(len) => chain.extend([(data, len / 2, WRITE), (data + len / 2, len - len / 2, WRITE)]),
        }
        chain.push((Area::status(slot), 1, WRITE));
        chain
    }

    /// Offers a request. Returns its slot and whether the device wants a notification; `None` if there is no room.
    pub fn submit(&mut self, kind: u32, sector: u64, buffer: &Buffer<'_>) -> Option<(u16, bool)> {
        let slot = self.free.pop()?;
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        self.area.write(Area::header(slot), &header);
        self.area.write(Area::status(slot), &[UNTOUCHED]);
        match *buffer {
            Buffer::Out(bytes) => {
                assert!(bytes.len() <= self.area.room, "{} bytes are too many", bytes.len());
                self.area.write(self.area.data(slot), bytes);
            }
            Buffer::In(len) => assert!(len <= self.area.room, "{len} bytes are too many"),
            Buffer::Nothing => {}
        }
        let chain = self.chain(slot, buffer);
        if let Some(count) = self.chains.get_mut(usize::from(slot)) {
            *count = chain.len() as u16;
        }
        let wanted = if self.packed { self.offer_packed(slot, &chain) } else { self.offer_split(slot, &chain) };
        Some((slot, wanted))
    }

    fn offer_split(&mut self, slot: u16, chain: &[(usize, usize, u16)]) -> bool {
        let last = chain.len() - 1;
        for (n, (offset, len, flags)) in chain.iter().enumerate() {
            let index = CHAIN * slot + n as u16;
            let (flags, next) = if n == last { (*flags, 0) } else { (flags | NEXT, index + 1) };
            self.write_descriptor(index, *offset, *len, flags, next);
        }
        let ring = DRIVER + 4 + 2 * usize::from(self.offered & self.mask());
        self.area.half(ring).store(CHAIN * slot, Ordering::Relaxed);
        let before = self.offered;
        self.offered = before.wrapping_add(1);
        self.area.half(DRIVER + 2).store(self.offered, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.event_idx {
            let event = self.area.half(DEVICE + 4 + 8 * usize::from(self.area.size)).load(Ordering::Relaxed);
            self.offered.wrapping_sub(event).wrapping_sub(1) < 1
        } else {
            self.area.half(DEVICE).load(Ordering::Relaxed) & 1 == 0
        }
    }

    fn write_descriptor(&self, index: u16, offset: usize, len: usize, flags: u16, last: u16) {
        let at = TABLE + 16 * usize::from(index);
        self.area.double(at).store(self.area.address(offset), Ordering::Relaxed);
        let word = len as u64 | u64::from(flags) << 32 | u64::from(last) << 48;
        self.area.double(at + 8).store(word, Ordering::Relaxed);
    }

    /// Whether the wrap counter is 1 at a position of a packed ring.
    const fn wrap(&self, position: u16) -> bool {
        position & self.area.size == 0
    }

    fn offer_packed(&mut self, slot: u16, chain: &[(usize, usize, u16)]) -> bool {
        let first = self.offered;
        // The first descriptor's flags are written last: with them the device gets the whole chain.
        for (n, (offset, len, flags)) in chain.iter().enumerate().rev() {
            let position = first.wrapping_add(n as u16);
            let flags = flags | if n + 1 == chain.len() { 0 } else { NEXT };
            let flags = flags | if self.wrap(position) { AVAIL } else { USED };
            let at = TABLE + 16 * usize::from(position & self.mask());
            self.area.double(at).store(self.area.address(*offset), Ordering::Relaxed);
            let word = *len as u64 | u64::from(slot) << 32 | u64::from(flags) << 48;
            self.area.double(at + 8).store(word, Ordering::Release);
        }
        let count = chain.len() as u16;
        self.offered = first.wrapping_add(count) & (2 * self.area.size - 1);
        fence(Ordering::SeqCst);
        let wish = self.area.word(DEVICE).load(Ordering::Relaxed);
        match wish >> 16 {
            DISABLE => false,
            DESC => {
                let event = (wish as u16 & !WRAP) + if wish as u16 & WRAP == 0 { self.area.size } else { 0 };
                event.wrapping_sub(first) & (2 * self.area.size - 1) < count
            }
            _ => true,
        }
    }

    /// Takes the next completed request: its slot, and the used length.
    pub fn completed(&mut self) -> Option<(u16, u32)> {
        let (slot, len) = if self.packed {
            let word = self.area.double(TABLE + 16 * usize::from(self.seen & self.mask()) + 8).load(Ordering::Acquire);
            let flags = (word >> 48) as u16;
            if self.seen == self.offered
                || flags & (AVAIL | USED) != if self.wrap(self.seen) { AVAIL | USED } else { 0 }
            {
                return None;
            }
            let slot = (word >> 32) as u16;
            let count = self.chains.get(usize::from(slot)).copied().unwrap_or(0);
            self.seen = self.seen.wrapping_add(count) & (2 * self.area.size - 1);
            (slot, word as u32)
        } else {
            if self.area.half(DEVICE + 2).load(Ordering::Acquire) == self.seen {
                return None;
            }
            let at = DEVICE + 4 + 8 * usize::from(self.seen & self.mask());
            self.seen = self.seen.wrapping_add(1);
            let head = self.area.word(at).load(Ordering::Relaxed);
            ((head as u16) / CHAIN, self.area.word(at + 4).load(Ordering::Relaxed))
        };
        self.want_interrupt();
        assert!(!self.free.contains(&slot) && usize::from(slot) < self.chains.len(), "request {slot} was not offered");
        self.free.push(slot);
        Some((slot, len))
    }

    /// Asks for an interrupt at the next completion.
    fn want_interrupt(&self) {
        if !self.event_idx {
            return;
        }
        if self.packed {
            let at = self.seen & self.mask() | if self.wrap(self.seen) { WRAP } else { 0 };
            self.area.word(DRIVER).store(DESC << 16 | u32::from(at), Ordering::Relaxed);
        } else {
            self.area.half(DRIVER + 4 + 2 * usize::from(self.area.size)).store(self.seen, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// The status byte of a request.
    pub fn status(&self, slot: u16) -> u8 {
        self.area.read(Area::status(slot), 1).first().copied().unwrap_or(UNTOUCHED)
    }

    /// The first bytes of a request's data.
    pub fn data(&self, slot: u16, len: usize) -> Vec<u8> {
        self.area.read(self.area.data(slot), len.min(self.area.room))
    }
}
