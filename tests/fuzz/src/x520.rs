//! The x520 driver on the model of its device: random traffic, faults and recoveries. Whatever happens: each token that was
//! taken comes back exactly once, in order; no memory is read after its token is back; what comes is what was sent to us,
//! in order and whole; and when the faults end, the device works again.

use std::collections::VecDeque;

use x520::nic::{Nic, Outcome, Outgoing, Segment};
use x520::{Status, X520};
use x520_model::{Diagnostic, Faults};

use crate::bench::{Bench, Port, frame, small};

/// Steps of one run at most: a run is short, and many are made.
const MOST_STEPS: usize = 160;

#[derive(Clone, Debug)]
enum Step {
    Send {
        queue: u16,
        header: usize,
        pieces: Vec<u16>,
        count: u8,
    },
    Flush(u16),
    Reclaim(u16),
    Deliver {
        len: usize,
        count: u8,
    },
    Damaged,
    Receive {
        queue: u16,
        budget: u32,
    },
    Run,
    Pass(u64),
    Cable(bool),
    Fault(u8),
    /// Takes a pending segment's memory away.
    Revoke,
    Heal,
    Restart,
}

/// Numbers out of the input; 0 when it has ended.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// From `low` up to, not including, `high`.
    fn within(&mut self, low: u64, high: u64) -> u64 {
        let value = u64::from(u16::from_le_bytes([self.byte(), self.byte()]));
        low + value * (high - low) / 0x1_0000
    }

    fn queue(&mut self) -> u16 {
        u16::from(self.byte() & 1)
    }

    /// The next step. What drivers do all the time is more likely than what breaks them.
    fn step(&mut self) -> Option<Step> {
        if self.0.is_empty() {
            return None;
        }
        Some(match self.byte() % 46 {
            0..8 => {
                let (queue, header) = (self.queue(), self.within(0, 129) as usize);
                let pieces = (0..self.byte() % 5).map(|_| self.within(1, 700) as u16).collect();
                Step::Send { queue, header, pieces, count: self.within(1, 20) as u8 }
            }
            8..12 => Step::Flush(self.queue()),
            12..16 => Step::Reclaim(self.queue()),
            16..20 => Step::Deliver { len: self.within(55, 2600) as usize, count: self.within(1, 40) as u8 },
            20 => Step::Damaged,
            21..27 => Step::Receive { queue: self.queue(), budget: self.within(1, 50) as u32 },
            27..35 => Step::Run,
            35..41 => Step::Pass(match self.byte() % 3 {
                0 => self.within(1, 2_000),
                1 => self.within(10_000, 100_000),
                _ => 1_100_000,
            }),
            41 => Step::Cable(self.byte() & 1 == 1),
            42 => Step::Fault(self.byte() % 8),
            43 => Step::Revoke,
            44 => Step::Restart,
            _ => Step::Heal,
        })
    }
}

/// The books.
struct Books {
    b: Bench,
    next: u64,
    /// Tokens out, by queue, oldest first, with their memory.
    out: [VecDeque<(u64, Vec<Segment>)>; 2],
    sent: u64,
    dropped: u64,
    came: u64,
    serial: u32,
    /// The serial of the last frame that came.
    last: u32,
}

impl Books {
    fn new() -> Self {
        let config = x520::Config { receive_queues: 2, transmit_queues: 2, max_frame: 2500, ..small() };
        let b = Bench::up(config);
        Self { b, next: 0, out: Default::default(), sent: 0, dropped: 0, came: 0, serial: 0, last: 0 }
    }

    fn nic(&mut self) -> &mut X520<Port, u64> {
        &mut self.b.nic
    }

    fn send(&mut self, queue: u16, header: usize, pieces: &[u16]) {
        let bytes = frame(header.max(14), 1);
        let segments: Vec<_> = pieces.iter().map(|n| self.b.payload(&vec![7; usize::from(*n)])).collect();
        let out = Outgoing { header: &bytes[..header], segments: &segments, offload: Default::default() };
        let token = self.next;
        match self.nic().transmit(queue, &out, token) {
            Ok(()) => {
                self.next += 1;
                self.out[usize::from(queue)].push_back((token, segments));
            }
            Err((_, back)) => {
                assert_eq!(back, token, "a refused frame's token comes back at once");
                self.release(&segments);
            }
        }
    }

    fn release(&mut self, segments: &[Segment]) {
        for s in segments {
            self.b.memory.revoke(s.address(), usize::from(s.len()));
        }
    }

    fn reclaim(&mut self, queue: u16) {
        let mut back = Vec::new();
        self.nic().reclaim(queue, |t, o| back.push((t, o)));
        for (token, outcome) in back {
            let (expected, segments) = self.out[usize::from(queue)].pop_front().expect("a token that is out");
            assert_eq!(token, expected, "tokens come back once and in order");
            // From here on the device has no business there: a read would be told.
            self.release(&segments);
            match outcome {
                Outcome::Sent => self.sent += 1,
                Outcome::Dropped => self.dropped += 1,
            }
        }
    }

    fn deliver(&mut self, len: usize, count: u8) {
        for _ in 0..count {
            self.serial += 1;
            let mut f = frame(len, self.serial as u8);
            f[14..18].copy_from_slice(&self.serial.to_be_bytes());
            self.b.deliver(&f);
        }
    }

