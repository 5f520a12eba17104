//! What a saved trace begins with: the names of what its records have as numbers, and the clock.

use super::{
    BLOCK, stop_number,
    traced::{Role, Traced},
};
use crate::arch::time;
use ::control::{GuestState, StopReason};
use ::trace::{
    Kind,
    frames::{FIRST_UPLINK, FIRST_UPLINK_CAUSE},
    stream::{Clock, Full, HeaderWriter, NOTHING, Table},
};
use alloc::{format, string::String, vec::Vec};
use config::Config;
use machine::reason::Reason;
use net::counters::{Drops, UplinkDrop};

/// Makes the blocks with names and clock.
pub(super) fn header(config: &Config, cores: &[Traced]) -> Vec<Vec<u8>> {
    let mut names: Vec<(Table, u32, u32, String)> = Vec::new();
    for traced in cores {
        let belongs_to = match traced.role {
            Role::Control => NOTHING,
            // There is one engine.
            Role::Engine => 0,
            Role::Guest(guest) => guest.into(),
        };
        names.push((Table::Core, traced.core as u32, belongs_to, traced.role.name().into()));
    }
    for (number, guest) in (0_u32..).zip(&config.guests) {
        names.push((Table::Guest, number, NOTHING, guest.name.clone()));
        for slot in (config.device_number(number as usize, 0)..).take(guest.devices.len()) {
            if let Some((_, kind, same)) = config.device_at(slot) {
                names.push((Table::Device, slot as u32, number, format!("{kind}{same}")));
            }
        }
    }
    for (number, uplink) in (FIRST_UPLINK.into()..).zip(&config.uplinks) {
        names.push((Table::Device, number, NOTHING, format!("uplink {}", uplink.name)));
    }
    names.extend((0..).zip(Reason::ALL).map(|(code, reason)| (Table::Reason, code, NOTHING, reason.name().into())));
    names.extend(Kind::ALL.iter().map(|kind| (Table::Kind, *kind as u32, NOTHING, kind.name().into())));
    names.extend(GuestState::ALL.map(|state| (Table::State, state as u32, NOTHING, state.name().into())));
    names.extend(StopReason::ALL.map(|reason| (Table::Stop, stop_number(reason), NOTHING, reason.name().into())));
    let causes = Drops::new();
    names.extend((0..).zip(causes.iter()).map(|(code, (name, _))| (Table::Cause, code, NOTHING, name.into())));
    let at_uplinks = (FIRST_UPLINK_CAUSE.into()..).zip(UplinkDrop::ALL);
    names.extend(at_uplinks.map(|(code, drop)| (Table::Cause, code, NOTHING, drop.name().into())));

    let (tsc, wall) = time::boot();
    let clock = Clock { tsc_khz: time::rates().tsc / 1000, wall, tsc };
    let mut blocks = Vec::new();
    let mut rest = names.as_slice();
    while !rest.is_empty() {
        let mut buffer = [0; BLOCK];
        let Ok(mut block) = HeaderWriter::new(&mut buffer, clock) else { break };
        while let [(table, number, belongs_to, name), after @ ..] = rest
            && block.name(*table, *number, *belongs_to, name) != Err(Full)
        {
            rest = after;
        }
        blocks.push(block.finish().into());
    }
    blocks
}
