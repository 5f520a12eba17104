//! Verifies a disk: what was written is read back, whatever was written in between. What was discarded or zeroed reads
//! as zeroes.

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::disk::{Ask, BLOCK, Disk};
use crate::measure::Random;

/// Requests in flight.
const DEPTH: usize = 32;

/// The contents of a block in a round: each word depends on the block's number, the round, and its own place.
fn pattern(block: u64, round: u64) -> [u8; BLOCK] {
    let mut bytes = [0; BLOCK];
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        let value = (block << 20 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ round.rotate_right(8);
        word.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// Calls `start` for each block, with up to [`DEPTH`] requests in flight, and `end` when its request has ended.
fn each(
    disk: &mut Disk,
    blocks: impl IntoIterator<Item = u64>,
    mut start: impl FnMut(&mut Disk, usize, u64),
    mut end: impl FnMut(&mut Disk, usize, u64) -> Result<()>,
) -> Result<()> {
    let mut blocks = blocks.into_iter();
    let mut free: Vec<usize> = (0..DEPTH).collect();
    let mut at = [0; DEPTH];
    loop {
        while let Some(slot) = free.pop() {
            let Some(block) = blocks.next() else {
                free.push(slot);
                break;
            };
            at[slot] = block;
            start(disk, slot, block);
        }
        if free.len() == DEPTH {
            return Ok(());
        }
        let mut ended = Vec::with_capacity(DEPTH);
        disk.take(1, |slot| ended.push(slot))?;
        for slot in ended {
            end(disk, slot, at[slot])?;
            free.push(slot);
        }
    }
}

fn write(disk: &mut Disk, blocks: impl IntoIterator<Item = u64>, round: u64) -> Result<()> {
    let start = |disk: &mut Disk, slot: usize, block: u64| {
        disk.fill(slot, &pattern(block, round));
        disk.ask(slot, Ask::Write(block));
    };
    each(disk, blocks, start, |_, _, _| Ok(()))
}

/// Reads blocks and compares them. `written` has the round in which each was last written.
fn read(disk: &mut Disk, blocks: impl IntoIterator<Item = u64>, written: &[u64]) -> Result<()> {
    let start = |disk: &mut Disk, slot: usize, block: u64| {
        disk.fill(slot, &[0xaa; BLOCK]);
        disk.ask(slot, Ask::Read(block));
    };
    each(disk, blocks, start, |disk, slot, block| {
        let round = written[block as usize];
        ensure!(disk.contents(slot) == pattern(block, round), "block {block} is not what was written in round {round}");
        Ok(())
    })
}

/// Writes each block of the disk at `socket`.
pub fn fill(socket: &Path) -> Result<()> {
    let mut disk = Disk::connect(socket, DEPTH, false)?;
    let blocks = disk.blocks();
    write(&mut disk, 0..blocks, 0)
}

/// Verifies the disk at `socket`. Returns what was verified.
pub fn verify(socket: &Path, rounds: u64) -> Result<Value> {
    let mut disk = Disk::connect(socket, DEPTH, false)?;
    let blocks = disk.blocks();
    ensure!(blocks >= DEPTH as u64, "a disk of {} bytes: expected {} or more", disk.bytes, DEPTH * BLOCK);
    let mut random = Random::new(blocks);
    let mut written = vec![0_u64; blocks as usize];
    write(&mut disk, 0..blocks, 0)?;
    read(&mut disk, 0..blocks, &written)?;
    for round in 1..=rounds {
        let some: Vec<u64> = (0..blocks / 2).map(|_| random.below(blocks)).collect();
        some.iter().for_each(|block| written[*block as usize] = round);
        write(&mut disk, some, round)?;
        disk.alone(Ask::Flush)?;
        read(&mut disk, 0..blocks, &written)?;
    }
    let (quarter, half) = (blocks / 4, blocks / 2);
    let [zeroes, discard] = disk.ranges;
    ensure!(zeroes != 0 && discard != 0, "the disk has no discard, or cannot write zeroes");
    for first in (0..quarter).step_by(zeroes as usize) {
        disk.alone(Ask::Zero(first, zeroes.min(quarter - first)))?;
    }
    for first in (quarter..half).step_by(discard as usize) {
        disk.alone(Ask::Discard(first, discard.min(half - first)))?;
    }
    for block in 0..half {
        disk.fill(0, &[0xaa; BLOCK]);
        disk.alone(Ask::Read(block))?;
        // A discarded block may have any contents (virtio 1.3 5.2.6). Those of our disks, and of files, are zeroes.
        ensure!(disk.contents(0) == [0; BLOCK], "block {block} is not zero after it was zeroed or discarded");
    }
    read(&mut disk, half..blocks, &written)?;
    Ok(json!({ "bytes": disk.bytes, "blocks": blocks, "rounds": rounds }))
}
