//! Reads `[[guest.block]]`.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::disk::{Block, Cache, Disk, Partition};
use crate::disk_name::{ControllerName, DiskName};
use crate::limits::{DEFAULT_OVERLAY, MAX_BLOCK_QUEUES, MAX_BLOCKS, MAX_MEMORY, MAX_SERIAL};
use crate::mistake::{Place, Source};
use crate::section::Section;
use crate::size;

const KEYS: [&str; 12] = [
    "disk",
    "partition",
    "module",
    "size",
    "overlay",
    "readonly",
    "serial",
    "cache",
    "queues",
    "packed",
    "emulate",
    "wipe",
];
/// What `disk` may be.
const DISKS: &str = "\"ram\", \"vda\" to \"vdz\", \"nvme:SERIAL\", \"nvme:PCI-ADDRESS\", \"nvme0\" or \"eui:IDENTIFIER\", the \
                     last four with or without /NSID";

/// Kinds of storage.
enum Kind {
    Ram,
    Machine(DiskName, Place),
}

/// Reads all block devices of a guest.
pub(super) fn read(source: Source<'_>, guest: &mut Section<'_, '_>) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    for (index, (span, table)) in guest.tables("block", "guest.block").into_iter().enumerate() {
        if index == MAX_BLOCKS {
            guest.complain(span, format!("expected at most {MAX_BLOCKS} block devices"));
            break;
        }
        let mut section = Section::new(source, table, span, "[[guest.block]]", &KEYS);
        blocks.extend(read_one(&mut section, &blocks, index));
        guest.mistakes.append(&mut section.mistakes);
    }
    blocks
}

fn read_one(section: &mut Section<'_, '_>, others: &[Block], index: usize) -> Option<Block> {
    if !section.has("disk") {
        let place = section.place();
        section.complain_at(&place, format!("a block device needs `disk`: {DISKS}"));
    }
    let kind = read_kind(section);
    let read_only = section.boolean("readonly").unwrap_or(false);
    let serial = read_serial(section, others, index);
    let cache = section.word("cache", &Cache::WORDS);
    let queues = section.integer("queues", 1..=MAX_BLOCK_QUEUES).map_or(1, |(queues, _)| queues as u16);
    let packed = section.boolean("packed").unwrap_or(false);
    let emulate = section.boolean("emulate").unwrap_or(false);
    let wipe = read_wipe(section, read_only);
    let partition = read_partition(section);
    let (disk, place) = match kind? {
        Kind::Ram => read_ram(section, read_only)?,
        Kind::Machine(name, place) => read_machine(section, name, place)?,
    };
    Some(Block {
        disk,
        partition,
        emulate,
        wipe,
        read_only,
        serial: serial?,
        cache: cache.unwrap_or_default(),
        queues,
        packed,
        place,
    })
}

/// Reads `disk`.
fn read_kind(section: &mut Section<'_, '_>) -> Option<Kind> {
    let (text, place) = section.string("disk", DISKS)?;
    if text == "ram" {
        return Some(Kind::Ram);
    }
    let Some(name) = DiskName::parse(text) else {
        section.complain_at(&place, format!("`disk` of [[guest.block]] must be {DISKS}"));
        return None;
    };
    Some(Kind::Machine(name, place))
}

/// Reads `partition`.
fn read_partition(section: &mut Section<'_, '_>) -> Option<Partition> {
    let (name, place) = section.string("partition", "a partition's label or its GUID")?;
    if name.is_empty() {
        section
            .complain_at(&place, "expected a partition's label or its GUID; without `partition` it is the whole disk");
        return None;
    }
    Some(Partition { name: name.into(), place })
}

/// Reads `wipe`.
fn read_wipe(section: &mut Section<'_, '_>, read_only: bool) -> bool {
    let wipe = section.boolean("wipe").unwrap_or(false);
    if wipe && read_only {
        let at = section.at("wipe");
        section.complain_at(&at, "a disk with `readonly` cannot be wiped; expected one of the two");
    }
    wipe
}

