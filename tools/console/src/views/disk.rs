//! Disks: requests, bytes, errors, overlays.

use control::{Block, Guest};

use super::device;
use super::nothing::gone;
use crate::clean::{NAME, clean};
use crate::rates::{Named, Pair};
use crate::sheet::{Sheet, Table, Tone, Value, binary, number, words};

/// Bytes of a block of an overlay.
const OVERLAY_BLOCK: u64 = 4096;
/// Kinds of counts that are requests, each counted once. The others are bytes, or parts of these (`block::BlockCounters`).
const REQUESTS: [&str; 8] = ["reads", "writes", "flushes", "discards", "zeroes", "identities", "errors", "unsupported"];

/// Requests of all kinds.
pub fn requests(block: &Block) -> u64 {
    REQUESTS.iter().fold(0, |sum, kind| sum.saturating_add(block.count(kind)))
}

fn errors(block: &Block) -> u64 {
    block.count("errors").saturating_add(block.ring_errors)
}

fn then<'a>(pair: &Pair<'a>, guest: &Guest, n: usize, block: &Block) -> Option<&'a Block> {
    pair.guest(guest)?.blocks.get(n).filter(|before| before.serial == block.serial)
}

/// All disks.
pub fn sheet(pair: &Pair<'_>) -> Sheet {
    let mut main = Table::new(
        "disks",
        "Disks",
        &[
            words("guest", "guest", 0),
            number("disk", "disk", 2),
            words("serial", "serial", 1),
            number("size", "size", 0),
            number("reads_per_second", "reads/s", 0),
            number("read_bytes_per_second", "read B/s", 0),
            number("writes_per_second", "writes/s", 0),
            number("written_bytes_per_second", "write B/s", 0),
            number("errors", "errors", 0),
            number("overlay", "overlay", 2),
            number("kicks_per_second", "kicks/s", 3),
            number("interrupts_per_second", "intr/s", 3),
            number("engine_share", "engine", 2),
        ],
    );
    for guest in &pair.now.guests {
        for (n, block) in guest.blocks.iter().enumerate() {
            let before = then(pair, guest, n, block);
            let rate = |kind: &str| pair.rate(block.count(kind), before.map(|before| before.count(kind)));
            let overlay = (block.overlay_blocks > 0).then(|| block.overlay_used as f64 / block.overlay_blocks as f64);
            let tone = match (errors(block), block.overlay_full) {
                (0, 0) if pair.rate(requests(block), before.map(requests)) > Some(0.0) => Tone::Plain,
                (0, 0) => Tone::Quiet,
                _ => Tone::Bad,
            };
            main.row(
                device::id(guest, n),
                tone,
                vec![
                    (*guest.name).into(),
                    (n as u64).into(),
                    (*block.serial).into(),
                    Value::Bytes(block.size),
                    rate("reads").into(),
                    rate("read_bytes").into(),
                    rate("writes").into(),
                    rate("written_bytes").into(),
                    errors(block).into(),
                    Value::Share(overlay),
                    pair.rate(block.kicks, before.map(|before| before.kicks)).into(),
                    pair.rate(block.interrupts, before.map(|before| before.interrupts)).into(),
                    Value::Share(pair.share(block.engine_cycles, before.map(|before| before.engine_cycles))),
                ],
            );
        }
    }
    let facts = if main.rows.is_empty() { vec!["No guest has a disk.".into()] } else { Vec::new() };
    Sheet { key: "disk", facts, main, more: Vec::new() }
}

/// One disk: all its counts.
pub fn detail(pair: &Pair<'_>, wanted: &str) -> Sheet {
    let found = device::find(pair, wanted, |guest| &guest.blocks);
    let Some((guest, n, block)) = found else { return gone("disk") };
    let before = then(pair, guest, n, block);
    let title = format!("Disk {n} of {}, {}", clean(&guest.name, NAME), clean(&block.serial, NAME));
    let mut main = device::counts("counts", title, words("kind", "count", 0));
    for one in &block.counts {
        let rate = pair.rate(one.count, before.map(|before| before.count(&one.kind)));
        main.row(&*one.kind, Tone::Plain, vec![(*one.kind).into(), one.count.into(), rate.into()]);
    }
    let counters: [Named<Block>; 7] = [
        ("kicks", |b| b.kicks),
        ("interrupts", |b| b.interrupts),
        ("polling ended (arms)", |b| b.arms),
        ("polling began (polls)", |b| b.polls),
        ("resets", |b| b.resets),
        ("requests back after a reset", |b| b.stale_tokens),
        ("ring errors", |b| b.ring_errors),
    ];
    device::add(&mut main, pair, &counters, block, before);
    let bytes = |blocks: u64| binary(blocks.saturating_mul(OVERLAY_BLOCK));
    let facts = match block.overlay_blocks {
        0 => vec![format!("{} without an overlay", binary(block.size))],
        all => vec![format!(
            "{}; overlay {} of {}, at most {}; {} writes failed because it was full",
            binary(block.size),
            bytes(block.overlay_used),
            bytes(all),
            bytes(block.overlay_most_used),
            block.overlay_full
        )],
    };
    Sheet { key: "disk", facts, main, more: Vec::new() }
}
