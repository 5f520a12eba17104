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

/// A submission queue entry, as eight words of 64 bits. The command identifier is 0 until it is queued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Command(pub [u64; 8]);

impl Command {
    /// Words of an entry.
    pub(crate) const WORDS: usize = 8;

    /// A command without data.
    pub(crate) const fn new(opcode: u8, namespace: u32) -> Self {
        Self([opcode as u64 | (namespace as u64) << 32, 0, 0, 0, 0, 0, 0, 0])
    }

    /// Sets PRP1 and PRP2.
    pub(crate) const fn with_data(mut self, prp1: u64, prp2: u64) -> Self {
        (self.0[3], self.0[4]) = (prp1, prp2);
        self
    }

    /// Sets dwords 10 and 11.
    pub(crate) const fn with_10_11(mut self, dword10: u32, dword11: u32) -> Self {
        self.0[5] = dword10 as u64 | (dword11 as u64) << 32;
        self
    }

    /// Sets dword 12.
    const fn with_12(mut self, dword12: u32) -> Self {
        self.0[6] = dword12 as u64;
        self
    }

    /// Sets the range of blocks of Read, Write and Write Zeroes. `blocks`: 1 to 65,536.
    pub(crate) const fn with_blocks(mut self, first: u64, blocks: u32, fua: bool, deallocate: bool) -> Self {
        self.0[5] = first;
        let fua = if fua { FUA } else { 0 };
        let deallocate = if deallocate { DEAC } else { 0 };
        self.with_12(blocks.saturating_sub(1) & 0xffff | fua | deallocate)
    }

    /// Deallocates the one range that lies at the bus address `list` (NVM Command Set 1.0, 3.2.3).
    pub(crate) const fn deallocate(namespace: u32, list: u64) -> Self {
        Self::new(io::DATASET_MANAGEMENT, namespace).with_data(list, 0).with_10_11(0, AD)
    }

    /// The entry with an identifier.
    #[inline(always)]
    pub(crate) const fn words(&self, cid: u16) -> [u64; 8] {
        let mut words = self.0;
        words[0] |= (cid as u64) << 16;
        words
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

impl Completion {
    /// Words of an entry.
    pub(crate) const WORDS: usize = 2;

    /// Decodes an entry.
    #[inline(always)]
    pub(crate) const fn new(first: u64, second: u64) -> Self {
        Self {
            result: first as u32,
            head: second as u16,
            queue: (second >> 16) as u16,
            cid: (second >> 32) as u16,
            status: Code((second >> 49) as u16),
        }
    }

    /// The phase tag in an entry's second word.
    #[inline(always)]
    pub(crate) const fn phase(second: u64) -> bool {
        second >> 48 & 1 != 0
    }
}

/// A completion's status field (Base 2.0, 3.3.3.2.1): code in bits 7:0, type in bits 10:8, Do Not Retry in bit 14.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub(crate) u16);

impl Code {
    /// Command Abort Requested.
    pub(crate) const ABORTED: u16 = 0x007;
    const DNR: u16 = 1 << 14;

    /// Whether the command succeeded.
    #[must_use]
    #[inline(always)]
    pub const fn is_success(self) -> bool {
        self.0 & 0x7ff == 0
    }

    /// Type (bits 10:8) and code (bits 7:0).
    #[must_use]
    pub const fn type_and_code(self) -> u16 {
        self.0 & 0x7ff
    }

    /// Whether the same command may succeed later, without help: Command Aborted due to SQ Deletion, Command
    /// Interrupted, Transient Transport Error, Namespace Not Ready. False if the device says Do Not Retry.
    pub(crate) const fn is_transient(self) -> bool {
        self.0 & Self::DNR == 0 && matches!(self.0 & 0x7ff, 0x008 | 0x021 | 0x022 | 0x082)
    }
}

impl core::fmt::Display for Code {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "type {:#x} code {:#04x}", self.0 >> 8 & 7, self.0 & 0xff)
    }
}

#[cfg(test)]
mod tests {
    use super::{Code, Command, Completion, io};

    #[test]
    fn entries_are_laid_out_as_the_specification_says() {
        let write =
            Command::new(io::WRITE, 7).with_data(0x1_2345_6000, 0x9000).with_blocks(0x1_0000_0002, 8, true, false);
        let words = write.words(0xabcd);
        assert_eq!(words[0], 0x0000_0007_abcd_0001);
        assert_eq!((words[3], words[4], words[5], words[6]), (0x1_2345_6000, 0x9000, 0x1_0000_0002, 0x4000_0007));
        let zeroes = Command::new(io::WRITE_ZEROES, 1).with_blocks(0, 0x1_0000, false, true);
        assert_eq!(zeroes.0[6], 0x0200_ffff);
        assert_eq!(Command::deallocate(1, 0x5000).0[5], 4 << 32);
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
