//! Saved traces: good blocks, damaged ones, and any bytes between them. A good block is found wherever it is, with what was
//! written, and every byte is a part of a block or is counted as damaged. The reader sees the bytes whole, and again as they come
//! in pieces.

use trace::capture::{Captured, Way};
use trace::record::{RECORD_BYTES, Record};
use trace::stream::{
    BLOCK_BYTES, Block, CapturesWriter, ChunkWriter, Clock, HeaderWriter, KernelAddresses, MAGIC, MAX_CONTENT, NOTHING,
    Scope, Step, Table, blocks, step,
};

use crate::input::Input;
use crate::planted::planted;

/// Most parts of a trace.
const MOST_PARTS: u64 = 12;

/// A block that was written.
#[derive(Clone, Debug, PartialEq)]
enum Known {
    Header(Clock, Vec<(u8, u32, Option<u32>, String)>),
    Chunk(u32, u64, u64, Vec<Record>),
    Captures(u32, u64, u64, Vec<Captured>),
    Kernel(KernelAddresses),
    Scope(Scope),
    Other(u8),
}

fn record(input: &mut Input<'_>) -> Record {
    let mut bytes = [0; RECORD_BYTES];
    bytes.fill_with(|| input.byte());
    Record::from_bytes(&bytes)
}

fn chunk(input: &mut Input<'_>) -> (Vec<u8>, Known) {
    let (core, first, lost) = (u32::from(input.byte()), input.wide(), input.wide());
    let records: Vec<Record> = (0..input.byte() % 6).map(|_| record(input)).collect();
    let mut buffer = [0; 512];
    let mut writer = ChunkWriter::new(&mut buffer, core, first, lost).expect("there is room");
    records.iter().for_each(|record| writer.push(*record).expect("there is room"));
    (writer.finish().to_vec(), Known::Chunk(core, first, lost, records))
}

fn captures(input: &mut Input<'_>) -> (Vec<u8>, Known) {
    let (core, first, lost) = (u32::from(input.byte()), input.wide(), input.wide());
    let frames: Vec<Captured> = (0..input.byte() % 4)
        .map(|_| {
            let (way, len) = (if input.flag() { Way::In } else { Way::Out }, u32::from(input.byte()));
            let bytes: Vec<u8> = (0..input.byte() % 140).map(|_| input.byte()).collect();
            let mut frame = Captured::new(input.wide(), u16::from(input.byte()), way, len).with_bytes(&bytes);
            (frame.number, frame.guest) = (input.wide(), input.byte());
            frame.dropped = input.flag().then_some(3);
            frame
        })
        .collect();
    let mut buffer = [0; 1024];
    let mut writer = CapturesWriter::new(&mut buffer, core, first, lost).expect("there is room");
    frames.iter().for_each(|frame| writer.push(frame).expect("there is room"));
    (writer.finish().to_vec(), Known::Captures(core, first, lost, frames))
}

fn kernel(input: &mut Input<'_>) -> (Vec<u8>, Known) {
    let kernel = KernelAddresses {
        core: u32::from(input.byte()),
        guest: u32::from(input.byte()),
        since: input.wide(),
        read: input.wide(),
        lstar: input.wide(),
        page_fault: input.wide(),
    };
    (kernel.write(&mut [0; 64]).expect("there is room").to_vec(), Known::Kernel(kernel))
}

fn scope(input: &mut Input<'_>) -> (Vec<u8>, Known) {
    let scope = Scope { exits_one_of: (input.wide() as u32).max(1), rips: input.flag() };
    (scope.write(&mut [0; 64]).expect("there is room").to_vec(), Known::Scope(scope))
}

fn header(input: &mut Input<'_>) -> (Vec<u8>, Known) {
    const TABLES: [Table; 4] = [Table::Core, Table::Guest, Table::Device, Table::Reason];
    let clock = Clock { tsc_khz: input.wide(), wall: input.wide(), tsc: input.wide() };
    let mut buffer = [0; 512];
    let mut writer = HeaderWriter::new(&mut buffer, clock).expect("there is room");
    let mut names = Vec::new();
    for _ in 0..input.byte() % 8 {
        let table = TABLES[usize::from(input.byte()) % TABLES.len()];
        let (number, belongs_to) = (input.wide() as u32, if input.flag() { Some(7) } else { None });
        let name: String = (0..input.byte() % 70).map(|_| char::from(input.byte())).collect();
        if writer.name(table, number, belongs_to.unwrap_or(NOTHING), &name).is_err() {
            break;
        }
        names.push((table as u8, number, belongs_to, name));
    }
    (writer.finish().to_vec(), Known::Header(clock, names))
}

