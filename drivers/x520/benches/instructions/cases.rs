//! The cases of the benchmark: batches of frames through the driver's data path, on the model of its device. They are
//! tests too.
//!
//! Only work in [`measured`] is counted. There the driver may write tails, which are recorded. The model gets the last
//! tail afterwards and works outside of `measured`, so its instructions are not counted. The case then checks the
//! driver's work: frames are whole, tokens come back, no register was read, and the model has no diagnostic.

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::rc::Rc;

use x520::dma::DmaBuffer;
use x520::nic::{Checked, Link, Nic, Offload, Outgoing, PartialChecksum, Segment, Single};
use x520::registers::Registers;
use x520::{Config, Device as _, Filter, Status, X520};
use x520_model::Model;
use x520_model::made::packet;
use x520_model::memory::Memory;

/// Runs a case. The arguments: frames in a batch, and number of batches.
type Run = fn(u32, u32);

/// The cases by name.
pub const CASES: [(&str, Run); 5] = [
    ("receive", receive),
    ("transmit", |batch, rounds| transmit((batch, rounds), false, &[Offload::NOTHING], |_| Offload::NOTHING)),
    ("transmit-alone", |batch, rounds| transmit((batch, rounds), true, &[Offload::NOTHING], |_| Offload::NOTHING)),
    // `transmit-checksum`: the device knows the context. `transmit-context`: it does not, because three tags do not fit
    // into its two slots.
    ("transmit-checksum", |batch, rounds| transmit((batch, rounds), false, &[checksum()], |asked| asked)),
    ("transmit-context", |batch, rounds| {
        transmit((batch, rounds), false, &[0, 1, 2].map(|tag| checksum().with_vlan(tag)), |asked| asked)
    }),
];

/// Descriptors of either ring.
const RING: u32 = 512;
/// Bytes of the Ethernet, IPv4 and TCP headers.
const HEADER: usize = 54;
/// The token of each frame.
const TOKEN: u64 = 0x1234_5678;
/// Bytes after the headers in the longest frame.
const PAYLOAD: usize = 1460;

/// The connection to the model's registers. It is cut while the driver is measured.
#[derive(Default)]
struct Line {
    measuring: Cell<bool>,
    /// The last tail write: offset and value.
    tail: Cell<(u32, u32)>,
    /// The number of tail writes.
    writes: Cell<u32>,
}

struct Port {
    model: Rc<RefCell<Model>>,
    line: Rc<Line>,
}

impl Registers for Port {
    fn read(&self, offset: u32) -> u32 {
        assert!(!self.line.measuring.get(), "the data path reads the register {offset:#x}");
        self.model.borrow_mut().read(offset)
    }

    #[inline(always)]
    fn write(&self, offset: u32, value: u32) {
        if self.line.measuring.get() {
            self.line.tail.set((offset, value));
            self.line.writes.set(self.line.writes.get() + 1);
        } else {
            self.model.borrow_mut().write(offset, value);
        }
    }
}

/// Runs the work that is counted. callgrind finds it by the name of this function.
#[inline(never)]
fn measured(work: &mut impl FnMut()) {
    work();
}

struct Device {
    model: Rc<RefCell<Model>>,
    line: Rc<Line>,
    memory: Memory,
}

impl Device {
    /// Measures work that writes at most one tail for 32 frames. Gives the model the last tail.
    fn measure(&self, frames: u32, mut work: impl FnMut()) {
        self.line.measuring.set(true);
        self.line.writes.set(0);
        measured(&mut work);
        self.line.measuring.set(false);
        assert!(self.line.writes.get() <= frames.div_ceil(32), "{} tails for {frames}", self.line.writes.get());
        if self.line.writes.get() > 0 {
            let (offset, value) = self.line.tail.get();
            self.model.borrow_mut().write(offset, value);
        }
        self.model.borrow_mut().run();
    }

    fn done(&self) {
        assert_eq!(self.model.borrow_mut().take_diagnostics(), []);
    }
}

