//! The semaphores that software and firmware share (data sheet 10.5.4). Firmware and
//! driver must not start the link at the same time.

use crate::registers::{Bus, Registers, SW_FW_SYNC, SWSM};

const SMBI: u32 = 1;
const SWESMBI: u32 = 1 << 1;
/// SW_FW_SYNC: software owns the MAC's registers.
const SW_MAC: u32 = 1 << 3;
/// SW_FW_SYNC: firmware owns the MAC's registers.
const FW_MAC: u32 = 1 << 8;

/// Runs `f` while software owns the MAC's registers. Returns false, without running it, if they are not free now.
pub(crate) fn with_mac<R: Registers>(bus: &Bus<R>, f: impl FnOnce()) -> bool {
    if !take(bus) {
        return false;
    }
    let owners = bus.read(&SW_FW_SYNC, 0);
    let free = owners & (SW_MAC | FW_MAC) == 0;
    if free {
        bus.write(&SW_FW_SYNC, 0, owners | SW_MAC);
    }
    release(bus);
    if !free {
        return false;
    }
    f();
    // Only software takes SMBI, and this driver is the only software. SWESMBI may be busy for a moment.
    bus.write(&SWSM, 0, SWESMBI);
    bus.update(&SW_FW_SYNC, 0, |o| o & !SW_MAC);
    release(bus);
    true
}

/// Clears semaphores that an earlier driver, or firmware that has stopped, did not release.
pub(crate) fn force<R: Registers>(bus: &Bus<R>) {
    bus.write(&SWSM, 0, SWESMBI);
    bus.update(&SW_FW_SYNC, 0, |o| o & !(SW_MAC | FW_MAC));
    release(bus);
}

fn take<R: Registers>(bus: &Bus<R>) -> bool {
    // Reading SMBI as 0 takes it.
    if bus.read(&SWSM, 0) & SMBI != 0 {
        return false;
    }
    bus.write(&SWSM, 0, SMBI | SWESMBI);
    let taken = bus.read(&SWSM, 0) & SWESMBI != 0;
    if !taken {
        release(bus);
    }
    taken
}

fn release<R: Registers>(bus: &Bus<R>) {
    bus.write(&SWSM, 0, 0);
}
