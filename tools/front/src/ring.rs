//! The driver's half of a virtqueue, split or packed, whose buffers are frames (virtio 1.3 ch. 2.7, 2.8, 5.1.6).
//!
//! A frame begins at a cache line; its virtio-net header is in the line before. Pointers stay within the [`Area`] that
//! they were made from. The back-end's indices are checked before use.

#![allow(unsafe_code, reason = "rings in memory that another process writes to")]

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering, fence};

use crate::area::{Area, FRAME, HEADER, MAX_FRAME, STRIDE, area_bytes};
use crate::packed::Packed;

const WRITE: u16 = 2;
const NO_INTERRUPT: u16 = 1;
const NO_NOTIFY: u16 = 1;

/// The negotiated ring format.
#[derive(Clone, Copy, Debug, Default)]
pub struct RingOptions {
    /// EVENT_IDX was negotiated.
    pub event_idx: bool,
    /// RING_PACKED was negotiated.
    pub packed: bool,
}

/// The part that both directions share.
struct Queue {
    area: Area,
    /// Set if it is a packed ring.
    packed: Option<Packed>,
    mask: u16,
    /// Buffers offered so far.
    offered: u16,
    /// Buffers that came back so far.
    seen: u16,
    event_idx: bool,
    /// `used_event` asks for no interrupt until the used index gets here.
    quiet_until: u16,
    interrupts: bool,
}

impl Queue {
    /// An empty queue. Each descriptor gets `flags`.
    fn new(area: Area, RingOptions { event_idx, packed }: RingOptions, flags: u16) -> Self {
        let packed = packed.then(|| Packed::new(area, event_idx, flags));
        if packed.is_none() {
            for n in 0..area.size() {
                area.index(area.avail() + 4 + 2 * n as usize).store(n, Ordering::Relaxed);
            }
        }
        let mask = area.size() - 1;
        let mut queue = Self { area, packed, mask, offered: 0, seen: 0, event_idx, quiet_until: 0, interrupts: false };
        queue.want_interrupts(false);
        queue
    }

    fn used_event(&self) -> &AtomicU16 {
        self.area.index(self.area.avail() + 4 + 2 * self.area.size() as usize)
    }

    #[inline]
    fn used_index(&self) -> u16 {
        if let Some(packed) = &self.packed {
            return self.seen.wrapping_add(packed.back(self.seen, self.offered));
        }
        self.area.index(self.area.used() + 2).load(Ordering::Acquire)
    }

    /// Reads the used entry at a position. Returns its buffer and the bytes written.
    #[inline]
    fn used(&self, position: u16) -> (u16, u32) {
        if let Some(packed) = &self.packed {
            return packed.used(position);
        }
        let offset = self.area.used() + 4 + 8 * (position & self.mask) as usize;
        // SAFETY: within the area, aligned.
        let word = |offset| unsafe { AtomicU32::from_ptr(self.area.at(offset)) }.load(Ordering::Relaxed);
        (word(offset) as u16 & self.mask, word(offset + 4))
    }

