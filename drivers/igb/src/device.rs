//! The device: its queues and its state.

use intel_nic::MAX_HEADER;
use intel_nic::dma::{DESCRIPTOR_BYTES, DmaBuffer, Ring};
use intel_nic::family::Family;
use intel_nic::filter::Filter;
use intel_nic::lights::Lights;
use intel_nic::nic::{Link, Refused, Statistics};
use intel_nic::receive::{BUFFER_BYTES, ReceiveQueue};
use intel_nic::state::{State, Status};
use intel_nic::transmit::TransmitQueue;

use crate::config::{Config, ConfigError};
use crate::filter_tables::{Tables, most};
use crate::id::Kind;
use crate::phy::Phy;
use crate::registers::{Bus, RDT, Register, Registers, TDT};

/// The 82576 and the I350 among Intel's NICs with advanced descriptors.
pub(crate) enum Gigabit {}

impl Family for Gigabit {
    const RDT: Register = RDT;
    const TDT: Register = TDT;
    const CHECK_CONTEXT: bool = false;
    /// The data sheets name no limit. Drivers of others send 17 pages and a header.
    const MAX_SEGMENTS: usize = 18;
    const DAMAGED: u16 = 1 << 11;
    const WRONG_L4: u16 = 1 << 9;
    const WRONG_IP: u16 = 1 << 10;
}

/// The driver uses one queue of each direction.
pub(crate) const QUEUE: u16 = 0;

/// An 82576 or I350. `T`: the token that names the owner of a frame that is being sent.
pub struct Igb<R, T> {
    pub(crate) bus: Bus<R>,
    pub(crate) kind: Kind,
    pub(crate) config: Config,
    pub(crate) filter: Filter,
    pub(crate) state: State,
    pub(crate) stopping: bool,
    pub(crate) address: [u8; 6],
    pub(crate) receive: ReceiveQueue<Gigabit>,
    pub(crate) transmit: TransmitQueue<T, Gigabit>,
    /// When the transmit queue last moved, and where it was.
    pub(crate) moved_at: u64,
    pub(crate) position: u32,
    pub(crate) link: Link,
    pub(crate) phy: Phy,
    pub(crate) lights: Lights,
    pub(crate) statistics: Statistics,
    /// Frames that arrived on the wire, before the filters.
    pub(crate) seen: u64,
    pub(crate) statistics_at: u64,
    /// The descriptor that the device had passed without write-back when statistics were last read.
    pub(crate) skipped: Option<u32>,
}

impl<R: Registers, T> Igb<R, T> {
    /// Takes the device. Nothing happens before [`Nic::service`](crate::nic::Nic::service).
    ///
    /// # Errors
    /// The configuration is out of range, or does not fit the memory.
    pub fn new(
        registers: R,
        kind: Kind,
        mut memory: DmaBuffer,
        config: Config,
        filter: Filter,
    ) -> Result<Self, ConfigError> {
        config.check()?;
        let (given, needed, at) = (memory.len(), config.memory(), memory.bus());
        let mut take = |len: usize| memory.take(len).ok_or(ConfigError::Memory(given, needed));
        // Each ring and each block of buffers is a multiple of the alignment of rings.
        let count = config.receive_descriptors as usize;
        let (descriptors, buffers) =
            (take(count.saturating_mul(DESCRIPTOR_BYTES))?, take(count.saturating_mul(BUFFER_BYTES))?);
        let receive = ReceiveQueue::new(QUEUE, Ring::new(descriptors, buffers).ok_or(ConfigError::Alignment(at))?);
        let count = config.transmit_descriptors as usize;
        let (descriptors, headers) =
            (take(count.saturating_mul(DESCRIPTOR_BYTES))?, take(count.saturating_mul(MAX_HEADER))?);
        let transmit = TransmitQueue::new(QUEUE, Ring::new(descriptors, headers).ok_or(ConfigError::Alignment(at))?);
        Ok(Self {
            bus: Bus(registers),
            kind,
            filter: filter.preallocated(most(kind)),
            state: State::Idle,
            stopping: false,
            address: [0; 6],
            receive,
            transmit,
            moved_at: 0,
            position: 0,
            link: Link::Down,
            phy: Phy::new(kind),
            lights: Lights::default(),
            statistics: Statistics::default(),
            seen: 0,
            statistics_at: 0,
            skipped: None,
            config,
        })
    }

    /// Tokens of frames that were taken and not given back.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.transmit.outstanding()
    }

    /// Whether the PHY was told to negotiate, or cannot be. The link may be down.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.phy.is_settled()
    }

    /// How the device is.
    #[must_use]
    pub fn status(&self) -> Status {
        match self.state {
            State::Running => Status::Running,
            State::Stopped => Status::Stopped,
            State::Failed(failure) => Status::Failed(failure),
            _ => Status::Starting,
        }
    }

    /// The tables of the receive filter.
    pub(crate) fn tables(&self) -> Tables<'_, R> {
        Tables { bus: &self.bus, kind: self.kind, enabled: self.state == State::Running }
    }

    /// The device has ended all DMA: the transmit queue gives back the tokens it holds.
    pub(crate) fn take_back(&mut self) {
        self.transmit.draining = self.transmit.is_busy();
        if !self.transmit.draining {
            self.transmit.restart();
        }
    }

    /// Opens or closes the transmit queue. A frame then costs one comparison.
    pub(crate) fn open_or_close(&mut self) {
        let why = if self.state != State::Running {
            Some(Refused::NotReady)
        } else if self.link == Link::Down {
            Some(Refused::LinkDown)
        } else if self.transmit.draining {
            Some(Refused::Full)
        } else {
            None
        };
        self.transmit.close(why);
    }
}
