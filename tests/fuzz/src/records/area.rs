//! Areas of memory that may have kept their contents.

use std::sync::atomic::{AtomicU8, Ordering};

use boots::area::{AREA, Keeper, LOG, MOST_AREAS, SLOT};
use boots::record::{Record, State};

use crate::input::Input;
use crate::planted::planted;

const STATES: [State; 4] = [State::Booting, State::Running, State::Ended, State::Failed];
/// Where the log of a slot begins.
const LOG_AT: usize = SLOT - LOG;

/// CRC-32 (ISO HDLC), a bit at a time.
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |all, &byte| all << 8 | u64::from(byte))
}

/// The record of a slot, as the second reader reads it.
fn record(slot: &[u8]) -> Option<Record> {
    let check = crc(&slot[..56]);
    let is_good = &slot[..8] == b"sidecor1"
        && number(&slot[56..60]) == u64::from(check)
        && number(&slot[60..64]) == u64::from(!check);
    let state = STATES.get(number(&slot[20..24]) as usize).copied();
    let boot = number(&slot[8..16]);
    let config = std::array::from_fn(|n| slot[24 + n]);
    let record = state.map(|state| Record { boot, attempts: number(&slot[16..20]) as u32, state, config });
    record.filter(|_| is_good && boot != u64::MAX)
}

/// The end of a slot's log, at most so many bytes.
fn log(slot: &[u8], most: usize) -> Vec<u8> {
    let end = number(&slot[64..72]);
    let end = if end == !number(&slot[72..80]) { end } else { 0 };
    let len = end.min(most.min(LOG) as u64);
    (end - len..end).map(|at| slot[LOG_AT + (at % LOG as u64) as usize]).collect()
}

/// Writes what a boot, or somebody else, has left in a slot.
fn leave(slot: &mut [u8], input: &mut Input<'_>) {
    let kind = input.byte();
    if kind < 48 {
        return;
    }
    let boot = match input.byte() {
        0..8 => u64::MAX - u64::from(input.byte() % 3),
        8..16 => input.wide(),
        small => u64::from(small % 6),
    };
    let record = Record {
        boot,
        attempts: input.byte().into(),
        state: STATES[usize::from(input.byte() % 4)],
        config: [input.byte(); 32],
    };
    slot[..64].copy_from_slice(&record.bytes());
    let end = match input.byte() {
        0..8 => u64::MAX - u64::from(input.byte()),
        8..16 => input.wide(),
        16..96 => input.within(LOG as u64 - 100, LOG as u64 * 3),
        small => small.into(),
    };
    slot[64..72].copy_from_slice(&end.to_le_bytes());
    slot[72..80].copy_from_slice(&(!end).to_le_bytes());
    for _ in 0..input.byte() % 8 {
        let at = if input.flag() { input.within(0, 100) } else { input.within(0, SLOT as u64) };
        slot[at as usize] ^= input.byte();
    }
    if kind < 80 {
        // Another maker of such records: the check is right, whatever it says.
        let check = crc(&slot[..56]);
        slot[56..60].copy_from_slice(&check.to_le_bytes());
        slot[60..64].copy_from_slice(&(!check).to_le_bytes());
    }
}

