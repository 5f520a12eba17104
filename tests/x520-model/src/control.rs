//! Reset, the master disable handshake and the semaphores (data sheet 4.2.1.6, 4.6.3, 5.2.5.3.2, 10.5.4).

use crate::diagnostic::{Diagnostic, Direction};
use crate::model::Model;
use crate::registers::{DMAIDONE, ENABLE, Reg};
use crate::state::{Flow, Receive, Throttle, Transmit};
use crate::two_wire::Driven;

/// CTRL: stop DMA.
const MASTER_DISABLE: u32 = 1 << 2;
/// CTRL: link reset; both resets are the same to the model.
const LRST: u32 = 1 << 3;
/// CTRL: device reset.
const RST: u32 = 1 << 26;
/// STATUS: DMA is possible.
const MASTER_ENABLED: u32 = 1 << 19;
/// EEC: the EEPROM has been read after reset.
const AUTO_READ_DONE: u32 = 1 << 9;
/// EEMNGCTL: firmware is done with both ports.
const CONFIG_DONE: u32 = 3 << 18;

/// Microseconds until CTRL.RST clears itself.
const RST_CLEARS: u64 = 5;
/// Microseconds for which nothing else may be touched.
const QUIET: u64 = 1_000;
/// Microseconds until EEPROM, firmware and DMA are ready.
const READY: u64 = 3_000;

const SMBI: u32 = 1;
const SWESMBI: u32 = 2;

impl Model {
    /// Whether registers other than CTRL are out of reach.
    pub(crate) fn in_reset(&self) -> bool {
        self.reset.started.is_some_and(|at| self.now < at + QUIET || self.faults.reset_hangs)
    }

    pub(crate) fn start_reset(&mut self) {
        // The other port and firmware share it.
        let owners = self.get(Reg::SwFwSync, 0);
        self.set_defaults();
        self.set(Reg::SwFwSync, 0, owners);
        self.set(Reg::Ctrl, 0, RST);
        self.set(Reg::Eec, 0, self.get(Reg::Eec, 0) & !AUTO_READ_DONE);
        self.set(Reg::Rxpbsize, 0, 512 << 10);
        self.set(Reg::Txpbsize, 0, 160 << 10);
        let [a, b, c, d, e, f] = self.config.mac;
        self.set(Reg::Ral, 0, u32::from_le_bytes([a, b, c, d]));
        self.set(Reg::Rah, 0, u32::from_le_bytes([e, f, 0, 0x80]));
        let status = self.get(Reg::Status, 0);
        self.set(Reg::Status, 0, status | u32::from(self.config.port & 1) << 2);
        if let Some(autoc) = self.config.backplane {
            self.set(Reg::Autoc, 0, autoc);
        }
        self.signalled = 0;
        self.throttle = Throttle::default();
        self.latched.clear();
        self.flow = Flow::default();
        self.control.clear();
        // Reset lets go of the wires to the module, however far a byte was.
        self.driven = Driven::released(self.now);
        self.receive = Receive::new();
        self.transmit = Transmit::new();
        self.reset.started = Some(self.now);
        self.restart_link();
    }

    pub(crate) fn update_reset(&mut self) {
        let Some(at) = self.reset.started else { return };
        if self.faults.reset_hangs {
            return;
        }
        if self.now >= at + RST_CLEARS {
            self.set(Reg::Ctrl, 0, self.get(Reg::Ctrl, 0) & !RST);
        }
        if self.now >= at + READY + self.faults.slow {
            self.set(Reg::Eec, 0, self.get(Reg::Eec, 0) | AUTO_READ_DONE);
            self.set(Reg::Rdrxctl, 0, self.get(Reg::Rdrxctl, 0) | DMAIDONE);
            self.set(Reg::Eemngctl, 0, if self.faults.configuration_hangs { 0 } else { CONFIG_DONE });
            self.set(Reg::Secrxstat, 0, 1);
            self.set(Reg::Sectxstat, 0, 1);
            self.reset.started = None;
        }
    }

    pub(crate) fn write_ctrl(&mut self, value: u32) {
        if value & (RST | LRST) != 0 {
            return self.start_reset();
        }
        self.set(Reg::Ctrl, 0, value);
        let off = value & MASTER_DISABLE != 0 && !self.faults.master_stuck;
        let status = self.get(Reg::Status, 0);
        self.set(Reg::Status, 0, if off { status & !MASTER_ENABLED } else { status | MASTER_ENABLED });
    }

    /// Whether the device may DMA at all.
    pub(crate) fn master_enabled(&self) -> bool {
        self.get(Reg::Status, 0) & MASTER_ENABLED != 0
    }

    /// Reading takes the semaphore: who reads SMBI as 0 has it.
    pub(crate) fn read_swsm(&mut self, value: u32) -> u32 {
        self.set(Reg::Swsm, 0, value | SMBI);
        value
    }

