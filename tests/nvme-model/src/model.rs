//! The device: configuration, queues, time.

use std::collections::{BTreeMap, VecDeque};

use crate::Faults;
use crate::memory::{Dma, Memory};

/// A namespace.
#[derive(Clone, Debug)]
pub struct Namespace {
    /// Identifier, from 1 on.
    pub id: u32,
    /// log2 of the bytes of a block.
    pub shift: u32,
    /// Bytes of metadata of a block.
    pub metadata: u16,
    /// EUI-64. Zeroes: none.
    pub eui64: [u8; 8],
    /// Its contents.
    pub data: Vec<u8>,
    /// Blocks that were written and may be lost without a flush.
    pub volatile: std::collections::BTreeSet<u64>,
}

impl Namespace {
    /// A namespace of `blocks` blocks of `1 << shift` bytes, with contents that differ from block to block.
    #[must_use]
    pub fn new(id: u32, shift: u32, blocks: usize) -> Self {
        let mut data = vec![0; blocks << shift];
        for (block, bytes) in data.chunks_exact_mut(1 << shift).enumerate() {
            bytes.fill(block as u8 ^ id as u8);
            bytes[..8].copy_from_slice(&(block as u64).to_le_bytes());
        }
        Self { id, shift, metadata: 0, eui64: [0; 8], data, volatile: Default::default() }
    }

    /// Number of blocks.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        (self.data.len() >> self.shift) as u64
    }
}

/// The device's configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Serial number, at most 20 characters.
    pub serial: String,
    /// Most I/O queues in each direction.
    pub queues: u16,
    /// CAP.MQES.
    pub mqes: u16,
    /// CAP.DSTRD.
    pub dstrd: u8,
    /// CAP.TO.
    pub to: u8,
    /// CAP.CSS.
    pub css: u8,
    /// CAP.MPSMIN.
    pub mpsmin: u8,
    /// MDTS.
    pub mdts: u8,
    /// It has a volatile write cache.
    pub cache: bool,
    /// ONCS.
    pub oncs: u16,
    /// Microseconds until CSTS.RDY follows CC.EN.
    pub ready_time: u64,
    /// Microseconds of a shutdown.
    pub shutdown_time: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            serial: "MODEL1".into(),
            queues: 8,
            mqes: 255,
            dstrd: 0,
            to: 10,
            css: 1,
            mpsmin: 0,
            mdts: 5,
            cache: true,
            oncs: 0b1100,
            ready_time: 1000,
            shutdown_time: 100_000,
        }
    }
}

/// A submission queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Submission {
    pub base: u64,
    pub entries: u16,
    pub head: u16,
    pub tail: u16,
    pub completion: u16,
}

/// A completion queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion {
    pub base: u64,
    pub entries: u16,
    pub head: u16,
    pub tail: u16,
    pub phase: bool,
}

/// A command that was fetched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Command {
    pub queue: u16,
    pub dwords: [u32; 16],
}

impl Command {
    pub(crate) fn opcode(&self) -> u8 {
        self.dwords[0] as u8
    }

    pub(crate) fn cid(&self) -> u16 {
        (self.dwords[0] >> 16) as u16
    }

    pub(crate) fn prp1(&self) -> u64 {
        u64::from(self.dwords[7]) << 32 | u64::from(self.dwords[6])
    }

    pub(crate) fn prp2(&self) -> u64 {
        u64::from(self.dwords[9]) << 32 | u64::from(self.dwords[8])
    }
}

/// An I/O command that was executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Executed {
    /// Queue.
    pub queue: u16,
    /// Opcode.
    pub opcode: u8,
    /// Namespace.
    pub namespace: u32,
    /// First block.
    pub first: u64,
    /// Blocks.
    pub blocks: u64,
    /// PRP1 and PRP2.
    pub prp: (u64, u64),
    /// Dword 12.
    pub dword12: u32,
}

