//! The nvme driver on the model of its device: random requests, faults, a device that writes anything into its completion
//! queues, and recoveries. Whatever happens: each request that was taken is answered exactly once; its memory is not
//! touched after that; what is read is what is on the disk; and when the faults end, the device works again.

use std::collections::BTreeMap;

use nvme::dma::Segment;
use nvme::{Config, ControllerStatus, Operation, Request, Status};
use nvme_model::Namespace;

use crate::input::Input;
use crate::nvme_bench::Bench;
use crate::planted::planted;

/// Steps of one run at most.
const MOST_STEPS: usize = 120;
/// Blocks from here on are written. Those before keep their contents.
const WRITTEN: u64 = 64;
const BLOCKS: u64 = 256;
/// Bits of a command identifier that no slot of a queue of 16 entries has.
const NO_SLOT: u16 = 0x3f0;

#[derive(Clone, Debug)]
enum Step {
    Request { queue: usize, kind: u8, first: u64, blocks: u32, pieces: Vec<(usize, u16)> },
    Pass(u64),
    Turn,
    Cancel(u32),
    Fault(u8, u32),
    Identify { cns: u32, at: usize, bytes: Vec<u8> },
    Forge { queue: u16, head: u16, submission: u16, cid: u16, status: u16 },
    Scribble { queue: u16, offset: u64, bytes: Vec<u8> },
    Event(u32),
    Resize(u64),
    Health,
    Stop,
    Restart,
    Heal,
}

fn step(input: &mut Input<'_>) -> Option<Step> {
    if input.is_empty() {
        return None;
    }
    Some(match input.byte() % 40 {
        0..14 => {
            let (queue, kind) = (usize::from(input.flag()), input.byte());
            let pieces = (0..input.byte() % 5).map(|_| (input.within(0, 4096) as usize, input.within(1, 6000) as u16));
            let pieces = pieces.collect();
            Step::Request {
                queue,
                kind,
                first: input.within(0, BLOCKS + 2),
                blocks: input.within(0, 40) as u32,
                pieces,
            }
        }
        14..20 => Step::Turn,
        20..26 => Step::Pass(if input.flag() { input.within(1, 5_000) } else { input.within(10_000, 200_000) }),
        26 => Step::Cancel(input.within(0, 100) as u32),
        27..31 => Step::Fault(input.byte() % 16, u32::from(input.byte() % 3) + 1),
        31 => {
            let (cns, at) = (u32::from(input.byte() % 3), input.within(0, 4096) as usize);
            Step::Identify { cns, at, bytes: (0..input.byte()).map(|_| input.byte()).collect() }
        }
        32 | 33 => Step::Forge {
            queue: u16::from(input.byte() % 3),
            head: input.wide() as u16,
            submission: u16::from(input.byte() % 4),
            cid: input.wide() as u16 | NO_SLOT,
            status: input.wide() as u16,
        },
        34 => {
            let (queue, offset) = (u16::from(input.byte() % 3), input.within(0, 4096));
            Step::Scribble { queue, offset, bytes: (0..input.byte() % 64).map(|_| input.byte()).collect() }
        }
        35 => Step::Event(input.wide() as u32),
        36 => Step::Resize(input.within(WRITTEN, BLOCKS + 1)),
        37 => Step::Health,
        38 => match input.byte() % 3 {
            0 => Step::Stop,
            _ => Step::Restart,
        },
        _ => Step::Heal,
    })
}

/// What a request should do.
struct Out {
    segments: Vec<Segment>,
    /// What it reads, if that is known.
    expected: Option<Vec<u8>>,
}

/// The books.
struct Books {
    b: Bench,
    next: u32,
    out: BTreeMap<u32, Out>,
    /// The device wrote what no rule forbids it to write: a completion that looks true.
    scribbled: bool,
    /// Completions that the driver has rejected.
    rejected: u64,
}

impl Books {
    fn new() -> Self {
        let config = Config {
            queues: 2,
            depth: 16,
            max_bytes: 64 << 10,
            command_time: 100_000,
            abort_time: 60_000,
            admin_time: 100_000,
            drain_time: 50_000,
            ..Config::default()
        };
        let device = nvme_model::Config { mdts: 2, to: 0, shutdown_time: 1000, ..nvme_model::Config::default() };
        let namespaces = vec![Namespace::new(1, 9, BLOCKS as usize)];
        Self {
            b: Bench::up_with(config, device, namespaces),
            next: 0,
            out: BTreeMap::new(),
            scribbled: false,
            rejected: 0,
        }
    }

