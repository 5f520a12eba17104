//! Exports captured frames as pcap-ng, in the order of time. `sidecore_pcapng` says what stands in a file. Here an interface's
//! description also has the number of its frames, and what is missing is known before the first frame.

use std::collections::BTreeMap;
use std::io::Write;

use anyhow::Result;
use pcap_file::pcapng::PcapNgWriter;
use sidecore_pcapng::block;

use crate::model::{Capture, Trace};

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
        let missing = block::missing_before(frame.number, expected);
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
    let mut writer = PcapNgWriter::with_section_header(out, block::section(application))?;
    for (&(core, slot), port) in &ports {
        let one_of = if port.one_of > 1 { format!(", one of {}", port.one_of) } else { String::new() };
        let about = format!(": {} frames{one_of}", port.taken);
        writer.write_pcapng_block(block::interface(&trace.names, core, slot, &about))?;
    }
    for (at, Capture { core, frame, .. }) in trace.captures.iter().enumerate() {
        let Some(port) = ports.get(&(*core, frame.slot)) else { continue };
        let missing = port.missing.get(&at).copied().unwrap_or(0);
        writer.write_pcapng_block(block::frame(&trace.names, &trace.clock, port.interface, frame, missing))?;
    }
    let last = trace.captures.iter().map(|capture| capture.frame.tsc).max().unwrap_or(0);
    for port in ports.values() {
        let missing = port.taken.saturating_sub(port.there);
        writer.write_pcapng_block(block::statistics(
            port.interface,
            block::time(&trace.clock, last),
            port.taken,
            missing,
        ))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