    pub(crate) fn write_swsm(&mut self, value: u32) {
        // SMBI can only be cleared by writing; SWESMBI is granted while firmware does not hold it.
        let smbi = self.get(Reg::Swsm, 0) & value & SMBI;
        let granted = if self.faults.firmware_holds_swesmbi { 0 } else { value & SWESMBI };
        self.set(Reg::Swsm, 0, smbi | granted);
    }

    pub(crate) fn write_sw_fw_sync(&mut self, value: u32) {
        // Without it a driver can only overrule firmware that does not let go.
        if self.get(Reg::Swsm, 0) & SWESMBI == 0 && !self.faults.firmware_holds_swesmbi {
            self.report(Diagnostic::WithoutSemaphore);
        }
        // Firmware's own bits are firmware's while it has a fault.
        self.set(Reg::SwFwSync, 0, value & !self.faults.firmware_owns);
    }

    /// Whether a ring lies as it must; told if not.
    pub(crate) fn check_ring(&mut self, who: Direction, base: u64, len: u32) -> bool {
        let good = base != 0 && base.is_multiple_of(128) && len != 0 && len.is_multiple_of(128);
        if !good {
            self.report(Diagnostic::BadRing { who, base, len });
        }
        good
    }

    /// What becomes of a queue's control register; `was` is its value before.
    pub(crate) fn enable_value(&self, value: u32, was: u32) -> u32 {
        if self.faults.enable_stuck && was & ENABLE == 0 { value & !ENABLE } else { value }
    }
}

#[cfg(test)]
mod tests {
    use super::{AUTO_READ_DONE, MASTER_DISABLE, MASTER_ENABLED, RST};
    use crate::diagnostic::Diagnostic;
    use crate::registers::{DMAIDONE, Reg};
    use crate::testing::model;

    #[test]
    fn reset_clears_itself_and_the_device_is_ready_only_later() {
        let (mut m, _) = model();
        m.write(Reg::Fctrl.offset(0), 0x300);
        m.write(0, RST);
        assert_eq!(m.read(0) & RST, RST);
        m.advance(10);
        assert_eq!(m.read(0) & RST, 0);
        m.read(Reg::Eec.offset(0));
        assert_eq!(m.take_diagnostics(), [Diagnostic::AccessDuringReset { register: "EEC" }]);
        m.advance(1_000);
        assert_eq!(m.read(Reg::Eec.offset(0)) & AUTO_READ_DONE, 0);
        assert_eq!(m.read(Reg::Rdrxctl.offset(0)) & DMAIDONE, 0);
        m.advance(2_000);
        assert_ne!(m.read(Reg::Eec.offset(0)) & AUTO_READ_DONE, 0);
        assert_ne!(m.read(Reg::Rdrxctl.offset(0)) & DMAIDONE, 0);
        assert_eq!(m.read(Reg::Fctrl.offset(0)), 0);
        assert_eq!(m.take_diagnostics(), []);
    }

    #[test]
    fn the_address_is_loaded_from_the_eeprom() {
        let (mut m, _) = model();
        assert_eq!(m.read(Reg::Ral.offset(0)), 0x0021_1b02);
        assert_eq!(m.read(Reg::Rah.offset(0)), 0x8000_0100);
        assert_eq!(m.read(Reg::Rah.offset(1)), 0);
    }

    #[test]
    fn a_hung_reset_stays() {
        let (mut m, _) = model();
        m.faults.reset_hangs = true;
        m.write(0, RST);
        m.advance(1_000_000);
        assert_eq!(m.read(0) & RST, RST);
    }

    #[test]
    fn master_disable_is_acknowledged_unless_stuck() {
        let (mut m, _) = model();
        m.write(0, MASTER_DISABLE);
        assert_eq!(m.read(8) & MASTER_ENABLED, 0);
        m.write(0, 0);
        m.faults.master_stuck = true;
        m.write(0, MASTER_DISABLE);
        assert_eq!(m.read(8) & MASTER_ENABLED, MASTER_ENABLED);
    }

    #[test]
    fn semaphores_are_taken_by_reading_and_by_setting() {
        let (mut m, _) = model();
        let (swsm, sync) = (Reg::Swsm.offset(0), Reg::SwFwSync.offset(0));
        assert_eq!((m.read(swsm) & 1, m.read(swsm) & 1), (0, 1));
        m.write(sync, 1);
        assert_eq!(m.take_diagnostics(), [Diagnostic::WithoutSemaphore]);
        m.write(swsm, 3);
        assert_eq!(m.read(swsm) & 2, 2);
        m.write(sync, 1);
        assert_eq!(m.take_diagnostics(), []);
        m.write(swsm, 0);
        assert_eq!(m.read(swsm), 0);
    }
}
