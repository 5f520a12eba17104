//! The machine's disks: finds the NVMe controllers and the virtio disks, starts those that guests name, serves them, and
//! shuts them down.
//!
//! The control core calls [`service`] once a tick. The engine owns the I/O queues, and the virtio disks.

mod nvme_device;
mod tables;
mod virtio;

use crate::{
    arch::time::{self, now_micros},
    options,
    pci::{self, Function},
    report,
};
use alloc::{format, string::String, string::ToString, vec::Vec};
use block::{
    emulate::{BOUNCE_BYTES, Emulate},
    nvme::{Namespace, geometry},
    pair::{Either, Pair},
    part::{Part, Parts},
    storage::Geometry,
    virtio_disk::VirtioDisk,
};
use config::{Block, Config, ControllerKind, Disk, Extent, FoundController, FoundNamespace, disk_line};
use drivers::pci::Address;
use memory::GuestMemory;
use nvme::{Controller, ControllerStatus};
use nvme_device::{Bit, Mmio, Place, Queue};
use spin::Mutex;
use tables::{Idle, table, wipe};

pub use nvme_device::notify_abrupt_shutdown;

/// A whole disk of the machine.
pub type Whole = Either<Namespace, VirtioDisk>;
/// The storage over an engine's disks: parts of them, with or without emulated blocks.
pub type Storage = Emulate<Parts<Pair<nvme_device::Storage, virtio::Storage>>>;

/// What an engine gets of the machine's disks.
pub struct EngineDisks {
    queues: Vec<Queue>,
    devices: Vec<virtio::Device>,
    /// The bounce buffers of disks with emulated blocks.
    bounce: GuestMemory,
}

impl EngineDisks {
    /// Makes the storage over them.
    pub fn into_storage(self) -> Storage {
        // A guest's memory has the same address for the CPU and for a disk.
        let nvme = nvme_device::Storage::new(self.queues, time::micros(1), 0);
        let whole = Pair::new(nvme, virtio::Storage::new(self.devices, time::micros(1)));
        Emulate::new(Parts::new(whole), self.bounce)
    }
}

/// Most microseconds that the boot waits for the controllers, all together.
const START_TIME: u64 = 30_000_000;
/// Most microseconds that the end of sidecore waits for the controllers. The driver has a time limit for each step; this
/// is for a core that does not poll its queue.
const STOP_TIME: u64 = 65_000_000;
/// Most microseconds that the boot waits until a controller that no guest names is shut down.
const UNUSED_TIME: u64 = 10_000_000;
/// Microseconds between two looks at whether a controller has come back.
const LOOK_TIME: u64 = 500_000;
/// Most partitions of a namespace that are listed in the report.
const MAX_LISTED: usize = 32;

/// A controller.
struct Driven {
    at: Address,
    place: Place,
    /// When it is next looked at whether it has come back, in microseconds.
    next_look: u64,
    controller: Controller<Mmio, Bit>,
    /// Its queue, before the engine gets it.
    queue: Option<Queue>,
    /// The index of its queue in the engine's storage.
    number: Option<usize>,
    /// Its usable namespaces.
    namespaces: Vec<Usable>,
}

/// A namespace that guests can have.
struct Usable {
    id: u32,
    format: nvme::Format,
    limits: nvme::Limits,
}

/// What [`open_all`] has found.
struct Disks {
    found: Vec<FoundController>,
    driven: Vec<Driven>,
    /// The blocks that were to be wiped, and how that ended.
    wiped: Vec<(Extent, Result<(), String>)>,
}

/// The machine's disks.
static DISKS: Mutex<Disks> = Mutex::new(Disks { found: Vec::new(), driven: Vec::new(), wiped: Vec::new() });

