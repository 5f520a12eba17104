//! What is written is read back by the reader of the crate that wrote it; tshark reads it in the scenarios `trace` and `management`.

use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;
use pcap_file::pcapng::blocks::interface_statistics::InterfaceStatisticsOption;
use pcap_file::pcapng::blocks::opt_common::CommonOption;
use pcap_file::pcapng::{Block as Read, PcapNgReader};
use proptest::prelude::*;
use trace::Captured;
use trace::capture::Way;
use trace::frames::{FIRST_UPLINK, FIRST_UPLINK_CAUSE};
use trace::stream::{CapturesWriter, HeaderWriter, NOTHING, Table};

use super::*;

fn header() -> Vec<u8> {
    let mut buffer = [0; 4096];
    let clock = stream::Clock { tsc_khz: 1_000_000, wall: 1, tsc: 0 };
    let mut writer = HeaderWriter::new(&mut buffer, clock).unwrap();
    for (table, number, belongs_to, name) in [
        (Table::Core, 1, 0, "engine"),
        (Table::Guest, 0, NOTHING, "a"),
        (Table::Device, 3, 0, "net0"),
        (Table::Device, FIRST_UPLINK.into(), NOTHING, "uplink wire"),
        (Table::Cause, FIRST_UPLINK_CAUSE.into(), NOTHING, "rx_malformed"),
    ] {
        writer.name(table, number, belongs_to, name).unwrap();
    }
    writer.finish().to_vec()
}

fn frame(slot: u16, number: u64, way: Way) -> Captured {
    let mut frame = Captured::new(250, slot, way, 1514).with_bytes(&[slot as u8; 64]);
    frame.number = number;
    frame
}

fn captures(first: u64, frames: &[Captured]) -> Vec<u8> {
    let mut buffer = [0; 4096];
    let mut writer = CapturesWriter::new(&mut buffer, 1, first, 0).unwrap();
    frames.iter().for_each(|frame| writer.push(frame).unwrap());
    writer.finish().to_vec()
}

/// Reads as many blocks as there are whole.
fn blocks(bytes: &[u8]) -> Vec<Read<'static>> {
    let mut reader = PcapNgReader::new(bytes).unwrap();
    let mut blocks = Vec::new();
    while let Some(block) = reader.next_block() {
        blocks.push(block.unwrap().0.into_owned());
    }
    blocks
}

/// An output that keeps only what was flushed.
#[derive(Default)]
struct Pipe {
    waiting: Vec<u8>,
    read: Vec<u8>,
}

impl Write for &mut Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.waiting.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        self.read.extend(waiting);
        Ok(())
    }
}

#[test]
fn a_frame_can_be_read_as_soon_as_its_block_has_come() {
    let mut pipe = Pipe::default();
    let mut dropped = frame(FIRST_UPLINK, 0, Way::In);
    dropped.dropped = Some(FIRST_UPLINK_CAUSE);
    let pieces =
        [header(), captures(0, &[frame(3, 0, Way::In)]), captures(1, &[dropped, frame(FIRST_UPLINK, 1, Way::Out)])];
    let mut seen = Vec::new();
    let mut live = Live::new(&mut pipe, "test").unwrap();
    for piece in &pieces {
        // The last byte of the block comes later.
        let (first, last) = piece.split_at(piece.len() - 1);
        live.take(first).unwrap();
        let before = live.frames();
        live.take(last).unwrap();
        seen.push((before, live.frames()));
    }
    assert_eq!(seen, [(0, 0), (0, 1), (1, 3)]);
    assert_eq!(live.lost(), 0);
    drop(live);
    let blocks = blocks(&pipe.read);
    let [
        Read::InterfaceDescription(port),
        Read::EnhancedPacket(first),
        Read::InterfaceDescription(uplink),
        Read::EnhancedPacket(second),
        Read::EnhancedPacket(third),
    ] = &blocks[..]
    else {
        panic!("{blocks:?}")
    };
    assert_eq!(port.options[0], InterfaceDescriptionOption::IfName("a net0".into()));
    assert_eq!(uplink.options[0], InterfaceDescriptionOption::IfName("uplink wire".into()));
    assert_eq!([first, second, third].map(|packet| packet.interface_id), [0, 1, 1]);
    assert_eq!((first.original_len, first.data.len()), (1514, 64));
    let comment = |text: &'static str| EnhancedPacketOption::Common(CommonOption::Comment(text.into()));
    assert_eq!(first.options, [comment("passed"), EnhancedPacketOption::Flags(block::INBOUND)]);
    assert_eq!(second.options, [comment("dropped: rx_malformed"), EnhancedPacketOption::Flags(block::INBOUND)]);
    assert_eq!(third.options, [comment("passed"), EnhancedPacketOption::Flags(block::OUTBOUND)]);
}

#[test]
fn what_is_missing_is_before_the_next_frame_and_in_the_statistics() {
    let mut out = Vec::new();
    let mut live = Live::new(&mut out, "test").unwrap();
    live.take(&header()).unwrap();
    live.take(&captures(2, &[frame(3, 2, Way::In)])).unwrap();
    // Three are missing, then another filter counts anew.
    live.take(&captures(6, &[frame(3, 6, Way::In), frame(3, 0, Way::In)])).unwrap();
    live.end().unwrap();
    assert_eq!((live.frames(), live.lost()), (3, 3), "of the first block nothing is known before");
    drop(live);
    let blocks = blocks(&out);
    let counts: Vec<_> = blocks
        .iter()
        .filter_map(|block| match block {
            Read::EnhancedPacket(packet) => Some(packet.options.iter().find_map(|option| match option {
                EnhancedPacketOption::DropCount(count) => Some(*count),
                _ => None,
            })),
            _ => None,
        })
        .collect();
    assert_eq!(counts, [Some(2), Some(3), None]);
    let Some(Read::InterfaceStatistics(statistics)) = blocks.last() else { panic!("{blocks:?}") };
    assert_eq!(statistics.options, [InterfaceStatisticsOption::IsbIfRecv(8), InterfaceStatisticsOption::IsbIfDrop(5)]);
}

#[test]
fn an_output_that_takes_nothing_more_ends_it() {
    struct Closed(usize);
    impl Write for Closed {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            match self.0.checked_sub(bytes.len()) {
                Some(left) => {
                    self.0 = left;
                    Ok(bytes.len())
                }
                None => Err(io::ErrorKind::BrokenPipe.into()),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut live = Live::new(Closed(100), "test").unwrap();
    live.take(&header()).unwrap();
    let error = live.take(&captures(0, &[frame(3, 0, Way::In)])).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

proptest! {
    #[test]
    fn any_bytes_in_any_pieces_give_a_file(bytes in proptest::collection::vec(any::<u8>(), 0..200), cut in 0_usize..400) {
        let all = [bytes.clone(), header(), bytes, captures(0, &[frame(3, 0, Way::In)])].concat();
        let (first, second) = all.split_at(cut.min(all.len()));
        let mut out = Vec::new();
        let mut live = Live::new(&mut out, "test").unwrap();
        live.take(first).unwrap();
        live.take(second).unwrap();
        live.end().unwrap();
        drop(live);
        prop_assert!(!blocks(&out).is_empty());
    }
}
