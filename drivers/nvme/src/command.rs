//! Commands and completions (NVMe Base 2.0, 3.3.3; NVM Command Set 1.0, 3).

/// Opcodes of admin commands (Base 2.0, 5).
pub(crate) mod admin {
    pub(crate) const DELETE_SQ: u8 = 0x00;
    pub(crate) const CREATE_SQ: u8 = 0x01;
    pub(crate) const GET_LOG_PAGE: u8 = 0x02;
    pub(crate) const DELETE_CQ: u8 = 0x04;
    pub(crate) const CREATE_CQ: u8 = 0x05;
    pub(crate) const IDENTIFY: u8 = 0x06;
    pub(crate) const ABORT: u8 = 0x08;
    pub(crate) const SET_FEATURES: u8 = 0x09;
    pub(crate) const GET_FEATURES: u8 = 0x0a;
    pub(crate) const ASYNC_EVENT: u8 = 0x0c;
}

/// Opcodes of I/O commands (NVM Command Set 1.0, 3).
pub(crate) mod io {
    pub(crate) const FLUSH: u8 = 0x00;
    pub(crate) const WRITE: u8 = 0x01;
    pub(crate) const READ: u8 = 0x02;
    pub(crate) const WRITE_ZEROES: u8 = 0x08;
    pub(crate) const DATASET_MANAGEMENT: u8 = 0x09;
}

/// Bit 30 of dword 12: force unit access.
const FUA: u32 = 1 << 30;
/// Bit 25 of dword 12 of Write Zeroes: the blocks may be deallocated.
const DEAC: u32 = 1 << 25;
/// Bit 2 of dword 11 of Dataset Management: deallocate.
const AD: u32 = 1 << 2;

/// Bits 31:16 of dword 0: the command identifier.
const CID: u32 = 0xffff << 16;

/// A submission queue entry, without the words that no command here uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Command {
    /// Dwords 0 and 1: opcode, command identifier and namespace. The identifier is 0 until the command is queued.
    head: u64,
    /// PRP1 and PRP2.
    data: [u64; 2],
    /// Dwords 10 and 11.
    range: u64,
    dword12: u32,
}

impl Command {
    /// Words of 64 bits of an entry.
    pub(crate) const WORDS: usize = 8;

    /// Nothing but the identifier of a command to come.
    #[inline(always)]
    pub(crate) const fn empty(cid: u16) -> Self {
        Self { head: (cid as u64) << 16, data: [0; 2], range: 0, dword12: 0 }
    }

    /// Forgets all but the identifier, and sets that.
    #[inline(always)]
    pub(crate) const fn make_empty(&mut self, cid: u16) {
        // What is left of the rest is written over.
        self.head = (cid as u64) << 16;
    }

    /// A command without data.
    pub(crate) const fn new(opcode: u8, namespace: u32) -> Self {
        Self { head: opcode as u64 | (namespace as u64) << 32, data: [0; 2], range: 0, dword12: 0 }
    }

    /// Sets PRP1 and PRP2.
    #[inline(always)]
    pub(crate) const fn with_data(self, prp1: u64, prp2: u64) -> Self {
        Self { data: [prp1, prp2], ..self }
    }

    /// Sets dwords 10 and 11.
    pub(crate) const fn with_10_11(self, dword10: u32, dword11: u32) -> Self {
        Self { range: dword10 as u64 | (dword11 as u64) << 32, ..self }
    }

    /// Sets the range of blocks of Read, Write and Write Zeroes. `blocks`: 1 to 65,536.
    #[inline(always)]
    pub(crate) const fn with_blocks(self, first: u64, blocks: u32, fua: bool, deallocate: bool) -> Self {
        let fua = if fua { FUA } else { 0 };
        let deallocate = if deallocate { DEAC } else { 0 };
        Self { range: first, dword12: blocks.saturating_sub(1) & 0xffff | fua | deallocate, ..self }
    }

    /// A read or a write of blocks. `namespace`: the identifier, in bits 63:32. The command's identifier is that of
    /// `empty`. `blocks_less_1`: up to 65,535. `data`: PRP1 and PRP2.
    #[inline(always)]
    pub(crate) const fn transfer(
        (opcode, fua): (u8, bool),
        namespace: u64,
        empty: &Self,
        (first, blocks_less_1): (u64, u32),
        data: [u64; 2],
    ) -> Self {
        let fua = if fua { FUA } else { 0 };
        Self { head: namespace | empty.head | opcode as u64, data, range: first, dword12: blocks_less_1 | fua }
    }

    /// Deallocates the one range that lies at the bus address `list` (NVM Command Set 1.0, 3.2.3).
    pub(crate) const fn deallocate(namespace: u32, list: u64) -> Self {
        Self::new(io::DATASET_MANAGEMENT, namespace).with_data(list, 0).with_10_11(0, AD)
    }

    /// Sets the identifier.
    #[inline(always)]
    pub(crate) const fn with_cid(self, cid: u16) -> Self {
        Self { head: self.head & !(CID as u64) | (cid as u64) << 16, ..self }
    }

    /// The identifier.
    #[inline(always)]
    pub(crate) const fn cid(&self) -> u16 {
        (self.head >> 16) as u16
    }

    /// Whether the device writes to memory.
    pub(crate) const fn is_read(&self) -> bool {
        self.head as u8 == io::READ
    }

    /// The words of the entry that may be other than 0, with their places. The others are 0 in every command: dwords 2
    /// to 5 and 13 to 15.
    #[inline(always)]
    pub(crate) const fn words(&self) -> [(usize, u64); 5] {
        [(0, self.head), (3, self.data[0]), (4, self.data[1]), (5, self.range), (6, self.dword12 as u64)]
    }
}

