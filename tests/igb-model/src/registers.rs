//! Accesses to registers.

use crate::kind::{Diagnostic, Kind};
use crate::offsets::*;
use crate::state::Model;

const ENABLE: u32 = 1 << 25;

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
