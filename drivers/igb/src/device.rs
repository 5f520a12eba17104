//! The device: its queues and its state.

use intel_nic::MAX_HEADER;
use intel_nic::dma::{DESCRIPTOR_BYTES, DmaBuffer, Ring};
use intel_nic::family::Family;
use intel_nic::filter::Filter;
use intel_nic::life::Life;
use intel_nic::lights::Lights;
use intel_nic::nic::Statistics;
use intel_nic::receive::{BUFFER_BYTES, ReceiveQueue};
use intel_nic::transmit::{Progress, TransmitQueue};

use crate::config::{Config, ConfigError};
use crate::filter_tables::most;
use crate::id::Kind;
use crate::phy::Phy;
use crate::registers::{Bus, CTRL, CTRL_EXT, RAH, RAL, RDH, RDT, Register, Registers, STATUS, TDT};

/// The 82576 and the I350 among Intel's NICs with advanced descriptors.
pub enum Gigabit {}

impl Family for Gigabit {
    const CTRL: Register = CTRL;
    const STATUS: Register = STATUS;
    const CTRL_EXT: Register = CTRL_EXT;
    const RAL: Register = RAL;
    const RAH: Register = RAH;
    const RESET_TOO: u32 = 0;
    const RDH: Register = RDH;
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
    pub(crate) life: Life,
    pub(crate) address: [u8; 6],
    pub(crate) receive: ReceiveQueue<Gigabit>,
    pub(crate) transmit: TransmitQueue<T, Gigabit>,
    pub(crate) progress: Progress,
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
            life: Life::NEW,
            address: [0; 6],
            receive,
            transmit,
            progress: Progress::default(),
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
}
