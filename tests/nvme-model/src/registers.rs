//! Registers and doorbells (NVMe Base 2.0, 3.1.3; PCIe Transport 1.0, 3.1.2).

use crate::model::{Completion, Model, Submission};

const DOORBELLS: u32 = 0x1000;

impl Model {
    /// Bytes of BAR 0.
    pub const BAR_BYTES: u32 = 0x4000;

    /// Reads a register of 32 bits.
    pub fn read(&mut self, offset: u32) -> u32 {
        if self.faults.gone {
            self.accesses_while_gone += 1;
            return if self.faults.zeroes { 0 } else { u32::MAX };
        }
        let c = &self.config;
        let cap = u64::from(c.mqes)
            | 1 << 16
            | u64::from(c.to) << 24
            | u64::from(c.dstrd) << 32
            | u64::from(c.css) << 37
            | u64::from(c.mpsmin) << 48;
        match offset {
            0x00 => cap as u32,
            0x04 => (cap >> 32) as u32,
            0x08 => 0x0002_0000,
            0x14 => self.cc,
            0x1c => self.csts(),
            0x24 => self.aqa,
            0x28 => self.asq as u32,
            0x2c => (self.asq >> 32) as u32,
            0x30 => self.acq as u32,
            0x34 => (self.acq >> 32) as u32,
            _ => {
                self.wrong(format!("register {offset:#x} is read"));
                0
            }
        }
    }

    fn csts(&self) -> u32 {
        let shutdown = match self.shutdown_at {
            None => 0,
            Some(at) if self.time < at => 1,
            Some(_) => 2,
        };
        u32::from(self.ready) | u32::from(self.fatal || self.faults.fatal) << 1 | shutdown << 2
    }

    /// Writes a register of 32 bits.
    pub fn write(&mut self, offset: u32, value: u32) {
        if self.faults.gone {
            self.accesses_while_gone += 1;
            return;
        }
        let low = |old: u64| old & !0xffff_ffff | u64::from(value);
        let high = |old: u64| old & 0xffff_ffff | u64::from(value) << 32;
        if matches!(offset, 0x24..0x38) && self.cc & 1 != 0 {
            self.wrong(format!("register {offset:#x} is written while CC.EN is 1"));
        }
        match offset {
            0x0c => {}
            0x14 => self.write_cc(value),
            0x24 => self.aqa = value,
            0x28 => self.asq = low(self.asq),
            0x2c => self.asq = high(self.asq),
            0x30 => self.acq = low(self.acq),
            0x34 => self.acq = high(self.acq),
            DOORBELLS.. => self.doorbell(offset - DOORBELLS, value),
            _ => self.wrong(format!("register {offset:#x} is written")),
        }
    }

    fn write_cc(&mut self, value: u32) {
        let (was, shn) = (self.cc, value >> 14 & 3);
        self.cc = value;
        if was & 1 != 0 && value & 1 != 0 && (was ^ value) & 0x00ff_3ff0 != 0 {
            self.wrong("CC changes while CC.EN is 1");
        }
        if was & 1 == 0 && value & 1 != 0 {
            if self.ready {
                self.wrong("CC.EN is set before CSTS.RDY is 0");
            }
            if value & 0x00ff_3ff0 != 0x0046_0000 {
                self.wrong(format!("CC is {value:#x}"));
            }
            self.start();
        } else if was & 1 != 0 && value & 1 == 0 {
            self.changes_at = self.time + self.config.ready_time;
            if !self.faults.never_stops {
                self.stop();
            }
            self.faults.fatal = false;
            self.fatal = false;
        }
        if shn != 0 && was >> 14 & 3 == 0 {
            self.shutdowns.push(shn as u8);
            if shn == 1 && self.submissions.len() > 1 {
                self.wrong("a normal shutdown is notified while there are I/O queues");
            }
            self.shutdown_at = Some(self.time + self.config.shutdown_time);
        } else if value & 1 == 0 {
            self.shutdown_at = None;
        }
    }

    /// Forgets all queues and commands.
    fn stop(&mut self) {
        self.submissions.clear();
        self.completions.clear();
        self.held.clear();
        self.unposted.clear();
        self.event_requests.clear();
    }

    fn start(&mut self) {
        self.starts += 1;
        self.changes_at = self.time + self.config.ready_time;
        self.shutdown_at = None;
        let (submission, completion) = ((self.aqa & 0xfff) as u16 + 1, (self.aqa >> 16 & 0xfff) as u16 + 1);
        if !self.asq.is_multiple_of(4096) || !self.acq.is_multiple_of(4096) || submission < 2 || completion < 2 {
            self.wrong("the admin queues are not aligned or too short");
        }
        let sq = Submission { base: self.asq, entries: submission, head: 0, tail: 0, completion: 0 };
        let cq = Completion { base: self.acq, entries: completion, head: 0, tail: 0, phase: true };
        self.submissions.insert(0, sq);
        self.completions.insert(0, cq);
    }

    fn doorbell(&mut self, offset: u32, value: u32) {
        let stride = 4 << self.config.dstrd;
        let (number, rest) = (offset / stride, offset % stride);
        let (queue, is_head) = ((number / 2) as u16, number % 2 == 1);
        if rest != 0 || !self.ready {
            self.wrong(format!("a doorbell is written at {offset:#x}, ready: {}", self.ready));
            return;
        }
        let entries = if is_head {
            self.completions.get(&queue).map(|q| q.entries)
        } else {
            self.submissions.get(&queue).map(|q| q.entries)
        };
        if entries.is_none_or(|entries| value >= u32::from(entries)) {
            self.wrong(format!("the doorbell of queue {queue} gets {value}; its entries: {entries:?}"));
            return;
        }
        if let (true, Some(q)) = (is_head, self.completions.get_mut(&queue)) {
            q.head = value as u16;
        } else if let (false, Some(q)) = (is_head, self.submissions.get_mut(&queue)) {
            q.tail = value as u16;
        }
    }

    /// Lets microseconds pass.
    pub fn advance(&mut self, microseconds: u64) {
        self.time += microseconds;
        self.fatal |= self.faults.fatal;
        if self.time >= self.changes_at {
            let enabled = self.cc & 1 != 0;
            let stuck = if enabled { self.faults.never_ready } else { self.faults.never_stops };
            if !stuck {
                if !enabled {
                    self.stop();
                }
                self.ready = enabled;
            }
        }
    }
}
