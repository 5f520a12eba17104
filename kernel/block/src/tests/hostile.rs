//! Requests with wrong fields. What breaks only the request gets a status; what breaks the rules of the device costs the
//! guest the device until it resets it. Nobody else loses anything.

use proptest::prelude::*;

use super::support::{
    DISCARD, FLUSH, FORMS, GET_ID, Guest, IN, IOERR, OK, OUT, SPLIT, Slow, UNSUPP, WRITE_ZEROES, header, memory_disk,
    range, with_disk, with_slow,
};
use crate::device::{self, Options};
use crate::ram::Ram;
use crate::storage::Status;
use engine::control::Reply;
use virtio::config::{DeviceConfig, Features};
use virtio::fault::Fault;

/// A request: its type, and its data, if it has any.
type Sent = (u32, Option<Result<Vec<u8>, usize>>);

/// Sectors of the disk.
const SECTORS: u64 = 128;

#[test]
fn a_wrong_field_gets_a_status_and_the_device_goes_on() {
    let read = |len| (IN, Some(Err(len)));
    let write = |bytes: &[u8]| (OUT, Some(Ok(bytes.to_vec())));
    let ranged = |kind, sector, sectors, flags| (0, (kind, Some(Ok(range(sector, sectors, flags)))));
    let cases: Vec<(u64, Sent, u8)> = [
        // Beyond the end, at the end, and where a sum would wrap.
        (SECTORS, read(512)),
        (SECTORS - 1, read(1024)),
        (u64::MAX, read(512)),
        (u64::MAX / 512, read(1024)),
        (1 << 55, read(512)),
        // Not in whole sectors, or nothing at all.
        (0, read(511)),
        (0, read(1)),
        (0, (IN, None)),
        (0, (OUT, None)),
        (0, write(&[0; 513])),
        // The wrong direction.
        (0, (IN, Some(Ok(vec![0; 512])))),
        (0, (OUT, Some(Err(512)))),
        (0, (FLUSH, Some(Err(512)))),
        (0, (FLUSH, Some(Ok(vec![0; 512])))),
        (0, (GET_ID, None)),
        (0, (GET_ID, Some(Ok(vec![0; 20])))),
        (0, (DISCARD, None)),
        (0, (DISCARD, Some(Err(16)))),
        // Ranges.
        (0, (DISCARD, Some(Ok(vec![0; 15])))),
        (0, (DISCARD, Some(Ok(vec![0; 32])))),
        ranged(DISCARD, SECTORS - 1, 2, 0),
        ranged(DISCARD, 0, 0, 0),
        ranged(DISCARD, u64::MAX, 1, 0),
        ranged(WRITE_ZEROES, 0, u32::MAX, 0),
    ]
    .into_iter()
    .map(|(sector, request)| (sector, request, IOERR))
    .chain([
        (0, (2, None), UNSUPP),
        (0, (14, Some(Ok(range(0, 8, 0)))), UNSUPP),
        (0, (u32::MAX, Some(Err(512))), UNSUPP),
        (0, (DISCARD, Some(Ok(range(0, 8, 1)))), UNSUPP),
        (0, (WRITE_ZEROES, Some(Ok(range(0, 8, 2)))), UNSUPP),
        (0, (WRITE_ZEROES, Some(Ok(range(0, 8, 0x8000_0000)))), UNSUPP),
    ])
    .collect();
    for features in FORMS {
        let (mut guest, mut bench) = with_disk(memory_disk(SECTORS as usize * 512), features);
        for (sector, (kind, data), status) in &cases {
            let data = data.as_ref().map(|data| match data {
                Ok(bytes) => Ok(&bytes[..]),
                Err(len) => Err(*len),
            });
            let sent = guest.send(*kind, *sector, data);
            let used = u32::from(!matches!(data, Some(Err(_))));
            assert_eq!(bench.ask(&mut guest, &sent), (*status, used), "type {kind}, sector {sector}, {data:?}");
        }
        let bad = cases.iter().filter(|case| case.2 == IOERR).count() as u64;
        assert_eq!(guest.counted(), [("errors", bad), ("unsupported", cases.len() as u64 - bad)]);
        let sent = guest.send(IN, SECTORS - 1, Some(Err(512)));
        assert_eq!(bench.ask(&mut guest, &sent), (OK, 513));
    }
}

#[test]
fn blocks_of_4096_bytes_are_not_divided() {
    let (mut guest, mut bench) = with_slow(Slow::new(4096, 8), 1, SPLIT);
    for (sector, len) in [(1, 4096), (0, 512), (8, 2048), (56, 8192), (64, 4096)] {
        let sent = guest.send(IN, sector, Some(Err(len)));
        assert_eq!(bench.ask(&mut guest, &sent), (IOERR, 0), "{sector} {len}");
    }
    let sent = guest.send(DISCARD, 0, Some(Ok(&range(4, 8, 0))));
    assert_eq!(bench.ask(&mut guest, &sent), (IOERR, 1));
    let sent = guest.send(IN, 56, Some(Err(4096)));
    bench.turn();
    let tag = bench.storage().tags()[0];
    assert_eq!((bench.storage().held[&tag].first, bench.storage().held[&tag].blocks), (7, 1));
    bench.storage().end(tag, Status::Ok);
    assert_eq!(bench.ask(&mut guest, &sent), (OK, 4097));
}

