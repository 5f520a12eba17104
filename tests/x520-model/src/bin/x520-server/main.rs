//! Serves the model to QEMU as a PCI device by vfio-user (QEMU: `vfio-user-pci`).
//!
//! Its wire is a pair of UNIX datagram sockets, whose other end is another server or QEMU's own `-netdev dgram`, or a tap
//! interface. What the guest's driver does that it should not goes to standard error. Standard input takes commands, one a
//! line; what they are answered, and when bus mastering begins and ends, goes to standard output:
//!
//! | command | answer | |
//! |---|---|---|
//! | `cable out`, `cable in` | | |
//! | `watch ADDRESS BYTES` | | counts from now on how often the device reaches that memory, too |
//! | `module NAME`, `module none` | | what is in the SFP+ cage: names as in `x520_model::sfp` |
//! | `fail gone`, `fail receive-stalled`, `fail transmit-stalled`, `fail nothing` | | what goes wrong from now on |
//! | `fail module-silent`, `fail module-bad`, `fail module-slow` | | the same, of the module's two wires |
//! | `partner 1000`, `partner 10000` | | the rate of the wire's other end in Mb/s |
//! | `offers NAMES` | | what a backplane's other end offers, of `kr`, `kx4`, `kx` |
//! | `lights` | `lights LEDCTL` | the register of the lights, in hexadecimal |
//! | `touched` | `touched READS WRITES` | what was counted |
//! | | `bus-master on`, `bus-master off` | when it changes |

#![allow(
    unsafe_code,
    reason = "a guest's memory is mapped, and the system is asked for what the standard library has not"
)]

mod config_space;
mod device;
mod memory;
mod wire;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Parser};
use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_AUTOMASKED, VFIO_IRQ_INFO_EVENTFD, VFIO_IRQ_INFO_MASKABLE, VFIO_PCI_BAR0_REGION_INDEX,
    VFIO_PCI_BAR4_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_INTX_IRQ_INDEX, VFIO_PCI_MSIX_IRQ_INDEX,
    VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS, VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE, vfio_region_info,
};
use vfio_user::{IrqInfo, Server, ServerRegion};
use x520_model::sfp::Module;
use x520_model::{Offers, pcap};

use crate::device::{Device, Shared, lock};
use crate::memory::Touched;
use crate::wire::Wire;

/// Serves a model of Intel's 82599 to QEMU.
#[derive(Parser)]
#[command(name = "x520-server")]
struct Options {
    /// Socket that QEMU connects to.
    socket: PathBuf,
    #[command(flatten)]
    wire: WireOptions,
    /// Address in the EEPROM.
    #[arg(long, value_parser = mac)]
    mac: Option<[u8; 6]>,
    /// Module in the SFP+ cage: a name of `x520_model::sfp`, or `none`.
    #[arg(long, value_parser = module, default_value = "sr")]
    module: ModuleChoice,
    /// A card for a backplane instead of one with a cage. It offers these, of `kr`, `kx4`, `kx`, with commas between them.
    #[arg(long, value_parser = offers, conflicts_with = "module")]
    backplane: Option<Offers>,
    /// Which port of the card it is: 0 or 1.
    #[arg(long, value_parser = clap::value_parser!(u8).range(0..2), default_value = "0")]
    port: u8,
    /// The EEPROM allows optics of any vendor.
    #[arg(long)]
    any_module: bool,
    /// Writes all frames of the wire, in both directions, to this capture file.
    #[arg(long)]
    pcap: Option<PathBuf>,
    /// Frames of this capture file come in by the wire, at the distances they have there, once the link is up.
    #[arg(long)]
    replay: Option<PathBuf>,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct WireOptions {
    /// Datagram sockets: one to bind here, and the other end's.
    #[arg(long, num_args = 2, value_names = ["OWN", "PEER"])]
    wire: Option<Vec<PathBuf>>,
    /// A tap interface.
    #[arg(long)]
    tap: Option<String>,
}

/// What is in the cage.
#[derive(Clone, Copy)]
struct ModuleChoice(Option<Module>);

fn module(name: &str) -> Result<ModuleChoice, String> {
    let known = || Module::all().map(|m| m.name).collect::<Vec<_>>().join(", ");
    match Module::named(name) {
        None if name != "none" => Err(format!("{name} is no module; there are: none, {}", known())),
        module => Ok(ModuleChoice(module)),
    }
}

fn offers(names: &str) -> Result<Offers, String> {
    Offers::named(names).ok_or_else(|| format!("{names}: the modes of a backplane are kr, kx4, kx"))
}

fn mac(text: &str) -> Result<[u8; 6], String> {
    let bytes: Result<Vec<u8>, _> = text.split(':').map(|b| u8::from_str_radix(b, 16)).collect();
    bytes.ok().and_then(|b| b.try_into().ok()).ok_or_else(|| format!("{text} is no MAC address: six hexadecimal bytes"))
}

/// Bytes of the packet buffer on the transmit side (8.2.3.9).
const TRANSMIT_BUFFER: usize = 160 << 10;
/// How often it is looked whether frames may come again.
const SILENCE: Duration = Duration::from_micros(100);
/// How often the model's clock moves while nothing happens.
const BEAT: Duration = Duration::from_millis(1);

fn main() -> ExitCode {
    match serve(Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("x520-server: {why}");
            ExitCode::FAILURE
        }
    }
}