/// Finds the disks, asks each what it is, and reports it. Returns what was found. Called once, before the guests' memory is
/// given out.
pub fn open_all(config: &Config) -> Vec<FoundController> {
    let functions = pci::functions().unwrap_or_default();
    for function in functions {
        if let Some(name) = hidden(function) {
            report::warning(format!(
                "{name} at {} hides NVMe disks from sidecore: switch Intel VMD (or RAID, RST, \"RAID on\") off in the \
                 firmware's setup",
                function.at
            ));
        }
    }
    let wanted = blocks(config).any(|block| matches!(block.disk, Disk::Machine(_)));
    let opened = functions.iter().filter(|function| function.class() == findings::machine::NVME).map(|&function| {
        let opened = nvme_device::open(function, wanted);
        (
            function.at,
            opened.map(|(controller, queue, place)| Driven {
                at: function.at,
                place,
                next_look: 0,
                controller,
                queue,
                number: None,
                namespaces: Vec::new(),
            }),
        )
    });
    let mut opened: Vec<(Address, Result<Driven, String>)> = opened.collect();
    let settled = |driven: &Driven| !matches!(driven.controller.status(), ControllerStatus::Starting);
    run(opened.iter_mut().filter_map(|(_, driven)| driven.as_mut().ok()).collect(), START_TIME, settled);
    let mut found: Vec<FoundController> = opened.iter_mut().map(|(at, driven)| describe(*at, driven)).collect();
    found.extend(virtio::open_all(config, functions));
    for (at, driven) in &opened {
        tell(&found, *at, driven.as_ref().ok());
    }
    found.iter().for_each(|controller| tell_virtio(&found, controller));
    let driven = opened.into_iter().filter_map(|(_, driven)| driven.ok()).collect();
    *DISKS.lock() = Disks { found: found.clone(), driven, wiped: Vec::new() };
    found
}

const fn triple(at: Address) -> (u8, u8, u8) {
    (at.bus, at.device, at.function)
}

/// Returns the name of a function behind which firmware hides NVMe disks: Intel's Volume Management Device.
fn hidden(function: &Function) -> Option<&'static str> {
    const VMD: [u16; 10] = [0x201d, 0x28c0, 0x467f, 0x4c3d, 0x7d0b, 0x9a0b, 0xa77f, 0xad0b, 0xb06f, 0xb60b];
    (function.vendor == 0x8086 && VMD.contains(&function.device)).then_some("Intel VMD")
}

/// Serves controllers whose queues are still here until all are `settled`, but no longer than `patience` microseconds.
fn run(mut all: Vec<&mut Driven>, patience: u64, settled: impl Fn(&Driven) -> bool) {
    let begin = now_micros();
    while !all.iter().all(|driven| settled(driven)) && now_micros().saturating_sub(begin) < patience {
        for driven in &mut all {
            driven.controller.service(now_micros());
            if let Some(queue) = &mut driven.queue {
                queue.poll(now_micros(), |_, _| {});
            }
        }
        core::hint::spin_loop();
    }
}

/// What is known of a controller, for the configuration. Notes its usable namespaces.
fn describe(at: Address, driven: &mut Result<Driven, String>) -> FoundController {
    let failed = |why: String| FoundController {
        kind: ControllerKind::Nvme,
        at: triple(at),
        serial: Err(why),
        namespaces: Vec::new(),
    };
    let driven = match driven {
        Ok(driven) => driven,
        Err(why) => return failed(why.clone()),
    };
    let serial = match (driven.controller.status(), driven.controller.identity()) {
        (ControllerStatus::Running, Some(identity)) => identity.serial.clone(),
        (ControllerStatus::Failed(failure), _) => return failed(failure.to_string()),
        _ => return failed(format!("it was not ready within {} s", START_TIME / 1_000_000)),
    };
    let mut namespaces = Vec::new();
    let mut formats = Vec::new();
    for namespace in driven.controller.namespaces() {
        let unusable = match &namespace.format {
            Ok(format) if !matches!(format.block_bytes(), 512 | 4096) => {
                Some(format!("its blocks have {} bytes; expected 512 or 4096", format.block_bytes()))
            }
            Ok(format) => {
                // Without a queue nobody will use it.
                let limits = driven.queue.as_ref().and_then(|queue| queue.limits(namespace.id));
                driven.namespaces.extend(limits.map(|limits| Usable { id: namespace.id, format: *format, limits }));
                formats.push((namespaces.len(), *format));
                None
            }
            Err(why) => Some(why.to_string()),
        };
        let format = namespace.format.as_ref().ok();
        namespaces.push(FoundNamespace {
            id: namespace.id,
            unusable,
            blocks: format.map_or(0, |format| format.blocks),
            unique: format.map_or_else(Vec::new, |format| format.identifiers().map(|id| id.to_string()).collect()),
            shared: format.is_some_and(|format| format.shared),
            table: None,
        });
    }
    if let Some(queue) = &mut driven.queue {
        for (index, format) in formats {
            let Some(found) = namespaces.get_mut(index) else { continue };
            found.table = Some(table(Idle::new(&mut driven.controller, queue, &mut now_micros), found.id, &format));
        }
    }
    FoundController { kind: ControllerKind::Nvme, at: triple(at), serial: Ok(serial), namespaces }
}

