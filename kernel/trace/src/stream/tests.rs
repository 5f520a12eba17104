//! Tests of the writer against the reader, and of the reader against damage.

use proptest::prelude::*;

use super::*;
use crate::capture::{WORDS, Way};
use crate::ring::{Cursor, Ring, Slot};
use crate::{Captured, Kind, Record};

const CLOCK: Clock = Clock { tsc_khz: 2_100_000, wall: 1_700_000_000, tsc: 42 };

fn header() -> Vec<u8> {
    let mut buffer = [0; 4096];
    let mut header = HeaderWriter::new(&mut buffer, CLOCK).unwrap();
    header.name(Table::Guest, 0, NOTHING, "g1").unwrap();
    header.name(Table::Core, 2, 0, "guest").unwrap();
    header.name(Table::Device, 1 << 16 | 3, 0, "").unwrap();
    header.finish().to_vec()
}

fn record(number: u64) -> Record {
    Record { a: number, ..Record::new(Kind::Exit, number) }
}

fn chunk(core: u32, first: u64, lost: u64, count: u64) -> Vec<u8> {
    let mut buffer = [0; 8192];
    let mut chunk = ChunkWriter::new(&mut buffer, core, first, lost).unwrap();
    (first..first + count).for_each(|number| chunk.push(record(number)).unwrap());
    chunk.finish().to_vec()
}

/// Cores, numbers of first records, losses and counts of the chunks.
fn chunks(bytes: &[u8]) -> Vec<(u32, u64, u64, usize)> {
    blocks(bytes)
        .filter_map(|block| match block {
            Ok(Block::Chunk(chunk)) => Some((chunk.core, chunk.first, chunk.lost, chunk.count())),
            _ => None,
        })
        .collect()
}

#[test]
fn a_header_comes_back_with_its_names() {
    let bytes = header();
    let [Ok(Block::Header(header))] = blocks(&bytes).collect::<Vec<_>>()[..] else { panic!("not one header") };
    assert_eq!(header.clock, CLOCK);
    let names: Vec<_> = header.names().map(|n| (n.table, n.number, n.belongs_to, n.name)).collect();
    assert_eq!(names, [(2, 0, None, "g1"), (1, 2, Some(0), "guest"), (3, 0x1_0003, Some(0), "")]);
    assert_eq!(header.name(Table::Core, 2).map(|name| name.name), Some("guest"));
    assert_eq!(header.name(Table::Core, 3), None);
}

#[test]
fn a_long_name_is_cut_between_characters_and_a_full_buffer_keeps_what_it_has() {
    let mut buffer = [0; BLOCK_BYTES + HEADER_BYTES + NAME_BYTES + 255];
    let mut header = HeaderWriter::new(&mut buffer, CLOCK).unwrap();
    header.name(Table::Guest, 0, NOTHING, &"é".repeat(200)).unwrap();
    assert_eq!(header.name(Table::Guest, 1, NOTHING, "b"), Err(Full), "one byte has room, a name has not");
    let bytes = header.finish();
    let Step::Block(Block::Header(header), len) = step(bytes) else { panic!("no header") };
    assert_eq!((len, header.names().count()), (bytes.len(), 1));
    assert_eq!(header.names().next().unwrap().name, "é".repeat(127));
}

#[test]
fn a_chunk_comes_back_with_its_records() {
    let bytes = chunk(3, 100, 7, 5);
    let Step::Block(Block::Chunk(chunk), len) = step(&bytes) else { panic!("no chunk") };
    assert_eq!((len, chunk.core, chunk.first, chunk.lost, chunk.count()), (bytes.len(), 3, 100, 7, 5));
    assert!(chunk.records().eq((100..105).map(record)));
}

