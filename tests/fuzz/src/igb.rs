//! The igb driver on the model of its device, as an 82576 or as an I350: random traffic, faults and recoveries. Whatever happens:
//! each token that was taken comes back exactly once, in order; no memory is read after its token is back; what comes is what was
//! sent to us, in order and whole; and when the faults end, the device works again.

use std::collections::VecDeque;

use igb::nic::{Nic, Offload, Outcome, Outgoing, PartialChecksum, ReceiveFilter, Segment, Single, Unicast};
use igb::{Device, Filter, Igb, Kind, Status};
use igb_model::made::{OWN, frame};
use igb_model::memory::Access;
use igb_model::{Diagnostic, Faults};

use crate::igb_bench::{Bench, Port, packet, small};
use crate::input::Input;
use crate::planted::planted;

/// Steps of one run at most: a run is short, and many are made.
const MOST_STEPS: usize = 160;

#[derive(Clone, Debug)]
enum Step {
    /// `together`: by one call for all.
    Send {
        header: usize,
        pieces: Vec<u16>,
        count: u8,
        together: bool,
    },
    /// TCP or UDP with work for the device.
    Offload {
        tcp: bool,
        len: usize,
        vlan: Option<u16>,
        together: bool,
    },
    Flush,
    Reclaim,
    Deliver {
        len: usize,
        count: u8,
    },
    Damaged,
    Receive(u32),
    Run,
    Pass(u64),
    Cable(bool),
    Fault(u8),
    /// Takes a pending segment's memory away.
    Revoke,
    /// Takes the rings and buffers away.
    RevokeOwn,
    /// Lets other frames in.
    Filter(u8),
    Heal,
    Restart,
}

/// The next step. What drivers do all the time is more likely than what breaks them.
fn step(input: &mut Input<'_>) -> Option<Step> {
    if input.is_empty() {
        return None;
    }
    Some(match input.byte() % 48 {
        0..6 => {
            let header = input.within(0, 129) as usize;
            let pieces = (0..input.byte() % 5).map(|_| input.within(1, 700) as u16).collect();
            Step::Send { header, pieces, count: input.within(1, 20) as u8, together: input.flag() }
        }
        6..8 => {
            let (bits, len) = (input.byte(), input.within(1, 2400) as usize);
            let vlan = (bits & 8 != 0).then(|| input.within(0, 3) as u16);
            Step::Offload { tcp: bits & 2 != 0, len, vlan, together: bits & 16 != 0 }
        }
        8..12 => Step::Flush,
        12..16 => Step::Reclaim,
        16..20 => Step::Deliver { len: input.within(55, 2600) as usize, count: input.within(1, 40) as u8 },
        20 => Step::Damaged,
        21..27 => Step::Receive(input.within(1, 50) as u32),
        27..35 => Step::Run,
        35..41 => Step::Pass(match input.byte() % 3 {
            0 => input.within(1, 2_000),
            1 => input.within(10_000, 100_000),
            _ => 1_100_000,
        }),
        41 => Step::Cable(input.flag()),
        42 => Step::Fault(input.byte() % 12),
        43 => Step::Revoke,
        44 => Step::Restart,
        45 => Step::RevokeOwn,
        46 => Step::Filter(input.byte()),
        _ => Step::Heal,
    })
}

/// The books.
struct Books {
    b: Bench,
    next: u64,
    /// Tokens out, oldest first, with their memory.
    out: VecDeque<(u64, Vec<Segment>)>,
    sent: u64,
    dropped: u64,
    came: u64,
    serial: u32,
    /// The serial of the last frame that came.
    last: u32,
}

impl Books {
    fn new(kind: Kind, port: u8) -> Self {
        let mut b = Bench::with(kind, port, igb::Config { max_frame: 2500, ..small() }, filter(0));
        b.until_up();
        Self { b, next: 0, out: VecDeque::new(), sent: 0, dropped: 0, came: 0, serial: 0, last: 0 }
    }

    fn nic(&mut self) -> &mut Igb<Port, u64> {
        &mut self.b.nic
    }

    fn send_offload(&mut self, tcp: bool, len: usize, vlan: Option<u16>, together: bool) {
        let header = if tcp { 54 } else { 42 };
        let bytes = packet(tcp, &vec![7; len], true);
        let place = PartialChecksum { start: 34, offset: if tcp { 16 } else { 6 } };
        let plain = Offload::of_checksum(place).expect("within a header");
        let offload = vlan.map_or(plain, |tag| plain.with_vlan(tag));
        let segments = |b: &mut Bench| vec![b.payload(&bytes[header..])];
        if together {
            let asked = [offload, Offload::NOTHING, offload, offload.with_vlan(9), offload];
            let all = asked.map(|asked| (segments(&mut self.b), asked)).into();
            return self.hand_over_all(&bytes[..header], all);
        }
        let segments = segments(&mut self.b);
        self.hand_over(&bytes[..header], segments, offload);
    }

