//! A driver on a model, with a clock and memory.

use std::cell::RefCell;
use std::rc::Rc;

use nvme::dma::{PAGE, Segment};
use nvme::{Config, Controller, ControllerStatus, IoQueue, Operation, Refused, Request, Status};
pub use nvme_model::driver::{Bit, Port, Reach};
use nvme_model::memory::{Access, Memory};
use nvme_model::{Model, Namespace};

/// A driver on a model.
pub struct Bench {
    pub model: Rc<RefCell<Model>>,
    pub memory: Memory,
    pub bit: Bit,
    pub controller: Controller<Port, Bit>,
    pub queues: Vec<IoQueue<Port, Reach>>,
    pub now: u64,
    /// Answers in the order in which they came.
    pub answers: Vec<(u32, Status)>,
    next: u32,
}

/// Two namespaces: 512-byte blocks and 4,096-byte blocks.
pub fn disks() -> Vec<Namespace> {
    vec![Namespace::new(1, 9, 16384), Namespace::new(2, 12, 2048)]
}

/// One queue, short, so that it wraps soon.
pub fn small() -> Config {
    Config { depth: 16, ..Config::default() }
}

impl Bench {
    /// A bench whose driver has not begun.
    pub fn cold(config: Config, device: nvme_model::Config, namespaces: Vec<Namespace>) -> Self {
        let memory = Memory::new((16 << 20) + config.memory() as usize);
        let model = Rc::new(RefCell::new(Model::new(device, namespaces, memory.clone())));
        let bit = Bit::default();
        let (controller, queues) =
            Controller::new(Port(model.clone()), bit.clone(), &mut Reach(memory.clone()), config)
                .expect("a good configuration");
        Self { model, memory, bit, controller, queues, now: 1_000_000, answers: Vec::new(), next: 0 }
    }

    /// A running controller.
    pub fn up() -> Self {
        Self::up_with(small(), nvme_model::Config::default(), disks())
    }

    pub fn up_with(config: Config, device: nvme_model::Config, namespaces: Vec<Namespace>) -> Self {
        let mut bench = Self::cold(config, device, namespaces);
        bench.until(|b| b.controller.status() == ControllerStatus::Running && b.queues[0].is_open());
        bench
    }

    /// Lets time pass; then the device and the driver work.
    pub fn pass(&mut self, microseconds: u64) {
        self.now += microseconds;
        self.model.borrow_mut().advance(microseconds);
        self.turn();
    }

    /// The device and the driver work.
    pub fn turn(&mut self) {
        self.run();
        self.controller.service(self.now);
        self.poll();
    }

    /// The device works, if it may.
    pub fn run(&mut self) {
        if self.bit.0.get() {
            self.model.borrow_mut().run();
        }
    }

    pub fn poll(&mut self) {
        for queue in &mut self.queues {
            queue.poll(self.now, |id, status| self.answers.push((id, status)));
        }
    }

    /// Lets milliseconds pass until `done` returns true.
    #[track_caller]
    pub fn until(&mut self, done: impl Fn(&Self) -> bool) {
        for _ in 0..200_000 {
            if done(self) {
                return;
            }
            self.pass(1_000);
        }
        panic!("not within 200 s: {:?}, answers {:?}", self.controller.status(), self.answers);
    }

    /// Memory at `offset` in a page, which the device may read, and write if `write`.
    pub fn piece(&self, bytes: &[u8], offset: usize, write: bool) -> Segment {
        let block = self.memory.allocate(offset + bytes.len(), PAGE);
        let at = block.bus + offset as u64;
        self.memory.fill(at, bytes);
        self.memory.grant(at, bytes.len(), if write { Access::ReadWrite } else { Access::Read });
        // SAFETY: test data, which nothing frees.
        unsafe { Segment::new(at, bytes.len() as u32) }
    }

    /// The contents of segments.
    pub fn contents(&self, segments: &[Segment]) -> Vec<u8> {
        segments.iter().flat_map(|s| self.memory.copy(s.address(), s.len() as usize)).collect()
    }

    /// Submits a request to the first queue. Returns its identifier.
    pub fn submit(
        &mut self,
        namespace: u32,
        operation: Operation,
        (first, blocks): (u64, u32),
        segments: &[Segment],
    ) -> Result<u32, Refused> {
        let id = self.next;
        let request = Request { id, namespace, operation, first, blocks };
        self.queues[0].submit(&request, segments, self.now)?;
        self.queues[0].notify();
        self.next += 1;
        Ok(id)
    }

    /// Submits a request and waits for its answer, which is the only one.
    #[track_caller]
    pub fn answer(
        &mut self,
        namespace: u32,
        operation: Operation,
        range: (u64, u32),
        segments: &[Segment],
    ) -> Result<Status, Refused> {
        let id = self.submit(namespace, operation, range, segments)?;
        self.answers.clear();
        self.turn();
        assert_eq!(self.answers.len(), 1);
        assert_eq!(self.answers[0].0, id);
        Ok(self.answers[0].1)
    }

    /// Reads one block of namespace 1.
    pub fn read_block(&mut self, block: u64) -> u32 {
        let into = self.piece(&[0; 512], 0, true);
        self.submit(1, Operation::Read, (block, 1), &[into]).expect("taken")
    }

    /// The contents of blocks on the disk.
    pub fn disk(&self, namespace: u32, first: u64, blocks: u64) -> Vec<u8> {
        let model = self.model.borrow();
        let n = model.namespaces.iter().find(|n| n.id == namespace).expect("there");
        n.data[(first << n.shift) as usize..((first + blocks) << n.shift) as usize].to_vec()
    }

    /// The answer to a request.
    #[track_caller]
    pub fn status_of(&self, id: u32) -> Status {
        let all: Vec<_> = self.answers.iter().filter(|(answered, _)| *answered == id).collect();
        assert_eq!(all.len(), 1, "request {id} is answered once: {:?}", self.answers);
        all[0].1
    }

    /// Checks that the driver did nothing wrong and holds nothing.
    #[track_caller]
    pub fn clean(&self) {
        assert_eq!(self.model.borrow_mut().take_diagnostics(), Vec::<String>::new());
        for queue in &self.queues {
            assert_eq!(queue.outstanding(), 0);
        }
    }
}
