//! A vhost-user disk through libblkio, with one queue and a buffer for each request in flight.

#![allow(unsafe_code, reason = "buffers that a device reads and writes")]

use std::mem::MaybeUninit;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use blkio::{Blkio, Blkioq, Completion, MemoryRegion, ReqFlags};

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Longest time for an answer.
const LIMIT: Duration = Duration::from_secs(60);
/// Most completions that are taken at once.
const BATCH: usize = 64;

/// A request.
#[derive(Clone, Copy, Debug)]
pub enum Ask {
    /// Reads a block into its slot's buffer.
    Read(u64),
    /// Writes a slot's buffer to a block.
    Write(u64),
    /// Discards blocks: first, number.
    Discard(u64, u64),
    /// Zeroes blocks: first, number.
    Zero(u64, u64),
    /// Makes writes durable.
    Flush,
}

/// A disk that is set up.
pub struct Disk {
    queue: Blkioq,
    region: MemoryRegion,
    slots: usize,
    /// Bytes of the disk.
    pub bytes: u64,
    /// Most blocks of a request to write zeroes, and of a discard.
    pub ranges: [u64; 2],
    // Ends the connection when dropped, so it comes last.
    _blkio: Blkio,
}

fn wrong(error: blkio::Error) -> anyhow::Error {
    anyhow::anyhow!("libblkio: {} (errno {})", error.message(), error.errno().raw_os_error())
}

impl Disk {
    /// Connects to the back-end at `socket`. There are buffers for `slots` requests. `poll`: completions are polled and
    /// not notified.
    pub fn connect(socket: &Path, slots: usize, poll: bool) -> Result<Self> {
        let at = || format!("cannot set up the disk at {}", socket.display());
        Self::start(socket, slots, poll).map_err(wrong).with_context(at)
    }

    fn start(socket: &Path, slots: usize, poll: bool) -> blkio::Result<Self> {
        let mut blkio = Blkio::new("virtio-blk-vhost-user")?;
        blkio.set_str("path", &socket.display().to_string())?;
        blkio.connect()?;
        blkio.set_i32("num-queues", i32::from(!poll))?;
        blkio.set_i32("num-poll-queues", i32::from(poll))?;
        let bytes = blkio.get_u64("capacity")?;
        let ranges =
            ["max-write-zeroes-len", "max-discard-len"].map(|name| blkio.get_u64(name).unwrap_or(0) / BLOCK as u64);
        let started = blkio.start()?;
        let region = blkio.alloc_mem_region(slots * BLOCK)?;
        blkio.map_mem_region(&region)?;
        let queue = started.queues.into_iter().chain(started.poll_queues).next();
        let queue = queue.ok_or_else(|| blkio::Error::new(blkio::Errno::NODEV, "it has given no queue"))?;
        Ok(Self { queue, region, slots, bytes, ranges, _blkio: blkio })
    }

    /// Blocks of the disk.
    pub const fn blocks(&self) -> u64 {
        self.bytes / BLOCK as u64
    }

    fn buffer(&self, slot: usize) -> *mut u8 {
        assert!(slot < self.slots, "{slot}: there are {} slots", self.slots);
        std::ptr::with_exposed_provenance_mut::<u8>(self.region.addr).wrapping_add(slot * BLOCK)
    }

    /// Fills a slot's buffer. No request may use it.
    pub fn fill(&mut self, slot: usize, block: &[u8; BLOCK]) {
        let buffer = self.buffer(slot);
        // SAFETY: a whole buffer of the region, which lives as long as this value.
        unsafe { std::ptr::copy_nonoverlapping(block.as_ptr(), buffer, BLOCK) };
    }

    /// Copies a slot's buffer. No request may use it.
    pub fn contents(&self, slot: usize) -> [u8; BLOCK] {
        // SAFETY: as in `fill`.
        unsafe { self.buffer(slot).cast::<[u8; BLOCK]>().read_unaligned() }
    }

    /// Enqueues a request for a slot. [`Disk::take`] submits it.
    pub fn ask(&mut self, slot: usize, ask: Ask) {
        let (buffer, none, unit) = (self.buffer(slot), ReqFlags::empty(), BLOCK as u64);
        match ask {
            Ask::Read(block) => self.queue.read(block * unit, buffer, BLOCK, slot, none),
            Ask::Write(block) => self.queue.write(block * unit, buffer, BLOCK, slot, none),
            Ask::Discard(first, blocks) => self.queue.discard(first * unit, blocks * unit, slot, none),
            Ask::Zero(first, blocks) => self.queue.write_zeroes(first * unit, blocks * unit, slot, none),
            Ask::Flush => self.queue.flush(slot, none),
        }
    }

    /// Submits what was enqueued, and waits for `least` completions. Calls `each` with the slot of each completed
    /// request. Returns their number.
    ///
    /// # Errors
    /// A request failed, or nothing was answered for a minute.
    pub fn take(&mut self, least: usize, mut each: impl FnMut(usize)) -> Result<usize> {
        let mut completions = [const { MaybeUninit::<Completion>::uninit() }; BATCH];
        let mut limit = LIMIT;
        let waited = (least != 0).then_some(&mut limit);
        let count = self.queue.do_io(&mut completions, least.min(BATCH), waited, None).map_err(wrong)?;
        ensure!(count >= least.min(BATCH), "no answer for {} seconds", LIMIT.as_secs());
        for completion in completions.iter().take(count) {
            // SAFETY: `do_io` has written as many.
            let completion = unsafe { completion.assume_init_ref() };
            if completion.ret != 0 {
                bail!("the request of slot {} failed with {}", completion.user_data, completion.ret);
            }
            each(completion.user_data);
        }
        Ok(count)
    }

    /// Carries out one request for slot 0 and returns whether it succeeded.
    pub fn alone(&mut self, ask: Ask) -> Result<()> {
        self.ask(0, ask);
        self.take(1, |_| {}).with_context(|| format!("{ask:?}")).map(drop)
    }
}
