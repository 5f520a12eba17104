//! Exports are read back by the reader of the crate that wrote them; tshark judges them in the scenario `trace`.

use std::time::Duration;

use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
use pcap_file::pcapng::blocks::opt_common::CommonOption;
use pcap_file::pcapng::{Block, PcapNgReader};
use proptest::prelude::*;
use sidecore_pcapng::block::{INBOUND, OUTBOUND};
use trace::Captured;
use trace::capture::Way;

use super::*;
use crate::clock::Clock;
use crate::model::{Damage, Device, Names};

fn capture(core: u32, number: u64, frame: Captured) -> Capture {
    Capture { core, number, frame }
}

fn frame(tsc: u64, slot: u16, number: u64) -> Captured {
    let mut frame = Captured::new(tsc, slot, Way::In, 1514).with_bytes(&[slot as u8; 64]);
    frame.number = number;
    frame
}

fn trace_of(captures: Vec<Capture>) -> Trace {
    let mut names = Names::default();
    names.engines.insert(1, 0);
    names.guests.insert(0, "a".to_owned());
    names.devices.insert((0, 3), Device { guest: Some(0), name: "net0".to_owned() });
    names.causes.insert(13, "rx_no_buffer".to_owned());
    let clock = Clock::new(1_000_000, Some(1_000_000_000));
    let trace = Trace::new(clock, names, Vec::new(), Vec::new(), Damage::default());
    Trace { captures, ..trace }
}

fn blocks(trace: &Trace) -> Vec<Block<'static>> {
    let mut out = Vec::new();
    write(trace, &mut out).unwrap();
    let mut reader = PcapNgReader::new(&out[..]).unwrap();
    let mut blocks = Vec::new();
    while let Some(block) = reader.next_block() {
        blocks.push(block.unwrap().0.into_owned());
    }
    blocks
}

#[test]
fn frames_have_their_port_length_time_way_and_fate() {
    let mut given = frame(500, 3, 0);
    given.way = Way::Out;
    given.dropped = Some(13);
    let blocks = blocks(&trace_of(vec![capture(1, 0, frame(250, 3, 0)), capture(1, 1, given)]));
    let [Block::InterfaceDescription(port), Block::EnhancedPacket(first), Block::EnhancedPacket(second), _] =
        &blocks[..]
    else {
        panic!("{blocks:?}")
    };
    assert_eq!(port.options[0], InterfaceDescriptionOption::IfName("a net0".into()));
    assert_eq!((first.original_len, &first.data[..]), (1514, &[3; 64][..]));
    assert_eq!((first.timestamp, second.timestamp), (Duration::new(1, 250), Duration::new(1, 500)));
    let comment = |text: &'static str| EnhancedPacketOption::Common(CommonOption::Comment(text.into()));
    assert_eq!(first.options, [comment("passed"), EnhancedPacketOption::Flags(INBOUND)]);
    assert_eq!(second.options[..2], [comment("dropped: rx_no_buffer"), EnhancedPacketOption::Flags(OUTBOUND)]);
}

#[test]
fn missing_frames_are_in_the_statistics_of_their_port_and_before_the_next_frame() {
    // Port 3: 2 before the first, 4 between; then another filter, without its first. Port 4: none.
    let numbers = [(3, 2), (4, 0), (3, 3), (3, 8), (4, 1), (3, 1)];
    let captures = (0..).zip(numbers).map(|(at, (slot, number))| capture(1, at, frame(at, slot, number))).collect();
    let blocks = blocks(&trace_of(captures));
    let statistics: Vec<_> = blocks
        .iter()
        .filter_map(|block| match block {
            Block::InterfaceStatistics(block) => Some((block.interface_id, block.options.clone())),
            _ => None,
        })
        .collect();
    let of =
        |taken, lost| vec![InterfaceStatisticsOption::IsbIfRecv(taken), InterfaceStatisticsOption::IsbIfDrop(lost)];
    assert_eq!(statistics, [(0, of(11, 7)), (1, of(2, 0))]);
    let before: Vec<_> = blocks
        .iter()
        .filter_map(|block| match block {
            Block::EnhancedPacket(block) => Some(block.options.iter().find_map(|option| match option {
                EnhancedPacketOption::DropCount(count) => Some(*count),
                _ => None,
            })),
            _ => None,
        })
        .collect();
    assert_eq!(before, [Some(2), None, None, Some(4), None, Some(1)]);
}

proptest! {
    #[test]
    fn any_captured_frames_are_written_and_read_back(
        frames in proptest::collection::vec(any::<(u32, u64, [u8; 32], u8)>(), 0..20),
        khz: u64,
        wall: Option<u64>,
    ) {
        let captures: Vec<_> = frames
            .iter()
            .map(|(core, number, head, taken)| {
                let mut bytes = [7; 200];
                bytes[..32].copy_from_slice(head);
                bytes[21] = taken % 129;
                capture(*core, *number, Captured::read(&bytes).unwrap().0)
            })
            .collect();
        let trace = Trace { clock: Clock::new(khz, wall), ..trace_of(captures) };
        let packets = blocks(&trace).into_iter().filter(|block| matches!(block, Block::EnhancedPacket(_)));
        prop_assert_eq!(packets.count(), frames.len());
    }
}
