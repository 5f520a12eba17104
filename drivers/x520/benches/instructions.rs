//! The driver's data path on memory that a device would write to: what `cargo mk bench nic` counts the instructions of.
//!
//! `instructions CASE BATCH ROUNDS`. Only what is called [`measured`] is the driver; the device's part, writing descriptors
//! back, is done between two calls. Started by hand it only says that it works.

#![allow(unsafe_code, reason = "memory is given to a device that is not there")]

use std::hint::black_box;
use std::process::ExitCode;
use std::ptr::NonNull;

use x520::dma::DmaBuffer;
use x520::nic::{Link, Nic, Offload, Outgoing, PartialChecksum, Segment};
use x520::registers::{BAR_BYTES, Mmio};
use x520::{Config, Filter, Status, X520};

const CTRL: usize = 0x0;
const RDBAL: usize = 0x1000;
const RDT: usize = 0x1018;
const RDRXCTL: usize = 0x2f00;
const LINKS: usize = 0x42a4;
const TDBAL: usize = 0x6000;
const TDT: usize = 0x6018;
const RAL: usize = 0xa200;
const RAH: usize = 0xa204;
const EEC: usize = 0x1_0010;
const EEMNGCTL: usize = 0x1_0110;

/// Descriptors of either ring.
const RING: u32 = 512;
/// Ethernet, IPv4 and TCP.
const HEADER: usize = 54;
/// The rest of a frame of 64 bytes, and of one of 1,514.
const PAYLOAD: u16 = 1460;

/// Registers that only remember, and rings whose other end is this program.
struct Device {
    bar: NonNull<u32>,
    /// The next descriptor to write back.
    receive: u32,
    transmit: u32,
}

/// Memory for good, zeroed and aligned to a page.
fn leak(bytes: usize) -> NonNull<u8> {
    let words = vec![0u128; (bytes + 4096) / 16].leak();
    let start = words.as_mut_ptr().cast::<u8>();
    NonNull::new(start.wrapping_add(start.align_offset(4096))).expect("not null")
}

impl Device {
    fn register(&self, offset: usize) -> *mut u32 {
        assert!(offset < BAR_BYTES);
        self.bar.as_ptr().wrapping_add(offset / 4)
    }

    fn get(&self, offset: usize) -> u32 {
        // SAFETY: within the memory that stands for the BAR, which is used by this thread alone.
        unsafe { self.register(offset).read_volatile() }
    }

    fn set(&self, offset: usize, value: u32) {
        // SAFETY: as in `get`.
        unsafe { self.register(offset).write_volatile(value) };
    }

    /// The two words of a descriptor in the ring whose base registers are at `base`.
    fn descriptor(&self, base: usize, index: u32) -> *mut [u64; 2] {
        let ring = u64::from(self.get(base)) | u64::from(self.get(base + 4)) << 32;
        std::ptr::with_exposed_provenance_mut::<[u64; 2]>(ring as usize).wrapping_add((index % RING) as usize)
    }

    /// Frames of 60 bytes with a good TCP checksum come in.
    fn receive(&mut self, frames: u32) {
        let tail = self.get(RDT);
        for _ in 0..frames {
            assert_ne!(self.receive % RING, tail, "the driver has given back what it took");
            // Packet type IPv4 and TCP; done, end of packet, checksums looked at, 60 bytes.
            let words = [0x11 << 4, 60 << 32 | 1 << 6 | 1 << 5 | 3];
            // SAFETY: within the driver's ring, at a descriptor that is the device's.
            unsafe { self.descriptor(RDBAL, self.receive).write_volatile(words) };
            self.receive = self.receive.wrapping_add(1);
        }
    }

    /// What was shown is sent; the descriptors that ask for it are written back.
    fn transmit(&mut self) {
        while self.transmit % RING != self.get(TDT) {
            let at = self.descriptor(TDBAL, self.transmit);
            // SAFETY: within the driver's ring, at a descriptor that is the device's.
            unsafe {
                if (*at)[1] >> 27 & 1 == 1 && (*at)[1] >> 20 & 0xf == 3 {
                    (*at)[1] = 1 << 32;
                }
            }
            self.transmit = self.transmit.wrapping_add(1);
        }
    }
}

type Driver = X520<Mmio, u64>;

