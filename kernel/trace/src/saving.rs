//! Sends a trace while it is being written: the header, then what the rings have, in turns, as fast as a sink takes it.
//!
//! The sink is COM2 or a port of the management guest. A block is sent whole or not at all, and nothing waits for the sink.
//! What its reader is too slow for is overwritten in the rings, and counted by the next chunk of that core.
//!
//! After the trace is off, the saving ends when the rings are empty and the sink has passed on everything. It ends early if
//! nothing can be sent for [`Limits::stuck`].

/// Where the blocks of a trace go.
pub trait Sink {
    /// Whether it takes a block of any length now.
    fn has_room(&self) -> bool;
    /// Takes a block. [`Sink::has_room`] has just said that it fits.
    fn send(&mut self, block: &[u8]);
    /// Whether everything that it took has left it.
    fn is_drained(&self) -> bool;
}

/// The rings of all cores, with the reader's places in them.
pub trait Rings {
    /// How many there are.
    fn count(&self) -> usize;
    /// Makes a chunk of what ring `number` has, as [`collect`](crate::stream::collect) does. Returns its length in bytes; 0 if
    /// there is nothing to tell.
    fn collect(&mut self, number: usize, buffer: &mut [u8]) -> usize;
}

/// The limits of a saving. All but `blocks` are in ticks.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most blocks in a tick.
    pub blocks: usize,
    /// When the trace is off, the saving ends after so many ticks without a record: an exit or a turn that began before writes
    /// its record at its end.
    pub quiet: u32,
    /// When the trace is off, the saving gives up after so many ticks in which the sink took nothing, or kept the rest of what
    /// it had taken. `None`: it never gives up.
    pub stuck: Option<u32>,
}

/// What became of a saving in a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It goes on.
    Going,
    /// It has ended. Everything is sent.
    Ended,
    /// It has ended, because nothing could be sent for too long. The rest stays in the rings.
    GivenUp,
}

/// A trace that is being sent.
#[derive(Clone, Copy, Debug)]
pub struct Saving {
    limits: Limits,
    /// The next block of the header.
    header: usize,
    /// The ring that is next.
    ring: usize,
    /// Ticks without anything to send, while the trace was off.
    quiet: u32,
    /// Ticks in which nothing was sent though something waits, while the trace was off.
    stuck: u32,
}

impl Saving {
    /// A saving that has sent nothing.
    #[must_use]
    pub const fn new(limits: Limits) -> Self {
        Self { limits, header: 0, ring: 0, quiet: 0, stuck: 0 }
    }

    /// Sends what there is and what the sink has room for, within a tick's limit. Call it once a tick. `is_off`: no class is
    /// on. `header`: the blocks that a trace begins with. `buffer`: room for a block.
    pub fn tick(
        &mut self,
        is_off: bool,
        header: &[impl AsRef<[u8]>],
        rings: &mut impl Rings,
        sink: &mut impl Sink,
        buffer: &mut [u8],
    ) -> Progress {
        let mut sent = false;
        let mut is_empty = false;
        for _ in 0..self.limits.blocks {
            if !sink.has_room() {
                break;
            }
            if let Some(block) = header.get(self.header) {
                sink.send(block.as_ref());
                self.header = self.header.saturating_add(1);
                sent = true;
                continue;
            }
            let len = self.next_chunk(rings, buffer);
            let Some(chunk) = buffer.get(..len).filter(|chunk| !chunk.is_empty()) else {
                is_empty = true;
                break;
            };
            sink.send(chunk);
            sent = true;
        }
        let is_done = is_off && is_empty && !sent && sink.is_drained();
        self.quiet = if is_done { self.quiet.saturating_add(1) } else { 0 };
        self.stuck = if is_off && !sent && !is_done { self.stuck.saturating_add(1) } else { 0 };
        if self.quiet >= self.limits.quiet && is_done {
            Progress::Ended
        } else if self.limits.stuck.is_some_and(|most| self.stuck >= most) {
            Progress::GivenUp
        } else {
            Progress::Going
        }
    }

    /// Makes a chunk of the next ring that has something. Returns its length; 0 if none has.
    fn next_chunk(&mut self, rings: &mut impl Rings, buffer: &mut [u8]) -> usize {
        let count = rings.count();
        for _ in 0..count {
            let at = self.ring.checked_rem(count).unwrap_or(0);
            self.ring = at.saturating_add(1);
            let len = rings.collect(at, buffer);
            if len > 0 {
                return len;
            }
        }
        0
    }
}

#[cfg(test)]
mod tests;