#[test]
fn no_room_for_header_or_status_breaks_the_device() {
    let head = header(IN, 0);
    let cases: [&[Result<&[u8], usize>]; 5] = [
        &[Ok(&head)],
        &[Ok(&head), Ok(&[0; 512])],
        &[Ok(&head[..15]), Err(513)],
        &[Err(513)],
        &[Ok(&head[..3]), Err(1)],
    ];
    for features in FORMS {
        for buffers in cases {
            let disk = memory_disk(4096);
            let (mut guest, mut bench) = with_disk(disk, features);
            let mut neighbour = Guest::new(5, &disk.geometry(), 1, features);
            assert_eq!(bench.attach(&neighbour, disk), Reply::Attached);
            guest.offer(0, buffers);
            bench.turn();
            assert!(guest.shared.needs_reset());
            assert_eq!((guest.faults(Fault::Request), guest.used(), guest.counted()), (1, None, Vec::new()));
            let sent = neighbour.send(IN, 0, Some(Err(512)));
            assert_eq!(bench.ask(&mut neighbour, &sent), (OK, 513));
            guest.shared.request_reset();
            bench.turn();
            guest.start();
            bench.turn();
            let sent = guest.send(IN, 0, Some(Err(512)));
            assert_eq!(bench.ask(&mut guest, &sent), (OK, 513), "it works again after a reset");
        }
    }
}

#[test]
fn a_thousand_segments_of_one_byte_are_read_and_written_right() {
    let disk = memory_disk(4096);
    let offered = device::config(&disk.geometry(), &Options { queues: 1, packed: true, writeback: true });
    let config = DeviceConfig { queue_size: 1024, ..offered };
    for features in [Features::VERSION_1, Features::VERSION_1 | Features::RING_PACKED] {
        let mut guest = Guest::with(1, config, features);
        let mut bench = super::support::Bench::new(Ram::new());
        assert_eq!(bench.attach(&guest, disk), Reply::Attached);
        let data: Vec<u8> = (0..1022).map(|n| (n % 250) as u8).collect();
        let head = header(OUT, 1);
        // 512 segments are a sector, 1,022 are not a whole number of them.
        for (count, status) in [(512, OK), (1022, IOERR)] {
            let bytes = data[..count].chunks(1).map(Ok);
            let buffers: Vec<_> = [Ok(&head[..])].into_iter().chain(bytes).chain([Err(1)]).collect();
            let sent = guest.offer(0, &buffers);
            assert_eq!(bench.ask(&mut guest, &sent), (status, 1));
        }
        let head = header(IN, 1);
        let buffers: Vec<_> = [Ok(&head[..])].into_iter().chain([Err(1); 513]).collect();
        let sent = guest.offer(0, &buffers);
        assert_eq!(bench.ask(&mut guest, &sent), (OK, 513));
        assert_eq!(guest.bytes(sent.at[1], 512), data[..512]);
    }
}

#[test]
fn a_chain_longer_than_the_queue_breaks_the_device() {
    let (mut guest, mut bench) = with_disk(memory_disk(4096), Features::VERSION_1);
    // The last of 256 descriptors points back to the first.
    let head = header(IN, 0);
    let buffers: Vec<_> = [Ok(&head[..])].into_iter().chain([Err(1); 255]).collect();
    guest.offer(0, &buffers);
    guest.memory.write_u16(guest.queues[0].config.desc + 16 * 255 + 12, 3).unwrap();
    guest.memory.write_u16(guest.queues[0].config.desc + 16 * 255 + 14, 1).unwrap();
    bench.turn();
    assert_eq!(guest.faults(Fault::ChainTooLong), 1);
}

proptest! {
    #[test]
    fn any_chain_ends_with_a_status_or_a_fault_and_touches_nothing_else(
        chains in proptest::collection::vec(
            (0..16_u32, any::<u64>(), proptest::collection::vec((0..3_u8, 1..700_usize), 0..6), any::<bool>()), 1..12),
        form in 0..3_usize,
    ) {
        let (mut guest, mut bench) = with_disk(memory_disk(SECTORS as usize * 512), FORMS[form]);
        guest.memory.write(0x1f_0000, &[0x77; 4096]).unwrap();
        let filler = [0x11; 700];
        for (kind, sector, parts, near) in chains {
            let sector = if near { sector % (SECTORS + 2) } else { sector };
            let head = header(kind, sector);
            let mut readable = vec![Ok(&head[..])];
            let mut writable = Vec::new();
            for (way, len) in parts {
                match way {
                    0 => readable.push(Ok(&filler[..len])),
                    1 => writable.push(Err(len)),
                    _ => writable.push(Err(512)),
                }
            }
            let buffers: Vec<_> = readable.into_iter().chain(writable.iter().copied()).collect();
            let sent = guest.offer(0, &buffers);
            bench.turn();
            match guest.used() {
                Some((id, used)) => {
                    prop_assert_eq!(id, sent.id);
                    prop_assert!(guest.status(&sent) <= UNSUPP);
                    prop_assert!(used as usize <= writable.iter().map(|w| w.unwrap_err()).sum::<usize>());
                }
                None => {
                    prop_assert!(guest.shared.needs_reset() && writable.is_empty());
                    guest.shared.request_reset();
                    bench.turn();
                    guest.start();
                    bench.turn();
                }
            }
        }
        prop_assert_eq!(guest.bytes(0x1f_0000, 4096), vec![0x77; 4096]);
    }
}