    fn receive(&mut self, queue: u16, budget: u32) {
        let (mut last, mut came) = (self.last, 0);
        self.nic().receive(queue, budget, |f| {
            let bytes = f.pieces.concat();
            let serial = u32::from_be_bytes(bytes[14..18].try_into().unwrap());
            let mut expected = frame(bytes.len(), serial as u8);
            expected[14..18].copy_from_slice(&serial.to_be_bytes());
            assert_eq!(bytes, expected, "a frame comes whole and unchanged");
            assert!(serial > last, "{serial} after {last}: frames come once and in order");
            (last, came) = (serial, came + 1);
        });
        (self.last, self.came) = (last, self.came + came);
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Send { queue, header, pieces, count } => {
                (0..*count).for_each(|_| self.send(*queue, *header, pieces));
            }
            Step::Flush(queue) => self.nic().flush(*queue),
            Step::Reclaim(queue) => self.reclaim(*queue),
            Step::Deliver { len, count } => self.deliver(*len, *count),
            Step::Damaged => self.b.model.borrow_mut().deliver_damaged(&frame(100, 0)),
            Step::Receive { queue, budget } => self.receive(*queue, *budget),
            Step::Run => self.b.run(),
            Step::Pass(us) => self.b.pass(*us),
            Step::Cable(present) => self.b.model.borrow_mut().set_cable(*present),
            Step::Fault(which) => {
                let mut m = self.b.model.borrow_mut();
                match which {
                    0 => m.faults.receive_stalled = true,
                    1 => m.faults.transmit_stalled = true,
                    2 => m.faults.no_write_back = true,
                    3 => m.faults.reset_hangs = true,
                    4 => m.faults.master_stuck = true,
                    5 => m.faults.enable_stuck = true,
                    6 => m.faults.bad_write_back = true,
                    _ => m.faults.gone = true,
                }
            }
            Step::Revoke => {
                if let Some(s) = self.out[0].back().and_then(|(_, s)| s.first()) {
                    self.b.memory.revoke(s.address(), 1);
                }
            }
            Step::Heal => self.b.model.borrow_mut().faults = Faults::default(),
            Step::Restart => {
                let now = self.b.now;
                self.nic().restart(now);
            }
        }
        let out: usize = self.out.iter().map(|q| q.len()).sum();
        assert_eq!(self.b.nic.outstanding(), out, "the driver holds what the books say");
        assert_eq!(self.next, self.sent + self.dropped + out as u64);
    }

    /// With all faults gone, everything comes back and the device works.
    fn settle(&mut self) {
        self.b.model.borrow_mut().faults = Faults::default();
        self.b.model.borrow_mut().set_cable(true);
        for _ in 0..3_000 {
            self.b.pass(1_000);
            for queue in 0..2 {
                self.receive(queue, 1_000);
                self.nic().flush(queue);
                self.reclaim(queue);
            }
            if matches!(self.b.nic.status(), Status::Failed(_)) {
                // As its owner would: after a moment for the device to come to its senses.
                self.b.model.borrow_mut().advance(10_000);
                let now = self.b.now;
                self.nic().restart(now);
            }
        }
        assert_eq!(self.out.iter().map(|q| q.len()).sum::<usize>(), 0, "every token is back");
        self.b.until_up();
        let came = self.came;
        self.deliver(100, 5);
        self.b.run();
        self.receive(0, 10);
        assert_eq!(self.came, came + 5, "it receives");
        let sent = self.sent;
        while self.b.model.borrow_mut().take_sent().is_some() {}
        for queue in 0..2 {
            self.send(queue, 60, &[100]);
            self.nic().flush(queue);
        }
        self.b.run();
        (0..2).for_each(|q| self.reclaim(q));
        assert_eq!(self.sent, sent + 2, "it sends");
        assert_eq!(core::iter::from_fn(|| self.b.model.borrow_mut().take_sent()).count(), 2);
    }
}

/// What faults alone explain.
fn excused(d: &Diagnostic, revoked: bool, hung: bool) -> bool {
    match d {
        Diagnostic::NotGranted { write: false, .. } => revoked,
        // A reset that hangs, or ends while the driver looks, is looked at.
        Diagnostic::AccessDuringReset { .. } => hung,
        _ => false,
    }
}

/// The target.
///
/// # Panics
/// The driver is wrong.
pub fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let steps: Vec<Step> = std::iter::from_fn(|| input.step()).take(MOST_STEPS).collect();
    let mut books = Books::new();
    for step in &steps {
        books.take(step);
    }
    books.settle();
    let revoked = steps.iter().any(|s| matches!(s, Step::Revoke));
    let hung = steps.iter().any(|s| matches!(s, Step::Fault(3)));
    let diagnostics = books.b.model.borrow_mut().take_diagnostics();
    let bad: Vec<_> = diagnostics.iter().filter(|d| !excused(d, revoked, hung)).collect();
    assert!(bad.is_empty(), "{bad:?} after {steps:?}");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn books_balance_through_random_faults(bytes in prop::collection::vec(any::<u8>(), 1..1000)) {
            super::run(&bytes);
        }
    }
}
