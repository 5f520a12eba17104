//! The x520 driver on the model of its device: random traffic, faults and recoveries. Whatever happens: each token that was
//! taken comes back exactly once, in order; no memory is read after its token is back; what comes is what was sent to us,
//! in order and whole; and when the faults end, the device works again.

use std::collections::VecDeque;

use x520::id::Medium;
use x520::nic::{Nic, Offload, Outcome, Outgoing, PartialChecksum, ReceiveFilter, Segment, Single, Unicast};
use x520::{Device, Filter, Status, Steering, X520};
use x520_model::made::{OWN, frame, packet};
use x520_model::memory::Access;
use x520_model::sfp::Module;
use x520_model::{Diagnostic, Faults, Offers};

use crate::bench::{Bench, Port, small};
use crate::input::Input;
use crate::planted::planted;

/// Steps of one run at most: a run is short, and many are made.
const MOST_STEPS: usize = 160;
/// Frames to here have a receive queue of their own if addresses are steered.
const GUEST: [u8; 6] = [2, 0, 0, 0, 1, 1];

#[derive(Clone, Debug)]
enum Step {
    Send {
        queue: u16,
        header: usize,
        pieces: Vec<u16>,
        count: u8,
    },
    /// TCP or UDP with work for the device.
    Offload {
        queue: u16,
        v4: bool,
        tcp: bool,
        len: usize,
        mss: Option<u16>,
        vlan: Option<u16>,
        together: bool,
    },
    Flush(u16),
    Reclaim(u16),
    Deliver {
        len: usize,
        count: u8,
        guest: bool,
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
            let (queue, header) = (queue(input), input.within(0, 129) as usize);
            let pieces = (0..input.byte() % 5).map(|_| input.within(1, 700) as u16).collect();
            Step::Send { queue, header, pieces, count: input.within(1, 20) as u8 }
        }
        6..8 => {
            let (queue, bits) = (queue(input), input.byte());
            let mss = (bits & 4 != 0).then(|| input.within(1, 2600) as u16);
            let vlan = (bits & 8 != 0).then(|| input.within(0, 3) as u16);
            let (v4, tcp, len) = (bits & 1 != 0, bits & 2 != 0, input.within(1, 9000) as usize);
            Step::Offload { queue, v4, tcp, len, mss, vlan, together: bits & 16 != 0 }
        }
        8..12 => Step::Flush(queue(input)),
        12..16 => Step::Reclaim(queue(input)),
        16..20 => {
            let (len, count) = (input.within(55, 2600) as usize, input.within(1, 40) as u8);
            Step::Deliver { len, count, guest: input.flag() }
        }
        20 => Step::Damaged,
        21..27 => Step::Receive { queue: queue(input), budget: input.within(1, 50) as u32 },
        27..35 => Step::Run,
        35..41 => Step::Pass(match input.byte() % 3 {
            0 => input.within(1, 2_000),
            1 => input.within(10_000, 100_000),
            _ => 1_100_000,
        }),
        41 => Step::Cable(input.byte() & 1 == 1),
        42 => Step::Fault(input.byte() % 16),
        43 => Step::Revoke,
        44 => Step::Restart,
        45 => Step::RevokeOwn,
        46 => Step::Filter(input.byte()),
        _ => Step::Heal,
    })
}

/// One of the two queues.
fn queue(input: &mut Input<'_>) -> u16 {
    u16::from(input.flag())
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
    /// The serial of the last frame that came, by queue.
    last: [u32; 2],
    steering: Steering,
}

impl Books {
    fn new(steering: Steering, medium: Medium) -> Self {
        let config =
            x520::Config { receive_queues: 2, transmit_queues: 2, max_frame: 2500, steering, medium, ..small() };
        let backplane = (medium == Medium::Backplane).then(|| Offers::ALL.autoc());
        let mut b = Bench::with(config, filter(0), x520_model::Config { backplane, ..x520_model::Config::default() });
        b.until_up();
        Self { b, next: 0, out: Default::default(), sent: 0, dropped: 0, came: 0, serial: 0, last: [0; 2], steering }
    }

    fn nic(&mut self) -> &mut X520<Port, u64> {
        &mut self.b.nic
    }

    fn send(&mut self, queue: u16, header: usize, pieces: &[u16]) {
        let bytes = frame(header.max(14), 1);
        let segments: Vec<_> = pieces.iter().map(|n| self.b.payload(&vec![7; usize::from(*n)])).collect();
        self.hand_over(queue, &bytes[..header], segments, Offload::NOTHING);
    }

