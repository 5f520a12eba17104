//! The semaphores that software and firmware share (data sheet 10.5.4). Firmware and driver must not use the link's
//! registers or the wires to the module at the same time.

use crate::registers::{Bus, Registers, SW_FW_SYNC, SWSM};

const SMBI: u32 = 1;
const SWESMBI: u32 = 1 << 1;
/// Firmware's bit in SW_FW_SYNC lies so far above software's.
const FIRMWARE: u32 = 5;
/// Most microseconds that firmware may keep a resource. Later it is taken from it.
pub(crate) const LIMIT: u64 = 1_000_000;

/// What is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    /// The wires to the module of port 0.
    Phy0,
    /// The wires to the module of port 1.
    Phy1,
    /// The MAC's registers.
    Mac,
}

impl Resource {
    /// The wires to the module of a port.
    pub(crate) fn phy(port: u8) -> Self {
        if port & 1 == 0 { Self::Phy0 } else { Self::Phy1 }
    }

    /// Software's bit in SW_FW_SYNC.
    fn software(self) -> u32 {
        match self {
            Self::Phy0 => 1 << 1,
            Self::Phy1 => 1 << 2,
            Self::Mac => 1 << 3,
        }
    }

    /// Both bits.
    fn owners(self) -> u32 {
        self.software() | self.software() << FIRMWARE
    }
}

/// Takes a resource. Returns false if somebody has it now.
pub(crate) fn take<R: Registers>(bus: &Bus<R>, resource: Resource) -> bool {
    if !enter(bus) {
        return false;
    }
    let owners = bus.read(&SW_FW_SYNC, 0);
    let free = owners & resource.owners() == 0;
    if free {
        bus.write(&SW_FW_SYNC, 0, owners | resource.software());
    }
    leave(bus);
    free
}

/// Takes a resource from whoever has it: an earlier driver, or firmware that has stopped.
pub(crate) fn force<R: Registers>(bus: &Bus<R>, resource: Resource) {
    bus.write(&SWSM, 0, SWESMBI);
    bus.update(&SW_FW_SYNC, 0, |owners| owners & !resource.owners() | resource.software());
    leave(bus);
}

/// Gives a resource back.
pub(crate) fn release<R: Registers>(bus: &Bus<R>, resource: Resource) {
    // Only software takes SMBI, and this driver is the only software. SWESMBI may be busy for a moment.
    bus.write(&SWSM, 0, SWESMBI);
    bus.update(&SW_FW_SYNC, 0, |owners| owners & !resource.software());
    leave(bus);
}

fn enter<R: Registers>(bus: &Bus<R>) -> bool {
    // Reading SMBI as 0 takes it.
    if bus.read(&SWSM, 0) & SMBI != 0 {
        return false;
    }
    bus.write(&SWSM, 0, SMBI | SWESMBI);
    let entered = bus.read(&SWSM, 0) & SWESMBI != 0;
    if !entered {
        leave(bus);
    }
    entered
}

fn leave<R: Registers>(bus: &Bus<R>) {
    bus.write(&SWSM, 0, 0);
}
