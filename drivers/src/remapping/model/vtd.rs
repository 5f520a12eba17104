//! A unit of Intel's (VT-d 4.1, 11.4). A command takes effect some reads later.

use crate::remapping::{Parts, Registers};
use std::collections::BTreeSet;

/// Microseconds that pass at each access.
const TICK: u64 = 3;
/// Accesses until a command has taken effect.
const DELAY: u32 = 5;
const RECORDS: usize = 8;
const FIRST_RECORD: u64 = 0x400;

/// Global status: bit and part.
const GLOBAL: [(u32, Parts); 4] =
    [(31, Parts::TRANSLATION), (28, Parts::LOG), (26, Parts::COMMANDS), (25, Parts::INTERRUPTS)];
/// A bit of the global status that is no part: interrupts of the compatibility format. It stays as it is.
const CFIS: u32 = 1 << 23;
/// Bits of the global status that tell of commands of one moment: root table set, interrupt table set.
const MOMENT: u32 = 1 << 30 | 1 << 24;

pub struct Unit {
    pub capabilities: u64,
    /// Reads as this value everywhere.
    pub absent: Option<u64>,
    /// Parts that do not go off.
    pub stuck: Parts,
    /// The queue has stopped at a bad descriptor, before its end.
    pub queue_error: bool,
    /// The queue has stopped for no reason.
    pub queue_hangs: bool,
    pub now: u64,
    pub writes: u32,
    pub touched: BTreeSet<u64>,
    pub mistakes: Vec<String>,
    /// In their order.
    pub went_off: Vec<Parts>,
    status: u32,
    /// The status to come, and in how many accesses.
    coming: Option<(u32, u32)>,
    protected: u32,
    protected_coming: Option<u32>,
    fault_control: u32,
    head: u64,
    records: [u64; RECORDS],
    overflow: bool,
}

impl Unit {
    pub fn new(on: Parts) -> Self {
        let bits = GLOBAL.iter().filter(|(_, part)| on.contains(*part)).map(|(bit, _)| 1 << bit);
        let protected = if on.contains(Parts::PROTECTED_MEMORY) { 1 << 31 | 1 } else { 0 };
        Self {
            capabilities: (RECORDS as u64 - 1) << 40 | (FIRST_RECORD / 16) << 24 | 1 << 5 | 1 << 6,
            absent: None,
            stuck: Parts::empty(),
            queue_error: false,
            queue_hangs: false,
            now: 77,
            writes: 0,
            touched: BTreeSet::new(),
            mistakes: Vec::new(),
            went_off: Vec::new(),
            status: bits.fold(CFIS | MOMENT, |all, bit: u32| all | bit),
            coming: None,
            protected,
            protected_coming: None,
            fault_control: 0,
            head: 0x40,
            records: [0; RECORDS],
            overflow: false,
        }
    }

    pub fn on(&self) -> Parts {
        let global = GLOBAL.iter().filter(|(bit, _)| self.status & 1 << bit != 0).map(|(_, part)| *part);
        let memory = if self.protected & 1 != 0 { Parts::PROTECTED_MEMORY } else { Parts::empty() };
        global.fold(memory, |all, part| all | part)
    }

    pub fn masks_fault_interrupts(&self) -> bool {
        self.fault_control >> 31 == 1
    }

    /// Records a fault in this place, and that there were more than places.
    pub fn record_fault(&mut self, place: usize) {
        self.records[place] = 1 << 63 | 0x0600_0010;
        self.overflow = true;
    }

    /// The fault status.
    pub fn faults(&self) -> u32 {
        let pending = self.records.iter().any(|record| record >> 63 != 0);
        u32::from(self.overflow) | u32::from(pending) << 1 | u32::from(self.queue_error) << 4
    }

    fn tail(&self) -> u64 {
        0x80
    }