/// Reports a controller: what it is, its health, and for each namespace the line that gives it to a guest.
fn tell(found: &[FoundController], at: Address, driven: Option<&Driven>) {
    let Some(known) = found.iter().find(|controller| controller.at == triple(at)) else { return };
    let (controller, identity) = match (&known.serial, driven) {
        (Ok(_), Some(Driven { controller, .. })) if controller.identity().is_some() => {
            (controller, controller.identity())
        }
        (Err(why), _) => return report::warning(format!("NVMe controller at {at} is not used: {why}")),
        _ => return,
    };
    let health = controller.health().map_or_else(|| "health not told".into(), |health| health.to_string());
    report::found(format!("NVMe disk at {at}: {}; {health}", identity.map_or_else(String::new, ToString::to_string)));
    for (namespace, known_one) in controller.namespaces().iter().zip(&known.namespaces) {
        let id = namespace.id;
        match (&namespace.format, &known_one.unusable) {
            (Ok(format), None) => {
                report::found(format!(
                    "namespace {id} of {at}: {} MiB in blocks of {} bytes{}: {}",
                    format.bytes() >> 20,
                    format.block_bytes(),
                    if format.read_only { ", write protected" } else { "" },
                    disk_line(found, known, id),
                ));
                tell_table(&format!("namespace {id} of {at}"), known_one, format.block_bytes());
            }
            (_, why) => {
                let why = why.as_deref().unwrap_or("it cannot be read");
                report::warning(format!("namespace {id} of {at} cannot be used: {why}"));
            }
        }
    }
    if controller.unlisted_namespaces() != 0 {
        let (more, all) = (controller.unlisted_namespaces(), nvme::MAX_NAMESPACES);
        report::warning(format!("{more} namespaces of {at} are not listed: the driver uses {all}"));
    }
}

/// Reports a disk's partitions, and what is wrong with its table. `what` names the disk.
fn tell_table(what: &str, disk: &FoundNamespace, block_bytes: u32) {
    let table = match &disk.table {
        None | Some(Err(gpt::Refusal::NoTable)) => return,
        Some(Err(why)) => return report::warning(format!("{what}: {why}")),
        Some(Ok(table)) => table,
    };
    if let Some(damage) = &table.damage {
        report::warning(format!("{what}: {damage}"));
    }
    for partition in table.partitions.iter().take(MAX_LISTED) {
        report::found(format!(
            "partition {} of {what}: {} MiB: partition = \"{}\"",
            partition.number,
            partition.blocks.saturating_mul(u64::from(block_bytes)) >> 20,
            table.name(partition),
        ));
    }
    if let Some(more) = table.partitions.len().checked_sub(MAX_LISTED).filter(|more| *more != 0) {
        report::found(format!("{more} more partitions of {what} are not listed"));
    }
}

/// Reports a virtio disk.
fn tell_virtio(found: &[FoundController], controller: &FoundController) {
    let ((bus, device, function), ControllerKind::Virtio(_), [disk]) =
        (controller.at, controller.kind, &controller.namespaces[..])
    else {
        return;
    };
    let what = format!("virtio disk at {}", Address { bus, device, function });
    let line = disk_line(found, controller, disk.id);
    let Some(shape) = virtio::shape(controller.kind) else {
        return report::found(format!("{what}: {} blocks: {line}", disk.blocks));
    };
    let mib = disk.blocks.saturating_mul(u64::from(shape.block_bytes)) >> 20;
    let protected = if shape.read_only { ", write protected" } else { "" };
    report::found(format!("{what}: {mib} MiB in blocks of {} bytes{protected}: {line}", shape.block_bytes));
    tell_table(&what, disk, shape.block_bytes);
}

