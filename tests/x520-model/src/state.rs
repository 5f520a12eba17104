//! What the device remembers besides its registers, part by part. The files of the parts change it.

use std::collections::VecDeque;

use crate::backplane::Offers;
use crate::descriptor::PacketRequest;
use crate::packet::Headers;
use crate::rss::Hash;
use crate::segment;

/// How far a reset is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reset {
    pub started: Option<u64>,
}

/// A read of the EEPROM under way: word and when it is done.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EepromRead(pub Option<(usize, u64)>);

/// The wire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub cable: bool,
    /// The rate of the other end in Mb/s.
    pub partner: u32,
    /// What a backplane's other end offers.
    pub offers: Offers,
    /// LINKS shows a signal that is not the module's.
    pub feigned: bool,
    /// Not before then.
    pub ready: u64,
}

impl Default for Link {
    fn default() -> Self {
        Self { cable: false, partner: 10_000, offers: Offers::ALL, feigned: false, ready: 0 }
    }
}

/// Where flow control stands; times as the model's clock has them.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flow {
    /// The other side was told to wait, and is told again at that time.
    pub told: Option<u64>,
    /// Nothing is sent before then.
    pub until: u64,
}

/// Vectors that have an EITR and can have a cause: 16 queue causes, and wherever IVAR_MISC sends the others.
pub(crate) const VECTORS: usize = 64;

/// When each vector may be told next.
#[derive(Clone, Debug)]
pub(crate) struct Throttle(pub [u64; VECTORS]);

impl Default for Throttle {
    fn default() -> Self {
        Self([0; VECTORS])
    }
}

/// A frame in the packet buffer.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub frame: Vec<u8>,
    pub good: bool,
    pub headers: Headers,
    pub hash: Hash,
    pub queue: usize,
    pub looped: bool,
}

/// A receive queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReceiveQueue {
    /// The enable bit has been read as set.
    pub seen_enabled: bool,
    /// A DMA failed: still until reset.
    pub halted: bool,
}

/// The receive side's state.
pub(crate) struct Receive {
    pub queues: Vec<ReceiveQueue>,
    pub buffer: VecDeque<Waiting>,
    pub used: usize,
}

impl Receive {
    pub fn new() -> Self {
        Self { queues: vec![ReceiveQueue::default(); 128], buffer: VecDeque::new(), used: 0 }
    }

    /// Bytes in the packet buffer.
    pub fn used(&self) -> usize {
        self.used
    }
}

/// A transmit queue.
#[derive(Clone, Debug, Default)]
pub(crate) struct TransmitQueue {
    /// The enable bit has been read as set.
    pub seen_enabled: bool,
    pub halted: bool,
    pub contexts: [Option<segment::Context>; 2],
    pub packet: Vec<u8>,
    pub request: Option<PacketRequest>,
    pub descriptors: usize,
    /// Descriptors of the packet that asked for a report.
    pub report: Vec<u32>,
}

/// The transmit side's state.
pub(crate) struct Transmit {
    pub queues: Vec<TransmitQueue>,
}

impl Transmit {
    pub fn new() -> Self {
        Self { queues: vec![TransmitQueue::default(); 128] }
    }
}
