//! Streams of iperf3: how much arrived, and how much was sent again.
//!
//! The sender ends when it has written its last byte, and the receiver counts what it has read by then. The rest is in their buffers. So a
//! stream has more bytes than have to be counted.

use anyhow::Result;
use control::Counters;
use net::counters::UplinkDrop;
use serde_json::Value;

use crate::counts::{net, uplinks};
use crate::figures::Figures;
use crate::session::number;

/// Most MiB in the buffers of a connection: Linux's `tcp_wmem` and `tcp_rmem`.
const IN_BUFFERS: u64 = 4 + 6;
/// Bytes of a segment.
const SEGMENT: u64 = 1448;
/// Most segments in a frame.
const SEGMENTS: u64 = 65_536 / SEGMENT;
/// One segment of so many may be sent again. On a busy machine TCP sometimes takes a delay for a loss. Lost frames would cost several times
/// as many.
const ONE_OF: u64 = 200;
/// Segments that a delay taken for a loss may cost a stream that is not long enough for [`ONE_OF`]: about a window.
const WINDOW: u64 = 64;

/// The action for a stream of which at least `mib` MiB are counted. `more`: words behind the amount, such as `:reverse`.
#[must_use]
pub fn action(mib: u64, more: &str) -> String {
    format!("iperf:{}M{more}", mib + IN_BUFFERS)
}

/// Checks that `mib` MiB of a stream arrived. `what`: which stream.
fn arrived(figures: &mut Figures, what: &str, stream: &Value, mib: u64) -> Result<()> {
    figures.at_least(&format!("bytes {what}"), number(stream, "bytes")?, mib << 20)?;
    figures.note(&format!("bit/s {what}"), number(stream, "bits_per_second")?);
    Ok(())
}

/// Checks the same, and that few segments were sent again but those of frames that ports and uplinks have `dropped`, as they count them: a
/// receiver without offloads may have no buffer left.
pub fn arrived_at_once(figures: &mut Figures, what: &str, stream: &Value, mib: u64, dropped: u64) -> Result<()> {
    few_again(figures, what, stream, mib, [dropped, SEGMENTS])
}

/// The same for a stream that comes by a wire: each of its frames is one segment.
pub fn arrived_by_wire(figures: &mut Figures, what: &str, stream: &Value, mib: u64, dropped: u64) -> Result<()> {
    few_again(figures, what, stream, mib, [dropped, 1])
}

/// The same for a stream that lasts for a time, and not for an amount. How much of it arrives is the host's affair.
pub fn lasted(figures: &mut Figures, what: &str, stream: &Value, least: u64, dropped: u64) -> Result<()> {
    let bytes = number(stream, "bytes")?;
    figures.at_least(&format!("bytes {what}"), bytes, least)?;
    again(figures, what, stream, WINDOW, [dropped, SEGMENTS])
}

/// `dropped`: how many frames, and the most segments in one.
fn few_again(figures: &mut Figures, what: &str, stream: &Value, mib: u64, dropped: [u64; 2]) -> Result<()> {
    arrived(figures, what, stream, mib)?;
    again(figures, what, stream, 0, dropped)
}

/// `spare`: segments that may be sent again beside one of [`ONE_OF`].
fn again(figures: &mut Figures, what: &str, stream: &Value, spare: u64, dropped: [u64; 2]) -> Result<()> {
    let [frames, segments] = dropped;
    figures.note(&format!("frames dropped {what}"), frames);
    let most = number(stream, "bytes")? / SEGMENT / ONE_OF + spare + frames * segments;
    figures.at_most(&format!("segments sent again {what}"), number(stream, "retransmits")?, most)
}

/// The frames that the ports of these guests and the uplinks have dropped between two readings.
pub fn dropped(before: &Counters, after: &Counters, guests: &[&str]) -> Result<u64> {
    let all = |counters: &Counters| {
        let ports = guests.iter().map(|name| Ok(net(counters, name)?.all_dropped())).sum::<Result<u64>>()?;
        Ok::<_, anyhow::Error>(ports + UplinkDrop::ALL.iter().map(|drop| uplinks(counters, drop.name())).sum::<u64>())
    };
    Ok(all(after)? - all(before)?)
}