/// Shuts down what no guest has, and returns the rest, for the engine. Called once, after the configuration was checked.
pub fn take(config: &Config) -> EngineDisks {
    EngineDisks { queues: take_queues(config), devices: virtio::take(config), bounce: take_bounce(config) }
}

fn take_queues(config: &Config) -> Vec<Queue> {
    let mut all = DISKS.lock();
    let Disks { found, driven, wiped } = &mut *all;
    *wiped = wipe_all(config, found, driven);
    let named = blocks(config).filter_map(|block| match &block.disk {
        Disk::Machine(name) => name.find(found).ok().and_then(|(controller, _)| Some(found.get(controller)?.at)),
        _ => None,
    });
    let named: Vec<_> = named.collect();
    let mut unused: Vec<&mut Driven> = driven.iter_mut().filter(|d| !named.contains(&triple(d.at))).collect();
    unused.iter_mut().for_each(|driven| driven.controller.stop(now_micros()));
    run(unused, UNUSED_TIME, has_ended);
    let mut queues = Vec::new();
    for driven in driven.iter_mut().filter(|driven| named.contains(&triple(driven.at))) {
        // A late answer to a request of ours must not reach the engine.
        if let Some(queue) = driven.queue.take_if(|queue| queue.outstanding() == 0) {
            driven.number = Some(queues.len());
            queues.push(queue);
        }
    }
    queues
}

/// Wipes the disks of the configuration that are to be wiped. Returns how that ended for each.
fn wipe_all(config: &Config, found: &[FoundController], driven: &mut [Driven]) -> Vec<(Extent, Result<(), String>)> {
    let mut wiped = Vec::new();
    for block in blocks(config).filter(|block| block.wipe) {
        let Ok(Some(extent)) = Extent::of(block, found, options::booted()) else { continue };
        let Some(FoundController { at, namespaces, .. }) = found.get(extent.controller) else { continue };
        let Some(&FoundNamespace { id, .. }) = namespaces.get(extent.namespace) else { continue };
        let Some(driven) = driven.iter_mut().find(|driven| triple(driven.at) == *at) else { continue };
        let Some(queue) = &mut driven.queue else { continue };
        let what = format!(
            "blocks {} to {} of namespace {id} of {}",
            extent.first,
            extent.first.saturating_add(extent.blocks).saturating_sub(1),
            driven.at
        );
        report::decision(format!("{what} are wiped, as line {} asks", block.place.line));
        let ended = wipe(Idle::new(&mut driven.controller, queue, &mut now_micros), id, extent.first, extent.blocks);
        if let Err(why) = &ended {
            report::warning(format!("{what} could not be wiped: {why}"));
        }
        wiped.push((extent, ended));
    }
    wiped
}

/// All block devices of the guests.
fn blocks(config: &Config) -> impl Iterator<Item = &Block> {
    config.guests.iter().flat_map(config::Guest::blocks)
}

/// Whether a guest has a disk with emulated blocks.
fn wants_bounce(config: &Config) -> bool {
    blocks(config).any(|block| block.emulate)
}

/// Returns the bytes of memory that are taken for the disks after the configuration was checked.
pub fn memory(config: &Config) -> u64 {
    let bounce = if wants_bounce(config) { BOUNCE_BYTES } else { 0 };
    // A page of zeroes each.
    bounce.saturating_add((blocks(config).filter(|block| block.wipe).count() as u64).saturating_mul(4096))
}

/// Returns the memory for bounce buffers of an engine. It is empty if no guest has a disk with emulated blocks.
fn take_bounce(config: &Config) -> GuestMemory {
    if !wants_bounce(config) {
        return GuestMemory::new();
    }
    nvme_device::bounce(BOUNCE_BYTES).unwrap_or_else(|e| {
        report::warning(format!("disks with emulated blocks cannot be written in part: {e}"));
        GuestMemory::new()
    })
}

