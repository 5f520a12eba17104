//! The semaphores that software and firmware share (82599 data sheet 10.5.4; 82576 data sheet 4.7). Firmware and driver must
//! not use the link's registers, or the wires to a PHY or a module, at the same time.

use crate::registers::{Bus, Register, Registers};

const SMBI: u32 = 1;
const SWESMBI: u32 = 1 << 1;
/// Most microseconds that firmware may keep a resource. Later it is taken from it.
pub const LIMIT: u64 = 1_000_000;

/// Something that is shared.
#[derive(Clone, Copy, Debug)]
pub struct Resource {
    /// The register SWSM.
    pub swsm: Register,
    /// The register SW_FW_SYNC.
    pub sw_fw_sync: Register,
    /// Software's bit in SW_FW_SYNC.
    pub software: u32,
    /// Firmware's bit there.
    pub firmware: u32,
}

impl Resource {
    /// Both bits.
    fn owners(&self) -> u32 {
        self.software | self.firmware
    }

    /// Takes it. Returns false if somebody has it now.
    pub fn take<R: Registers>(&self, bus: &Bus<R>) -> bool {
        if !self.enter(bus) {
            return false;
        }
        let owners = bus.read(&self.sw_fw_sync, 0);
        let free = owners & self.owners() == 0;
        if free {
            bus.write(&self.sw_fw_sync, 0, owners | self.software);
        }
        self.leave(bus);
        free
    }

    /// Takes it from whoever has it: an earlier driver, or firmware that has stopped.
    pub fn force<R: Registers>(&self, bus: &Bus<R>) {
        bus.write(&self.swsm, 0, SWESMBI);
        bus.update(&self.sw_fw_sync, 0, |owners| owners & !self.owners() | self.software);
        self.leave(bus);
    }

    /// Gives it back.
    pub fn release<R: Registers>(&self, bus: &Bus<R>) {
        // Only software takes SMBI, and this driver is the only software. SWESMBI may be busy for a moment.
        bus.write(&self.swsm, 0, SWESMBI);
        bus.update(&self.sw_fw_sync, 0, |owners| owners & !self.software);
        self.leave(bus);
    }

    fn enter<R: Registers>(&self, bus: &Bus<R>) -> bool {
        // Reading SMBI as 0 takes it.
        if bus.read(&self.swsm, 0) & SMBI != 0 {
            return false;
        }
        bus.write(&self.swsm, 0, SMBI | SWESMBI);
        let entered = bus.read(&self.swsm, 0) & SWESMBI != 0;
        if !entered {
            self.leave(bus);
        }
        entered
    }

    fn leave<R: Registers>(&self, bus: &Bus<R>) {
        bus.write(&self.swsm, 0, 0);
    }
}