/// A driver brought up on registers that only remember.
fn bring_up() -> (Device, Driver) {
    let bar = leak(BAR_BYTES).cast();
    let device = Device { bar, receive: 0, transmit: 0 };
    for (offset, value) in [(EEC, 1 << 9), (EEMNGCTL, 1 << 18), (RDRXCTL, 1 << 3), (RAL, 2), (RAH, 1 << 31)] {
        device.set(offset, value);
    }
    device.set(LINKS, 1 << 30 | 3 << 28);
    let config = Config { receive_descriptors: RING, transmit_descriptors: RING, ..Config::default() };
    let len = config.memory();
    let memory = leak(len);
    // SAFETY: leaked, and nobody else has it; the device sees it where the CPU does.
    let memory = unsafe { DmaBuffer::new(memory, memory.as_ptr().expose_provenance() as u64, len) };
    // SAFETY: memory in the place of a BAR, as large as one, leaked.
    let registers = unsafe { Mmio::new(bar) };
    let mut driver = Driver::new(registers, memory, config, Filter::all()).expect("a good configuration");
    for millisecond in 1..1000 {
        driver.service(millisecond * 1000);
        // Reset clears itself.
        device.set(CTRL, device.get(CTRL) & !(1 << 26));
    }
    assert_eq!((driver.status(), driver.link()), (Status::Running, Link::Up(10_000)));
    (device, driver)
}

/// A frame's header, as an engine has it.
fn header() -> [u8; HEADER] {
    let mut h = [0; HEADER];
    h[12..14].copy_from_slice(&[8, 0]);
    h[14] = 0x45;
    h[23] = 6;
    h[46] = 0x50;
    h
}

/// Everything that is counted goes through here, by whose name it is found.
#[inline(never)]
fn measured(work: &mut impl FnMut()) {
    work();
}

/// Batches of frames received and their buffers given back.
fn receive(device: &mut Device, driver: &mut Driver, batch: u32, rounds: u32) {
    for _ in 0..rounds {
        device.receive(batch);
        let mut count = 0;
        measured(&mut || {
            count = driver.receive(0, batch, |frame| {
                black_box(frame.pieces[0].as_ptr());
                black_box(frame.checked);
            });
        });
        assert_eq!(count, batch);
    }
}

/// Batches of frames sent, and the batch before reclaimed.
fn transmit(device: &mut Device, driver: &mut Driver, batch: u32, rounds: u32, offload: impl Fn(u32) -> Offload) {
    let header = black_box(header());
    // SAFETY: nothing reads it: there is no device.
    let segments = [unsafe { Segment::new(0x1000, PAYLOAD) }];
    let frames: Vec<_> =
        (0..batch + 2).map(|i| Outgoing { header: &header, segments: &segments, offload: offload(i) }).collect();
    let mut back = 0;
    for round in 0..rounds {
        // A batch of one has not the same offload each time.
        let start = (round % 3) as usize;
        let frames = &frames[start..start + batch as usize];
        measured(&mut || {
            driver.reclaim(0, |token, _| back += token);
            for frame in frames {
                if driver.transmit(0, frame, 1).is_err() {
                    panic!("the ring is full");
                }
            }
            driver.flush(0);
        });
        device.transmit();
    }
    driver.reclaim(0, |token, _| back += token);
    assert_eq!(back, u64::from(batch) * u64::from(rounds), "every token is back");
}

fn checksum(vlan: Option<u16>) -> Offload {
    Offload { checksum: Some(PartialChecksum { start: 34, offset: 16 }), mss: None, vlan }
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let number = |at: usize, default| args.get(at).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (batch, rounds) = (number(1, 32), number(2, 64));
    let (mut device, mut driver) = bring_up();
    let (d, n) = (&mut device, &mut driver);
    match args.first().map_or("receive", String::as_str) {
        "receive" => receive(d, n, batch, rounds),
        "transmit" => transmit(d, n, batch, rounds, |_| Offload::default()),
        // A context that the device knows, and one that it does not: three tags do not fit into two slots.
        "transmit-checksum" => transmit(d, n, batch, rounds, |_| checksum(None)),
        "transmit-context" => transmit(d, n, batch, rounds, |i| checksum(Some((i % 3) as u16))),
        other => {
            eprintln!("{other}: receive, transmit, transmit-checksum or transmit-context");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
