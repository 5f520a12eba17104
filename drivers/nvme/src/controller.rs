//! The controller: its admin queues, its state, and what is known of it.

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::admin::Admin;
use crate::config::{ADMIN_ENTRIES, Config, ConfigError};
use crate::dma::{Dma, PAGE};
use crate::gate::{Gate, Order};
use crate::health::{ErrorEntry, Health};
use crate::identify::{BadNamespace, Format, Identity};
use crate::queue::{IoQueue, QueueMemory};
use crate::registers::{ALL_ONES, Cap, Registers, VS, read_cap};
use crate::ring::{COMPLETION_BYTES, Ring, SUBMISSION_BYTES};
use crate::state::{ControllerStatus, Event, State, Step};
use crate::table::Table;

/// The bus master enable bit of a function's command register (PCI 3.0, 6.2.2).
///
/// # Safety
/// Once `set(false)` has returned true, and until `set(true)` is called, the function reads and writes no memory.
#[allow(unsafe_code, reason = "an implementation promises that there is no DMA")]
pub unsafe trait BusMaster {
    /// Sets or clears the bit. Returns false if that is not possible now; then nothing was changed. A function that
    /// has left the bus does no DMA: clearing its bit succeeds.
    fn set(&mut self, on: bool) -> bool;
}

/// A namespace of the controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// Its identifier, from 1 on.
    pub id: u32,
    /// Its format, or why it cannot be used.
    pub format: Result<Format, BadNamespace>,
}

/// Most events that wait to be taken.
const MAX_EVENTS: usize = 64;

/// An NVMe controller. One core owns it and calls [`Controller::service`]. Its I/O queues have owners of their own.
pub struct Controller<R, B> {
    pub(crate) registers: R,
    pub(crate) bus_master: B,
    pub(crate) config: Config,
    pub(crate) admin: Admin,
    pub(crate) table: Arc<Table>,
    /// The gates of the I/O queues, with the queues' bus addresses: submission and completion queue.
    pub(crate) gates: Vec<(Arc<Gate>, u64, u64)>,
    /// Entries of each I/O queue.
    pub(crate) depth: u16,
    /// I/O queues that the controller has.
    pub(crate) granted: u16,
    pub(crate) state: State,
    /// The step of the bring-up, or the job, that is next or under way.
    pub(crate) step: Option<Step>,
    /// Jobs of a running controller that wait.
    pub(crate) jobs: Vec<Step>,
    pub(crate) cap: Cap,
    pub(crate) stopping: bool,
    pub(crate) identity: Option<Identity>,
    pub(crate) namespaces: Vec<Namespace>,
    /// Active namespaces for which there was no room.
    pub(crate) unlisted: u32,
    /// The volatile write cache is on.
    pub(crate) cache_on: bool,
    pub(crate) health: Option<Health>,
    pub(crate) last_error: Option<ErrorEntry>,
    pub(crate) events: VecDeque<Event>,
    pub(crate) lost_events: u64,
    pub(crate) resets: u64,
    /// Resets without a long time of operation between them.
    pub(crate) strikes: u32,
    /// When the controller last began to run.
    pub(crate) running_since: u64,
}

impl<R: Registers + Clone, B: BusMaster> Controller<R, B> {
    /// Takes a controller and all memory that the driver will need. Returns it and its I/O queues. Nothing happens
    /// before [`Controller::service`]. The function's bus mastering is off.
    ///
    /// # Errors
    /// The configuration is out of range, there is no memory, or the controller does not answer.
    pub fn new<D: Dma + Clone>(
        registers: R,
        bus_master: B,
        dma: &mut D,
        config: Config,
    ) -> Result<(Self, Vec<IoQueue<R, D>>), ConfigError> {
        config.check()?;
        if matches!(registers.read(VS), 0 | ALL_ONES) {
            return Err(ConfigError::Gone);
        }
        let cap = read_cap(&registers);
        let depth = config.depth.min(cap.mqes().saturating_add(1)).max(2);
        let mut take = |pages: usize| dma.allocate(pages).ok_or(ConfigError::Memory(pages));
        let ring = |entries: u16, bytes: usize| usize::from(entries).saturating_mul(bytes).div_ceil(PAGE);
        let submission = take(ring(ADMIN_ENTRIES, SUBMISSION_BYTES))?;
        let completion = take(ring(ADMIN_ENTRIES, COMPLETION_BYTES))?;
        let short = ConfigError::Memory(ring(depth.max(ADMIN_ENTRIES), SUBMISSION_BYTES));
        let admin_ring = Ring::new(0, ADMIN_ENTRIES, submission, completion).ok_or(short)?;
        let admin = Admin::new(admin_ring, take(1)?);
        let table = Arc::new(Table::new());
        let mut memories = Vec::new();
        for _ in 0..config.queues {
            memories.push(QueueMemory {
                submission: take(ring(depth, SUBMISSION_BYTES))?,
                completion: take(ring(depth, COMPLETION_BYTES))?,
                lists: take(usize::from(depth.saturating_sub(1)).saturating_mul(config.list_pages.into()))?,
                bounce: take(config.bounce_pages())?,
            });
        }
        let (mut gates, mut queues) = (Vec::new(), Vec::new());
        for (id, memory) in (1..).zip(memories) {
            let gate = Arc::new(Gate::new());
            gates.push((gate.clone(), memory.submission.bus(), memory.completion.bus()));
            let shared = (gate, table.clone());
            let queue = IoQueue::new((id, depth), registers.clone(), dma.clone(), memory, shared, config.clone());
            queues.push(queue.ok_or(short)?);
        }
        let controller = Self {
            registers,
            bus_master,
            config,
            admin,
            table,
            gates,
            depth,
            granted: 0,
            state: State::Begin,
            step: None,
            jobs: Vec::new(),
            cap,
            stopping: false,
            identity: None,
            namespaces: Vec::new(),
            unlisted: 0,
            cache_on: false,
            health: None,
            last_error: None,
            events: VecDeque::with_capacity(MAX_EVENTS),
            lost_events: 0,
            resets: 0,
            strikes: 0,
            running_since: 0,
        };
        Ok((controller, queues))
    }
}

