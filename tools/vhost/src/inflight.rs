//! In-flight tracking (GET_INFLIGHT_FD and SET_INFLIGHT_FD of the vhost-user protocol): a front-end keeps a memory file
//! of ours, and gives it to the next process after this one has died in mid-request. Every request is then answered.
//!
//! A device with tracking answers its requests in the order of the ring, and publishes each answer by itself. So the
//! requests that were not answered are those from the next used position on. They are carried out again.
//!
//! - Split ring: the used index in the ring is that position. No request is marked in the file.
//! - Packed ring: the file has the position. An answer overwrites a descriptor, in two steps. So the file keeps the
//!   descriptor until the answer is published, and a process that finds it restores it or goes on behind it.
//!
//! The file has the layout of the protocol's documentation. `free_head`, which is the back-end's own, says that the
//! queue was in use when the file was left. A bit of the first queue's `features` says that a FLUSH has failed: a driver
//! that goes on with the next process must not take its earlier writes for durable.

#![allow(unsafe_code, reason = "a memory file that the front-end shares")]

use std::fs::File;
use std::io;
use std::os::fd::FromRawFd as _;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU16, AtomicU64, Ordering, compiler_fence};

use block::flushes::Record;
use engine::order::Track;
use net::ports::MAX_PORTS;
use vhost::vhost_user::message::VhostUserInflight;
use virtio::config::MAX_QUEUES;

use crate::map::Mapping;

/// Bytes before the descriptors' states. A part has the size of a packed ring's, which is the larger one.
const HEAD: usize = 32;
/// Bytes of a descriptor's state.
const STATE: usize = 32;
/// A queue's part begins at a multiple of this.
const ALIGN: usize = 64;
const VERSION: u16 = 1;
/// The wrap counter in a position.
const WRAP: u16 = 1 << 15;
/// USED and AVAIL in the second half of a packed ring's descriptor.
const USED: u64 = 1 << 63;
const AVAIL: u64 = 1 << 55;

/// In `features`: a FLUSH of the disk has failed.
const FLUSH_FAILED: u64 = 1 << 63;

/// Offsets in a queue's part.
mod at {
    pub const FEATURES: usize = 0;
    pub const VERSION: usize = 8;
    pub const DESC_NUM: usize = 10;
    /// Packed: the queue is in use.
    pub const FREE_HEAD: usize = 12;
    /// Packed: the next used position, the same again, and the wrap counters of both. They are one word, so a process
    /// that is killed leaves all of them or none.
    pub const USED_IDX: usize = 16;
    /// Packed, of the descriptor that is being answered: whether it is, and the descriptors of its chain.
    pub const INFLIGHT: usize = 0;
    pub const NUM: usize = 6;
    /// Its buffer id, flags and length, as one word.
    pub const ID: usize = 16;
}

/// Bytes of a queue's part.
const fn part(size: u16) -> usize {
    (HEAD + STATE * size as usize).next_multiple_of(ALIGN)
}