    /// Offers the next `count` buffers. Returns whether the back-end wants a notification.
    #[inline]
    fn publish(&mut self, count: u16) -> bool {
        let before = self.offered;
        self.offered = before.wrapping_add(count);
        if let Some(packed) = &self.packed {
            return packed.offer(before, count);
        }
        self.area.index(self.area.avail() + 2).store(self.offered, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.event_idx {
            let offset = self.area.used() + 4 + 8 * self.area.size() as usize;
            let event = self.area.index(offset).load(Ordering::Relaxed);
            self.offered.wrapping_sub(event).wrapping_sub(1) < self.offered.wrapping_sub(before)
        } else {
            self.area.index(self.area.used()).load(Ordering::Relaxed) & NO_NOTIFY == 0
        }
    }

    /// Returns how many buffers came back and were not taken yet.
    #[inline]
    fn back(&self) -> u16 {
        let back = self.used_index().wrapping_sub(self.seen);
        assert!(back <= self.offered.wrapping_sub(self.seen), "the used index is ahead of what was offered");
        back
    }

    /// Sets the length of buffer `n`, until the next call.
    fn set_len(&mut self, n: u16, len: usize, flags: u16) {
        match &mut self.packed {
            Some(packed) => packed.set_len(n, len),
            None => self.area.write_descriptor(n, len, flags),
        }
    }

    /// Puts `buffer` at a position of the ring.
    #[inline]
    fn place(&mut self, position: u16, buffer: u16) {
        let slot = position & self.mask;
        match &mut self.packed {
            Some(packed) => packed.place(slot, buffer),
            None if buffer == slot => {}
            None => self.area.index(self.area.avail() + 4 + 2 * slot as usize).store(buffer, Ordering::Relaxed),
        }
    }

    /// A position in the format of GET_VRING_BASE.
    fn base(&self, position: u16) -> u16 {
        self.packed.as_ref().map_or(position, |packed| packed.base(position))
    }

    /// Takes `count` buffers. If interrupts are suppressed, keeps them suppressed.
    #[inline]
    fn advance(&mut self, count: u16) {
        self.seen = self.seen.wrapping_add(count);
        // `used_event` stays far ahead and is moved before the used index comes near it.
        if !self.interrupts
            && self.event_idx
            && self.packed.is_none()
            && self.quiet_until.wrapping_sub(self.seen) < 0x4000
        {
            self.quiet_until = self.seen.wrapping_add(0x7000);
            self.used_event().store(self.quiet_until, Ordering::Relaxed);
        }
    }

    fn want_interrupts(&mut self, wanted: bool) {
        self.interrupts = wanted;
        if let Some(packed) = &self.packed {
            packed.want_interrupts(wanted.then_some(self.seen));
        } else if self.event_idx {
            self.quiet_until = self.seen.wrapping_add(if wanted { 0 } else { 0x7000 });
            self.used_event().store(self.quiet_until, Ordering::Relaxed);
        } else {
            self.area.index(self.area.avail()).store(if wanted { 0 } else { NO_INTERRUPT }, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }
}

/// A received frame, still in its buffer.
#[derive(Clone, Copy)]
pub struct Arrived<'a> {
    start: *const u8,
    len: usize,
    _buffer: PhantomData<&'a u8>,
}

impl Arrived<'_> {
    /// Bytes, without the header.
    #[inline]
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads the eight bytes at `at`, a multiple of eight. They may lie beyond the frame's end, but not its buffer's.
    #[inline]
    #[must_use]
    pub fn word(&self, at: usize) -> u64 {
        assert!(at + 8 <= MAX_FRAME && at.is_multiple_of(8));
        // SAFETY: within the buffer, as checked, and aligned, because frames begin at cache lines.
        unsafe { self.start.wrapping_add(at).cast::<u64>().read_volatile() }
    }

    /// Reads a word of each of its lines.
    #[inline]
    pub fn touch(&self) {
        let sum = (0..self.len).step_by(64).fold(0u64, |sum, at| sum.wrapping_add(self.word(at)));
        std::hint::black_box(sum);
    }

    /// Its bytes, copied.
    #[must_use]
    pub fn copy(&self) -> Vec<u8> {
        // SAFETY: each is within the buffer.
        (0..self.len).map(|at| unsafe { self.start.wrapping_add(at).read_volatile() }).collect()
    }
}

/// Frames to the back-end.
pub struct Transmit {
    queue: Queue,
    /// Bytes in each descriptor.
    lens: Vec<u16>,
}

impl Transmit {
    /// A queue with nothing offered.
    #[must_use]
    pub fn new(area: Area, form: RingOptions) -> Self {
        Self { queue: Queue::new(area, form, 0), lens: vec![0; area.size() as usize] }
    }

    /// Takes back the frames that were sent. Returns how many.
    #[inline]
    pub fn reclaim(&mut self) -> u16 {
        let back = self.queue.back();
        for n in 0..back {
            let position = self.queue.seen.wrapping_add(n);
            let (buffer, _) = self.queue.used(position);
            assert_eq!(buffer, position & self.queue.mask, "frames that were sent come back out of order");
        }
        self.queue.advance(back);
        back
    }

