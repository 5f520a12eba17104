//! The firmware's store of records, by the programs of a table ERST, with a firmware that may do anything.

use std::collections::BTreeMap;

use boots::cper::{self, Kind};
use boots::record::{self, Record, State};
use erst::{Bus, Error, Space, Store, Table};

use crate::input::Input;
use crate::planted::planted;

/// Registers of the firmware: a command, and a value.
const COMMAND: u64 = 0xfebf_0000;
const VALUE: u64 = COMMAND + 8;
/// Where it takes records.
const RANGE: u64 = 0xfebf_4000;
const RANGE_BYTES: usize = 2048;
/// Accesses of registers in a run at most; then they cannot be reached any more.
const MOST_ACCESSES: u32 = 3_000;
/// Actions that have an input and those that have an output (ACPI 6.5, table 18.20).
const SETTERS: [u8; 2] = [4, 9];
const GETTERS: [u8; 7] = [6, 7, 8, 10, 13, 14, 15];
const OTHERS: [u8; 5] = [0, 1, 2, 3, 5];
/// Statuses (table 18.21).
const NO_SPACE: u64 = 1;
const FAILED: u64 = 3;
const NOT_FOUND: u64 = 5;
/// Most records that fit.
const MOST: usize = 6;

/// An instruction of a table.
fn entry(action: u8, instruction: u8, address: u64, value: u64) -> [u8; 32] {
    let head = [action, instruction, 0, 0, 0, 64, 0, 4];
    [&head[..], &address.to_le_bytes(), &value.to_le_bytes(), &u64::MAX.to_le_bytes()]
        .concat()
        .try_into()
        .expect("32 bytes")
}

/// The table of the firmware.
fn good_table() -> Vec<[u8; 32]> {
    let mut all = Vec::new();
    for action in 0..16 {
        if SETTERS.contains(&action) {
            all.push(entry(action, 2, VALUE, 0));
        }
        if SETTERS.contains(&action) || GETTERS.contains(&action) || OTHERS.contains(&action) {
            all.push(entry(action, 3, COMMAND, action.into()));
        }
        if GETTERS.contains(&action) {
            all.push(entry(action, 0, VALUE, 0));
        }
    }
    all
}

/// A table with its header.
fn table(entries: &[[u8; 32]], count: u32) -> Vec<u8> {
    let mut table = vec![0; 48];
    table[..4].copy_from_slice(b"ERST");
    table[44..48].copy_from_slice(&count.to_le_bytes());
    table.extend(entries.as_flattened());
    table
}

/// What the firmware does wrong.
#[derive(Clone, Copy, Default)]
struct Wrong {
    /// The number of its answer from which on each n-th one is wrong; 0: none is.
    every: u8,
    range: Option<u64>,
    length: Option<u64>,
    attributes: u64,
    busy: u32,
}

/// The firmware.
struct Firmware<'a, 'b> {
    input: &'a mut Input<'b>,
    records: BTreeMap<u64, Vec<u8>>,
    wrong: Wrong,
    range: Vec<u8>,
    value: u64,
    operation: u8,
    offset: u64,
    id: u64,
    status: u64,
    busy: u32,
    next: usize,
    answers: u8,
    accesses: u32,
    waited: u64,
    /// The range that it has told last.
    told: (u64, u64),
    /// Whether the table is the good one.
    is_good: bool,
}

impl Firmware<'_, '_> {
    fn lies(&mut self) -> bool {
        self.answers = self.answers.wrapping_add(1);
        self.wrong.every != 0 && self.answers.is_multiple_of(self.wrong.every)
    }

    fn command(&mut self, action: u64) {
        if matches!(action, 6..=8 | 10) && self.lies() {
            self.value = match self.input.byte() {
                small @ 0..128 => (small % 12).into(),
                128..160 => u64::MAX,
                _ => self.input.wide(),
            };
            return;
        }
        match action {
            0..=2 => self.operation = action as u8,
            3 => self.operation = u8::MAX,
            4 => self.offset = self.value,
            5 => {
                self.busy = self.wrong.busy;
                self.status = if self.lies() { self.input.byte().into() } else { self.execute() };
            }
            6 => {
                self.value = u64::from(self.busy > 0);
                self.busy = self.busy.saturating_sub(1);
            }
            7 => self.value = self.status,
            8 => {
                self.value = self.records.keys().nth(self.next).copied().unwrap_or(u64::MAX);
                self.next = if self.value == u64::MAX { 0 } else { self.next + 1 };
            }
            9 => self.id = self.value,
            10 => self.value = self.records.len() as u64,
            13 => {
                self.value = self.wrong.range.unwrap_or(RANGE);
                self.told.0 = self.value;
            }
            14 => {
                self.value = self.wrong.length.unwrap_or(RANGE_BYTES as u64);
                self.told.1 = self.value;
            }
            15 => self.value = self.wrong.attributes,
            _ => {}
        }
    }