/// Makes the file for so many queues.
///
/// # Errors
/// Linux refuses a memory file.
pub fn make(queues: u16, size: u16) -> io::Result<(VhostUserInflight, File)> {
    // SAFETY: a name with its zero.
    let fd = unsafe { libc::memfd_create(c"inflight".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made, and nobody else's.
    let file = unsafe { File::from_raw_fd(fd) };
    let bytes = part(size) * usize::from(queues);
    file.set_len(bytes as u64)?;
    Ok((VhostUserInflight::new(bytes as u64, 0, queues, size), file))
}

/// The file of a front-end, mapped.
pub struct Inflight {
    start: *mut u8,
    queues: u16,
    size: u16,
    /// The rings are packed.
    pub packed: bool,
    _mapping: Mapping,
}

// SAFETY: memory that another process shares; all access is atomic.
unsafe impl Send for Inflight {}

impl Inflight {
    /// Maps the file. The error says what is wrong with it.
    pub fn map(port: usize, packed: bool, told: &VhostUserInflight, file: &File) -> Result<Self, String> {
        let VhostUserInflight { mmap_size, mmap_offset, num_queues: queues, queue_size: size } = *told;
        let bytes = part(size) as u64 * u64::from(queues);
        let end = mmap_offset.checked_add(mmap_size).ok_or("its offset and size wrap")?;
        let metadata = file.metadata().map_err(|error| error.to_string())?;
        if mmap_size < bytes || !metadata.is_file() || metadata.len() < end || mmap_offset % 64 != 0 {
            return Err(format!(
                "{mmap_size:#x} bytes at {mmap_offset:#x} of a file of {:#x}, for {queues} queues of {size}: expected \
                 {bytes:#x} bytes or more within the file",
                metadata.len()
            ));
        }
        let end = usize::try_from(end).map_err(|_| "too large")?;
        let mapping = Mapping::new(port, file, end).map_err(|error| format!("it cannot be mapped: {error}"))?;
        let start = mapping.start().wrapping_add(mmap_offset as usize);
        Ok(Self { start, queues, size, packed, _mapping: mapping })
    }

    /// Has the file and the disk's record agree on whether a FLUSH has failed. From then on the file is marked before a
    /// failure is answered. The engine must not have the device.
    pub fn share(&self, port: usize, record: &'static Record) {
        let part = Part(self.start);
        if part.word(at::FEATURES).load(Ordering::Acquire) & FLUSH_FAILED != 0 {
            record.lose();
        }
        if let Some(track) = TRACKS.get(port) {
            track.record.store(ptr::from_ref(record).cast_mut(), Ordering::Relaxed);
            track.first.store(part.0, Ordering::Release);
            track.mark();
        }
    }

    /// The part of a queue, if it has one for so many descriptors.
    fn of(&self, queue: u16, size: u16) -> Option<Part> {
        let offset = part(self.size) * usize::from(queue);
        (queue < self.queues && size <= self.size).then(|| Part(self.start.wrapping_add(offset)))
    }

    /// Starts the tracking of a queue, whose ring is at `ring`. `base` is where the front-end wants it to start. Returns
    /// where it has to start; `None` if the file has no room for the queue.
    ///
    /// `used` reads the used index of a split ring.
    pub fn start(
        &self,
        port: usize,
        queue: u16,
        (ring, size): (*mut u8, u16),
        base: Option<u16>,
        used: impl FnOnce() -> Option<u16>,
    ) -> Option<u16> {
        // The queue may have had a packed ring, whose memory and file may be unmapped by now.
        forget(port, queue);
        let part = self.of(queue, size)?;
        part.half(at::VERSION).store(VERSION, Ordering::Relaxed);
        part.half(at::DESC_NUM).store(size, Ordering::Relaxed);
        if !self.packed {
            return used();
        }
        let track = TRACKS.get(port)?.queues.get(usize::from(queue))?;
        let base = if part.half(at::FREE_HEAD).load(Ordering::Relaxed) != 0 {
            part.recover(ring, size)
        } else {
            base.unwrap_or(WRAP)
        };
        part.set_position(base);
        part.half(at::FREE_HEAD).store(1, Ordering::Release);
        track.part.store(part.0, Ordering::Relaxed);
        track.ring.store(ring, Ordering::Relaxed);
        track.size.store(size, Ordering::Release);
        Some(base)
    }

    /// Ends the tracking of a queue, none of whose requests is in flight.
    pub fn stop(&self, port: usize, queue: u16) {
        if let Some(part) = self.of(queue, self.size).filter(|_| self.packed) {
            part.half(at::FREE_HEAD).store(0, Ordering::Release);
        }
        forget(port, queue);
    }
}

/// Forgets a queue's ring and file. The engine must not have the device.
fn forget(port: usize, queue: u16) {
    if let Some(track) = TRACKS.get(port).and_then(|track| track.queues.get(usize::from(queue))) {
        track.size.store(0, Ordering::Release);
    }
}

/// A queue's part of the file.
#[derive(Clone, Copy)]
struct Part(*mut u8);

impl Part {
    fn half(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: within the part, which is mapped as long as its user lives, and aligned. The front-end may write it,
        // so it is atomic.
        unsafe { AtomicU16::from_ptr(self.0.wrapping_add(offset).cast()) }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.0.wrapping_add(offset).cast()) }
    }

    /// The offset of the state of the descriptor at a position.
    const fn state(position: u16) -> usize {
        HEAD + STATE * (position & !WRAP) as usize
    }

    fn set_position(&self, position: u16) {
        let (index, wrap) = (u64::from(position & !WRAP), u64::from(position >> 15));
        self.word(at::USED_IDX).store(index | index << 16 | wrap << 32 | wrap << 40, Ordering::Release);
    }

    /// Keeps the descriptor at `from`, whose chain ends before `to`.
    fn keep(&self, ring: *mut u8, size: u16, from: u16, to: u16) {
        let state = Self::state(from);
        let (index, next) = (from & !WRAP, to & !WRAP);
        self.word(state + at::ID).store(second_half(ring, from).rotate_right(32), Ordering::Relaxed);
        let count = if next > index { next - index } else { next + size - index };
        self.half(state + at::NUM).store(count, Ordering::Relaxed);
        self.half(state + at::INFLIGHT).store(1, Ordering::Release);
    }

    /// Where a queue goes on whose process has died. The descriptor that was being answered is restored, unless its
    /// answer is published.
    fn recover(&self, ring: *mut u8, size: u16) -> u16 {
        let word = self.word(at::USED_IDX).load(Ordering::Acquire);
        let (index, wrap) = (word as u16 & !WRAP, (word >> 32) as u16 & 1);
        let from = index | wrap << 15;
        // The front-end can write the file. A position outside the ring is refused with the device's state.
        if index >= size {
            return from;
        }
        let state = Self::state(from);
        let answering = self.half(state + at::INFLIGHT).swap(0, Ordering::AcqRel) != 0;
        // The process may have died after it had moved on and before it had cleared the mark of the descriptor before.
        for position in 0..size {
            self.half(Self::state(position) + at::INFLIGHT).store(0, Ordering::Release);
        }
        if !answering {
            return from;
        }
        // Until the answer is published the flags are those of the driver's offer. Behind that the driver may have offered
        // the descriptor anew.
        let offered = if wrap == 1 { AVAIL } else { USED };
        if second_half(ring, from) & (AVAIL | USED) != offered {
            let to = index.saturating_add(self.half(state + at::NUM).load(Ordering::Relaxed).min(size));
            return if to < size { to | wrap << 15 } else { (to - size) | (wrap ^ 1) << 15 };
        }
        restore(ring, from, self.word(state + at::ID).load(Ordering::Relaxed).rotate_left(32));
        from
    }
}

