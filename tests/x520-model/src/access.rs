//! The device from outside: power, clock, wire, and what a read and a write of a register do (data sheet 8.2).

use std::collections::{HashMap, VecDeque};

use crate::diagnostic::Diagnostic;
use crate::eeprom;
use crate::faults::Faults;
use crate::memory::Dma;
use crate::model::{Config, Model};
use crate::registers::{Access, BAR_BYTES, DMAIDONE, ENABLE, Reg, TABLE, canonical};
use crate::state::{EepromRead, Flow, Link, Receive, Reset, Throttle, Transmit};
use crate::two_wire::Driven;
use crate::two_wire::TwoWire;

impl Model {
    /// A device after power-on. Its reset is done, and there is no cable in it.
    #[must_use]
    pub fn new(config: Config, dma: Box<dyn Dma + Send>) -> Self {
        let mut map = vec![None; BAR_BYTES as usize / 4];
        for row in TABLE {
            let count: u32 = row.banks.iter().map(|b| b.count).sum();
            for n in 0..count as usize {
                map[row.reg.offset(n) as usize / 4] = Some((row.reg, n as u16));
            }
        }
        let mut model = Self {
            eeprom: eeprom::image(&config),
            module: config.module,
            config,
            words: vec![0; BAR_BYTES as usize / 4],
            map,
            now: 0,
            dma,
            diagnostics: Vec::new(),
            faults: Faults::default(),
            reset: Reset::default(),
            eeprom_read: EepromRead::default(),
            link: Link::default(),
            receive: Receive::new(),
            transmit: Transmit::new(),
            sent: VecDeque::new(),
            sent_bytes: 0,
            control: VecDeque::new(),
            flow: Flow::default(),
            two_wire: TwoWire::default(),
            driven: Driven::released(0),
            sequence: Vec::new(),
            signalled: 0,
            throttle: Throttle::default(),
            latched: HashMap::new(),
            transactions: 0,
            accesses: (0, 0),
        };
        model.start_reset();
        model.advance(10_000);
        model
    }

    /// Lets time pass.
    pub fn advance(&mut self, microseconds: u64) {
        self.now += microseconds;
        self.update_reset();
        self.update_eeprom();
        self.update_link();
        self.update_wires();
    }

    /// Lets the device work until it can do nothing more.
    pub fn run(&mut self) {
        if self.in_reset() || self.faults.gone {
            return;
        }
        loop {
            let sent = self.run_transmit();
            let received = self.run_receive();
            if !sent && !received {
                return self.update_flow(self.receive.used());
            }
        }
    }

    /// Delivers a frame on the wire, without FCS.
    pub fn deliver(&mut self, frame: &[u8]) {
        self.arrive(frame, true);
    }

    /// Delivers a frame with a wrong FCS.
    pub fn deliver_damaged(&mut self, frame: &[u8]) {
        self.arrive(frame, false);
    }

    /// Takes the next frame that left by the wire, without FCS. `None`: there is none, or the other side has sent
    /// PAUSE.
    pub fn take_sent(&mut self) -> Option<Vec<u8>> {
        if let Some(frame) = self.control.pop_front() {
            return Some(frame);
        }
        let frame = if self.is_paused() { None } else { self.sent.pop_front() };
        self.sent_bytes -= frame.as_ref().map_or(0, Vec::len);
        frame
    }

    /// Takes the driver's mistakes since the last call.
    pub fn take_diagnostics(&mut self) -> Vec<Diagnostic> {
        core::mem::take(&mut self.diagnostics)
    }

    /// DMA transactions since power-on.
    #[must_use]
    pub fn transactions(&self) -> u64 {
        self.transactions
    }

    /// Register reads and writes since power-on.
    #[must_use]
    pub fn accesses(&self) -> (u64, u64) {
        self.accesses
    }

    /// Reads a register, as the driver does.
    pub fn read(&mut self, offset: u32) -> u32 {
        self.accesses.0 += 1;
        if self.faults.gone {
            return u32::MAX;
        }
        let Some((reg, n)) = self.find(offset) else {
            self.report(Diagnostic::UnknownRegister { offset, write: false });
            return 0;
        };
        // CTRL is what says how far it is; STATUS is read to push a posted write to the device.
        if self.in_reset() && !matches!(reg, Reg::Ctrl | Reg::Status) {
            self.report(Diagnostic::AccessDuringReset { register: reg.row().name });
            return u32::MAX;
        }
        let value = self.get(reg, n);
        match (reg, reg.row().access) {
            (_, Access::WriteOnly) => {
                self.report(Diagnostic::ReadOfWriteOnly { register: reg.row().name });
                0
            }
            (Reg::Swsm, _) => self.read_swsm(value),
            (Reg::SwFwSync, _) => value | self.faults.firmware_owns,
            (Reg::Eicr, _) => self.read_eicr(),
            // The causes, which stay: Intel's advice for its erratum on reading EICR.
            (Reg::Eics, _) => self.get(Reg::Eicr, 0),
            (Reg::Gorcl | Reg::Gotcl | Reg::Torl | Reg::Qbrcl | Reg::Qbtcl, _) => self.read_bytes_low(reg, n),
            (Reg::Gorch | Reg::Gotch | Reg::Torh | Reg::Qbrch | Reg::Qbtch, _) => self.read_bytes_high(reg, n),
            (_, Access::ReadClear) => {
                self.set(reg, n, 0);
                value
            }
            (Reg::Rxdctl, _) => {
                self.receive.queues[n].seen_enabled |= value & ENABLE != 0;
                value
            }
            (Reg::Txdctl, _) => {
                self.transmit.queues[n].seen_enabled |= value & ENABLE != 0;
                value
            }
            _ => value,
        }
    }