fn serve(options: Options) -> Result<(), String> {
    let mut config = x520_model::Config {
        transmit_buffer: TRANSMIT_BUFFER,
        port: options.port,
        any_module: options.any_module,
        module: options.module.0.filter(|_| options.backplane.is_none()),
        backplane: options.backplane.map(Offers::autoc),
        ..x520_model::Config::default()
    };
    if let Some(mac) = options.mac {
        config.mac = mac;
    }
    let wire = match (&options.wire.wire.as_deref(), &options.wire.tap) {
        (Some([own, peer]), _) => Wire::sockets(own, peer.clone()).map_err(|e| format!("{}: {e}", own.display()))?,
        (_, Some(name)) => Wire::tap(name).map_err(|e| format!("tap {name}: {e}"))?,
        _ => return Err("no wire".to_owned()),
    };
    let capture = options.pcap.as_deref().map(capture).transpose()?;
    let replay = options.replay.as_deref().map(recorded).transpose()?;
    let wake = Arc::new(Condvar::new());
    let device = Arc::new(Mutex::new(Device::new(config, Arc::clone(&wake), capture)));
    let (out, sender) = (wire.try_clone().map_err(|e| e.to_string())?, Arc::clone(&device));
    thread::spawn(move || send(out, &sender, &wake));
    let receiver = Arc::clone(&device);
    thread::spawn(move || receive(wire, &receiver));
    let told = Arc::clone(&device);
    thread::spawn(move || obey(&told));
    if let Some(frames) = replay {
        let player = Arc::clone(&device);
        thread::spawn(move || play(&frames, &player));
    }
    let server = Server::new(&options.socket, true, irqs(), regions()).map_err(|e| e.to_string())?;
    server.run(&mut Shared(device)).map_err(|e| e.to_string())
}

fn capture(path: &Path) -> Result<pcap::Writer<File>, String> {
    let file = File::create(path).map_err(|e| format!("{}: {e}", path.display()))?;
    pcap::Writer::new(file).map_err(|e| format!("{}: {e}", path.display()))
}

fn recorded(path: &Path) -> Result<Vec<pcap::Frame>, String> {
    File::open(path).and_then(pcap::read).map_err(|e| format!("{}: {e}", path.display()))
}

/// One frame at a time: what the wire has not room for stays in the device, where flow control still reaches it.
fn send(mut wire: Wire, device: &Mutex<Device>, wake: &Condvar) {
    loop {
        let frame = {
            let mut device = lock(device);
            loop {
                match device.take_sent() {
                    Some(frame) => break frame,
                    None => device = wake.wait(device).unwrap_or_else(PoisonError::into_inner),
                }
            }
        };
        wire.send(&frame);
    }
}

/// Frames and time come while the guest is silent, too.
fn receive(mut wire: Wire, device: &Mutex<Device>) {
    let mut buffer = [0; 16_384];
    let (mut wait, mut silence) = (BEAT, false);
    loop {
        // The other end is a process that may not run for a while: silence that was asked for is kept here.
        let frame = if silence { None } else { wire.receive(&mut buffer, wait) };
        if silence {
            thread::sleep(SILENCE);
        }
        let mut device = lock(device);
        device.turn(frame);
        wait = device.throttled().map_or(BEAT, |t| t.min(BEAT));
        silence = device.asks_for_silence();
    }
}

fn obey(device: &Mutex<Device>) {
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.trim() {
            "cable out" => lock(device).set_cable(false),
            "cable in" => lock(device).set_cable(true),
            "touched" => {
                let Touched { reads, writes } = lock(device).touched();
                println!("touched {reads} {writes}");
            }
            "lights" => println!("lights {:08x}", lock(device).lights()),
            other if lock(device).obeys(other) => {}
            other => eprintln!("x520-server: {other:?} is no command"),
        }
    }
}

fn play(frames: &[pcap::Frame], device: &Mutex<Device>) {
    while !lock(device).link_is_up() {
        thread::sleep(BEAT);
    }
    let (begin, first) = (Instant::now(), frames.first().map_or(0, |f| f.microseconds));
    for frame in frames {
        let at = begin + Duration::from_micros(frame.microseconds.saturating_sub(first));
        thread::sleep(at.saturating_duration_since(Instant::now()));
        lock(device).turn(Some(&frame.bytes));
    }
}

fn regions() -> Vec<ServerRegion> {
    let size = |index| match index {
        VFIO_PCI_BAR0_REGION_INDEX => 0x2_0000,
        VFIO_PCI_BAR4_REGION_INDEX => 0x4000,
        VFIO_PCI_CONFIG_REGION_INDEX => 0x1000,
        _ => 0,
    };
    (0..VFIO_PCI_NUM_REGIONS)
        .map(|index| ServerRegion {
            region_info: vfio_region_info {
                argsz: size_of::<vfio_region_info>() as u32,
                flags: VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE,
                index,
                size: size(index),
                ..Default::default()
            },
            sparse_areas: Vec::new(),
            mmap_fd: None,
        })
        .collect()
}

fn irqs() -> Vec<IrqInfo> {
    (0..VFIO_PCI_NUM_IRQS)
        .map(|index| match index {
            VFIO_PCI_INTX_IRQ_INDEX => IrqInfo {
                index,
                flags: VFIO_IRQ_INFO_EVENTFD | VFIO_IRQ_INFO_MASKABLE | VFIO_IRQ_INFO_AUTOMASKED,
                count: 1,
            },
            VFIO_PCI_MSIX_IRQ_INDEX => IrqInfo { index, flags: VFIO_IRQ_INFO_EVENTFD, count: config_space::VECTORS },
            _ => IrqInfo { index, flags: VFIO_IRQ_INFO_EVENTFD, count: 0 },
        })
        .collect()
}
