//! The device: its queues and its state.

use alloc::vec;
use alloc::vec::Vec;

use intel_nic::MAX_HEADER;
use intel_nic::dma::{DESCRIPTOR_BYTES, DmaBuffer, Ring};
use intel_nic::family::Family;
use intel_nic::life::Life;
use intel_nic::lights::Lights;
use intel_nic::receive::{BUFFER_BYTES, ReceiveQueue};
use intel_nic::registers::Register;
use intel_nic::transmit::{Progress, TransmitQueue};

use crate::config::{Config, ConfigError, Steering};
use crate::filter::{Filter, MAX_ADDRESSES};
use crate::filter_tables::Tables;
use crate::link::{Cage, LinkSetup};
use crate::nic::Statistics;
use crate::pools;
use crate::registers::{Bus, CTRL, CTRL_EXT, RAH, RAL, RDH, RDT, Registers, STATUS, TDT};

/// The 82599 among Intel's NICs with advanced descriptors.
pub enum Of82599 {}

/// CTRL: the link is reset too.
const LRST: u32 = 1 << 3;

impl Family for Of82599 {
    const CTRL: Register = CTRL;
    const STATUS: Register = STATUS;
    const CTRL_EXT: Register = CTRL_EXT;
    const RAL: Register = RAL;
    const RAH: Register = RAH;
    const RESET_TOO: u32 = LRST;
    const RDH: Register = RDH;
    const RDT: Register = RDT;
    const TDT: Register = TDT;
    const CHECK_CONTEXT: bool = true;
    /// With a context and the header's descriptor these are the 38 that the device allows (7.2.1.1).
    const MAX_SEGMENTS: usize = 36;
    const DAMAGED: u16 = 1 << 9;
    const WRONG_L4: u16 = 1 << 10;
    const WRONG_IP: u16 = 1 << 11;
}

/// An 82599. `T`: the token that names the owner of a frame that is being sent.
pub struct X520<R, T> {
    pub(crate) bus: Bus<R>,
    pub(crate) config: Config,
    pub(crate) filter: Filter,
    pub(crate) life: Life,
    pub(crate) address: [u8; 6],
    pub(crate) receive: Vec<ReceiveQueue<Of82599>>,
    pub(crate) transmit: Vec<TransmitQueue<T, Of82599>>,
    /// Of each transmit queue.
    pub(crate) progress: Vec<Progress>,
    pub(crate) link_setup: LinkSetup,
    pub(crate) lights: Lights,
    pub(crate) statistics: Statistics,
    /// Frames that arrived on the wire, before the filters.
    pub(crate) seen: u64,
    pub(crate) statistics_at: u64,
    /// For each receive queue: the descriptor that the device had passed without write-back when statistics were last read.
    pub(crate) skipped: Vec<Option<u32>>,
}

impl<R: Registers, T> X520<R, T> {
    /// Takes the device. Nothing happens before [`Nic::service`](crate::nic::Nic::service).
    ///
    /// # Errors
    /// The configuration is out of range, or does not fit the memory.
    pub fn new(registers: R, mut memory: DmaBuffer, config: Config, filter: Filter) -> Result<Self, ConfigError> {
        config.check()?;
        let (given, needed, at) = (memory.len(), config.memory(), memory.bus());
        let mut take = |len: usize| memory.take(len).ok_or(ConfigError::Memory(given, needed));
        let (mut receive, mut transmit) = (Vec::new(), Vec::new());
        // Each ring and each block of buffers is a multiple of the alignment of rings.
        for index in 0..config.receive_queues {
            let count = config.receive_descriptors as usize;
            let (descriptors, buffers) =
                (take(count.saturating_mul(DESCRIPTOR_BYTES))?, take(count.saturating_mul(BUFFER_BYTES))?);
            let ring = Ring::new(descriptors, buffers).ok_or(ConfigError::Alignment(at))?;
            let number = match config.steering {
                Steering::Flows => index,
                Steering::Addresses => pools::number(index),
            };
            receive.push(ReceiveQueue::new(number, ring));
        }
        for index in 0..config.transmit_queues {
            let count = config.transmit_descriptors as usize;
            let (descriptors, headers) =
                (take(count.saturating_mul(DESCRIPTOR_BYTES))?, take(count.saturating_mul(MAX_HEADER))?);
            let ring = Ring::new(descriptors, headers).ok_or(ConfigError::Alignment(at))?;
            transmit.push(TransmitQueue::new(index, ring));
        }
        Ok(Self {
            bus: Bus(registers),
            filter: filter.preallocated(MAX_ADDRESSES),
            life: Life::NEW,
            address: [0; 6],
            skipped: vec![None; receive.len()],
            receive,
            progress: vec![Progress::default(); transmit.len()],
            transmit,
            link_setup: LinkSetup::new(config.medium, config.any_module),
            lights: Lights::default(),
            statistics: Statistics::default(),
            seen: 0,
            statistics_at: 0,
            config,
        })
    }

    /// The tables of the receive filter.
    pub(crate) fn tables(&self) -> Tables<'_, R> {
        Tables { bus: &self.bus, steering: self.config.steering, queues: self.config.receive_queues }
    }

    /// Tokens of frames that were taken and not given back.
    #[must_use]
    pub fn outstanding(&self) -> usize {
        self.transmit.iter().map(TransmitQueue::outstanding).sum()
    }

    /// What is known of the SFP+ cage.
    #[must_use]
    pub fn cage(&self) -> Cage {
        self.link_setup.cage()
    }
}
