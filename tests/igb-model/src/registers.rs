//! Accesses to registers.

use crate::state::{Diagnostic, Kind, Model};

/// Words of BAR 0.
pub(crate) const WORDS: usize = 0x8000;
pub(crate) const CTRL_RST: u32 = 1 << 26;
const ENABLE: u32 = 1 << 25;

/// Offsets, from the 82576's data sheet, chapter 8.
pub(crate) mod at {
    pub const CTRL: u32 = 0;
    pub const STATUS: u32 = 8;
    pub const EECD: u32 = 0x10;
    pub const CTRL_EXT: u32 = 0x18;
    pub const MDIC: u32 = 0x20;
    pub const VET: u32 = 0x38;
    pub const ICR: u32 = 0xc0;
    pub const IMC: u32 = 0xd8;
    pub const RCTL: u32 = 0x100;
    pub const TCTL: u32 = 0x400;
    pub const LEDCTL: u32 = 0xe00;
    pub const PHPM: u32 = 0xe14;
    pub const EEMNGCTL: u32 = 0x1010;
    pub const EIMC: u32 = 0x1528;
    pub const EICR: u32 = 0x1580;
    pub const CRCERRS: u32 = 0x4000;
    pub const MPC: u32 = 0x4010;
    pub const GPRC: u32 = 0x4074;
    pub const BPRC: u32 = 0x4078;
    pub const MPRC: u32 = 0x407c;
    pub const GPTC: u32 = 0x4080;
    pub const GORCL: u32 = 0x4088;
    pub const GORCH: u32 = 0x408c;
    pub const GOTCL: u32 = 0x4090;
    pub const GOTCH: u32 = 0x4094;
    pub const RNBC: u32 = 0x40a0;
    pub const RUC: u32 = 0x40a4;
    pub const RFC: u32 = 0x40a8;
    pub const ROC: u32 = 0x40ac;
    pub const RJC: u32 = 0x40b0;
    pub const TPR: u32 = 0x40d0;
    pub const RXCSUM: u32 = 0x5000;
    pub const RLPML: u32 = 0x5004;
    pub const MTA: u32 = 0x5200;
    pub const RAL: u32 = 0x5400;
    pub const RAL2: u32 = 0x54e0;
    pub const VFTA: u32 = 0x5600;
    pub const MRQC: u32 = 0x5818;
    pub const SWSM: u32 = 0x5b50;
    pub const SW_FW_SYNC: u32 = 0x5b5c;
    pub const UTA: u32 = 0xa000;
    pub const RDBAL: u32 = 0xc000;
    pub const RDBAH: u32 = 0xc004;
    pub const RDLEN: u32 = 0xc008;
    pub const SRRCTL: u32 = 0xc00c;
    pub const RDH: u32 = 0xc010;
    pub const RDT: u32 = 0xc018;
    pub const RXDCTL: u32 = 0xc028;
    pub const TDBAL: u32 = 0xe000;
    pub const TDBAH: u32 = 0xe004;
    pub const TDLEN: u32 = 0xe008;
    pub const TDH: u32 = 0xe010;
    pub const TDT: u32 = 0xe018;
    pub const TXDCTL: u32 = 0xe028;
}

use at::*;

const COUNTERS: [u32; 13] = [CRCERRS, MPC, GPRC, BPRC, MPRC, GPTC, RNBC, RUC, RFC, ROC, RJC, TPR, 0x40d4];

fn within(offset: u32, start: u32, words: u32) -> bool {
    (start..start + 4 * words).contains(&offset)
}

impl Model {
    /// Entries of the address table from 16 on.
    pub(crate) fn second_part(&self) -> u32 {
        match self.kind {
            Kind::I82576 => 8,
            Kind::I350 => 16,
        }
    }

    fn is_table(&self, offset: u32) -> bool {
        within(offset, MTA, 128)
            || within(offset, VFTA, 128)
            || within(offset, RAL, 32)
            || within(offset, RAL2, 2 * self.second_part())
    }

    fn is_plain(&self, offset: u32) -> bool {
        let plain = [
            CTRL_EXT, VET, RCTL, TCTL, LEDCTL, RXCSUM, RLPML, MRQC, RDBAL, RDBAH, RDLEN, SRRCTL, RDH, TDBAL, TDBAH,
            TDLEN, TDH,
        ];
        plain.contains(&offset) || offset == PHPM && self.kind == Kind::I350
    }

    /// Whether the device answers: it says so if it is being reset, or is gone.
    fn answers(&mut self, offset: u32) -> bool {
        if self.faults.gone {
            return false;
        }
        // The read that flushes the write is allowed.
        if self.reset_until.is_some_and(|end| self.now < end) && offset != STATUS {
            self.complain(Diagnostic::AccessDuringReset(offset));
        }
        true
    }

