//! The blocks of a file, each made of what a trace says.

use std::borrow::Cow;
use std::time::Duration;

use pcap_file::DataLink;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption, InterfaceTsResolution,
};
use pcap_file::pcapng::blocks::interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption};
use pcap_file::pcapng::blocks::opt_common::CommonOption;
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use trace::Captured;
use trace::capture::{MOST_BYTES, Way};

use crate::clock::Clock;
use crate::names::Names;

/// Flag of a frame: the port received it from the guest, or from the wire.
pub const INBOUND: u32 = 1;
/// Flag of a frame: the port sent it to the guest, or to the wire.
pub const OUTBOUND: u32 = 2;

/// The beginning of a file that this program writes.
#[must_use]
pub fn section(application: &'static str) -> SectionHeaderBlock<'static> {
    SectionHeaderBlock {
        options: vec![SectionHeaderOption::UserApplication(application.into())],
        ..SectionHeaderBlock::default()
    }
}

/// The port with a slot of the engine on a core. `about`: what is said behind its name.
#[must_use]
pub fn interface(names: &Names, core: u32, slot: u16, about: &str) -> InterfaceDescriptionBlock<'static> {
    let name = names.device(core, slot.into());
    let description = format!("port of {name} at the switch of core {core}{about}");
    let mut interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, MOST_BYTES as u32);
    interface.options = vec![
        InterfaceDescriptionOption::IfName(name.into()),
        InterfaceDescriptionOption::IfDescription(description.into()),
        InterfaceDescriptionOption::IfTsResol(InterfaceTsResolution::NANO),
    ];
    interface
}

/// The time of a TSC, since 1970 if the trace has a clock.
#[must_use]
pub fn time(clock: &Clock, tsc: u64) -> Duration {
    Duration::from_nanos(clock.wall_at_zero().unwrap_or(0).saturating_add(clock.nanoseconds(tsc)))
}

/// A frame at the port with this number. `missing`: frames of the port that are missing before it.
#[must_use]
pub fn frame<'f>(
    names: &Names,
    clock: &Clock,
    interface: u32,
    frame: &'f Captured,
    missing: u64,
) -> EnhancedPacketBlock<'f> {
    let fate = match frame.dropped {
        Some(cause) => format!("dropped: {}", names.cause(cause)),
        None => "passed".to_owned(),
    };
    let way = if frame.way == Way::In { INBOUND } else { OUTBOUND };
    let mut options =
        vec![EnhancedPacketOption::Common(CommonOption::Comment(fate.into())), EnhancedPacketOption::Flags(way)];
    if missing > 0 {
        options.push(EnhancedPacketOption::DropCount(missing));
    }
    EnhancedPacketBlock {
        interface_id: interface,
        timestamp: time(clock, frame.tsc),
        // A machine that lies may say less than it sent.
        original_len: frame.len.max(frame.bytes().len() as u32),
        data: Cow::Borrowed(frame.bytes()),
        options,
    }
}

/// What is known of a port at the end: how many frames its filter took, and how many of them are missing.
#[must_use]
pub fn statistics(interface: u32, at: Duration, taken: u64, missing: u64) -> InterfaceStatisticsBlock<'static> {
    InterfaceStatisticsBlock {
        interface_id: interface,
        timestamp: at,
        options: vec![InterfaceStatisticsOption::IsbIfRecv(taken), InterfaceStatisticsOption::IsbIfDrop(missing)],
    }
}

/// How many frames of a port are missing before number `number`, if `expected` comes next. A smaller number is of another filter,
/// which counts anew.
#[must_use]
pub fn missing_before(number: u64, expected: u64) -> u64 {
    number.checked_sub(expected).unwrap_or(number)
}
