//! A guest that tests its virtual machine from inside, and makes I/O that can be counted exactly.
//!
//! It starts like a kernel, by the 64-bit Linux boot protocol. It uses one vCPU, but for races, and writes to COM1. Its tests look
//! like unit tests there. Each also writes a line for scripts:
//!
//! ```text
//! test interrupts::self_ipi_arrives ... ok
//! SC {"do":"test","name":"interrupts::self_ipi_arrives","passed":true}
//! test timer::one_shot_fires_once ... FAILED taken: [d1, d1], expected [d1]
//! SC {"do":"test","name":"timer::one_shot_fires_once","passed":false,"why":"taken: [d1, d1], expected [d1]"}
//! SC {"do":"tests","passed":49,"failed":1}
//! ```
//!
//! Words on the command line:
//!
//! - `do=A,B,...`: the actions, one after another. Then the guest powers itself off.
//!   - `tests`: runs every test of `tests.rs`.
//!   - `singles:N`, `requests:N`, `stream:N`: makes I/O, see `load.rs`. `requests` and `stream` need a peer that runs
//!     `serve`. Before and after the I/O the guest reports `ready` and waits for a line, so that its counters can be
//!     read.
//!   - `paced:US`, `paced-full:US`: sends a frame every US microseconds until a line is typed: a short one that goes nowhere, or
//!     a full one to the peer. See `load.rs`.
//!   - `latency:N`: makes requests as `requests` does, for ever, and reports after each N how long they took.
//!   - `stream-on`: makes a stream as `stream` does, for ever.
//!   - `disk-singles:N`, `disk-deep:N`: the same with a disk, see `blocks.rs`.
//!   - `abuse:N`: makes N rounds of each abuse that must harm nobody else, see `abuse.rs`.
//!   - `fall`, `stick:0`, `stick:1`, `misaligned`: make an abuse that ends the guest, see `abuse.rs`.
//!   - `uncached`: sets CR0.CD, reports CR0 as it reads it, and keeps its CPU for ever with a marker in R15, so that CR0 can
//!     be looked at from outside.
//!   - `exits:KIND`: makes exits of a kind for ever, see `cost.rs`.
//!   - `noise`: leaves rings of a network device and of a disk behind, as firmware does, see `noise.rs`.
//!   - `obey`: reads actions from the console, one a line.
//!   - `chains:LEAST`, `small-mss:LEAST`, `babble:LEAST`: flood an engine or the console until a line is typed, see `flood.rs`.
//!   - `race-decode:LEAST`, `race-reset:LEAST`, `race-startup:LEAST`: races of two vCPUs until a line is typed, see `race.rs`. They
//!     need a second vCPU, and `race-reset` a disk. `busy`: the same without a race.
//!   - `serve`: answers the peer as long as the guest runs.
//! - `peer=02:00:00:00:00:02`: the peer's address.
//! - `only=TEXT`: runs only tests with this text in their names.
//! - `except=NAME,NAME`: leaves these tests out.
//! - `self-check`: runs one more test, which expects something wrong. It must fail.

#![no_std]
#![no_main]

mod abuse;
mod apic;
mod blocks;
mod cost;
mod device;
mod disk;
mod events;
mod flood;
mod load;
mod noise;
mod race;
mod raw;
mod report;
mod tests;
mod time;
mod transport;

use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use bare::boot::Machine;
use bare::virtio_pci::Parts;

use device::Mac;
use report::say;

bare::entry!(main);

fn main(machine: &Machine) -> ! {
    events::init();
    apic::init();
    let device = Parts::of_nets().next();
    let disk = Parts::of_disks().next();
    let peer = machine.option("peer=").and_then(Mac::parse);
    for action in machine.option("do=").unwrap_or("tests").split(',') {
        act(action, machine, (device, disk), peer);
    }
    bare::power_off()
}