    fn pass(&mut self, offset: u64) {
        self.now += TICK;
        self.touched.insert(offset);
        if self.status & 1 << 26 != 0 && !self.queue_error && !self.queue_hangs && self.head < self.tail() {
            self.head += 0x10;
        }
        if let Some((to, left)) = self.coming {
            self.coming = (left > 0).then_some((to, left.saturating_sub(1)));
            if left == 0 {
                let gone = GLOBAL.iter().filter(|(bit, _)| self.status & !to & 1 << bit != 0);
                self.went_off.extend(gone.map(|(_, part)| *part));
                self.status = to;
            }
        }
        if let Some(left) = self.protected_coming {
            self.protected_coming = left.checked_sub(1);
            if left == 0 {
                self.protected &= !1;
                self.went_off.push(Parts::PROTECTED_MEMORY);
            }
        }
    }

    fn wrong(&mut self, what: &str) {
        self.mistakes.push(what.to_owned());
    }

    fn command(&mut self, value: u32) {
        if self.coming.is_some() {
            self.wrong("a command before the status had followed the last one");
        }
        if value & MOMENT != 0 {
            self.wrong("a command of one moment that nobody wanted");
        }
        let now = self.status & !MOMENT;
        let changed = now ^ value;
        if changed.count_ones() != 1 {
            self.wrong(&format!("a command that changes the bits {changed:#x}"));
        }
        if changed & 1 << 26 != 0 {
            if self.on().intersects(Parts::TRANSLATION | Parts::INTERRUPTS) && self.stuck.is_empty() {
                self.wrong("the queue goes off before what needs it");
            }
            if self.head != self.tail() && !self.queue_error && !self.queue_hangs {
                self.wrong("the queue goes off before it is empty");
            }
        }
        let stuck = GLOBAL.iter().any(|(bit, part)| changed & 1 << bit != 0 && self.stuck.contains(*part));
        if !stuck {
            self.coming = Some((value | MOMENT, DELAY));
        }
    }
}

impl Registers for Unit {
    fn read32(&mut self, offset: u64) -> u32 {
        self.pass(offset);
        if let Some(value) = self.absent {
            return value as u32;
        }
        match offset {
            0x00 => 0x10,
            0x1c => self.status,
            0x34 => self.faults(),
            0x38 => self.fault_control,
            0x64 => self.protected,
            _ => panic!("a read of 32 bits at {offset:#x}"),
        }
    }

    fn write32(&mut self, offset: u64, value: u32) {
        self.pass(offset);
        self.writes += 1;
        match offset {
            0x18 => self.command(value),
            0x34 => self.overflow &= value & 1 == 0,
            0x38 => self.fault_control = value,
            0x64 => {
                if self.on().contains(Parts::TRANSLATION) && self.stuck.is_empty() {
                    self.wrong("memory is opened while translation is on");
                }
                self.protected = value & 1 << 31 | self.protected & 1;
                if value >> 31 == 0 && !self.stuck.contains(Parts::PROTECTED_MEMORY) {
                    self.protected_coming = Some(DELAY);
                }
            }
            _ => panic!("a write of 32 bits at {offset:#x}"),
        }
    }

    fn read64(&mut self, offset: u64) -> u64 {
        self.pass(offset);
        if let Some(value) = self.absent {
            return value;
        }
        match offset {
            0x08 => self.capabilities,
            0x80 => self.head,
            0x88 => self.tail(),
            _ => self.records[record(offset)],
        }
    }

    fn write64(&mut self, offset: u64, value: u64) {
        self.pass(offset);
        self.writes += 1;
        if value >> 63 != 0 {
            self.records[record(offset)] &= !(1 << 63);
        }
    }

    fn micros(&mut self) -> u64 {
        self.now += TICK;
        self.now
    }
}

/// The number of the recorded fault whose upper half is at an offset.
fn record(offset: u64) -> usize {
    let within = offset.checked_sub(FIRST_RECORD + 8).filter(|within| within % 16 == 0);
    within.map_or_else(|| panic!("an access of 64 bits at {offset:#x}"), |within| (within / 16) as usize)
}