/// Checks that a disk of the machine has no keys of other disks. Returns it.
fn read_machine(section: &mut Section<'_, '_>, name: DiskName, place: Place) -> Option<(Disk, Place)> {
    let mut good = true;
    for key in ["module", "size", "overlay"].into_iter().filter(|key| section.has(key)).collect::<Vec<_>>() {
        let at = section.at(key);
        section.complain_at(&at, format!("`{key}` is for RAM disks only; a disk of the machine has its own size"));
        good = false;
    }
    if matches!(name.controller, ControllerName::Virtio(_)) && section.has("wipe") {
        let at = section.at("wipe");
        section.complain_at(&at, "only NVMe disks can be wiped; expected no `wipe`");
        good = false;
    }
    good.then_some((Disk::Machine(name), place))
}

/// Reads what is in a RAM disk: a boot module or nothing.
fn read_ram(section: &mut Section<'_, '_>, read_only: bool) -> Option<(Disk, Place)> {
    let module = section.string("module", "the name of a boot module");
    let bytes = read_size(section, "size");
    let overlay = read_size(section, "overlay");
    for (key, why) in [
        ("partition", "a RAM disk has no partitions that the hypervisor knows"),
        ("emulate", "the blocks of a RAM disk have 512 bytes; expected no `emulate`"),
        ("wipe", "a RAM disk begins with its module or with zeroes; expected no `wipe`"),
    ] {
        if section.has(key) {
            let at = section.at(key);
            section.complain_at(&at, why);
        }
    }
    let table = section.place();
    let overlay_place = section.at("overlay");
    if section.has("overlay") && (read_only || !section.has("module")) {
        let message = "`overlay` takes what is written to a `module`; a disk of `size`, or with `readonly`, has none";
        section.complain_at(&overlay_place, message);
    }
    match (module, bytes) {
        (Some((name, place)), bytes) if bytes.is_some() == section.has("size") => {
            let overlay = if read_only { 0 } else { overlay.map_or(DEFAULT_OVERLAY, |(bytes, _)| bytes) };
            let size = bytes.map(|(bytes, _)| bytes);
            Some((Disk::Module { name: name.into(), overlay, size, unpacked: None }, place))
        }
        (None, Some((_, place))) if read_only => {
            section.complain_at(&place, "an empty disk with `readonly` would be useless; expected a `module`");
            None
        }
        (None, Some((bytes, place))) if !section.has("module") => Some((Disk::Ram { bytes }, place)),
        _ => {
            if !section.has("module") && !section.has("size") {
                section.complain_at(&table, "a RAM disk needs `module`, the name of a boot module, or `size`");
            }
            None
        }
    }
}

fn read_size(section: &mut Section<'_, '_>, key: &str) -> Option<(u64, Place)> {
    let expected = "a size like \"64M\" or \"1G\"";
    let (text, place) = section.string(key, expected)?;
    match size::parse(text) {
        Some(bytes) if bytes != 0 && bytes <= MAX_MEMORY => Some((bytes, place)),
        Some(_) => {
            section.complain_at(&place, format!("expected a size from 1M to {}", size::show(MAX_MEMORY)));
            None
        }
        None => {
            section.complain_at(&place, format!("expected {expected}"));
            None
        }
    }
}

fn read_serial(section: &mut Section<'_, '_>, others: &[Block], index: usize) -> Option<String> {
    let Some((serial, place)) = section.string("serial", "a text") else { return Some(format!("disk{index}")) };
    if serial.is_empty() || serial.len() > MAX_SERIAL || !serial.bytes().all(|byte| byte.is_ascii_graphic()) {
        section.complain_at(&place, format!("expected 1 to {MAX_SERIAL} printable ASCII characters without spaces"));
        return None;
    }
    if others.iter().any(|other| other.serial == serial) {
        section.complain_at(&place, "another disk of this guest has this serial number; expected one of its own");
    }
    Some(serial.into())
}
