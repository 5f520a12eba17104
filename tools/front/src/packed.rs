//! The driver's half of a packed ring (virtio 1.3 ch. 2.8), with one descriptor for each buffer.
//!
//! Positions are counted without end, like those of a split ring. A ring's size is a power of two, so a position's wrap
//! counter is the bit above those of its descriptor.

#![allow(unsafe_code, reason = "rings in memory that another process writes to")]

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::area::{Area, HEADER};

const AVAIL: u16 = 1 << 7;
const USED: u16 = 1 << 15;
const WRAP: u16 = 1 << 15;
const EVENTS_ENABLE: u32 = 0;
const EVENTS_DISABLE: u32 = 1;
const EVENTS_DESC: u32 = 2;

/// One ring.
pub struct Packed {
    area: Area,
    event_idx: bool,
    /// The flags that each offered descriptor gets.
    flags: u16,
    /// The buffer in each descriptor.
    ids: Vec<u16>,
    /// Bytes of each buffer, with its header.
    lens: Vec<u32>,
}

impl Packed {
    /// A ring with nothing offered.
    pub fn new(area: Area, event_idx: bool, flags: u16) -> Self {
        let size = area.size();
        let ring = Self { area, event_idx, flags, ids: (0..size).collect(), lens: vec![0; size.into()] };
        for slot in 0..size {
            ring.word(slot, 0).store(area.address_of(slot), Ordering::Relaxed);
        }
        ring
    }

    /// One half of a descriptor.
    fn word(&self, slot: u16, half: usize) -> &AtomicU64 {
        // SAFETY: within the area, aligned; the back-end accesses it as one, or parts of it.
        unsafe { AtomicU64::from_ptr(self.area.at(16 * usize::from(slot) + 8 * half)) }
    }

    fn slot(&self, position: u16) -> u16 {
        position & (self.area.size() - 1)
    }

    fn wrap(&self, position: u16) -> bool {
        position & self.area.size() == 0
    }

    /// A position in the back-end's format: the descriptor, and the wrap counter in the highest bit.
    pub fn base(&self, position: u16) -> u16 {
        self.slot(position) | if self.wrap(position) { WRAP } else { 0 }
    }

    /// Sets the length of buffer `n`, without its header.
    pub fn set_len(&mut self, n: u16, len: usize) {
        if let Some(known) = self.lens.get_mut(usize::from(n)) {
            *known = (len + HEADER) as u32;
        }
    }

    /// Puts a buffer into a descriptor.
    #[inline]
    pub fn place(&mut self, slot: u16, buffer: u16) {
        if let Some(id) = self.ids.get_mut(usize::from(slot))
            && *id != buffer
        {
            *id = buffer;
            self.word(slot, 0).store(self.area.address_of(buffer), Ordering::Relaxed);
        }
    }

    /// Whether the descriptor at a position has been used.
    #[inline]
    pub fn is_used(&self, position: u16) -> bool {
        let flags = (self.word(self.slot(position), 1).load(Ordering::Acquire) >> 48) as u16;
        flags & (AVAIL | USED) == if self.wrap(position) { AVAIL | USED } else { 0 }
    }

    /// Returns how many descriptors were used from `seen` on, of those before `offered`.
    #[inline]
    pub fn back(&self, seen: u16, offered: u16) -> u16 {
        let out = offered.wrapping_sub(seen);
        (0..out).find(|&n| !self.is_used(seen.wrapping_add(n))).unwrap_or(out)
    }

    /// The used descriptor at a position: its buffer, and the bytes written.
    #[inline]
    pub fn used(&self, position: u16) -> (u16, u32) {
        let word = self.word(self.slot(position), 1).load(Ordering::Relaxed);
        (self.slot((word >> 32) as u16), word as u32)
    }

    /// Offers the descriptors from a position on, the first one last. Returns whether the back-end wants a
    /// notification.
    #[inline]
    pub fn offer(&self, from: u16, count: u16) -> bool {
        for position in (0..count).rev().map(|n| from.wrapping_add(n)) {
            let slot = self.slot(position);
            let id = self.ids.get(usize::from(slot)).copied().unwrap_or(slot);
            let len = self.lens.get(usize::from(id)).copied().unwrap_or(0);
            let flags = self.flags | if self.wrap(position) { AVAIL } else { USED };
            let word = u64::from(len) | u64::from(id) << 32 | u64::from(flags) << 48;
            self.word(slot, 1).store(word, Ordering::Release);
        }
        fence(Ordering::SeqCst);
        let wish = self.events(self.area.used()).load(Ordering::Relaxed);
        match wish >> 16 {
            EVENTS_DISABLE => false,
            EVENTS_DESC => {
                let size = self.area.size();
                let event = (wish as u16 & !WRAP) + if wish as u16 & WRAP == 0 { size } else { 0 };
                event.wrapping_sub(from) & (2 * size - 1) < count
            }
            _ => true,
        }
    }

    /// Asks for an interrupt at a position, or for none.
    pub fn want_interrupts(&self, at: Option<u16>) {
        let wish = match at {
            None => EVENTS_DISABLE << 16,
            Some(position) if self.event_idx => EVENTS_DESC << 16 | u32::from(self.base(position)),
            Some(_) => EVENTS_ENABLE << 16,
        };
        self.events(self.area.avail()).store(wish, Ordering::Relaxed);
    }

    /// An event suppression structure.
    fn events(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: within the area, aligned.
        unsafe { AtomicU32::from_ptr(self.area.at(offset)) }
    }
}