    fn execute(&mut self) -> u64 {
        let Some(range) = self.range.get_mut(usize::try_from(self.offset).unwrap_or(usize::MAX)..) else {
            return FAILED;
        };
        match self.operation {
            0 => {
                if range.len() < cper::HEAD {
                    return FAILED;
                }
                let len = u32::from_le_bytes(std::array::from_fn(|n| range[20 + n])) as usize;
                let id = u64::from_le_bytes(std::array::from_fn(|n| range[96 + n]));
                let Some(record) = range.get(..len) else { return FAILED };
                if self.records.len() == MOST && !self.records.contains_key(&id) {
                    return NO_SPACE;
                }
                self.records.insert(id, record.to_vec());
                0
            }
            1 => match self.records.get(&self.id) {
                Some(record) => {
                    range.iter_mut().zip(record).for_each(|(to, from)| *to = *from);
                    0
                }
                None => NOT_FOUND,
            },
            2 if self.records.remove(&self.id).is_some() => 0,
            2 => NOT_FOUND,
            _ => FAILED,
        }
    }

    /// The place in the range, if it is there. Nothing outside of the range that was told may be asked for.
    fn place(&self, address: u64, bytes: usize) -> Option<usize> {
        let (at, len) = self.told;
        if self.is_good {
            let (end, most) = (u128::from(address) + bytes as u128, u128::from(at) + u128::from(len));
            assert!(address >= at && end <= most, "{bytes} bytes at {address:#x} are outside of {len} at {at:#x}");
        }
        let start = usize::try_from(address.checked_sub(at)?).ok()?;
        (start.checked_add(bytes)? <= self.range.len()).then_some(start)
    }

    fn tires(&mut self) -> Option<()> {
        self.accesses += 1;
        (self.accesses <= MOST_ACCESSES).then_some(())
    }
}

impl Bus for &mut Firmware<'_, '_> {
    fn read(&mut self, space: Space, address: u64, bytes: u8) -> Option<u64> {
        assert!(matches!(bytes, 1 | 2 | 4 | 8), "an access of {bytes} bytes");
        self.tires()?;
        let mask = u64::MAX >> (64 - 8 * u32::from(bytes));
        (space == Space::Memory && address == VALUE).then_some(self.value & mask)
    }

    fn write(&mut self, space: Space, address: u64, bytes: u8, value: u64) -> Option<()> {
        assert!(matches!(bytes, 1 | 2 | 4 | 8), "an access of {bytes} bytes");
        self.tires()?;
        match (space, address) {
            (Space::Memory, COMMAND) => self.command(value),
            (Space::Memory, VALUE) => self.value = value,
            _ => return None,
        }
        Some(())
    }

    fn load(&mut self, address: u64, to: &mut [u8]) -> Option<()> {
        let start = self.place(address, to.len())?;
        to.copy_from_slice(&self.range[start..start + to.len()]);
        Some(())
    }

    fn store(&mut self, address: u64, from: &[u8]) -> Option<()> {
        let start = self.place(address, from.len())?;
        self.range[start..start + from.len()].copy_from_slice(from);
        Some(())
    }

    fn wait(&mut self, micros: u64) {
        self.waited = self.waited.saturating_add(micros);
    }
}

/// A record, as the second reader reads it: who made it, what its section is, and the section.
fn read(bytes: &[u8]) -> Option<cper::Found<'_>> {
    let word = |at: usize| -> Option<usize> {
        let word: &[u8] = bytes.get(at..at + 4)?;
        Some(word.iter().rev().fold(0, |all, &byte| all << 8 | usize::from(byte)))
    };
    let id = |at: usize| -> Option<[u8; 16]> { bytes.get(at..at + 16)?.try_into().ok() };
    let is_record = bytes.get(..4)? == b"CPER" && bytes.get(6..10)? == [0xff; 4];
    let (whole, start, len) = (word(20)?, word(128)?, word(132)?);
    let fits = is_record && whole <= bytes.len() && start >= cper::HEAD && start + len <= whole;
    let (creator, section) = (id(64)?, id(144)?);
    fits.then(|| cper::Found { creator, section, body: &bytes[start..start + len] })
}