#[test]
fn a_kernel_s_addresses_come_back_and_have_the_documented_layout() {
    let kernel = KernelAddresses { core: 1, guest: 2, since: 3, read: 4, lstar: 5, page_fault: 0x0607 };
    let mut buffer = [0; BLOCK_BYTES + KERNEL_BYTES];
    let block = kernel.write(&mut buffer).unwrap().to_vec();
    assert_eq!(blocks(&block).collect::<Vec<_>>(), [Ok(Block::Kernel(kernel))]);
    assert_eq!(block[4..12], [4, 0, 0, 0, 40, 0, 0, 0]);
    assert_eq!(block[16..32], [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(block[32..], [4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 7, 6, 0, 0, 0, 0, 0, 0]);
    assert_eq!(kernel.write(&mut [0; BLOCK_BYTES + KERNEL_BYTES - 1]), Err(Full));
}

#[test]
fn a_block_of_a_kernel_of_another_length_is_unknown() {
    let mut buffer = [0; 100];
    let mut writer = super::write::Writer::new(&mut buffer).unwrap();
    writer.push(&[&[0; KERNEL_BYTES - 1]]).unwrap();
    let block = writer.finish(KERNEL);
    assert!(matches!(step(block), Step::Block(Block::Unknown { what: KERNEL, .. }, _)));
}

#[test]
fn a_scope_comes_back_and_has_the_documented_layout() {
    let mut buffer = [0; BLOCK_BYTES + SCOPE_BYTES];
    for (scope, content) in [
        (Scope::default(), [1, 0, 0, 0, 0, 0, 0, 0]),
        (Scope { exits_one_of: 0x0110, rips: false }, [0x10, 1, 0, 0, 1, 0, 0, 0]),
    ] {
        let block = scope.write(&mut buffer).unwrap().to_vec();
        assert_eq!(blocks(&block).collect::<Vec<_>>(), [Ok(Block::Scope(scope))]);
        assert_eq!((block[4], &block[16..]), (5, &content[..]));
    }
    assert_eq!(Scope::default().write(&mut [0; BLOCK_BYTES + SCOPE_BYTES - 1]), Err(Full));
    // A record of no exit is nonsense.
    let none = Scope { exits_one_of: 0, rips: true }.write(&mut buffer).unwrap();
    assert!(matches!(step(none), Step::Block(Block::Unknown { what: SCOPE, .. }, _)));
}

#[test]
fn the_layout_of_a_chunk_is_as_documented() {
    let bytes = chunk(3, 0x0102, 7, 1);
    assert_eq!(bytes.len(), BLOCK_BYTES + CHUNK_BYTES + 32);
    assert_eq!(bytes[..12], [0x93, b'S', b't', b'r', 2, 0, 0, 0, 56, 0, 0, 0]);
    assert_eq!(bytes[16..40], [3, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
    // The check value of CRC-32/ISO-HDLC in the catalogue of parametrised CRC algorithms.
    assert_eq!(check(b"1234", b"56789"), 0xcbf4_3926);
}

#[test]
fn a_buffer_that_is_too_small_is_refused() {
    assert!(HeaderWriter::new(&mut [0; BLOCK_BYTES + HEADER_BYTES - 1], CLOCK).is_err());
    assert!(ChunkWriter::new(&mut [0; BLOCK_BYTES + CHUNK_BYTES - 1], 0, 0, 0).is_err());
    let mut buffer = [0; BLOCK_BYTES + CHUNK_BYTES + 63];
    let mut chunk = ChunkWriter::new(&mut buffer, 0, 0, 0).unwrap();
    assert_eq!(chunk.room(), 1);
    assert_eq!([chunk.push(record(0)), chunk.push(record(1))], [Ok(()), Err(Full)]);
    assert_eq!(chunk.finish().len(), BLOCK_BYTES + CHUNK_BYTES + 32);
}

#[test]
fn a_large_buffer_makes_no_larger_block_than_a_reader_takes() {
    let mut buffer = vec![0; 100_000];
    let mut chunk = ChunkWriter::new(&mut buffer, 0, 0, 0).unwrap();
    while chunk.push(record(1)).is_ok() {}
    assert_eq!(chunk.count() as usize, (MAX_CONTENT - CHUNK_BYTES) / 32);
    assert!(matches!(step(chunk.finish()), Step::Block(Block::Chunk(_), _)));
}

#[test]
fn a_damaged_block_is_skipped_and_the_next_one_is_found() {
    let mut bytes = [chunk(0, 0, 0, 3), chunk(1, 0, 0, 2), chunk(2, 0, 0, 1)].concat();
    let (second, third) = (BLOCK_BYTES + CHUNK_BYTES + 96, BLOCK_BYTES + CHUNK_BYTES + 64);
    for at in second..second + third {
        bytes[at] ^= 0x10;
        let found: Vec<_> = blocks(&bytes).map(|block| block.map(|_| ())).collect();
        assert_eq!(found, [Ok(()), Err(third), Ok(())], "byte {at} is wrong");
        bytes[at] ^= 0x10;
    }
    assert_eq!(blocks(&bytes).filter(Result::is_ok).count(), 3);
}

#[test]
fn a_newer_block_is_skipped_by_its_length_and_a_newer_header_is_not_misread() {
    let mut newer = chunk(0, 0, 0, 1);
    newer[4] = 77;
    let sum = check(&newer[4..12], &newer[BLOCK_BYTES..]);
    newer[12..16].copy_from_slice(&sum.to_le_bytes());
    let mut other = header();
    other[BLOCK_BYTES] = 2;
    let sum = check(&other[4..12], &other[BLOCK_BYTES..]);
    other[12..16].copy_from_slice(&sum.to_le_bytes());
    let bytes = [newer, other, chunk(5, 0, 0, 1)].concat();
    let whats: Vec<_> = blocks(&bytes)
        .map(|block| match block {
            Ok(Block::Unknown { what, .. }) => what,
            Ok(Block::Chunk(chunk)) => 100 + chunk.core as u8,
            _ => 0,
        })
        .collect();
    assert_eq!(whats, [77, HEADER, 105]);
}

#[test]
fn a_trace_that_comes_byte_by_byte_is_read_once_each_block_is_there() {
    let bytes = [header(), chunk(1, 0, 0, 2)].concat();
    let (mut start, mut found) = (0, 0);
    for end in 0..=bytes.len() {
        match step(&bytes[start..end]) {
            Step::Block(_, len) => {
                start += len;
                found += 1;
                assert_eq!(start, end, "not before its last byte");
            }
            Step::Incomplete => {}
            Step::Damaged(len) => panic!("{len} bytes at {start} are good"),
        }
    }
    assert_eq!(found, 2);
}

#[test]
fn what_a_ring_has_becomes_chunks_with_its_losses() {
    let ring = Ring::new((0..8).map(|_| Slot::new()).collect::<Vec<Slot>>()).unwrap();
    let (mut cursor, mut trace) = (Cursor::new(), Vec::new());
    let mut buffer = [0; BLOCK_BYTES + CHUNK_BYTES + 4 * 32];
    assert_eq!(collect(&ring, &mut cursor, 9, &mut buffer), None, "nothing is nothing");
    let write = |numbers: core::ops::Range<u64>| numbers.for_each(|number| ring.write(record(number)));
    write(0..20);
    while let Some(block) = collect(&ring, &mut cursor, 9, &mut buffer) {
        trace.extend_from_slice(block);
    }
    write(20..21);
    assert_eq!(collect(&ring, &mut cursor, 9, &mut [0; 71]), None, "no room for a record: nothing is taken");
    trace.extend_from_slice(collect(&ring, &mut cursor, 9, &mut buffer).unwrap());
    assert_eq!(chunks(&trace), [(9, 13, 13, 4), (9, 17, 0, 3), (9, 20, 0, 1)]);
}

#[test]
fn what_is_changed_of_records_is_changed_in_the_chunk_only() {
    let ring = Ring::new((0..8).map(|_| Slot::new()).collect::<Vec<Slot>>()).unwrap();
    ring.write(Record { a: 0xffff_8123, b: 7, ..Record::new(crate::Kind::Exit, 1) });
    ring.write(Record { a: 5, ..Record::new(crate::Kind::Turn, 2) });
    let of = |change: fn(Record) -> Record| {
        let mut buffer = [0; 256];
        let bytes = collect_changed(&ring, &mut Cursor::new(), 9, &mut buffer, change).unwrap().to_vec();
        let Step::Block(Block::Chunk(chunk), _) = step(&bytes) else { panic!("no chunk") };
        chunk.records().map(|record| (record.a, record.b)).collect::<Vec<_>>()
    };
    assert_eq!(of(Record::without_rip), [(0, 7), (5, 0)]);
    assert_eq!(of(|record| record), [(0xffff_8123, 7), (5, 0)]);
}

fn captured(number: u64, len: usize) -> Captured {
    let mut frame = Captured::new(number, 3, Way::Out, 1514).with_bytes(&vec![number as u8; len]);
    frame.number = number;
    frame
}

fn captures(core: u32, frames: &[Captured]) -> Vec<u8> {
    let mut buffer = [0; 8192];
    let mut writer = CapturesWriter::new(&mut buffer, core, 4, 7).unwrap();
    frames.iter().for_each(|frame| writer.push(frame).unwrap());
    writer.finish().to_vec()
}

#[test]
fn captures_come_back_with_as_many_bytes_of_each_frame_as_were_kept() {
    let frames = [captured(1, 60), captured(2, 128), captured(3, 0), captured(4, 65)];
    let bytes = captures(9, &frames);
    assert_eq!(bytes.len(), BLOCK_BYTES + CHUNK_BYTES + 4 * 32 + 64 + 128 + 72);
    let Step::Block(Block::Captures(found), len) = step(&bytes) else { panic!("no captures") };
    assert_eq!((len, found.core, found.first, found.lost, found.count()), (bytes.len(), 9, 4, 7, 4));
    assert!(found.frames().eq(frames));
}

#[test]
fn captures_whose_count_or_length_is_wrong_are_none() {
    let good = captures(9, &[captured(1, 60), captured(2, 60)]);
    // The count, and the number of bytes of the first frame.
    for (at, value) in [(BLOCK_BYTES + 4, 1), (BLOCK_BYTES + 4, 3), (BLOCK_BYTES + 7, 1), (BLOCK_BYTES + 24 + 21, 68)] {
        let mut bytes = good.clone();
        bytes[at] = value;
        let sum = check(&bytes[4..12], &bytes[BLOCK_BYTES..]);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
        assert!(matches!(step(&bytes), Step::Block(Block::Unknown { what: CAPTURES, .. }, _)), "byte {at}");
    }
}

#[test]
fn what_a_ring_of_captured_frames_has_becomes_captures_with_its_losses() {
    let ring = Ring::new((0..8).map(|_| Slot::new()).collect::<Vec<Slot<WORDS>>>()).unwrap();
    let (mut cursor, mut found) = (Cursor::new(), Vec::new());
    // There is room for two frames, whatever they have.
    let mut buffer = [0; BLOCK_BYTES + CHUNK_BYTES + 2 * 160 + 100];
    assert_eq!(collect_captures(&ring, &mut cursor, 9, &mut buffer), None, "nothing is nothing");
    (0..20).for_each(|number| ring.write_words(captured(number, 60).to_words()));
    while let Some(block) = collect_captures(&ring, &mut cursor, 9, &mut buffer) {
        let Step::Block(Block::Captures(block), _) = step(block) else { panic!("no captures") };
        let numbers: Vec<_> = block.frames().map(|frame| frame.number).collect();
        found.push((block.first, block.lost, numbers));
    }
    assert_eq!(found, [(13, 13, vec![13, 14, 15]), (16, 0, vec![16, 17, 18]), (19, 0, vec![19])]);
}

proptest! {
    #[test]
    fn any_bytes_are_read_to_their_end(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in 0_usize..300) {
        // A magic number somewhere, so that more than the search is tried.
        let mut bytes = bytes;
        let at = at.min(bytes.len());
        bytes.splice(at..at, MAGIC);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let len = match step(rest) {
                Step::Block(_, len) | Step::Damaged(len) => len,
                Step::Incomplete => break,
            };
            prop_assert!(len > 0 && len <= rest.len());
            rest = &rest[len..];
        }
        blocks(&bytes).for_each(drop);
    }

    #[test]
    fn blocks_survive_any_bytes_between_them(
        parts in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..40), 0_u64..4), 0..6),
    ) {
        let mut bytes = Vec::new();
        let mut wanted = Vec::new();
        for (core, (noise, count)) in parts.iter().enumerate() {
            bytes.extend_from_slice(noise);
            bytes.extend(chunk(core as u32, 10, 1, *count));
            wanted.push((core as u32, 10, 1, *count as usize));
        }
        prop_assert_eq!(chunks(&bytes), wanted);
    }
}
