//! Record and log in memory that keeps its contents through a reset.
//!
//! An area has two slots. A boot writes to the one, and the other one still has what the boot before left. There may be several
//! areas with the same contents, because firmware and boot loader write somewhere too.
//!
//! ```text
//! a slot:  0   64   the record (`record`)
//!         64    8   bytes of log that were written
//!         72    8   the complement of that
//!         80   16   nothing
//!         96        the log: a ring of the rest
//! ```

use core::sync::atomic::{AtomicU8, Ordering};

use crate::record::{self, Record, State};

/// Bytes of a slot.
pub const SLOT: usize = 32 << 10;
/// Bytes of an area.
pub const AREA: usize = 2 * SLOT;
/// Most areas that are used.
pub const MOST_AREAS: usize = 4;
/// Bytes of log that a slot keeps.
pub const LOG: usize = SLOT - LOG_AT;

const END_AT: usize = record::BYTES;
const LOG_AT: usize = 96;

/// A slot of an area: [`SLOT`] bytes.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a>(&'a [AtomicU8]);

impl Slot<'_> {
    fn read<const BYTES: usize>(&self, at: usize) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        let from = self.0.get(at..).unwrap_or_default();
        bytes.iter_mut().zip(from).for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
        bytes
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let to = self.0.get(at..).unwrap_or_default();
        to.iter().zip(bytes).for_each(|(to, from)| to.store(*from, Ordering::Relaxed));
    }

    fn record(&self) -> Option<Record> {
        // No boot could come after the last number.
        Record::read(&self.read(0)).filter(|record| record.boot != u64::MAX)
    }

    /// Bytes of log that were written. 0 if that is damaged.
    fn end(&self) -> u64 {
        let [end, not_end] = [END_AT, END_AT + 8].map(|at| u64::from_le_bytes(self.read(at)));
        if end == !not_end { end } else { 0 }
    }

    fn set_end(&self, end: u64) {
        self.write(END_AT, [end.to_le_bytes(), (!end).to_le_bytes()].as_flattened());
    }

    /// Copies the end of the log to `to`, as much as there is and fits. Returns the bytes that were copied. They may be damaged.
    pub fn log(&self, to: &mut [u8]) -> usize {
        let end = self.end();
        let len = end.min(to.len().min(LOG) as u64);
        for (to, at) in to.iter_mut().zip(end.saturating_sub(len)..end) {
            let [byte] = self.read(place(at));
            *to = byte;
        }
        len as usize
    }
}

/// Where a byte of the log is in its slot.
fn place(at: u64) -> usize {
    LOG_AT.saturating_add(at.checked_rem(LOG as u64).unwrap_or_default() as usize)
}

/// What the boot before has left in memory.
#[derive(Clone, Copy, Debug)]
pub struct Before<'a> {
    /// Its record.
    pub record: Record,
    /// Its log. Nobody writes there during this boot.
    pub slot: Slot<'a>,
}

/// What this boot leaves in memory.
#[derive(Debug)]
pub struct Keeper<'a> {
    slots: heapless::Vec<Slot<'a>, MOST_AREAS>,
    record: Record,
    end: u64,
}

impl<'a> Keeper<'a> {
    /// Begins in these areas of [`AREA`] bytes; the first [`MOST_AREAS`] are used, and shorter ones are not. Returns what the boot
    /// before has left, too.
    pub fn begin(areas: impl Iterator<Item = &'a [AtomicU8]>) -> (Self, Option<Before<'a>>) {
        let mut slots = heapless::Vec::new();
        let mut before: Option<Before<'a>> = None;
        for area in areas.filter(|area| area.len() >= AREA).take(MOST_AREAS) {
            let Some((first, second)) = area.get(..AREA).and_then(|area| area.split_at_checked(SLOT)) else { continue };
            let (first, second) = (Slot(first), Slot(second));
            let boot = |slot: &Slot<'_>| slot.record().map_or(0, |record| record.boot);
            let (newer, older) = if boot(&first) > boot(&second) { (first, second) } else { (second, first) };
            if let Some(record) = newer.record()
                && before.is_none_or(|before| before.record.boot < record.boot)
            {
                before = Some(Before { record, slot: newer });
            }
            let _ = slots.push(older);
        }
        let boot = before.map_or(0, |before| before.record.boot).saturating_add(1);
        let mut keeper =
            Self { slots, record: Record { boot, attempts: 0, state: State::Booting, config: [0; 32] }, end: 0 };
        keeper.slots.iter().for_each(|slot| slot.set_end(0));
        keeper.set(keeper.record);
        (keeper, before)
    }

    /// How many areas there are.
    #[must_use]
    pub fn areas(&self) -> usize {
        self.slots.len()
    }

    /// The record of this boot.
    #[must_use]
    pub const fn record(&self) -> Record {
        self.record
    }

    /// Replaces the record of this boot.
    pub fn set(&mut self, record: Record) {
        self.record = record;
        self.slots.iter().for_each(|slot| slot.write(0, &record.bytes()));
    }