    /// Sends frames of a header and one segment at most by one call.
    fn hand_over_all(&mut self, header: &[u8], frames: Vec<(Vec<Segment>, Offload)>) {
        let first = self.next;
        let items: Vec<_> = frames.iter().zip(first..).collect();
        let (taken, refused) = self.nic().transmit_all(0, &items, |((segments, offload), token), room| {
            let len = header.len().min(room.len());
            room[..len].copy_from_slice(&header[..len]);
            let rest = segments.first().copied().unwrap_or(Segment::EMPTY);
            Some(Single { header: header.len(), rest, offload: *offload, token: *token })
        });
        assert!(taken + usize::from(refused.is_some()) <= frames.len());
        if let Some((_, back)) = refused {
            assert_eq!(back, first + taken as u64, "a refused frame's token comes back at once");
        }
        self.next += taken as u64;
        for (i, (segments, _)) in frames.into_iter().enumerate() {
            if i < taken {
                self.out.push_back((first + i as u64, segments));
            } else {
                self.release(&segments);
            }
        }
    }

    fn hand_over(&mut self, header: &[u8], segments: Vec<Segment>, offload: Offload) {
        let out = Outgoing { header, segments: &segments, offload };
        let token = self.next;
        match self.nic().transmit(0, &out, token) {
            Ok(()) => {
                self.next += 1;
                self.out.push_back((token, segments));
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

    fn reclaim(&mut self) {
        for (token, outcome) in self.b.reclaim() {
            let (expected, segments) = self.out.pop_front().expect("a token that is out");
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
            self.b.deliver(&incoming(len, self.serial));
        }
    }

    fn receive(&mut self, budget: u32) {
        let (mut last, mut came) = (self.last, 0);
        self.nic().receive(0, budget, |f| {
            let mut bytes = f.pieces.concat();
            if planted() {
                bytes[20] ^= 1;
            }
            let serial = u32::from_be_bytes(bytes[14..18].try_into().unwrap());
            assert_eq!(bytes, incoming(bytes.len(), serial), "a frame comes whole and unchanged");
            assert!(serial > last, "{serial} after {last}: frames come once and in order");
            (last, came) = (serial, came + 1);
        });
        (self.last, self.came) = (last, self.came + came);
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Send { header, pieces, count, together: true } => {
                let bytes = frame((*header).max(14), 1);
                let segments =
                    |b: &mut Bench| pieces.first().map(|n| b.payload(&vec![7; usize::from(*n)])).into_iter().collect();
                let frames = (0..*count).map(|_| (segments(&mut self.b), Offload::NOTHING)).collect();
                self.hand_over_all(&bytes[..*header], frames);
            }
            Step::Send { header, pieces, count, together: false } => {
                let bytes = frame((*header).max(14), 1);
                for _ in 0..*count {
                    let segments = pieces.iter().map(|n| self.b.payload(&vec![7; usize::from(*n)])).collect();
                    self.hand_over(&bytes[..*header], segments, Offload::NOTHING);
                }
            }
            Step::Offload { tcp, len, vlan, together } => self.send_offload(*tcp, *len, *vlan, *together),
            Step::Flush => self.nic().flush(0),
            Step::Reclaim => self.reclaim(),
            Step::Deliver { len, count } => self.deliver(*len, *count),
            Step::Damaged => self.b.model.borrow_mut().deliver_damaged(&frame(100, 0)),
            Step::Receive(budget) => self.receive(*budget),
            Step::Run => self.b.run(),
            Step::Pass(us) => self.b.pass(*us),
            Step::Cable(present) => self.b.model.borrow_mut().set_cable(*present),
            Step::Fault(which) => {
                let faults = &mut self.b.model.borrow_mut().faults;
                match which {
                    0 => faults.receive_stalled = true,
                    1 => faults.transmit_stalled = true,
                    2 => faults.no_write_back = true,
                    3 => faults.reset_hangs = true,
                    4 => faults.master_stuck = true,
                    5 => faults.enable_stuck = true,
                    6 => faults.bad_write_back = true,
                    7 => faults.gone = true,
                    8 => faults.configuration_hangs = true,
                    9 => faults.phy_silent = true,
                    10 => faults.phy_error = true,
                    _ => faults.firmware_owns = 1 << 17 | 1 << 18 | 1 << 21 | 1 << 22,
                }
            }
            Step::Revoke => {
                if let Some(s) = self.out.back().and_then(|(_, s)| s.first()) {
                    self.b.memory.revoke(s.address(), 1);
                }
            }
            Step::RevokeOwn => self.b.memory.revoke(self.b.own.bus, self.b.own.len),
            Step::Filter(kind) => {
                let addresses: Vec<_> =
                    (0..kind % 40).map(|n| Unicast { address: [2, 0, 0, 0, *kind, n], queue: 1 }).collect();
                let groups = [[1, 0, 0x5e, 0, *kind, 0]; 2];
                self.nic().set_receive_filter(&ReceiveFilter {
                    unicasts: &addresses,
                    promiscuous: kind % 4 == 0,
                    groups: &groups[..usize::from(kind % 3)],
                    all_groups: kind % 8 < 4,
                });
            }
            Step::Heal => self.heal(),
            Step::Restart => {
                let now = self.b.now;
                self.nic().restart(now);
            }
        }
        assert_eq!(self.b.nic.outstanding(), self.out.len(), "the driver holds what the books say");
        assert_eq!(self.next, self.sent + self.dropped + self.out.len() as u64);
    }

    fn heal(&mut self) {
        self.b.model.borrow_mut().faults = Faults::default();
        self.b.memory.grant(self.b.own.bus, self.b.own.len, Access::ReadWrite);
    }

    /// Traffic for so many milliseconds. A device that has failed is started again.
    fn carry_on(&mut self, milliseconds: u64) {
        for millisecond in 0..milliseconds {
            self.b.pass(1_000);
            // Traffic goes on: a receive queue that has failed is known by the frames that are missed.
            if millisecond % 100 == 0 {
                self.deliver(60, 1);
            }
            self.b.run();
            self.receive(1_000);
            self.nic().flush(0);
            self.reclaim();
            if matches!(self.b.nic.status(), Status::Failed(_)) {
                // As its owner would: after a moment for the device to come to its senses.
                self.b.model.borrow_mut().advance(10_000);
                let now = self.b.now;
                self.nic().restart(now);
            }
        }
    }

    /// With all faults gone, everything comes back and the device works.
    fn settle(&mut self) {
        self.heal();
        self.b.model.borrow_mut().set_cable(true);
        self.carry_on(5_000);
        // The link may have come only at the end. Then no frame has been missed yet.
        self.b.until_up();
        self.carry_on(2_500);
        assert_eq!(self.out.len(), 0, "every token is back");
        self.b.until_up();
        self.receive(1_000);
        let came = self.came;
        self.deliver(100, 5);
        self.receive(10);
        assert_eq!(self.came, came + 5, "it receives");
        let sent = self.sent;
        while self.b.model.borrow_mut().take_sent().is_some() {}
        let rest = vec![self.b.payload(&[7; 100])];
        self.hand_over(&frame(60, 1), rest, Offload::NOTHING);
        assert_eq!(self.b.sent().len(), 1);
        self.reclaim();
        assert_eq!(self.sent, sent + 1, "it sends");
    }
}

/// A frame from the wire.
fn incoming(len: usize, serial: u32) -> Vec<u8> {
    let mut f = frame(len, serial as u8);
    f[..6].copy_from_slice(&OWN);
    f[14..18].copy_from_slice(&serial.to_be_bytes());
    f
}

/// What is let in; 0: what `deliver` sends.
fn filter(kind: u8) -> Filter {
    if kind == 0 { Filter { broadcast: true, ..Filter::default() } } else { Filter::all() }
}

/// What faults alone explain. `own`: the driver's own memory, if it was taken away.
fn excused(d: &Diagnostic, revoked: bool, own: Option<&core::ops::Range<u64>>, hung: bool) -> bool {
    match d {
        Diagnostic::NotGranted { address, .. } if own.is_some_and(|own| own.contains(address)) => true,
        Diagnostic::NotGranted { write: false, .. } => revoked,
        // A reset that hangs, or ends while the driver looks, is looked at.
        Diagnostic::AccessDuringReset(_) => hung,
        // An access that never ended is one that is under way for ever.
        Diagnostic::Phy("an access is under way") => true,
        _ => false,
    }
}

/// The target.
///
/// # Panics
/// The driver is wrong.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let (kind, port) = if input.flag() { (Kind::I350, input.byte() & 3) } else { (Kind::I82576, input.byte() & 1) };
    let steps: Vec<Step> = std::iter::from_fn(|| step(&mut input)).take(MOST_STEPS).collect();
    let mut books = Books::new(kind, port);
    for step in &steps {
        books.take(step);
    }
    books.settle();
    let any = |wanted: fn(&Step) -> bool| steps.iter().any(wanted);
    let (revoked, hung) = (any(|s| matches!(s, Step::Revoke)), any(|s| matches!(s, Step::Fault(3))));
    let own = &books.b.own;
    let own = any(|s| matches!(s, Step::RevokeOwn)).then_some(own.bus..own.bus + own.len as u64);
    let diagnostics = books.b.model.borrow_mut().take_diagnostics();
    let bad: Vec<_> = diagnostics.iter().filter(|d| !excused(d, revoked, own.as_ref(), hung)).collect();
    assert!(bad.is_empty(), "{bad:?} after {steps:?}");
}

crate::planted::tests!(books_balance_through_random_faults, 256, 1..1000);