    fn request(&mut self, step: &Step) {
        let Step::Request { queue, kind, first, blocks, pieces } = step else { return };
        let (mut operation, mut first, mut blocks) = (Operation::Read, *first, *blocks);
        match kind % 8 {
            0..4 => {}
            4 | 5 => operation = Operation::Write { fua: kind & 8 != 0 },
            6 => operation = Operation::WriteZeroes { deallocate: kind & 8 != 0, fua: kind & 16 != 0 },
            _ if kind & 8 != 0 => operation = Operation::Deallocate,
            _ => (operation, blocks) = (Operation::Flush, 0),
        }
        if operation != Operation::Read {
            first = first.max(WRITTEN);
        }
        let mut segments = Vec::new();
        let mut left = (blocks * 512) as usize;
        if matches!(operation, Operation::Read | Operation::Write { .. }) {
            for (offset, len) in pieces {
                let len = left.min(usize::from(*len));
                segments.push(self.b.piece(&vec![0x5a; len], *offset, operation == Operation::Read));
                left -= len;
            }
            // Now and then the length is wrong.
            if left != 0 && kind & 0x70 != 0 {
                segments.push(self.b.piece(&vec![0x5a; left], 0, operation == Operation::Read));
            }
        }
        let known = operation == Operation::Read && first + u64::from(blocks) <= WRITTEN;
        let expected = known.then(|| self.b.disk(1, first, blocks.into()));
        let request = Request { id: self.next, namespace: 1, operation, first, blocks };
        let now = self.b.now;
        let queue = &mut self.b.queues[*queue];
        match queue.submit(&request, &segments, now) {
            Ok(()) => {
                queue.notify();
                self.out.insert(self.next, Out { segments, expected });
                self.next += 1;
            }
            Err(_) => self.release(&segments),
        }
    }

    /// From here on the device has no business in this memory: an access would be told.
    fn release(&self, segments: &[Segment]) {
        for s in segments {
            self.b.memory.revoke(s.address(), s.len() as usize);
        }
    }