    /// Reads a register.
    pub fn read(&mut self, offset: u32) -> u32 {
        if !self.answers(offset) {
            return u32::MAX;
        }
        match offset {
            STATUS => {
                let (up, speed) = match self.link() {
                    None => (0, 0),
                    Some(10) => (2, 0),
                    Some(100) => (2, 1),
                    Some(_) => (2, 2),
                };
                let master = self.get(CTRL) & 4 == 0 || self.faults.master_stuck;
                1 | up | u32::from(self.port) << 2 | speed << 6 | u32::from(master) << 19
            }
            EECD => 1 << 8 | u32::from(self.now >= self.loaded_at && !self.faults.configuration_hangs) << 9,
            EEMNGCTL => {
                let done = self.now >= self.loaded_at + 1000 && !self.faults.configuration_hangs;
                u32::from(done) << 18 << self.port
            }
            MDIC => {
                if self.phy.busy_until.is_some_and(|end| self.now >= end) && !self.faults.phy_silent {
                    self.phy.busy_until = None;
                    *self.at(MDIC) |= 1 << 28 | u32::from(self.faults.phy_error) << 30;
                }
                self.get(MDIC)
            }
            SWSM => {
                let was = self.get(SWSM);
                *self.at(SWSM) |= 1;
                was
            }
            SW_FW_SYNC => self.get(SW_FW_SYNC) | self.faults.firmware_owns,
            RXDCTL | TXDCTL if self.faults.enable_stuck => self.get(offset) & !ENABLE,
            GORCL | GOTCL => self.octets[usize::from(offset == GOTCL)] as u32,
            GORCH | GOTCH => {
                let octets = &mut self.octets[usize::from(offset == GOTCH)];
                (std::mem::take(octets) >> 32) as u32
            }
            ICR | EICR => std::mem::take(self.at(offset)),
            _ if COUNTERS.contains(&offset) => std::mem::take(self.at(offset)),
            CTRL | RDT | TDT | RXDCTL | TXDCTL => self.get(offset),
            _ if self.is_plain(offset) || self.is_table(offset) => self.get(offset),
            _ => {
                self.complain(Diagnostic::NoRegister(offset));
                0
            }
        }
    }

    /// Writes a register.
    pub fn write(&mut self, offset: u32, value: u32) {
        if !self.answers(offset) {
            return;
        }
        match offset {
            CTRL => {
                *self.at(CTRL) = value & !CTRL_RST;
                if value & CTRL_RST != 0 {
                    self.ask_for_reset();
                }
            }
            MDIC => self.access_phy(value),
            SWSM => *self.at(SWSM) = value & 3,
            SW_FW_SYNC => {
                // Firmware that has the PHY is gone if software takes it.
                self.faults.firmware_owns &= value;
                *self.at(SW_FW_SYNC) = value;
            }
            IMC | EIMC => {}
            RXDCTL | TXDCTL => *self.at(offset) = value,
            RDT | TDT => self.write_tail(offset, value),
            VFTA.. if within(offset, VFTA, 128) => {
                let n = (offset - VFTA) as usize / 4;
                let lost = self.kind == Kind::I350 && !self.vfta_written[n];
                self.vfta_written[n] = true;
                if !lost {
                    *self.at(offset) = value;
                }
            }
            _ if within(offset, UTA, 128) => *self.at(offset) = value,
            RDBAL | RDBAH | RDLEN if self.get(RCTL) & 2 != 0 => {
                self.complain(Diagnostic::Queue("the receive ring changes while receive is on"));
            }
            _ if self.is_plain(offset) || self.is_table(offset) => *self.at(offset) = value,
            _ => self.complain(Diagnostic::NoRegister(offset)),
        }
    }

    fn write_tail(&mut self, offset: u32, value: u32) {
        let (control, length) = if offset == RDT { (RXDCTL, RDLEN) } else { (TXDCTL, TDLEN) };
        if value != 0 && self.get(control) & ENABLE == 0 {
            self.complain(Diagnostic::Queue("a tail moves before its queue is enabled"));
        }
        if value >= self.get(length) / 16 && value != 0 {
            self.complain(Diagnostic::Queue("a tail is beyond its ring"));
        }
        *self.at(offset) = value;
    }

    fn access_phy(&mut self, value: u32) {
        let bit = [1, 2, 5, 6][usize::from(self.port & 3)];
        if self.get(SW_FW_SYNC) & 1 << bit == 0 {
            self.complain(Diagnostic::Phy("no semaphore"));
        }
        if !self.phy.begin(self.now) && !self.faults.phy_silent {
            self.complain(Diagnostic::Phy("an access is under way"));
        }
        let (register, data) = ((value >> 16) as u8 & 31, value as u16);
        let good = match (value >> 26 & 3, value >> 21 & 31) {
            (2, 1) => self.phy.read(register).inspect(|_| ()),
            (1, 1) => self.phy.write(register, data).then_some(data),
            _ => None,
        };
        if good.is_none() {
            self.complain(Diagnostic::Phy("a register that it does not have"));
        }
        *self.at(MDIC) = value & 0x0fff_0000 | u32::from(good.unwrap_or(0));
    }
}