/// A completion queue entry (Base 2.0, 3.3.3.2). The device wrote it, so nothing of it is true until checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Completion {
    /// Dword 0.
    pub result: u32,
    /// Submission queue's head.
    pub head: u16,
    /// Submission queue.
    pub queue: u16,
    /// Command identifier.
    pub cid: u16,
    /// Status.
    pub status: Code,
}

/// What the second word of an entry has in a queue pair if the command succeeded, and which bits say it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Good {
    mask: u64,
    value: u64,
}

impl Good {
    /// An entry with this phase tag, of the submission queue `queue`.
    pub(crate) const fn new(queue: u16, phase: bool) -> Self {
        let mask = 0xffff << 16 | 1 << 48 | (STATUS as u64) << 49;
        Self { mask, value: (queue as u64) << 16 | (phase as u64) << 48 }
    }

    /// Whether phase tag, queue and status are these.
    #[inline(always)]
    pub(crate) const fn is(self, second: u64) -> bool {
        second & self.mask == self.value
    }
}

impl Completion {
    /// Words of an entry.
    pub(crate) const WORDS: usize = 2;

    /// Decodes an entry.
    #[inline(always)]
    pub(crate) const fn new(first: u64, second: u64) -> Self {
        Self {
            result: first as u32,
            head: Self::head(second),
            queue: (second >> 16) as u16,
            cid: Self::cid(second),
            status: Code((second >> 49) as u16),
        }
    }

    /// The phase tag in an entry's second word.
    #[inline(always)]
    pub(crate) const fn phase(second: u64) -> bool {
        second >> 48 & 1 != 0
    }

    /// The submission queue's head in an entry's second word.
    #[inline(always)]
    pub(crate) const fn head(second: u64) -> u16 {
        second as u16
    }

    /// The command identifier in an entry's second word.
    #[inline(always)]
    pub(crate) const fn cid(second: u64) -> u16 {
        (second >> 32) as u16
    }
}

/// A completion's status field (Base 2.0, 3.3.3.2.1): code in bits 7:0, type in bits 10:8, Do Not Retry in bit 14.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub(crate) u16);

/// Type and code of a status. 0: success.
const STATUS: u16 = 0x7ff;

impl Code {
    /// Command Abort Requested.
    pub(crate) const ABORTED: u16 = 0x007;
    const DNR: u16 = 1 << 14;

    /// Whether the command succeeded.
    #[must_use]
    #[inline(always)]
    pub const fn is_success(self) -> bool {
        self.0 & STATUS == 0
    }

    /// Type (bits 10:8) and code (bits 7:0).
    #[must_use]
    pub const fn type_and_code(self) -> u16 {
        self.0 & STATUS
    }

    /// Whether the same command may succeed later, without help: Command Aborted due to SQ Deletion, Command
    /// Interrupted, Transient Transport Error, Namespace Not Ready. False if the device says Do Not Retry.
    pub(crate) const fn is_transient(self) -> bool {
        self.0 & Self::DNR == 0 && matches!(self.0 & STATUS, 0x008 | 0x021 | 0x022 | 0x082)
    }
}

impl core::fmt::Display for Code {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "type {:#x} code {:#04x}", self.0 >> 8 & 7, self.0 & 0xff)
    }
}

#[cfg(test)]
mod tests {
    use super::{Code, Command, Completion, Good, io};

    fn words(command: Command) -> [u64; 8] {
        let mut words = [0; 8];
        command.words().into_iter().for_each(|(at, word)| words[at] = word);
        words
    }

    #[test]
    fn entries_are_laid_out_as_the_specification_says() {
        let write =
            Command::new(io::WRITE, 7).with_data(0x1_2345_6000, 0x9000).with_blocks(0x1_0000_0002, 8, true, false);
        let expected = [0x0000_0007_abcd_0001, 0, 0, 0x1_2345_6000, 0x9000, 0x1_0000_0002, 0x4000_0007, 0];
        assert_eq!(words(write.with_cid(1).with_cid(0xabcd)), expected);
        let (empty, range) = (Command::empty(0xabcd), (0x1_0000_0002, 7));
        let same = Command::transfer((io::WRITE, true), 7 << 32, &empty, range, [0x1_2345_6000, 0x9000]);
        assert_eq!(words(same), expected);
        let zeroes = Command::new(io::WRITE_ZEROES, 1).with_blocks(0, 0x1_0000, false, true);
        assert_eq!(words(zeroes)[6], 0x0200_ffff);
        assert_eq!(words(Command::deallocate(1, 0x5000))[5], 4 << 32);
    }

    #[test]
    fn a_good_completion_has_the_phase_the_queue_and_no_error() {
        let good = Good::new(2, true);
        let entry = 0x1234_0002_0010 | 1 << 48;
        assert!(good.is(entry) && good.is(entry | 1 << 63));
        for bit in (16..32).chain(48..60) {
            assert!(!good.is(entry ^ 1 << bit), "bit {bit}");
        }
    }

    #[test]
    fn a_completion_is_taken_apart() {
        let second = 0x4281_1234_0002_0010 | 1 << 48;
        let c = Completion::new(0x55, second);
        assert_eq!((c.result, c.head, c.queue, c.cid), (0x55, 0x10, 2, 0x1234));
        assert!(Completion::phase(second));
        assert_eq!(c.status.type_and_code(), 0x140);
        assert!(!c.status.is_success());
        assert!(Code(0x082).is_transient() && !Code(0x4082).is_transient() && !Code(0x281).is_transient());
    }
}