/// A record of any kind, of sidecore, of a Linux, or damaged.
fn record(input: &mut Input<'_>, id: u64) -> Vec<u8> {
    let body = match input.byte() % 4 {
        0 => {
            let state = [State::Booting, State::Running, State::Ended, State::Failed][usize::from(input.byte() % 4)];
            let record =
                Record { boot: input.wide(), attempts: input.byte().into(), state, config: [input.byte(); 32] };
            record.bytes().to_vec()
        }
        1 => super::log::text(input, 60),
        2 => miniz_oxide::deflate::compress_to_vec(&super::log::text(input, 60).repeat(3), 6),
        _ => (0..input.byte() % 80).map(|_| input.byte()).collect(),
    };
    let mut bytes =
        [&cper::head(if input.flag() { Kind::Log } else { Kind::Boot }, body.len() as u16)[..], &body].concat();
    bytes[96..104].copy_from_slice(&id.to_le_bytes());
    match input.byte() % 4 {
        0 => bytes[144..160].copy_from_slice(&cper::PACKED_LOG),
        1 => bytes[144..160].copy_from_slice(&cper::LOG),
        _ => {}
    }
    for _ in 0..input.byte().saturating_sub(192) % 8 {
        // The lengths, and anything.
        let at = match input.byte() % 4 {
            0 => 20 + input.within(0, 4),
            1 => 128 + input.within(0, 8),
            _ => input.within(0, bytes.len() as u64),
        };
        bytes[at as usize] = input.byte();
    }
    bytes
}

/// What the report does with a record of the store.
fn used(bytes: &[u8]) {
    let found = cper::read(bytes);
    assert_eq!(found, read(bytes));
    let Some(found) = found else { return };
    if let Some(first) = found.body.first_chunk()
        && let Some(record) = Record::read(first)
    {
        assert_eq!(record.bytes(), *first, "a record that is read has a right check");
    }
    let mut room = vec![0; 600];
    if found.creator == cper::PSTORE && found.section == cper::PACKED_LOG {
        super::log::packed_log(found.body, room.len());
    } else if let Some(text) = found.text(&mut room) {
        assert!(found.creator == cper::PSTORE && text == found.body);
        super::log::shown(text);
    }
}