/// Runs one input.
pub fn run(input: &mut Input<'_>) {
    let count = input.byte() % 4 + if input.byte() < 16 { 3 } else { 0 };
    let before: Vec<Vec<u8>> = (0..count)
        .map(|_| {
            let len = match input.byte() {
                0..16 => AREA - 1,
                16..24 => input.within(0, AREA as u64) as usize,
                24..40 => AREA + usize::from(input.byte()),
                _ => AREA,
            };
            let mut bytes = vec![[0, 0xff, 0x5a, b'x'][usize::from(input.byte() % 4)]; len];
            bytes.chunks_mut(SLOT).filter(|slot| slot.len() == SLOT).for_each(|slot| leave(slot, input));
            bytes
        })
        .collect();
    let areas: Vec<Vec<AtomicU8>> =
        before.iter().map(|area| area.iter().copied().map(AtomicU8::new).collect()).collect();
    let bytes = |area: &[AtomicU8]| -> Vec<u8> { area.iter().map(|byte| byte.load(Ordering::Relaxed)).collect() };

    // What there is, by the second reader.
    let used: Vec<usize> = (0..before.len()).filter(|&n| before[n].len() >= AREA).take(MOST_AREAS).collect();
    let slots: Vec<&[u8]> = used.iter().flat_map(|&n| before[n][..AREA].chunks(SLOT)).collect();
    let newest = slots.iter().filter_map(|slot| record(slot)).map(|record| record.boot).max();
    let of_newest = |slot: &&&[u8]| record(slot).is_some_and(|record| Some(record.boot) == newest);
    let candidates: Vec<&[u8]> = slots.iter().filter(of_newest).copied().collect();

    let (mut keeper, found) = Keeper::begin(areas.iter().map(Vec::as_slice));
    // No boot has the number 0. A record that says so is found or not.
    let without_0 = |boot: Option<u64>| boot.filter(|&boot| boot != 0);
    assert_eq!(
        without_0(found.map(|found| found.record.boot)),
        without_0(newest),
        "the newest record with a right check"
    );
    assert_eq!(keeper.areas(), used.len());
    let begun = Record { boot: newest.unwrap_or(0) + 1, attempts: 0, state: State::Booting, config: [0; 32] };
    assert_eq!(keeper.record(), begun);
    let most = input.within(0, LOG as u64 + 10) as usize;
    let log_of = |found: &boots::area::Before<'_>, most: usize| {
        let mut text = vec![0; most];
        let len = found.slot.log(&mut text);
        text.truncate(len);
        text
    };
    let left = found.map(|found| log_of(&found, most));
    if let (Some(found), Some(left)) = (found, &left) {
        // Two slots may have the same number.
        let is_it = |slot: &&[u8]| record(slot) == Some(found.record) && log(slot, most) == *left;
        assert!(candidates.iter().any(is_it), "record and log are of the same slot");
    }

    // This boot writes.
    let mut written = Vec::new();
    for _ in 0..input.byte() % 6 {
        let piece = vec![
            input.byte();
            if input.byte() < 24 { input.within(0, 2 * LOG as u64) as usize } else { input.byte().into() }
        ];
        keeper.append(&piece);
        written.extend(piece);
    }
    let last = Record {
        attempts: input.byte().into(),
        state: STATES[usize::from(input.byte() % 4)],
        config: [input.byte(); 32],
        ..begun
    };
    keeper.set(last);
    let kept = |most: usize| &written[written.len().saturating_sub(most.min(LOG))..];
    let mut text = vec![0; most];
    let len = keeper.log(&mut text);
    if !used.is_empty() {
        assert_eq!(text[..len], *kept(most), "this boot's log");
    }
    if let Some(found) = found {
        assert_eq!(Some(log_of(&found, most)), left, "what the boot before has left is there until the end");
    }

    // One slot of each area has changed, and nothing else.
    let now: Vec<Vec<u8>> = areas.iter().map(|area| bytes(area)).collect();
    for (n, (before, now)) in before.iter().zip(&now).enumerate() {
        let changed: Vec<bool> = before.chunks(SLOT).zip(now.chunks(SLOT)).map(|(before, now)| before != now).collect();
        let expected = usize::from(used.contains(&n));
        assert!(changed.iter().filter(|changed| **changed).count() == expected, "area {n}: {changed:?}");
        assert!(changed.iter().skip(2).all(|changed| !changed), "behind the end of the area");
    }

    // The next boot finds it. No boot comes after the last number.
    if used.is_empty() || begun.boot == u64::MAX {
        return;
    }
    if planted() {
        areas[used[0]].iter().for_each(|byte| byte.store(0, Ordering::Relaxed));
    }
    let (_, found) = Keeper::begin(areas.iter().map(Vec::as_slice));
    let found = found.expect("the next boot finds this one");
    assert_eq!(found.record, last, "the next boot finds this one");
    assert_eq!(log_of(&found, LOG), kept(LOG), "the next boot finds this one's log");
}