    /// Adds to the log of this boot.
    pub fn append(&mut self, text: &[u8]) {
        for slot in &self.slots {
            for (at, byte) in (self.end..).zip(text) {
                slot.write(place(at), core::slice::from_ref(byte));
            }
        }
        self.end = self.end.saturating_add(text.len() as u64);
        self.slots.iter().for_each(|slot| slot.set_end(self.end));
    }

    /// Copies the end of this boot's log to `to`, as [`Slot::log`] does.
    pub fn log(&self, to: &mut [u8]) -> usize {
        self.slots.first().map_or(0, |slot| slot.log(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn area(fill: u8) -> Vec<AtomicU8> {
        (0..AREA).map(|_| AtomicU8::new(fill)).collect()
    }

    fn log(slot: Slot<'_>) -> Vec<u8> {
        let mut text = vec![0; LOG];
        let len = slot.log(&mut text);
        text.truncate(len);
        text
    }

    #[test]
    fn each_boot_finds_what_the_one_before_has_left() {
        let areas = [area(0), area(0xff)];
        let begin = || Keeper::begin(areas.iter().map(Vec::as_slice));
        let (mut keeper, before) = begin();
        assert!(before.is_none());
        assert_eq!((keeper.areas(), keeper.record().boot), (2, 1));
        keeper.append(b"one\n");
        keeper.append(b"two\n");
        keeper.set(Record { attempts: 2, state: State::Failed, config: [9; 32], ..keeper.record() });

        let (mut keeper, before) = begin();
        let before = before.unwrap();
        assert_eq!(before.record, Record { boot: 1, attempts: 2, state: State::Failed, config: [9; 32] });
        keeper.append(b"three");
        assert_eq!(log(before.slot), b"one\ntwo\n", "it stays while the next one writes");

        let (_, before) = begin();
        let before = before.unwrap();
        assert_eq!(before.record, Record { boot: 2, attempts: 0, state: State::Booting, config: [0; 32] });
        assert_eq!(log(before.slot), b"three");
    }

    #[test]
    fn one_area_that_survives_is_enough() {
        let areas = [area(0), area(0), area(0)];
        let begin = || Keeper::begin(areas.iter().map(Vec::as_slice));
        for lost in 0..3 {
            let (mut keeper, _) = begin();
            keeper.append(b"here");
            for kept in (0..3).filter(|&kept| kept != lost) {
                areas[kept].iter().for_each(|byte| byte.store(0x5a, Ordering::Relaxed));
            }
            let (next, before) = begin();
            assert_eq!(log(before.unwrap().slot), b"here");
            assert_eq!(next.record().boot, keeper.record().boot + 1);
        }
    }

    #[test]
    fn areas_that_are_too_short_or_too_many_are_not_used() {
        let areas: Vec<_> = (0..MOST_AREAS + 2).map(|_| area(0)).collect();
        let (keeper, _) = Keeper::begin(areas.iter().map(Vec::as_slice));
        assert_eq!(keeper.areas(), MOST_AREAS);
        let (mut keeper, before) = Keeper::begin(areas.iter().map(|area| &area[1..]));
        assert!(keeper.areas() == 0 && before.is_none());
        keeper.append(b"nowhere");
        assert_eq!(keeper.log(&mut [0; 8]), 0);
    }

    #[test]
    fn the_last_number_is_no_boot() {
        let areas = [area(0)];
        let (mut keeper, _) = Keeper::begin(areas.iter().map(Vec::as_slice));
        keeper.set(Record { boot: u64::MAX, ..keeper.record() });
        assert_eq!(Keeper::begin(areas.iter().map(Vec::as_slice)).0.record().boot, 1);
    }

    proptest! {
        #[test]
        fn the_log_is_the_end_of_what_was_written(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..3_000), 0..24)) {
            let areas = [area(0x33)];
            let (mut keeper, _) = Keeper::begin(areas.iter().map(Vec::as_slice));
            pieces.iter().for_each(|piece| keeper.append(piece));
            let all = pieces.concat();
            let kept = &all[all.len().saturating_sub(LOG)..];
            prop_assert_eq!(log(keeper.slots[0]), kept);
            let mut short = [0; 100];
            let len = keeper.log(&mut short);
            prop_assert_eq!(&short[..len], &all[all.len().saturating_sub(100)..]);
        }

        #[test]
        fn damage_gives_an_older_boot_or_none(at in prop::collection::vec((0..AREA, any::<u8>()), 0..100)) {
            let areas = [area(0)];
            for _ in 0..3 {
                let (mut keeper, _) = Keeper::begin(areas.iter().map(Vec::as_slice));
                keeper.append(b"some text\n");
            }
            at.iter().for_each(|&(at, byte)| areas[0][at].store(byte, Ordering::Relaxed));
            let (keeper, before) = Keeper::begin(areas.iter().map(Vec::as_slice));
            let found = before.map_or(0, |before| before.record.boot);
            prop_assert!([0, 2, 3].contains(&found), "{found}");
            prop_assert_eq!(keeper.record().boot, found + 1);
            if let Some(before) = before {
                prop_assert!(log(before.slot).len() <= LOG);
            }
        }
    }
}