    fn send_offload(&mut self, step: &Step) {
        let Step::Offload { queue, v4, tcp, len, mss, vlan, together } = *step else { return };
        let start = if v4 { 34 } else { 54 };
        let header = usize::from(start) + if tcp { 20 } else { 8 };
        let bytes = packet(v4, tcp, (1, 2), &vec![7; len], true);
        let segments = vec![self.b.payload(&bytes[header..])];
        let plain =
            Offload::of_checksum(PartialChecksum { start, offset: if tcp { 16 } else { 6 } }).expect("within a header");
        let cut = plain.with_mss(mss.unwrap_or(0));
        let offload = vlan.map_or(cut, |tag| cut.with_vlan(tag));
        if together {
            // The same, something else, and nothing.
            let other = offload.with_vlan(9);
            let asked = [offload, offload, other, offload, offload];
            let mut all = vec![(segments, offload), (Vec::new(), Offload::NOTHING)];
            all.extend(asked.map(|asked| (vec![self.b.payload(&bytes[header..])], asked)));
            return self.hand_over_all(queue, &bytes[..header], all);
        }
        self.hand_over(queue, &bytes[..header], segments, offload);
    }

    /// Sends frames of a header and one segment at most by one call.
    fn hand_over_all(&mut self, queue: u16, header: &[u8], frames: Vec<(Vec<Segment>, Offload)>) {
        let first = self.next;
        let items: Vec<_> = frames.iter().zip(first..).collect();
        let (taken, refused) = self.nic().transmit_all(queue, &items, |((segments, offload), token), room| {
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
                self.out[usize::from(queue)].push_back((first + i as u64, segments));
            } else {
                self.release(&segments);
            }
        }
    }

