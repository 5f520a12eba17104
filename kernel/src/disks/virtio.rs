//! The machine's virtio disks, if sidecore itself runs in a virtual machine.
//!
//! A device that a guest names belongs to the engine from [`take`] on. All others are reset.

use crate::{
    arch::time::now_micros,
    heap,
    pci::Function,
    report,
    virtio_pci::{self, Memory, VIRTIO},
};
use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};
use block::virtio_disk::{VirtioDisk, VirtioDisks, geometry};
use config::{Config, ControllerKind, ControllerName, Disk, FoundController, FoundNamespace};
use drivers::pci::Address;
use gpt::Blocks;
use spin::Mutex;
use virtio_blk::{Operation, Part, SECTOR, Shape, Status, VirtioBlk};
use virtio_drivers::transport::pci::PciTransport;

/// The driver of a device.
pub type Device = VirtioBlk<Memory, PciTransport>;
/// The storage over an engine's devices.
pub type Storage = VirtioDisks<Memory, PciTransport>;

/// Block devices by the transitional and by the modern identifier (virtio 1.3, 4.1.2).
const VIRTIO_BLK: [u16; 2] = [0x1001, 0x1042];
/// The most disks that have names: `vda` to `vdz`.
const MOST: usize = 26;
/// Most microseconds that a read of the partition table may take.
const READ_TIME: u64 = 60_000_000;

/// A device that was set up.
struct Driven {
    number: u8,
    function: Function,
    shape: Shape,
    /// The device, before the engine gets it.
    device: Option<Device>,
    /// Its index in the engine's storage.
    index: Option<usize>,
}

/// The devices that were set up.
static DRIVEN: Mutex<Vec<Driven>> = Mutex::new(Vec::new());

/// Asks the virtio disks among `functions` what they are, and sets them up if a guest names one.
pub fn open_all(config: &Config, functions: &[Function]) -> Vec<FoundController> {
    let wanted = numbers(config).next().is_some();
    let is_disk = |function: &&Function| function.vendor == VIRTIO && VIRTIO_BLK.contains(&function.device);
    let disks = functions.iter().filter(is_disk).take(MOST);
    (0..).zip(disks).map(|(number, &function)| open(number, function, wanted)).collect()
}

/// The numbers of the disks that guests name.
fn numbers(config: &Config) -> impl Iterator<Item = u8> {
    config.guests.iter().flat_map(config::Guest::blocks).filter_map(|block| match &block.disk {
        Disk::Machine(name) => match name.controller {
            ControllerName::Virtio(number) => Some(number),
            _ => None,
        },
        _ => None,
    })
}

fn open(number: u8, function: Function, wanted: bool) -> FoundController {
    let Address { bus, device, function: of_device } = function.at;
    let mut found = FoundController {
        kind: ControllerKind::Virtio(number),
        at: (bus, device, of_device),
        serial: Ok(String::new()),
        namespaces: Vec::new(),
    };
    let opened = virtio_pci::transport(&function).and_then(|mut transport| {
        if wanted {
            let device = Device::new(transport).map_err(|e| e.to_string())?;
            Ok((*device.shape(), Some(device)))
        } else {
            Ok((virtio_blk::ask(&mut transport).map_err(|e| e.to_string())?, None))
        }
    });
    match opened {
        Err(why) => {
            function.set_bus_master(false);
            report::warning(format!("virtio disk at {} is not used: {why}", function.at));
            found.serial = Err(why);
        }
        Ok((shape, mut device)) => {
            let blocks = shape.sectors.checked_div(u64::from(shape.block_bytes / SECTOR)).unwrap_or(0);
            let table = device.as_mut().map(|device| {
                let of_table = gpt::Shape { block_bytes: shape.block_bytes, blocks };
                heap::ensure_room(gpt::HEAP).map_err(|e| gpt::Refusal::Unreadable(e.to_string()))?;
                gpt::read(&mut Reader(device), of_table)
            });
            found.namespaces.push(FoundNamespace { id: 1, blocks, table, ..FoundNamespace::default() });
            match device {
                Some(_) => DRIVEN.lock().push(Driven { number, function, shape, device, index: None }),
                None => _ = function.set_bus_master(false),
            }
        }
    }
    found
}

/// The shape of a disk that was set up.
pub fn shape(kind: ControllerKind) -> Option<Shape> {
    DRIVEN.lock().iter().find(|driven| ControllerKind::Virtio(driven.number) == kind).map(|driven| driven.shape)
}

/// Reads blocks of a device that no engine has yet.
struct Reader<'d>(&'d mut Device);

impl Blocks for Reader<'_> {
    fn read(&mut self, first: u64, into: &mut [u8]) -> Result<(), String> {
        let Self(device) = self;
        let in_block = u64::from(device.shape().block_bytes / SECTOR);
        let sectors = into.len() as u32 / SECTOR;
        let part = Part { id: 0, operation: Operation::Read, first: first.saturating_mul(in_block), sectors };
        device.submit(&part, now_micros(), |_| false).map_err(|why| format!("refused: {why:?}"))?;
        device.notify();
        let (begin, mut answer) = (now_micros(), None);
        while answer.is_none() {
            if now_micros().saturating_sub(begin) > READ_TIME {
                device.stop();
                return Err(format!("no answer within {} s", READ_TIME / 1_000_000));
            }
            device.poll(now_micros(), |_, status, data| {
                into.iter_mut().zip(data).for_each(|(place, byte)| *place = *byte);
                answer = Some(status);
            });
            core::hint::spin_loop();
        }
        if answer == Some(Status::Ok) { Ok(()) } else { Err("the device answered with an error".into()) }
    }
}

/// Returns the devices that guests name, for the engine. Resets the others. Called once, after the configuration was
/// checked.
pub fn take(config: &Config) -> Vec<Device> {
    let named: Vec<u8> = numbers(config).collect();
    let mut devices = Vec::new();
    for driven in DRIVEN.lock().iter_mut() {
        let Some(mut device) = driven.device.take() else { continue };
        if named.contains(&driven.number) {
            driven.index = Some(devices.len());
            devices.push(device);
        } else {
            device.stop();
            driven.function.set_bus_master(false);
        }
    }
    devices
}

/// Returns a disk that the engine has.
///
/// # Errors
/// The engine does not have it.
pub fn disk(number: u8, read_only: bool) -> Result<VirtioDisk, String> {
    let all = DRIVEN.lock();
    let driven = all.iter().find(|driven| driven.number == number).ok_or("its device is not driven")?;
    let device = driven.index.ok_or("its device has no driver")?;
    Ok(VirtioDisk { device, geometry: geometry(&driven.shape, read_only) })
}