    /// Frames taken by the back-end so far, as a wrapping count, whether reclaimed or not.
    #[inline]
    #[must_use]
    pub fn taken(&self) -> u16 {
        self.queue.used_index()
    }

    /// Frames offered so far, as a wrapping count.
    #[must_use]
    pub const fn offered(&self) -> u16 {
        self.queue.offered
    }

    /// The back-end's position once it has taken all frames, in the format of GET_VRING_BASE.
    #[must_use]
    pub fn base(&self) -> u16 {
        self.queue.base(self.queue.offered)
    }

    /// Descriptors of the ring.
    #[must_use]
    pub const fn size(&self) -> u16 {
        self.queue.area.size()
    }

    /// Frames that may be offered now.
    #[inline]
    #[must_use]
    pub const fn free(&self) -> u16 {
        self.queue.area.size() - self.queue.offered.wrapping_sub(self.queue.seen)
    }

    /// The frame `ahead` places after the next one to offer; `ahead` is below [`Transmit::free`].
    #[inline]
    fn frame(&self, ahead: u16) -> *mut u8 {
        let n = self.queue.offered.wrapping_add(ahead) & self.queue.mask;
        self.queue.area.at(self.queue.area.buffer(n) + FRAME)
    }

    /// Writes eight bytes of that frame, at a multiple of eight.
    #[inline]
    pub fn write_word(&mut self, ahead: u16, at: usize, word: u64) {
        assert!(at + 8 <= MAX_FRAME && at.is_multiple_of(8));
        // SAFETY: within the frame's buffer, as checked, and aligned, because frames begin at cache lines.
        unsafe { self.frame(ahead).wrapping_add(at).cast::<u64>().write_volatile(word) };
    }

    /// Sets the length of that frame, until the next call.
    #[inline]
    pub fn set_len(&mut self, ahead: u16, len: usize) {
        let n = self.queue.offered.wrapping_add(ahead) & self.queue.mask;
        if let Some(known) = self.lens.get_mut(n as usize)
            && usize::from(*known) != len
        {
            *known = len as u16;
            self.queue.set_len(n, len.min(MAX_FRAME), 0);
        }
    }

    /// Offers the next `count` frames. Returns whether the back-end wants a notification.
    #[inline]
    pub fn offer(&mut self, count: u16) -> bool {
        self.queue.publish(count)
    }

    /// Copies a frame and offers it. Returns `None` if there is no room, otherwise as [`Transmit::offer`].
    pub fn send(&mut self, frame: &[u8]) -> Option<bool> {
        self.reclaim();
        if self.free() == 0 || frame.len() > MAX_FRAME {
            return None;
        }
        self.set_len(0, frame.len());
        // SAFETY: the place for a frame of up to MAX_FRAME bytes, which is not offered yet.
        unsafe { self.frame(0).copy_from_nonoverlapping(frame.as_ptr(), frame.len()) };
        Some(self.offer(1))
    }
}

/// Frames from the back-end.
pub struct Receive {
    queue: Queue,
}

impl Receive {
    /// A queue with all buffers offered. The caller must send the first kick.
    #[must_use]
    pub fn new(area: Area, form: RingOptions) -> Self {
        let mut queue = Queue::new(area, form, WRITE);
        for n in 0..area.size() {
            queue.set_len(n, MAX_FRAME, WRITE);
        }
        queue.publish(area.size());
        Self { queue }
    }