    fn settle_answers(&mut self) {
        for (id, status) in std::mem::take(&mut self.b.answers) {
            let out = self.out.remove(&id).expect("each request is answered once");
            if let (Status::Ok, Some(expected), false) = (status, &out.expected, self.scribbled) {
                let mut read = self.b.contents(&out.segments);
                if planted() {
                    read.push(0);
                }
                assert!(read == *expected, "request {id} has read something else");
            }
            self.release(&out.segments);
        }
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Request { .. } => self.request(step),
            Step::Turn => self.b.turn(),
            Step::Pass(us) => self.b.pass(*us),
            Step::Cancel(id) => self.b.queues.iter_mut().for_each(|queue| _ = queue.cancel(*id)),
            Step::Fault(which, count) => {
                let f = &mut self.b.model.borrow_mut().faults;
                match which {
                    0 => f.gone = true,
                    1 => f.fatal = true,
                    2 => f.never_ready = true,
                    3 => f.never_stops = true,
                    4 | 5 => f.hold = !f.hold,
                    6 => f.reverse = !f.reverse,
                    7 => f.lose = *count,
                    8 => f.double = *count,
                    9 => f.forge = *count,
                    10 => f.bad_head = *count,
                    11 => f.bad_queue = *count,
                    12 => f.bad_phase = *count,
                    13 => f.refuse_abort = true,
                    14 => f.admin_silent = true,
                    _ => f.io_status = vec![0x281, 0x082, 0x007],
                }
            }
            Step::Identify { cns, at, bytes } => {
                self.b.model.borrow_mut().faults.identify = vec![(*cns, *at, bytes.clone())];
                self.b.model.borrow_mut().namespaces_changed();
            }
            Step::Forge { queue, head, submission, cid, status } => {
                self.b.model.borrow_mut().forge(*queue, 0, *head, *submission, *cid, *status);
            }
            Step::Scribble { queue, offset, bytes } => {
                self.scribbled = true;
                self.b.model.borrow_mut().scribble(*queue, *offset, bytes);
            }
            Step::Event(dword) => self.b.model.borrow_mut().event(*dword),
            Step::Resize(blocks) => self.b.model.borrow_mut().resize(1, *blocks as usize),
            Step::Health => self.b.controller.refresh_health(),
            Step::Stop => self.b.controller.stop(self.b.now),
            Step::Restart => self.b.controller.restart(),
            Step::Heal => self.b.model.borrow_mut().faults = nvme_model::Faults::default(),
        }
        self.b.poll();
        self.settle_answers();
        self.look();
    }

    /// What the owner of the controller is told: lines for a log, whatever the device has answered.
    fn look(&mut self) {
        let is_line = |text: String| crate::is_line(&text);
        let controller = &mut self.b.controller;
        while let Some(event) = controller.next_event() {
            is_line(event.to_string());
        }
        assert_eq!(controller.lost_events(), 0, "each step has few events");
        if let ControllerStatus::Failed(why) = controller.status() {
            is_line(why.to_string());
        }
        controller.identity().into_iter().for_each(|identity| is_line(identity.to_string()));
        controller.health().into_iter().for_each(|health| is_line(health.to_string()));
        controller.last_error().into_iter().for_each(|entry| is_line(entry.to_string()));
        assert!(controller.namespaces().len() <= nvme::MAX_NAMESPACES && controller.queues() <= 2);
        let rejected = controller.rejected_completions();
        assert!(rejected >= self.rejected, "a count does not go back");
        self.rejected = rejected;
        for namespace in controller.namespaces() {
            match &namespace.format {
                Ok(format) => {
                    assert!(
                        matches!(format.block_bytes(), 512..=65_536)
                            && format.bytes() >= u64::from(format.block_bytes())
                    );
                    format.identifiers().for_each(|identifier| is_line(identifier.to_string()));
                }
                Err(why) => is_line(why.to_string()),
            }
        }
        for (number, queue) in (1..).zip(&self.b.queues) {
            assert_eq!(queue.number(), number);
        }
    }

    /// Ends all faults. Everything is answered, and the device works.
    fn settle(&mut self) {
        self.b.model.borrow_mut().faults = nvme_model::Faults::default();
        for _ in 0..4_000 {
            self.b.pass(2_000);
            self.settle_answers();
            match self.b.controller.status() {
                ControllerStatus::Stopped | ControllerStatus::Failed(_) => self.b.controller.restart(),
                ControllerStatus::Running
                    if self.out.is_empty() && self.b.queues.iter().all(nvme::IoQueue::is_open) =>
                {
                    break;
                }
                _ => {}
            }
        }
        assert!(self.out.is_empty(), "every request is answered");
        // A namespace list that was absurd may have taken the namespace away. It is told of the true one.
        self.b.model.borrow_mut().namespaces_changed();
        // A forged completion of an admin command may still wait to be read, and be one reset too many.
        for pass in 0..4_000 {
            self.b.pass(2_000);
            match self.b.controller.status() {
                ControllerStatus::Stopped | ControllerStatus::Failed(_) => self.b.controller.restart(),
                ControllerStatus::Running if pass >= 400 && self.b.queues.iter().all(nvme::IoQueue::is_open) => break,
                _ => {}
            }
        }
        let free: Vec<_> = self.b.queues.iter().map(nvme::IoQueue::free_bounce_pages).collect();
        for queue in 0..2 {
            let before = self.next;
            let pieces = vec![(1, 700), (0, 324)];
            self.request(&Step::Request { queue, kind: 0, first: 5, blocks: 2, pieces });
            assert_eq!(self.next, before + 1, "it takes requests");
        }
        for _ in 0..400 {
            self.b.pass(2_000);
            assert!(self.b.answers.iter().all(|(_, status)| *status == Status::Ok) || self.scribbled);
            self.settle_answers();
        }
        assert!(self.out.is_empty(), "it answers");
        assert_eq!(self.b.queues.iter().map(nvme::IoQueue::free_bounce_pages).collect::<Vec<_>>(), free);
        assert_eq!(free[0], free[1], "no bounce page is lost");
    }
}

/// The target.
///
/// # Panics
/// The driver is wrong.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let steps: Vec<Step> = std::iter::from_fn(|| step(&mut input)).take(MOST_STEPS).collect();
    let mut books = Books::new();
    for step in &steps {
        books.take(step);
    }
    books.settle();
    // A panic of the machine: the controller is told at once, and only once.
    nvme::registers::notify_abrupt_shutdown(books.b.controller.registers());
    nvme::registers::notify_abrupt_shutdown(books.b.controller.registers());
    assert_eq!(books.b.model.borrow().shutdowns.last(), Some(&2), "CC.SHN: abrupt");
    let diagnostics = books.b.model.borrow_mut().take_diagnostics();
    // A scribble can be a completion that looks true, for a command that the device still works on.
    let excused = |d: &String| books.scribbled && d.contains("not granted");
    let bad: Vec<_> = diagnostics.iter().filter(|d| !excused(d)).collect();
    assert!(bad.is_empty(), "{bad:?} after {steps:?}");
}

crate::planted::tests!(every_request_is_answered_once_by_a_hostile_device, 128, 1..1000);

#[cfg(test)]
mod found {
    /// Two events of the model come while the driver has no request for events outstanding. The model lost one of them: the one
    /// that tells of the namespaces.
    #[test]
    fn an_event_waits_until_the_driver_asks_for_it() {
        super::run(
            b"\x47\x47\0\0\x01\x20\x45\x6f\x47\xff\xff\xff\xff\x44\x1e\x2c\xff\xff\xc3\xd4\xff\xff\0\0\0\0\x24\xff\xff\xff\xff\x24;;;;;;;;n;",
        );
    }
}