/// The place of the second half of a packed ring's descriptor: length, buffer id, flags.
fn place(ring: *mut u8, position: u16) -> *mut u64 {
    ring.wrapping_add(16 * usize::from(position & !WRAP) + 8).cast()
}

fn second_half(ring: *mut u8, position: u16) -> u64 {
    // SAFETY: a descriptor of a ring, whose place was checked when it was set up. The ring is mapped until the device is
    // detached, and aligned to 16 bytes. The driver accesses it too, so it is atomic.
    unsafe { AtomicU64::from_ptr(place(ring, position)) }.load(Ordering::Acquire)
}

fn restore(ring: *mut u8, position: u16, word: u64) {
    // SAFETY: as above.
    unsafe { AtomicU64::from_ptr(place(ring, position)) }.store(word, Ordering::Release);
}

/// What the engine tracks of a device.
pub struct Tracked {
    /// The front-end has given a file.
    on: AtomicBool,
    /// The file's first part, while the file is mapped.
    first: AtomicPtr<u8>,
    /// The disk's record, which is never freed.
    record: AtomicPtr<Record>,
    queues: [TrackedQueue; MAX_QUEUES],
}

/// What the engine tracks of a packed ring.
struct TrackedQueue {
    part: AtomicPtr<u8>,
    ring: AtomicPtr<u8>,
    /// Descriptors. 0: it is not tracked.
    size: AtomicU16,
}

