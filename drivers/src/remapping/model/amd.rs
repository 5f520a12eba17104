//! A unit of AMD's (48882 revision 3.08, 3.4). Queues and logs stop some reads after their enable bits are cleared.

use crate::remapping::{Parts, Registers};

const TICK: u64 = 3;
const DELAY: u32 = 5;
/// Enable bit and run bit of each queue: commands, event log, peripheral page requests, guest virtual APIC log.
const QUEUES: [(u32, u32, Parts); 4] =
    [(12, 4, Parts::COMMANDS), (2, 3, Parts::LOG), (13, 7, Parts::LOG), (28, 8, Parts::LOG)];

pub struct Unit {
    pub absent: bool,
    pub stuck: Parts,
    pub now: u64,
    pub writes: u32,
    pub mistakes: Vec<String>,
    control: u64,
    status: u64,
    left: u32,
}

impl Unit {
    /// Coherent, isochronous, and a time limit for invalidations: no queues.
    pub const OTHER_BITS: u64 = 1 << 10 | 1 << 11 | 3 << 5;

    pub fn new(on: Parts) -> Self {
        let mut unit = Self {
            absent: false,
            stuck: Parts::empty(),
            now: 5,
            writes: 0,
            mistakes: Vec::new(),
            control: Self::OTHER_BITS | u64::from(on.contains(Parts::TRANSLATION)),
            status: 0,
            left: 0,
        };
        for (enable, run, part) in QUEUES {
            if on.contains(part) {
                unit.control |= 1 << enable | 1 << 3 | 1 << 4 | 1 << 14 | 1 << 29;
                unit.status |= 1 << run;
            }
        }
        unit
    }

    pub fn on(&self) -> Parts {
        let queues = QUEUES.iter().filter(|(_, run, _)| self.status & 1 << run != 0).map(|(.., part)| *part);
        let own = if self.control & 1 != 0 { Parts::TRANSLATION } else { Parts::empty() };
        queues.fold(own, |all, part| all | part)
    }

    pub fn control(&self) -> u64 {
        self.control
    }

    pub fn status(&self) -> u64 {
        self.status
    }

    pub fn log_event(&mut self) {
        self.status |= 0b11;
    }

    fn pass(&mut self) {
        self.now += TICK;
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            for (enable, run, part) in QUEUES {
                if self.control & 1 << enable == 0 && !self.stuck.contains(part) {
                    self.status &= !(1 << run);
                }
            }
        }
    }
}

impl Registers for Unit {
    fn read32(&mut self, offset: u64) -> u32 {
        panic!("a read of 32 bits at {offset:#x}")
    }

    fn write32(&mut self, offset: u64, _: u32) {
        panic!("a write of 32 bits at {offset:#x}")
    }

    fn read64(&mut self, offset: u64) -> u64 {
        self.pass();
        if self.absent {
            return u64::MAX;
        }
        match offset {
            0x18 => self.control,
            0x2020 => self.status,
            _ => panic!("a read at {offset:#x}"),
        }
    }

    fn write64(&mut self, offset: u64, value: u64) {
        self.pass();
        self.writes += 1;
        match offset {
            0x18 => {
                let goes_off = self.control & !value & 1 != 0;
                let running = QUEUES.iter().any(|(_, run, _)| self.status & 1 << run != 0);
                if goes_off && running && self.stuck.is_empty() {
                    self.mistakes.push("the unit goes off while a queue runs".to_owned());
                }
                let keep = if self.stuck.contains(Parts::TRANSLATION) { self.control & 1 } else { 0 };
                self.control = value | keep;
                self.left = DELAY;
            }
            0x2020 => self.status &= !(value & 0b110_0110_0111),
            _ => panic!("a write at {offset:#x}"),
        }
    }

    fn micros(&mut self) -> u64 {
        self.now += TICK;
        self.now
    }
}