    fn hand_over(&mut self, queue: u16, header: &[u8], segments: Vec<Segment>, offload: Offload) {
        let out = Outgoing { header, segments: &segments, offload };
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

    fn deliver(&mut self, len: usize, count: u8, guest: bool) {
        for _ in 0..count {
            self.serial += 1;
            self.b.deliver(&incoming(len, self.serial, if guest { GUEST } else { OWN }));
        }
    }

    fn receive(&mut self, queue: u16, budget: u32) {
        let (mut last, mut came, steering) = (self.last[usize::from(queue)], 0, self.steering);
        self.nic().receive(queue, budget, |f| {
            let mut bytes = f.pieces.concat();
            if planted() {
                bytes[20] ^= 1;
            }
            let serial = u32::from_be_bytes(bytes[14..18].try_into().unwrap());
            let guest = bytes[..6] == GUEST;
            let expected = incoming(bytes.len(), serial, if guest { GUEST } else { OWN });
            assert_eq!(bytes, expected, "a frame comes whole and unchanged");
            assert!(serial > last, "{serial} after {last}: frames come once and in order");
            // No frame is IP, so there are no flows to be spread.
            assert!(queue == 0 || guest && steering == Steering::Addresses, "by the first queue");
            (last, came) = (serial, came + 1);
        });
        (self.last[usize::from(queue)], self.came) = (last, self.came + came);
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Send { queue, header, pieces, count } if pieces.len() < 2 && count % 4 != 0 => {
                let bytes = frame((*header).max(14), 1);
                let segments = |b: &mut Bench| pieces.iter().map(|n| b.payload(&vec![7; usize::from(*n)])).collect();
                let frames = (0..*count).map(|_| (segments(&mut self.b), Offload::NOTHING)).collect();
                self.hand_over_all(*queue, &bytes[..*header], frames);
            }
            Step::Send { queue, header, pieces, count } => {
                (0..*count).for_each(|_| self.send(*queue, *header, pieces));
            }
            Step::Offload { .. } => self.send_offload(step),
            Step::Flush(queue) => self.nic().flush(*queue),
            Step::Reclaim(queue) => self.reclaim(*queue),
            Step::Deliver { len, count, guest } => self.deliver(*len, *count, *guest),
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
                    7 => m.faults.gone = true,
                    8 => m.faults.module_silent = true,
                    9 => m.faults.module_bad_byte = 50,
                    10 => m.faults.module_slow = 900,
                    11 => m.faults.firmware_owns = 1 << 6 | 1 << 8,
                    12 => m.faults.configuration_hangs = true,
                    // A card with a cage, or one for a backplane, sees it.
                    13 => {
                        m.set_module(Module::named("passive"));
                        m.set_offers(Offers::KX);
                    }
                    14 => {
                        m.set_module(Module::named("ten-t"));
                        m.set_offers(Offers::KR);
                    }
                    _ => m.set_module(None),
                }
            }
            Step::Revoke => {
                if let Some(s) = self.out[0].back().and_then(|(_, s)| s.first()) {
                    self.b.memory.revoke(s.address(), 1);
                }
            }
            Step::RevokeOwn => self.b.memory.revoke(self.b.own.bus, self.b.own.len),
            // The upper half of the kinds tells from then on who is here, and leaves the rest as it is.
            Step::Filter(kind) if *kind >= 0x80 => {
                let addresses = [GUEST, [2, 0, 0, 0, 0, *kind]].map(|address| Unicast { address, queue: 1 });
                let groups = [[1, 0, 0x5e, 0, *kind, 0]; 2];
                self.nic().set_receive_filter(&ReceiveFilter {
                    unicasts: &addresses[..usize::from(kind % 3)],
                    promiscuous: kind % 4 == 0,
                    groups: &groups[..usize::from(kind % 3)],
                    all_groups: kind % 8 < 4,
                });
            }
            Step::Filter(kind) => self.nic().set_filter(filter(*kind)),
            Step::Heal => self.heal(),
            Step::Restart => {
                let now = self.b.now;
                self.nic().restart(now);
            }
        }
        let out: usize = self.out.iter().map(|q| q.len()).sum();
        assert_eq!(self.b.nic.outstanding(), out, "the driver holds what the books say");
        assert_eq!(self.next, self.sent + self.dropped + out as u64);
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
                self.deliver(60, 1, false);
                self.deliver(60, 1, true);
            }
            self.b.run();
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
    }

    /// With all faults gone, everything comes back and the device works.
    fn settle(&mut self) {
        self.heal();
        self.b.model.borrow_mut().set_cable(true);
        self.b.model.borrow_mut().set_module(Module::named("sr"));
        self.b.model.borrow_mut().set_offers(Offers::ALL);
        self.nic().set_filter(filter(0));
        self.carry_on(3_000);
        // The link may have come only at the end, after a look into the cage. Then no frame has been missed yet.
        self.b.until_up();
        self.carry_on(1_000);
        assert_eq!(self.out.iter().map(|q| q.len()).sum::<usize>(), 0, "every token is back");
        self.b.until_up();
        self.b.run();
        (0..2).for_each(|queue| self.receive(queue, 1_000));
        let came = self.came;
        self.deliver(100, 5, false);
        self.deliver(100, 5, true);
        self.b.run();
        self.receive(0, 10);
        let by_first = if self.steering == Steering::Addresses { 5 } else { 10 };
        assert_eq!(self.came, came + by_first, "it receives");
        self.receive(1, 10);
        assert_eq!(self.came, came + 10, "by the other queue too");
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

/// A frame from the wire.
fn incoming(len: usize, serial: u32, to: [u8; 6]) -> Vec<u8> {
    let mut f = frame(len, serial as u8);
    f[..6].copy_from_slice(&to);
    f[14..18].copy_from_slice(&serial.to_be_bytes());
    f
}

/// What is let in; 0: what `deliver` sends.
fn filter(kind: u8) -> Filter {
    let addresses = vec![Unicast { address: GUEST, queue: 1 }];
    match kind % 4 {
        0 => Filter { broadcast: true, addresses, ..Filter::default() },
        1 => Filter::default(),
        2 => Filter::all(),
        _ => Filter { addresses, vlans: Some(vec![5]), ..Filter::default() },
    }
}

/// What faults alone explain. `own`: the driver's own memory, if it was taken away.
fn excused(d: &Diagnostic, revoked: bool, own: Option<core::ops::Range<u64>>, hung: bool) -> bool {
    match d {
        Diagnostic::NotGranted { address, .. } if own.as_ref().is_some_and(|own| own.contains(address)) => true,
        Diagnostic::NotGranted { write: false, .. } => revoked,
        // A reset that hangs, or ends while the driver looks, is looked at.
        Diagnostic::AccessDuringReset { .. } => hung,
        // A restart breaks off a transfer from the module: it lets the wires go at once.
        Diagnostic::ModuleClockTooFast { high: false, .. } => true,
        _ => false,
    }
}

/// The target.
///
/// # Panics
/// The driver is wrong.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let kind = input.byte();
    let steering = if kind & 1 != 0 { Steering::Addresses } else { Steering::Flows };
    let medium = if kind & 2 != 0 { Medium::Backplane } else { Medium::Cage };
    let steps: Vec<Step> = std::iter::from_fn(|| step(&mut input)).take(MOST_STEPS).collect();
    let mut books = Books::new(steering, medium);
    for step in &steps {
        books.take(step);
    }
    books.settle();
    let revoked = steps.iter().any(|s| matches!(s, Step::Revoke));
    let hung = steps.iter().any(|s| matches!(s, Step::Fault(3)));
    let diagnostics = books.b.model.borrow_mut().take_diagnostics();
    let own = steps.iter().any(|s| matches!(s, Step::RevokeOwn)).then(|| {
        let own = &books.b.own;
        own.bus..own.bus + own.len as u64
    });
    let bad: Vec<_> = diagnostics.iter().filter(|d| !excused(d, revoked, own.clone(), hung)).collect();
    assert!(bad.is_empty(), "{bad:?} after {steps:?}");
}

crate::planted::tests!(books_balance_through_random_faults, 256, 1..1000);