impl<R, B> Controller<R, B> {
    /// How the controller is.
    #[must_use]
    pub const fn status(&self) -> ControllerStatus {
        match self.state {
            State::Running => ControllerStatus::Running,
            State::Draining { .. } | State::Deleting | State::ShuttingDown { .. } | State::Parting => {
                ControllerStatus::Stopping
            }
            State::Stopped => ControllerStatus::Stopped,
            State::Failed(failure) => ControllerStatus::Failed(failure),
            _ => ControllerStatus::Starting,
        }
    }

    /// What the controller says of itself. `None` before it has answered.
    #[must_use]
    pub const fn identity(&self) -> Option<&Identity> {
        self.identity.as_ref()
    }

    /// The active namespaces, also those that cannot be used.
    #[must_use]
    pub fn namespaces(&self) -> &[Namespace] {
        &self.namespaces
    }

    /// Active namespaces beyond those that the driver takes.
    #[must_use]
    pub const fn unlisted_namespaces(&self) -> u32 {
        self.unlisted
    }

    /// Whether the controller has a volatile write cache and it is on.
    #[must_use]
    pub const fn is_cache_on(&self) -> bool {
        self.cache_on
    }

    /// SMART / health information, as last read. `None`: the controller has not told it.
    #[must_use]
    pub const fn health(&self) -> Option<&Health> {
        self.health.as_ref()
    }

    /// The newest entry of the error log, as last read.
    #[must_use]
    pub const fn last_error(&self) -> Option<&ErrorEntry> {
        self.last_error.as_ref()
    }

    /// The number of I/O queues that the controller has granted, as of the last bring-up. Queues beyond are closed.
    #[must_use]
    pub const fn queues(&self) -> u16 {
        self.granted
    }

    /// Resets since the start, without the first bring-up.
    #[must_use]
    pub const fn resets(&self) -> u64 {
        self.resets
    }

    /// Completions that could not be true, of all I/O queues.
    #[must_use]
    pub fn rejected_completions(&self) -> u64 {
        self.gates.iter().map(|(gate, ..)| u64::from(gate.rejected())).sum()
    }

    /// Takes the oldest event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Events that were lost because nobody took them.
    #[must_use]
    pub const fn lost_events(&self) -> u64 {
        self.lost_events
    }

    /// The way to the registers, for [`notify_abrupt_shutdown`](crate::registers::notify_abrupt_shutdown).
    #[must_use]
    pub const fn registers(&self) -> &R {
        &self.registers
    }

    pub(crate) fn tell(&mut self, event: Event) {
        if self.events.len() < MAX_EVENTS {
            self.events.push_back(event);
        } else {
            self.lost_events = self.lost_events.saturating_add(1);
        }
    }

    /// Gives an order to all queues.
    pub(crate) fn order(&self, order: Order) {
        self.gates.iter().for_each(|(gate, ..)| gate.give(order));
    }

    /// Whether all queues have carried out their last order.
    pub(crate) fn are_obeyed(&self) -> bool {
        self.gates.iter().all(|(gate, ..)| gate.is_obeyed())
    }

    /// Adds a job for a running controller, unless it waits already.
    pub(crate) fn want(&mut self, job: Step) {
        if !self.jobs.contains(&job) {
            self.jobs.push(job);
        }
    }
}