/// The device.
pub struct Model {
    /// Its configuration.
    pub config: Config,
    /// Its faults.
    pub faults: Faults,
    /// Its namespaces.
    pub namespaces: Vec<Namespace>,
    /// I/O commands that were executed.
    pub executed: Vec<Executed>,
    /// Abort commands that came: queue and identifier.
    pub aborts: Vec<(u16, u16)>,
    /// Shutdown notifications that came: CC.SHN.
    pub shutdowns: Vec<u8>,
    /// Accesses to registers while the device was gone.
    pub accesses_while_gone: u64,
    /// Times that CC.EN was set.
    pub starts: u32,
    /// Critical warnings of the health log.
    pub warnings: u8,
    /// Flushes of the cache that were executed.
    pub flushes: u32,
    pub(crate) memory: Memory,
    pub(crate) diagnostics: Vec<String>,
    pub(crate) time: u64,
    pub(crate) cc: u32,
    pub(crate) ready: bool,
    pub(crate) fatal: bool,
    pub(crate) changes_at: u64,
    pub(crate) shutdown_at: Option<u64>,
    pub(crate) aqa: u32,
    pub(crate) asq: u64,
    pub(crate) acq: u64,
    pub(crate) submissions: BTreeMap<u16, Submission>,
    pub(crate) completions: BTreeMap<u16, Completion>,
    /// I/O commands that are not executed yet.
    pub(crate) held: Vec<Command>,
    /// Identifiers of Asynchronous Event Requests.
    pub(crate) event_requests: VecDeque<u16>,
    /// Events that have not been told.
    pub(crate) events: VecDeque<u32>,
    /// Completions for which there was no room: completion queue, submission queue, dword 0, identifier, status.
    pub(crate) unposted: VecDeque<(u16, u16, u32, u16, u16)>,
}

impl Model {
    /// A device, with the memory that it reaches.
    #[must_use]
    pub fn new(config: Config, namespaces: Vec<Namespace>, memory: Memory) -> Self {
        Self {
            config,
            faults: Faults::default(),
            namespaces,
            executed: Vec::new(),
            aborts: Vec::new(),
            shutdowns: Vec::new(),
            accesses_while_gone: 0,
            starts: 0,
            warnings: 0,
            flushes: 0,
            memory,
            diagnostics: Vec::new(),
            time: 0,
            cc: 0,
            ready: false,
            fatal: false,
            changes_at: 0,
            shutdown_at: None,
            aqa: 0,
            asq: 0,
            acq: 0,
            submissions: BTreeMap::new(),
            completions: BTreeMap::new(),
            held: Vec::new(),
            event_requests: VecDeque::new(),
            events: VecDeque::new(),
            unposted: VecDeque::new(),
        }
    }

    /// What the driver did wrong since the last call.
    pub fn take_diagnostics(&mut self) -> Vec<String> {
        std::mem::take(&mut self.diagnostics)
    }

    pub(crate) fn wrong(&mut self, what: impl Into<String>) {
        self.diagnostics.push(what.into());
    }

    /// I/O commands that were fetched and not executed.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Changes the number of blocks of a namespace, and tells the driver by an event.
    pub fn resize(&mut self, id: u32, blocks: usize) {
        if let Some(namespace) = self.namespaces.iter_mut().find(|n| n.id == id) {
            namespace.data.resize(blocks << namespace.shift, 0);
        }
        self.namespaces_changed();
    }

    /// Tells the driver that namespaces have changed.
    pub fn namespaces_changed(&mut self) {
        self.events.push_back(2 | 4 << 16);
    }

    /// Sets critical warnings, and tells the driver by an event.
    pub fn warn(&mut self, warnings: u8) {
        self.warnings = warnings;
        self.events.push_back(1 | 2 << 8 | 2 << 16);
    }

    /// Tells the driver any event.
    pub fn event(&mut self, dword0: u32) {
        self.events.push_back(dword0);
    }

    /// Writes any completion to a queue's next entry, with the right phase tag.
    pub fn forge(&mut self, queue: u16, dword0: u32, head: u16, submission: u16, cid: u16, status: u16) {
        self.write_completion(queue, dword0, head, submission, cid, status, false);
    }

    /// Overwrites memory of a completion queue.
    pub fn scribble(&mut self, queue: u16, offset: u64, bytes: &[u8]) {
        if let Some(q) = self.completions.get(&queue) {
            let len = u64::from(q.entries) * 16;
            let at = q.base + offset % (len - len.min(bytes.len() as u64) + 1);
            let _ = self.memory.write(at, bytes);
        }
    }