static TRACKS: [Tracked; MAX_PORTS] = [const {
    Tracked {
        on: AtomicBool::new(false),
        first: AtomicPtr::new(ptr::null_mut()),
        record: AtomicPtr::new(ptr::null_mut()),
        queues: [const {
            TrackedQueue {
                part: AtomicPtr::new(ptr::null_mut()),
                ring: AtomicPtr::new(ptr::null_mut()),
                size: AtomicU16::new(0),
            }
        }; MAX_QUEUES],
    }
}; MAX_PORTS];

/// The tracking of a device, if its front-end has given a file.
pub fn track(port: usize) -> Option<&'static Tracked> {
    TRACKS.get(port).filter(|track| track.on.load(Ordering::Acquire))
}

/// Says whether a device's front-end has given a file. The engine must not have the device. Without one, all queues are
/// forgotten: the rings and the file of before may be unmapped afterwards.
pub fn turn(port: usize, on: bool) {
    if let Some(track) = TRACKS.get(port) {
        if !on {
            track.first.store(ptr::null_mut(), Ordering::Release);
            (0..MAX_QUEUES as u16).for_each(|queue| forget(port, queue));
        }
        track.on.store(on, Ordering::Release);
    }
}

impl Tracked {
    /// Marks the file if a FLUSH of the disk has failed.
    fn mark(&self) {
        let (first, record) = (self.first.load(Ordering::Acquire), self.record.load(Ordering::Relaxed));
        // SAFETY: null, or from a reference that lives for ever.
        let lost = unsafe { record.as_ref() }.is_some_and(Record::is_lost);
        if lost && !first.is_null() {
            Part(first).word(at::FEATURES).fetch_or(FLUSH_FAILED, Ordering::AcqRel);
        }
    }

    /// The part and the ring of a queue, if `position` is one of it.
    fn queue(&self, queue: u16, position: u16) -> Option<(Part, *mut u8, u16)> {
        let queue = self.queues.get(usize::from(queue))?;
        let size = queue.size.load(Ordering::Acquire);
        let within = position & !WRAP < size;
        within.then(|| (Part(queue.part.load(Ordering::Relaxed)), queue.ring.load(Ordering::Relaxed), size))
    }
}

impl Track for Tracked {
    fn completing(&self, queue: u16, from: u16, to: u16) {
        self.mark();
        let Some((part, ring, size)) = self.queue(queue, from) else { return };
        part.keep(ring, size, from, to);
        // A process that is killed has executed a prefix of its instructions. So the compiler's order is enough.
        compiler_fence(Ordering::SeqCst);
    }

