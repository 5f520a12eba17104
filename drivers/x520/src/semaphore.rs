//! What this device shares with its firmware (data sheet 10.5.4).

pub(crate) use intel_nic::semaphore::{LIMIT, Resource};

use crate::registers::{SW_FW_SYNC, SWSM};

/// Firmware's bit in SW_FW_SYNC lies so far above software's.
const FIRMWARE: u32 = 5;

const fn resource(software: u32) -> Resource {
    Resource { swsm: SWSM, sw_fw_sync: SW_FW_SYNC, software, firmware: software << FIRMWARE }
}

/// The MAC's registers.
pub(crate) const MAC: Resource = resource(1 << 3);

/// The wires to the module of a port.
pub(crate) const fn phy(port: u8) -> Resource {
    resource(if port & 1 == 0 { 1 << 1 } else { 1 << 2 })
}