/// A device that is up, and its driver.
fn bring_up() -> (Device, X520<Port, u64>) {
    let config = Config { receive_descriptors: RING, transmit_descriptors: RING, ..Config::default() };
    let len = config.memory();
    let memory = Memory::new(len + (1 << 20));
    let own = memory.granted(len, 4096);
    let mut model = Model::new(x520_model::Config::default(), Box::new(memory.clone()));
    model.set_cable(true);
    let (model, line) = (Rc::new(RefCell::new(model)), Rc::<Line>::default());
    // SAFETY: the memory was just allocated and nobody else has it. `Device` keeps it longer than the driver lives.
    let buffer = unsafe { DmaBuffer::new(own.host, own.bus, own.len) };
    let port = Port { model: model.clone(), line: line.clone() };
    let mut driver = X520::new(port, buffer, config, Filter::all()).expect("a good configuration");
    for millisecond in 1..5_000 {
        model.borrow_mut().advance(1_000);
        driver.service(millisecond * 1_000);
        if (driver.status(), driver.link()) == (Status::Running, Link::Up(10_000)) {
            return (Device { model, line, memory }, driver);
        }
    }
    panic!("not up within 5 s: {:?}, {:?}", driver.status(), driver.link());
}

/// Receives batches of frames, and gives their buffers back to the device.
fn receive(batch: u32, rounds: u32) {
    let (device, mut driver) = bring_up();
    let mut frame = packet(true, true, (1, 2), &[], false);
    // The length of the shortest frame on a wire.
    frame.resize(60, 0);
    let mut good = 0;
    for _ in 0..rounds {
        for _ in 0..batch {
            device.model.borrow_mut().deliver(&frame);
        }
        device.model.borrow_mut().run();
        let mut count = 0;
        device.measure(batch, || {
            count = driver.receive(0, batch, |frame| {
                black_box(frame.pieces[0].as_ptr());
                good += u64::from(frame.checked == Checked::Good);
            });
        });
        assert_eq!(count, batch);
    }
    assert_eq!(good, u64::from(batch) * u64::from(rounds), "every frame's checksum is good");
    device.done();
}

/// Sends batches of frames, and reclaims the batch before. Each frame is a copied header and a segment, as the engine
/// sends it. `alone`: by a call for each frame; otherwise one call sends a batch. The frames take the requests in
/// `asked` in turns, each passed through `offload`.
fn transmit((batch, rounds): (u32, u32), alone: bool, asked: &[Offload], offload: impl Fn(Offload) -> Offload) {
    let (device, mut driver) = bring_up();
    let whole = packet(true, true, (1, 2), &[7; PAYLOAD], true);
    let (header, payload) = whole.split_first_chunk::<HEADER>().expect("longer");
    let block = device.memory.granted(PAYLOAD, 64);
    device.memory.fill(block.bus, payload);
    // SAFETY: the memory belongs to `device`, and stays as long as it.
    let rest = unsafe { Segment::new(block.bus, PAYLOAD as u16) };
    let frames: Vec<_> =
        asked.iter().cycle().map(|asked| (black_box(header), rest, *asked)).take(batch as usize + 2).collect();
    for round in 0..rounds {
        let mut back = 0;
        // Batches start at different requests, so that even batches of one frame take all of them in turns.
        let start = (round % 3) as usize;
        let frames = &frames[start..start + batch as usize];
        device.measure(batch, || {
            let mut came = 0;
            driver.reclaim(0, |token, _| came = mix(came, token));
            back = came;
            if alone {
                for (header, rest, asked) in frames {
                    let frame = Outgoing { header: &header[..], segments: &[*rest], offload: offload(*asked) };
                    assert!(driver.transmit(0, &frame, TOKEN).is_ok(), "there is room");
                }
            } else {
                let (taken, refused) = driver.transmit_all(0, frames, |(header, rest, asked), room| {
                    *room.first_chunk_mut()? = **header;
                    Some(Single { header: HEADER, rest: *rest, offload: offload(*asked), token: TOKEN })
                });
                assert!(taken == frames.len() && refused.is_none(), "there is room");
            }
            driver.flush(0);
        });
        assert_eq!(back, mixed(if round == 0 { 0 } else { batch }), "every token is back");
        let mut sent = 0;
        while let Some(frame) = device.model.borrow_mut().take_sent() {
            assert!(frame.ends_with(payload), "a frame leaves whole");
            sent += 1;
        }
        assert_eq!(sent, batch);
    }
    assert_eq!(driver.reclaim(0, |token, _| assert_eq!(token, TOKEN)), batch);
    device.done();
}

/// Combines a token with those before. It depends on their order, so that the compiler cannot handle several tokens at
/// once.
fn mix(before: u64, token: u64) -> u64 {
    before.rotate_left(1) ^ token
}

/// The result of [`mix`] for the tokens of `count` frames.
fn mixed(count: u32) -> u64 {
    (0..count).fold(0, |before, _| mix(before, TOKEN))
}

fn checksum() -> Offload {
    Offload::of_checksum(PartialChecksum { start: 34, offset: 16 }).expect("within a header")
}