    fn completed(&self, queue: u16, from: u16, to: u16) {
        let Some((part, ..)) = self.queue(queue, from) else { return };
        compiler_fence(Ordering::SeqCst);
        part.set_position(to);
        part.half(Part::state(from) + at::INFLIGHT).store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u16 = 4;
    const OFFERED: u64 = AVAIL | 3 << 32 | 4096;

    /// A part and a ring, in words.
    fn memory() -> (Part, *mut u8) {
        let words = |bytes: usize| vec![0_u64; bytes / 8].leak().as_mut_ptr().cast::<u8>();
        (Part(words(part(SIZE))), words(16 * usize::from(SIZE)))
    }

    #[test]
    fn a_descriptor_that_was_being_answered_is_restored() {
        let (part, ring) = memory();
        restore(ring, WRAP | 3, OFFERED);
        part.set_position(WRAP | 3);
        part.keep(ring, SIZE, WRAP | 3, 1);
        // The first of two steps of the answer: id and length are there, and USED is not yet.
        restore(ring, WRAP | 3, AVAIL | 3 << 32 | 7);
        assert_eq!(part.recover(ring, SIZE), WRAP | 3);
        assert_eq!(second_half(ring, WRAP | 3), OFFERED);
        assert_eq!(part.recover(ring, SIZE), WRAP | 3, "and once more");
    }

    #[test]
    fn an_answer_that_is_published_stays_and_the_queue_goes_on_behind_it() {
        for (from, to, used) in [(WRAP | 3, 1, AVAIL | USED), (1, 3, 0), (2, WRAP, 0)] {
            let (part, ring) = memory();
            restore(ring, from, OFFERED);
            part.set_position(from);
            part.keep(ring, SIZE, from, to);
            restore(ring, from, used | 3 << 32 | 7);
            assert_eq!(part.recover(ring, SIZE), to, "from {from:#x}");
            assert_eq!(second_half(ring, from), used | 3 << 32 | 7);
        }
    }

    #[test]
    fn a_flush_that_failed_is_in_the_file_before_its_answer_and_the_next_process_finds_it() {
        const PORT: usize = MAX_PORTS - 1;
        for packed in [false, true] {
            let (told, file) = make(2, SIZE).unwrap();
            let map = || Inflight::map(PORT, packed, &told, &file).unwrap();
            let (before, after, anew): (&Record, &Record, &Record) =
                (Box::leak(Box::default()), Box::leak(Box::default()), Box::leak(Box::default()));
            let ours = map();
            ours.share(PORT, before);
            turn(PORT, true);
            let tracked = track(PORT).unwrap();
            tracked.completing(0, 0, 1);
            map().share(PORT, after);
            assert!(!after.is_lost());
            ours.share(PORT, before);
            before.lose();
            tracked.completing(0, 1, 2);
            turn(PORT, false);
            // The process was killed. Another one gets the same file, and a file for a driver that begins anew.
            map().share(PORT, after);
            assert!(after.is_lost());
            turn(PORT, false);
            let (told, file) = make(2, SIZE).unwrap();
            Inflight::map(PORT, packed, &told, &file).unwrap().share(PORT, anew);
            turn(PORT, false);
            assert!(!anew.is_lost());
        }
    }

    #[test]
    fn a_queue_that_was_not_answering_goes_on_where_it_was() {
        let (part, ring) = memory();
        restore(ring, 2, OFFERED);
        part.set_position(2);
        assert_eq!(part.recover(ring, SIZE), 2);
        // The front-end has written nonsense: no memory beyond the part is touched, and the device refuses the position.
        part.word(at::USED_IDX).store(u64::MAX, Ordering::Relaxed);
        assert!(part.recover(ring, SIZE) & !WRAP >= SIZE);
        part.set_position(3);
        part.keep(ring, SIZE, 3, 0);
        part.half(Part::state(3) + at::NUM).store(u16::MAX, Ordering::Relaxed);
        restore(ring, 3, 0);
        assert!(part.recover(ring, SIZE) & !WRAP < 2 * SIZE);
    }

    #[test]
    fn a_file_that_is_too_short_is_refused_with_its_values() {
        let (told, file) = make(2, 64).unwrap();
        assert!(Inflight::map(100, true, &told, &file).is_ok());
        file.set_len(100).unwrap();
        let error = Inflight::map(100, true, &told, &file).err().unwrap();
        assert!(error.contains("of a file of 0x64, for 2 queues of 64"), "{error}");
        let (told, file) = make(1, 64).unwrap();
        let more = VhostUserInflight { num_queues: 2, ..told };
        assert!(Inflight::map(100, true, &more, &file).is_err());
    }
}