    /// Writes a register, as the driver does.
    pub fn write(&mut self, offset: u32, value: u32) {
        self.accesses.1 += 1;
        if self.faults.gone {
            return;
        }
        let Some((reg, n)) = self.find(offset) else {
            return self.report(Diagnostic::UnknownRegister { offset, write: true });
        };
        let row = reg.row();
        if self.in_reset() {
            return self.report(Diagnostic::AccessDuringReset { register: row.name });
        }
        if matches!(row.access, Access::ReadOnly | Access::ReadClear) && reg != Reg::Eicr {
            return self.report(Diagnostic::WriteToReadOnly { register: row.name });
        }
        match reg {
            Reg::Ctrl => self.write_ctrl(value),
            Reg::Swsm => self.write_swsm(value),
            Reg::SwFwSync => self.write_sw_fw_sync(value),
            Reg::Eerd => self.write_eerd(value),
            Reg::Eec => self.write_eec(value),
            Reg::Autoc => self.write_autoc(value),
            Reg::I2cctl => self.write_i2cctl(value),
            Reg::Corectl => self.write_corectl(value),
            Reg::Eitr => self.write_eitr(n, value),
            Reg::Eicr | Reg::Eics | Reg::Eims | Reg::Eimc | Reg::EicsEx | Reg::EimsEx | Reg::EimcEx => {
                self.write_interrupt(reg, n, value);
            }
            Reg::Rdbal | Reg::Rdbah | Reg::Rdlen | Reg::Rdh | Reg::Rdt | Reg::Rxdctl | Reg::Srrctl => {
                self.write_receive_queue(reg, n, value);
            }
            Reg::Tdbal | Reg::Tdbah | Reg::Tdlen | Reg::Tdh | Reg::Tdt | Reg::Txdctl => {
                self.write_transmit_queue(reg, n, value);
            }
            Reg::Rxctrl => self.write_rxctrl(value),
            Reg::Mtqc | Reg::Dtxmxszrq => self.write_arbitrated(reg, value),
            Reg::Secrxctrl => self.write_secrxctrl(value),
            Reg::Rdrxctl => {
                // DMAIDONE is the device's.
                let done = self.get(reg, 0) & DMAIDONE;
                self.set(reg, 0, value & !DMAIDONE | done);
            }
            _ => self.set(reg, n, value & reg.bits()),
        }
    }

    fn find(&self, offset: u32) -> Option<(Reg, usize)> {
        if !offset.is_multiple_of(4) {
            return None;
        }
        let (reg, n) = (*self.map.get(canonical(offset) as usize / 4)?)?;
        Some((reg, usize::from(n)))
    }
}

#[cfg(test)]
mod tests {
    use crate::diagnostic::Diagnostic;
    use crate::registers::Reg;
    use crate::testing::model;

    #[test]
    fn an_unknown_offset_a_read_only_and_a_write_only_register_are_told() {
        let (mut m, _) = model();
        assert_eq!(m.read(0x1_fff0), 0);
        m.write(Reg::Status.offset(0), 1);
        m.write(Reg::Gprc.offset(0), 1);
        assert_eq!(m.read(Reg::Eimc.offset(0)), 0);
        m.write(0x1002, 0);
        assert_eq!(
            m.take_diagnostics(),
            [
                Diagnostic::UnknownRegister { offset: 0x1_fff0, write: false },
                Diagnostic::WriteToReadOnly { register: "STATUS" },
                Diagnostic::WriteToReadOnly { register: "GPRC" },
                Diagnostic::ReadOfWriteOnly { register: "EIMC" },
                Diagnostic::UnknownRegister { offset: 0x1002, write: true },
            ]
        );
    }

    #[test]
    fn old_offsets_are_the_same_register() {
        let (mut m, _) = model();
        m.write(0x5818, 0x1234);
        m.write(0x2104, 0x0200_0002);
        assert_eq!((m.read(Reg::Mrqc.offset(0)), m.read(Reg::Srrctl.offset(1))), (0x1234, 0x0200_0002));
    }

    #[test]
    fn bits_that_do_not_exist_read_as_zero() {
        let (mut m, _) = model();
        for (reg, expected) in [
            (Reg::Rdbal, 0xffff_ff80),
            (Reg::Rdlen, 0x000f_ff80),
            (Reg::Tdbal, 0xffff_ff80),
            (Reg::Tdlen, 0x000f_ff80),
            (Reg::Rah, 0x8000_ffff),
            (Reg::Mta, u32::MAX),
        ] {
            m.write(reg.offset(3), u32::MAX);
            assert_eq!(m.read(reg.offset(3)), expected, "{}", reg.row().name);
        }
        assert_eq!(m.take_diagnostics().len(), 4, "rings at odd places");
    }

    #[test]
    fn a_device_off_the_bus_reads_as_all_ones() {
        let (mut m, _) = model();
        m.faults.gone = true;
        assert_eq!(m.read(0x1_fff0), u32::MAX);
        m.write(Reg::Rxctrl.offset(0), 1);
        m.faults.gone = false;
        assert_eq!(m.read(Reg::Rxctrl.offset(0)), 0);
    }
}