fn known(block: &Block<'_>) -> Known {
    match block {
        Block::Header(header) => {
            let names = header.names().map(|n| (n.table, n.number, n.belongs_to, n.name.to_owned())).collect();
            Known::Header(header.clock, names)
        }
        Block::Chunk(chunk) => {
            let records: Vec<Record> = chunk.records().collect();
            assert_eq!(records.len(), chunk.count());
            Known::Chunk(chunk.core, chunk.first, chunk.lost, records)
        }
        Block::Captures(captures) => {
            let frames: Vec<Captured> = captures.frames().collect();
            assert_eq!(frames.len(), captures.count());
            Known::Captures(captures.core, captures.first, captures.lost, frames)
        }
        Block::Kernel(kernel) => Known::Kernel(*kernel),
        Block::Scope(scope) => Known::Scope(*scope),
        Block::Unknown { what, content } => {
            assert!(content.len() <= MAX_CONTENT);
            Known::Other(*what)
        }
    }
}

/// Whether all of `wanted` are in `found`, in their order.
fn has_all(found: &[Known], wanted: &[Known]) -> bool {
    let mut found = found.iter();
    wanted.iter().all(|wanted| found.any(|found| found == wanted))
}

/// Reads the bytes as a program does that gets them in pieces of `piece` bytes.
fn in_pieces(bytes: &[u8], piece: usize) -> Vec<Known> {
    let (mut found, mut waiting) = (Vec::new(), Vec::new());
    for piece in bytes.chunks(piece.max(1)) {
        waiting.extend_from_slice(piece);
        loop {
            let len = match step(&waiting) {
                Step::Block(block, len) => {
                    found.push(known(&block));
                    len
                }
                Step::Damaged(len) => len,
                Step::Incomplete => break,
            };
            assert!(len > 0 && len <= waiting.len(), "{len} of {} bytes", waiting.len());
            waiting.drain(..len);
        }
        assert!(waiting.len() < BLOCK_BYTES + MAX_CONTENT, "it waits for more than a block has");
    }
    found
}

/// Runs one input.
///
/// # Panics
/// A trace was read wrongly.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let piece = 1 + usize::from(input.byte());
    let (mut all, mut wanted) = (Vec::new(), Vec::new());
    // Something that begins like a block may wait for bytes that never come. Then what follows is not seen in pieces.
    let mut honest = true;
    for _ in 0..input.within(1, MOST_PARTS) {
        match input.byte() % 8 {
            choice @ 0..3 => {
                let (block, known) = match choice {
                    2 if input.flag() => kernel(&mut input),
                    2 if input.flag() => scope(&mut input),
                    2 => captures(&mut input),
                    _ => chunk(&mut input),
                };
                all.extend(block);
                wanted.push(known);
            }
            3 => {
                let (block, known) = header(&mut input);
                all.extend(block);
                wanted.push(known);
            }
            4 => {
                let (mut block, _) = match input.byte() % 3 {
                    0 => chunk(&mut input),
                    1 => captures(&mut input),
                    _ => header(&mut input),
                };
                let at = input.within(0, block.len() as u64) as usize;
                block[at] ^= 1 << (input.byte() % 8);
                all.extend(block);
                honest = false;
            }
            5 => {
                // The head of a block, and less than its content.
                all.extend(MAGIC);
                all.extend((0..input.byte() % 40).map(|_| input.byte()));
                honest = false;
            }
            6 => {
                let (block, _) = chunk(&mut input);
                let len = input.within(0, block.len() as u64) as usize;
                all.extend(&block[..len]);
                // Another byte than the next one, so that what follows never completes it.
                all.push(!block[len]);
                honest = false;
            }
            _ => all.extend((0..input.byte() % 100).map(|_| input.byte() & 0x7f)),
        }
    }
    let mut found = Vec::new();
    let mut damaged = 0;
    for block in blocks(&all) {
        match block {
            Ok(block) => found.push(known(&block)),
            Err(bytes) => damaged += bytes,
        }
    }
    if planted() && !found.is_empty() {
        found.remove(0);
    }
    assert!(damaged <= all.len());
    assert!(has_all(&found, &wanted), "{found:?} lacks one of {wanted:?}");
    assert!(!honest || found.len() == wanted.len(), "{found:?}, but {wanted:?}");
    let found = in_pieces(&all, piece);
    assert!(!honest || has_all(&found, &wanted), "in pieces: {found:?} lacks one of {wanted:?}");
}

crate::planted::tests!(any_trace_is_read_to_its_end, 512, 0..900);
