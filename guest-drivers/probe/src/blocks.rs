//! Makes requests to a disk that can be counted exactly, as `load` does with frames. What is read is compared with what
//! was written.

use bare::cpu;
use bare::virtio_pci::Parts;

use crate::disk::{DEPTH, Disk, Kind};
use crate::load::{Counted, Tally, one_by_one, wait_for_line};
use crate::report::say;

const BROKEN: &str = "the queue is not as it should be";
const FAILED: &str = "the device did not complete a request with status OK";
const WRONG: &str = "a block holds something else than what was written to it";

impl Counted for Disk {
    fn kicks(&self) -> u64 {
        self.kicks()
    }
}

/// What is written: each word says which block it is in, which round of writes it is of, and where in the block it is.
fn word(block: u64, round: u32, at: usize) -> u64 {
    block << 42 | u64::from(round) << 10 | at as u64
}

fn fill(slot: usize, block: u64, round: u32) {
    for (at, bytes) in Disk::data(slot).chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&word(block, round, at).to_le_bytes());
    }
}

fn check(slot: usize, block: u64, round: u32) -> Result<(), &'static str> {
    let mut words = Disk::data(slot).chunks_exact(8).enumerate();
    words.all(|(at, bytes)| bytes == word(block, round, at).to_le_bytes()).then_some(()).ok_or(WRONG)
}

fn open(parts: Parts) -> Result<Disk, &'static str> {
    let disk = Disk::open(parts).map_err(|_| "the device does not come up")?;
    if disk.blocks == 0 { Err("the disk has no block") } else { Ok(disk) }
}

/// Writes a block and reads it, in turn, one request at a time: each after the one before was completed.
pub fn singles(parts: Parts, count: u32) -> Result<(), &'static str> {
    let mut disk = open(parts)?;
    one_by_one("disk-singles", &mut disk, count, |disk, tally, number| {
        let (round, block) = (number / 2, u64::from(number / 2) % disk.blocks);
        let kind = if number % 2 == 0 { Kind::Write } else { Kind::Read };
        if kind == Kind::Write {
            fill(0, block, round);
        } else {
            // The device has to write every byte of it.
            Disk::data(0).fill(0xff);
        }
        disk.give(0, kind, block).map_err(|_| BROKEN)?;
        tally.halt_until(|| disk.has_used());
        if disk.take() != Some((0, 0)) {
            return Err(FAILED);
        }
        if kind == Kind::Read { check(0, block, round) } else { Ok(()) }
    })
}

/// Has [`DEPTH`] requests in flight: three reads and a write, again and again, all over the disk.
pub fn deep(parts: Parts, count: u32) -> Result<(), &'static str> {
    // Odd, so that all blocks have their turn on a disk whose number of blocks is a power of two.
    const STEP: u64 = 611;
    let mut disk = open(parts)?;
    for block in 0..disk.blocks {
        fill(0, block, 0);
        disk.give(0, Kind::Write, block).map_err(|_| BROKEN)?;
        while !disk.has_used() {
            cpu::wait_for_interrupt();
        }
        if disk.take() != Some((0, 0)) {
            return Err(FAILED);
        }
    }
    wait_for_line();
    // A write may have been seen before its interrupt arrived, and nothing has halted since. That interrupt is not counted.
    cpu::open_interrupts(1);
    let tally = Tally::begin(&disk);
    let (mut started, mut done) = (0, 0);
    // For each slot: the request in it. A slot that is not in `free` has one.
    let mut free: heapless::Vec<usize, DEPTH> = (0..DEPTH).collect();
    let mut requests = [(Kind::Read, 0); DEPTH];
    while done < count {
        while started < count
            && let Some(slot) = free.pop()
        {
            let block = u64::from(started) * STEP % disk.blocks;
            let kind = if started % 4 == 3 { Kind::Write } else { Kind::Read };
            if kind == Kind::Write {
                fill(slot, block, 0);
            } else {
                Disk::data(slot).fill(0xff);
            }
            requests[slot] = (kind, block);
            disk.give(slot, kind, block).map_err(|_| BROKEN)?;
            started += 1;
        }
        while !disk.has_used() {
            cpu::wait_for_interrupt();
        }
        while let Some((slot, status)) = disk.take() {
            let (kind, block) = requests[slot];
            if status != 0 {
                return Err(FAILED);
            }
            if kind == Kind::Read {
                check(slot, block, 0)?;
            }
            done += 1;
            free.push(slot).map_err(|_| BROKEN)?;
        }
    }
    // Whoever always finds a request done never halts. Then the interrupts of all requests wait as one.
    cpu::open_interrupts(1);
    let (interrupts, kicks) = tally.since(&disk);
    say!("\"do\":\"disk-deep\",\"count\":{count},\"kicks\":{kicks},\"interrupts\":{interrupts}");
    wait_for_line();
    Ok(())
}