/// Whether a controller does no DMA any more.
const fn has_ended(driven: &Driven) -> bool {
    matches!(driven.controller.status(), ControllerStatus::Stopped | ControllerStatus::Failed(_))
}

/// Returns the blocks of a disk that a guest's device has.
///
/// # Errors
/// There are none, or the disk has failed since.
pub fn part(block: &Block) -> Result<Part<Whole>, String> {
    let all = DISKS.lock();
    let extent = Extent::of(block, &all.found, options::booted()).map_err(|(_, why)| why)?;
    let extent = extent.ok_or("it is no disk of the machine")?;
    if block.wipe {
        let wiped = all.wiped.iter().find(|(blocks, _)| *blocks == extent).map(|(_, ended)| ended);
        wiped.ok_or("it was not wiped")?.as_ref().map_err(|why| format!("it could not be wiped: {why}"))?;
    }
    let controller = all.found.get(extent.controller).ok_or("its controller is not there")?;
    let whole = match controller.kind {
        ControllerKind::Virtio(number) => Either::Second(virtio::disk(number, block.read_only)?),
        ControllerKind::Nvme => {
            let FoundNamespace { id, .. } =
                controller.namespaces.get(extent.namespace).ok_or("its namespace is not there")?;
            Either::First(namespace(&all.driven, controller, *id, block.read_only)?)
        }
    };
    let part = Part::new(whole, shape(&whole).blocks, extent.first, extent.blocks);
    part.ok_or_else(|| "its partition is not within the disk".into())
}

/// The shape of a disk.
pub const fn shape(whole: &Whole) -> &Geometry {
    match whole {
        Either::First(namespace) => &namespace.geometry,
        Either::Second(disk) => &disk.geometry,
    }
}

/// Returns a namespace of a controller that the engine has.
fn namespace(driven: &[Driven], controller: &FoundController, id: u32, read_only: bool) -> Result<Namespace, String> {
    let driven = driven.iter().find(|driven| triple(driven.at) == controller.at);
    let driven = driven.ok_or("its controller is not driven")?;
    let queue = driven.number.ok_or("its controller has no queue")?;
    let Usable { format, limits, .. } =
        driven.namespaces.iter().find(|usable| usable.id == id).ok_or("its namespace is not usable")?;
    let geometry = geometry(format, limits, read_only, driven.controller.is_cache_on())
        .map_err(|bytes| format!("its blocks have {bytes} bytes"))?;
    Ok(Namespace { queue, id, geometry })
}

/// Serves the controllers, and logs what has happened to them. Called once a tick. A controller that was given up is started
/// again when it has been taken out and put in again. The driver checks that its serial number is the same.
pub fn service() {
    let now = now_micros();
    for Driven { at, place, next_look, controller, .. } in &mut DISKS.lock().driven {
        if matches!(controller.status(), ControllerStatus::Failed(_)) && now >= *next_look {
            *next_look = now.saturating_add(LOOK_TIME);
            if place.take_return() {
                log::warn!("NVMe disk at {at}: it was taken out, and something is in its place again");
                controller.restart();
            }
        }
        controller.service(now);
        while let Some(event) = controller.next_event() {
            log::warn!("NVMe disk at {at}: {event}");
        }
    }
}

/// Shuts all controllers down (NVMe Base 2.0, 3.6.1), and waits for that. The guests have stopped. Meanwhile `turn` runs
/// the engine on this core, if there is one. An engine on another core polls its queues itself.
pub fn shut_down(mut turn: impl FnMut()) {
    let begin = now_micros();
    DISKS.lock().driven.iter_mut().for_each(|driven| driven.controller.stop(now_micros()));
    while now_micros().saturating_sub(begin) < STOP_TIME && !DISKS.lock().driven.iter().all(has_ended) {
        service();
        turn();
        core::hint::spin_loop();
    }
    for Driven { at, controller, .. } in DISKS.lock().driven.iter().filter(|driven| !has_ended(driven)) {
        log::error!("NVMe disk at {at} was not shut down in time: {:?}", controller.status());
    }
}