    /// Takes up to `most` received frames, passes each to `look`, and offers their buffers again. Returns how many, and
    /// whether the back-end wants a notification.
    ///
    /// # Panics
    /// If a frame is spread over several buffers. Each buffer has room for the largest frame.
    #[inline]
    pub fn poll(&mut self, most: u16, mut look: impl FnMut(Arrived<'_>)) -> (u16, bool) {
        let back = self.queue.back().min(most);
        if back == 0 {
            return (0, false);
        }
        let area = self.queue.area;
        for n in 0..back {
            let position = self.queue.seen.wrapping_add(n);
            let (buffer, len) = self.queue.used(position);
            self.queue.place(position, buffer);
            let frame = area.at::<u8>(area.buffer(buffer) + FRAME);
            // SAFETY: the header's last field, which is within the buffer and aligned.
            let buffers = unsafe { AtomicU16::from_ptr(frame.wrapping_sub(2).cast()) }.load(Ordering::Relaxed);
            assert_eq!(buffers, 1, "a frame of {len} bytes in several buffers");
            let len = (len as usize).saturating_sub(HEADER).min(MAX_FRAME);
            look(Arrived { start: frame, len, _buffer: PhantomData });
        }
        self.queue.advance(back);
        (back, self.queue.publish(back))
    }

    /// Whether a frame has arrived.
    #[inline]
    #[must_use]
    pub fn ready(&self) -> bool {
        match &self.queue.packed {
            Some(packed) => packed.is_used(self.queue.seen),
            None => self.queue.used_index() != self.queue.seen,
        }
    }

    /// Enables the interrupt at the next frame, or suppresses interrupts.
    pub fn want_interrupts(&mut self, wanted: bool) {
        self.queue.want_interrupts(wanted);
    }

    /// Takes a received frame, as a copy.
    pub fn receive(&mut self) -> Option<Vec<u8>> {
        let mut frame = None;
        self.poll(1, |arrived| frame = Some(arrived.copy()));
        frame
    }
}

/// The back-end's half of a queue in the same process, without checks. It does only what every switch must do.
pub struct Device {
    area: Area,
    next: u16,
    used: u16,
}

impl Device {
    /// A back-end at the start of both rings.
    #[must_use]
    pub fn new(area: Area) -> Self {
        // Suppresses notifications: nobody listens for them here.
        area.index(area.used()).store(NO_NOTIFY, Ordering::Relaxed);
        Self { area, next: 0, used: 0 }
    }

    /// Chains that are offered.
    #[inline]
    #[must_use]
    pub fn available(&self) -> u16 {
        self.area.index(self.area.avail() + 2).load(Ordering::Acquire).wrapping_sub(self.next)
    }

    /// Returns the next chain: its head, its address, its length.
    #[inline]
    fn chain(&self) -> (u16, *mut u8, u32) {
        let slot = self.area.avail() + 4 + 2 * (self.next & (self.area.size() - 1)) as usize;
        let head = self.area.index(slot).load(Ordering::Relaxed) & (self.area.size() - 1);
        let descriptor = self.area.at::<u64>(16 * head as usize);
        // SAFETY: descriptor `head` is within the area.
        let (address, rest) = unsafe { (descriptor.read_volatile(), descriptor.wrapping_add(1).read_volatile()) };
        let offset = (address - self.area.address()) as usize;
        let len = (rest as u32).min((STRIDE - FRAME + HEADER) as u32);
        assert!(offset + len as usize <= area_bytes(self.area.size()));
        (head, self.area.at(offset), len)
    }

    /// Copies the next chain of `from` into the next chain of this queue. Returns the bytes.
    #[inline]
    pub fn copy_from(&mut self, from: &Self) -> u32 {
        let ((_, source, len), (_, to, room)) = (from.chain(), self.chain());
        let len = len.min(room);
        // SAFETY: both are within their areas, as `chain` checks, which are two; the driver of the same process leaves
        // them alone until they are used.
        unsafe {
            to.copy_from_nonoverlapping(source, len as usize);
            to.wrapping_add(HEADER - 2).cast::<u16>().write_volatile(1);
        }
        len
    }

    /// Uses the next chain, with so many bytes written.
    #[inline]
    pub fn used(&mut self, written: u32) {
        let (head, ..) = self.chain();
        let to = self.area.at::<u64>(self.area.used() + 4 + 8 * (self.used & (self.area.size() - 1)) as usize);
        // SAFETY: within the area; the entry is 4-aligned, as the whole ring.
        unsafe { to.write_unaligned(u64::from(head) | u64::from(written) << 32) };
        (self.next, self.used) = (self.next.wrapping_add(1), self.used.wrapping_add(1));
    }

    /// Publishes what was used.
    #[inline]
    pub fn publish(&mut self) {
        self.area.index(self.area.used() + 2).store(self.used, Ordering::Release);
    }
}