/// The names of the actions.
const ACTIONS: [&str; 26] = [
    "tests",
    "exits",
    "noise",
    "singles",
    "requests",
    "stream",
    "paced",
    "stream-on",
    "paced-full",
    "latency",
    "serve",
    "disk-singles",
    "disk-deep",
    "abuse",
    "fall",
    "stick",
    "misaligned",
    "uncached",
    "obey",
    "chains",
    "small-mss",
    "babble",
    "race-decode",
    "race-reset",
    "race-startup",
    "busy",
];
/// The action that runs, as an index. A panic reports its name, so that a script does not wait for its result for ever.
static AT_WORK: AtomicUsize = AtomicUsize::new(0);

const NONE: &str = "no such action, or no device, peer or count for it";

fn act(action: &str, machine: &Machine, (device, disk): (Option<Parts>, Option<Parts>), peer: Option<Mac>) {
    let (name, count) = action.split_once(':').unwrap_or((action, "0"));
    AT_WORK.store(ACTIONS.iter().position(|known| *known == name).unwrap_or(0), Relaxed);
    let result = match (name, count.parse(), device, peer) {
        ("tests", ..) => {
            tests::run(machine);
            Ok(())
        }
        ("exits", Ok(kind), ..) => cost::exits(kind),
        ("singles", Ok(count), Some(device), _) => load::singles(device, count),
        ("requests", Ok(count), Some(device), Some(peer)) => load::requests(device, peer, count),
        ("stream", Ok(count), Some(device), Some(peer)) => load::stream(device, peer, count),
        ("stream-on", _, Some(device), Some(peer)) => load::stream_on(device, peer),
        ("paced", Ok(us), Some(device), _) => load::paced(name, device, None, us),
        ("paced-full", Ok(us), Some(device), Some(_)) => load::paced(name, device, peer, us),
        ("latency", Ok(count), Some(device), Some(peer)) => load::latency(device, peer, count),
        ("noise", _, Some(device), _) => match Parts::of_disks().next() {
            Some(disk) => noise::all(device, disk),
            None => Err("no disk"),
        },
        ("serve", _, Some(device), _) => load::serve(device),
        ("disk-singles", Ok(count), ..) => disk.map_or(Err(NONE), |disk| blocks::singles(disk, count)),
        ("disk-deep", Ok(count), ..) => disk.map_or(Err(NONE), |disk| blocks::deep(disk, count)),
        ("abuse", Ok(rounds), ..) => abuse::all(device, rounds),
        ("fall", ..) => abuse::fall(),
        ("stick", Ok(deep), ..) => abuse::stick(deep != 0),
        ("misaligned", ..) => abuse::alignment::stick(),
        ("obey", ..) => {
            obey(machine, (device, disk), peer);
            Ok(())
        }
        ("chains", Ok(least), Some(device), Some(peer)) => flood::chains(device, peer, least.into()),
        ("small-mss", Ok(least), Some(device), Some(peer)) => flood::small_mss(device, peer, least.into()),
        ("babble", Ok(least), ..) => flood::babble(least.into()),
        ("race-decode", Ok(least), Some(device), _) => race::decode(device, least.into()),
        ("race-reset", Ok(least), Some(device), _) => {
            disk.map_or(Err(NONE), |disk| race::reset(device, disk, least.into()))
        }
        ("race-startup", Ok(least), ..) => race::startup(least.into()),
        ("busy", ..) => race::busy(),
        ("uncached", ..) => abuse::uncached(),
        _ => Err(NONE),
    };
    if let Err(why) = result {
        say!("\"do\":\"{name}\",\"error\":\"{why}\"");
    }
}

/// Longest line, in bytes.
const LINE: usize = 64;

/// Reads actions from the console, one a line, for ever.
fn obey(machine: &Machine, devices: (Option<Parts>, Option<Parts>), peer: Option<Mac>) {
    say!("\"do\":\"obey\"");
    loop {
        let mut line: heapless::String<LINE> = heapless::String::new();
        loop {
            match bare::console::typed() {
                Some(b'\n') => break,
                // What is too long is no action.
                Some(byte) => drop(line.push(byte.into())),
                None => time::spin_us(1000),
            }
        }
        act(&line, machine, devices, peer);
    }
}

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    bare::console::line(format_args!("probe: {info}"));
    let name = ACTIONS.get(AT_WORK.load(Relaxed)).unwrap_or(&"");
    say!("\"do\":\"{name}\",\"error\":\"panic\"");
    bare::power_off()
}