    /// Lets the device work: fetch and execute commands, post completions.
    pub fn run(&mut self) {
        if self.faults.gone || !self.ready || self.fatal {
            return;
        }
        for (cq, sq, dword0, cid, status) in std::mem::take(&mut self.unposted) {
            self.post(cq, sq, dword0, cid, status);
        }
        if !self.faults.admin_silent {
            while let Some(command) = self.fetch(0) {
                self.admin(&command);
            }
            // An event for which there is no request waits for one.
            while !self.events.is_empty()
                && let Some(cid) = self.event_requests.pop_front()
                && let Some(event) = self.events.pop_front()
            {
                self.complete(0, cid, event, 0);
            }
        }
        let queues: Vec<u16> = self.submissions.keys().copied().filter(|id| *id != 0).collect();
        for queue in queues {
            while let Some(command) = self.fetch(queue) {
                if self.held.iter().any(|h| h.queue == queue && h.cid() == command.cid()) {
                    self.wrong(format!("identifier {:#x} of queue {queue} is outstanding already", command.cid()));
                }
                self.held.push(command);
            }
        }
        if self.faults.hold {
            return;
        }
        let mut commands = std::mem::take(&mut self.held);
        if self.faults.reverse {
            commands.reverse();
        }
        for command in commands {
            self.io(&command);
        }
    }

    fn fetch(&mut self, queue: u16) -> Option<Command> {
        let q = self.submissions.get_mut(&queue)?;
        if q.head == q.tail {
            return None;
        }
        let at = q.base + u64::from(q.head) * 64;
        q.head = (q.head + 1) % q.entries;
        let mut bytes = [0; 64];
        if !self.memory.read(at, &mut bytes) {
            self.wrong(format!("the submission queue {queue} is not in granted memory"));
            return None;
        }
        let mut dwords = [0; 16];
        for (dword, chunk) in dwords.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *dword = u32::from_le_bytes(*chunk);
        }
        Some(Command { queue, dwords })
    }

    /// Completes a command of a submission queue.
    pub(crate) fn complete(&mut self, submission: u16, cid: u16, dword0: u32, status: u16) {
        let Some(queue) = self.submissions.get(&submission).map(|q| q.completion) else { return };
        if submission != 0 && self.faults.lose > 0 {
            self.faults.lose -= 1;
            return;
        }
        self.post(queue, submission, dword0, cid, status);
        if submission != 0 && self.faults.double > 0 {
            self.faults.double -= 1;
            self.post(queue, submission, dword0, cid, status);
        }
    }

    fn post(&mut self, queue: u16, submission: u16, dword0: u32, cid: u16, status: u16) {
        let Some(q) = self.completions.get(&queue) else { return };
        if (q.tail + 1) % q.entries == q.head {
            self.unposted.push_back((queue, submission, dword0, cid, status));
            return;
        }
        let mut head = self.submissions.get(&submission).map_or(0, |q| q.head);
        let (mut named, mut cid, mut wrong) = (submission, cid, false);
        let take = |count: &mut u32| {
            let on = submission != 0 && *count > 0;
            *count -= u32::from(on);
            on
        };
        if take(&mut self.faults.bad_head) {
            head = 0xfff0;
        }
        if take(&mut self.faults.bad_queue) {
            named = submission + 1;
        }
        if take(&mut self.faults.forge) || submission == 0 && self.faults.admin_forge {
            cid ^= 0x8000;
        }
        if take(&mut self.faults.bad_phase) {
            wrong = true;
        }
        self.write_completion(queue, dword0, head, named, cid, status, wrong);
    }

    #[allow(clippy::too_many_arguments, reason = "the fields of an entry")]
    fn write_completion(
        &mut self,
        queue: u16,
        dword0: u32,
        head: u16,
        submission: u16,
        cid: u16,
        status: u16,
        wrong_phase: bool,
    ) {
        let Some(q) = self.completions.get_mut(&queue) else { return };
        let phase = q.phase ^ wrong_phase;
        let at = q.base + u64::from(q.tail) * 16;
        q.tail = (q.tail + 1) % q.entries;
        q.phase ^= q.tail == 0;
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&dword0.to_le_bytes());
        bytes[8..10].copy_from_slice(&head.to_le_bytes());
        bytes[10..12].copy_from_slice(&submission.to_le_bytes());
        bytes[12..14].copy_from_slice(&cid.to_le_bytes());
        bytes[14..16].copy_from_slice(&(status << 1 | u16::from(phase)).to_le_bytes());
        if !self.memory.write(at, &bytes) {
            self.wrong(format!("the completion queue {queue} is not in granted memory"));
        }
    }
}
