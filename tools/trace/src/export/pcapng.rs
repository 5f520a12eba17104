//! Exports captured frames as pcap-ng (draft-ietf-opsawg-pcapng), for Wireshark, tshark and tcpdump.
//!
//! - Each port is an interface. Its name is the port's, its description says how many frames its filter took, one of how many.
//! - Each frame is an Enhanced Packet Block with its whole length. Its flags say whether the guest sent it (inbound: the port
//!   received it) or it was for the guest. Its comment says what became of it. A frame before which others are missing has their
//!   number too.
//! - At the end, each interface has a statistics block: frames that the filter took (`ifrecv`), and those of them that are missing
//!   (`ifdrop`).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use anyhow::Result;
use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption, InterfaceTsResolution,
};
use pcap_file::pcapng::blocks::interface_statistics::{InterfaceStatisticsBlock, InterfaceStatisticsOption};
use pcap_file::pcapng::blocks::opt_common::CommonOption;
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use trace::capture::{MOST_BYTES, Way};

use crate::model::{Capture, Trace};

/// Flag of a frame: the port received it from the guest.
const INBOUND: u32 = 1;
/// Flag of a frame: the port sent it to the guest.
const OUTBOUND: u32 = 2;

/// What is known of a port's frames.
#[derive(Default)]
struct Port {
    /// Number of the interface.
    interface: u32,
    /// Frames that its filter took.
    taken: u64,
    /// Those that are in the trace.
    there: u64,
    /// Frames that are missing before a frame, by the frame's place in the trace.
    missing: BTreeMap<usize, u64>,
    /// The filter takes one of so many frames.
    one_of: u16,
}

/// Sums up each port, by core and slot. Frames of a port have numbers, so a gap is a loss.
fn ports(captures: &[Capture]) -> BTreeMap<(u32, u16), Port> {
    let mut ports: BTreeMap<(u32, u16), Port> = BTreeMap::new();
    let mut next: BTreeMap<(u32, u16), u64> = BTreeMap::new();
    // A port's frames are in their order among those of its core.
    let mut in_order: Vec<_> = captures.iter().enumerate().collect();
    in_order.sort_by_key(|(_, capture)| (capture.core, capture.number));
    for (at, Capture { core, frame, .. }) in in_order {
        let key = (*core, frame.slot);
        let port = ports.entry(key).or_default();
        let expected = next.get(&key).copied().unwrap_or(0);
        // A smaller number than expected: another filter, which counts anew.
        let missing = frame.number.checked_sub(expected).unwrap_or(frame.number);
        if missing > 0 {
            port.missing.insert(at, missing);
        }
        port.there = port.there.saturating_add(1);
        port.taken = port.taken.saturating_add(missing).saturating_add(1);
        port.one_of = frame.one_of;
        next.insert(key, frame.number.saturating_add(1));
    }
    for (interface, port) in (0..).zip(ports.values_mut()) {
        port.interface = interface;
    }
    ports
}

/// Writes the captured frames.
///
/// # Errors
/// `out` fails.
pub fn write(trace: &Trace, out: &mut dyn Write) -> Result<()> {
    let ports = ports(&trace.captures);
    let application = concat!("sidecore-trace ", env!("CARGO_PKG_VERSION"));
    let section = SectionHeaderBlock {
        options: vec![SectionHeaderOption::UserApplication(application.into())],
        ..SectionHeaderBlock::default()
    };
    let mut writer = PcapNgWriter::with_section_header(out, section)?;
    for (&(core, slot), port) in &ports {
        let name = trace.names.device(core, slot.into());
        let one_of = if port.one_of > 1 { format!(", one of {}", port.one_of) } else { String::new() };
        let description = format!("port of {name} at the switch of core {core}: {} frames{one_of}", port.taken);
        let mut interface = InterfaceDescriptionBlock::new(DataLink::ETHERNET, MOST_BYTES as u32);
        interface.options = vec![
            InterfaceDescriptionOption::IfName(name.into()),
            InterfaceDescriptionOption::IfDescription(description.into()),
            InterfaceDescriptionOption::IfTsResol(InterfaceTsResolution::NANO),
        ];
        writer.write_pcapng_block(interface)?;
    }
    let time = |tsc| {
        let since_start = trace.clock.nanoseconds(tsc);
        Duration::from_nanos(trace.clock.wall_at_zero().unwrap_or(0).saturating_add(since_start))
    };
    for (at, Capture { core, frame, .. }) in trace.captures.iter().enumerate() {
        let Some(port) = ports.get(&(*core, frame.slot)) else { continue };
        let way = if frame.way == Way::In { INBOUND } else { OUTBOUND };
        let fate = match frame.dropped {
            Some(cause) => format!("dropped: {}", trace.names.cause(cause)),
            None => "passed".to_owned(),
        };
        let mut options = vec![EnhancedPacketOption::Common(CommonOption::Comment(fate.into()))];
        options.push(EnhancedPacketOption::Flags(way));
        if let Some(missing) = port.missing.get(&at) {
            options.push(EnhancedPacketOption::DropCount(*missing));
        }
        writer.write_pcapng_block(EnhancedPacketBlock {
            interface_id: port.interface,
            timestamp: time(frame.tsc),
            // A machine that lies may say less than it sent.
            original_len: frame.len.max(frame.bytes().len() as u32),
            data: Cow::Borrowed(frame.bytes()),
            options,
        })?;
    }
    let last = trace.captures.iter().map(|capture| capture.frame.tsc).max().unwrap_or(0);
    for port in ports.values() {
        writer.write_pcapng_block(InterfaceStatisticsBlock {
            interface_id: port.interface,
            timestamp: time(last),
            options: vec![
                InterfaceStatisticsOption::IsbIfRecv(port.taken),
                InterfaceStatisticsOption::IsbIfDrop(port.taken.saturating_sub(port.there)),
            ],
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