/// Runs one input.
pub fn run(input: &mut Input<'_>) {
    let kind = input.byte();
    let mut entries = good_table();
    let mut count = entries.len() as u32;
    let is_good = kind < 160;
    if !is_good {
        for _ in 0..1 + input.byte() % 6 {
            let at = usize::from(input.byte()) % entries.len();
            match input.byte() % 4 {
                0 => {
                    entries[at] = entry(
                        input.byte() % 18,
                        input.byte() % 20,
                        [VALUE, COMMAND, 0][usize::from(input.byte() % 3)],
                        input.byte().into(),
                    )
                }
                1 => entries[at][usize::from(input.byte() % 8)] = input.byte() % 20,
                2 => entries[at][16 + usize::from(input.byte() % 16)] = input.byte(),
                _ => _ = entries.remove(at),
            }
        }
        count = if input.byte() < 16 { input.wide() as u32 } else { entries.len() as u32 };
    }
    let mut bytes = table(&entries, count);
    if !is_good && input.byte() < 16 {
        bytes.truncate(input.within(0, bytes.len() as u64) as usize);
    }
    let Some(table) = Table::new(&bytes) else {
        return assert!(!is_good, "a good table");
    };
    assert!(table.registers().all(|register| u32::from(register.bit) < 8 * u32::from(register.bytes)));
    let mut records = BTreeMap::new();
    for _ in 0..input.byte() % 5 {
        let id = match input.byte() {
            0..64 => cper::BOOT_ID,
            64..128 => cper::LOG_ID,
            other => other.into(),
        };
        records.insert(id, record(input, id));
    }
    let is_honest = kind < 80;
    let mut wrong = Wrong { busy: (input.byte() % 4).into(), ..Wrong::default() };
    if !is_honest {
        wrong.every = input.byte() % 8;
        let mut odd = || match input.byte() {
            0..192 => None,
            192..224 => Some(input.within(0, 4096)),
            _ => Some(input.wide()),
        };
        (wrong.range, wrong.length) = (odd(), odd());
        wrong.attributes = if input.byte() < 8 { input.wide() } else { 0 };
        wrong.busy = if input.byte() < 4 { u32::MAX } else { wrong.busy };
    }
    let steps = 1 + input.byte() % 10;
    let plan: Vec<[u8; 2]> = (0..steps).map(|_| [input.byte(), input.byte()]).collect();
    let mut firmware = Firmware {
        input,
        records,
        wrong,
        range: vec![0x33; RANGE_BYTES],
        value: 0,
        operation: u8::MAX,
        offset: 0,
        id: 0,
        status: 0,
        busy: 0,
        next: 0,
        answers: 0,
        accesses: 0,
        waited: 0,
        told: (0, 0),
        is_good,
    };
    let mut model = firmware.records.clone();
    let range = match Store::open(&table, &mut firmware) {
        Ok(store) => store.range(),
        Err(why) => {
            assert!(!is_honest || !is_good, "an honest firmware: {why}");
            return crate::is_line(&why.to_string());
        }
    };
    if is_good {
        assert_eq!(range, firmware.told);
    }
    for [what, which] in plan {
        let known = [cper::BOOT_ID, cper::LOG_ID, u64::from(which)];
        let id = known[usize::from(which % 3)];
        let waited = firmware.waited;
        let mut store = Store::with_range(&table, &mut firmware, range);
        let failed: Option<Error> = match what % 4 {
            0 => match store.ids() {
                Ok(ids) => {
                    let different: std::collections::BTreeSet<_> = ids.iter().collect();
                    assert!(different.len() == ids.len() && ids.len() <= 1025 && !ids.contains(&u64::MAX), "{ids:?}");
                    if is_honest {
                        let mut ids = ids;
                        ids.sort_unstable();
                        assert_eq!(ids, model.keys().copied().collect::<Vec<_>>());
                    }
                    None
                }
                Err(why) => Some(why),
            },
            1 => {
                let mut room = vec![0; 100 + 16 * usize::from(what)];
                let most = room.len();
                match store.read(id, &mut room).map(<[u8]>::to_vec) {
                    Ok(mut bytes) => {
                        assert!(bytes.len() <= most && bytes.len() as u64 <= range.1);
                        if planted() {
                            bytes.insert(0, b'C');
                        }
                        if is_honest {
                            let record = model.get(&id).expect("a record that is there");
                            let len = record.len().min(bytes.len());
                            assert_eq!(bytes[..len], record[..len], "what was written is read");
                        }
                        used(&bytes);
                        None
                    }
                    Err(Error::NotFound) if is_honest => {
                        assert!(!model.contains_key(&id), "there is such a record");
                        None
                    }
                    Err(why) => Some(why),
                }
            }
            2 => {
                let text = vec![which; usize::from(what) * 8];
                let (kind, body) = if which & 1 == 0 {
                    let record = Record { boot: which.into(), attempts: 1, state: State::Failed, config: [what; 32] };
                    (Kind::Boot, record.bytes().to_vec())
                } else {
                    (Kind::Log, text)
                };
                let head = cper::head(kind, body.len() as u16);
                let whole = [&head[..], &body].concat();
                let (creator, section) =
                    if kind == Kind::Boot { (cper::SIDECORE, cper::SIDECORE) } else { (cper::PSTORE, cper::LOG) };
                assert_eq!(
                    read(&whole),
                    Some(cper::Found { creator, section, body: &body }),
                    "what is written can be read"
                );
                assert!(kind == Kind::Log || body.len() == record::BYTES);
                match store.write(&[&head, &body]) {
                    Ok(()) => {
                        assert!(whole.len() as u64 <= range.1, "it is longer than the range");
                        let id = if kind == Kind::Boot { cper::BOOT_ID } else { cper::LOG_ID };
                        model.insert(id, whole);
                        None
                    }
                    Err(Error::TooLong(most)) => {
                        assert!(most == range.1 && whole.len() as u64 > most, "it fits");
                        None
                    }
                    Err(Error::Status(NO_SPACE)) if is_honest => {
                        assert!(model.len() == MOST, "there is room");
                        None
                    }
                    Err(why) => Some(why),
                }
            }
            _ => match store.clear(id) {
                Ok(()) => {
                    let was_there = model.remove(&id).is_some();
                    assert!(was_there || !is_honest, "nothing is there to be cleared");
                    None
                }
                Err(Error::NotFound) if is_honest => {
                    assert!(!model.contains_key(&id), "there is such a record");
                    None
                }
                Err(why) => Some(why),
            },
        };
        if let Some(why) = failed {
            assert!(!(is_honest && is_good), "an honest firmware: {why}");
            crate::is_line(&why.to_string());
        }
        if is_good {
            // Twenty thousand looks whether it is done, and a pause of 100 microseconds after each.
            assert!(firmware.waited - waited <= 2_000_000, "{} microseconds", firmware.waited - waited);
        }
        if is_honest && is_good {
            assert_eq!(firmware.records, model, "the records of the store");
        }
    }
}
