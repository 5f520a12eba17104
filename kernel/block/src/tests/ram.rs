//! Requests of a driver that keeps to the rules, over RAM disks.

use proptest::prelude::*;

use super::support::{
    Bench, DISCARD, FLUSH, FORMS, GET_ID, Guest, IN, IOERR, OK, OUT, SPLIT, UNTOUCHED, WRITE_ZEROES, base, header,
    memory_disk, overlay_disk, range, with_disk,
};
use crate::ram::{Ram, RamDisk};
use engine::control::{Command, Reply};

/// Reads sectors. Returns their bytes.
fn read(guest: &mut Guest, bench: &mut Bench<Ram>, sector: u64, sectors: usize) -> Vec<u8> {
    let sent = guest.send(IN, sector, Some(Err(512 * sectors)));
    assert_eq!(bench.ask(guest, &sent), (OK, 512 * sectors as u32 + 1));
    guest.bytes(sent.at[1], 512 * sectors)
}

#[test]
fn what_is_written_is_read_again_and_each_request_has_its_interrupt() {
    for features in FORMS {
        let (mut guest, mut bench) = with_disk(memory_disk(1 << 20), features);
        let data: Vec<u8> = (0..4096).map(|n| (n % 253) as u8).collect();
        for sector in [0, 7, 2040] {
            guest.queues[0].enable_interrupts();
            bench.interrupts.take();
            let sent = guest.send(OUT, sector, Some(Ok(&data)));
            assert_eq!(bench.ask(&mut guest, &sent), (OK, 1), "{features:?}");
            assert_eq!(bench.interrupts.take(), [(3, 0x41)]);
            assert_eq!(read(&mut guest, &mut bench, sector, 8), data);
        }
        let sent = guest.send(FLUSH, 0, None);
        assert_eq!(bench.ask(&mut guest, &sent), (OK, 1));
        let counted = [("reads", 3), ("read_bytes", 12288), ("writes", 3), ("written_bytes", 12288), ("flushes", 1)];
        assert_eq!(guest.counted(), counted);
    }
}

#[test]
fn header_data_and_status_may_be_divided_among_descriptors_anyhow() {
    let data: Vec<u8> = (0..1024_u32).map(|n| (n % 241) as u8).collect();
    for features in FORMS {
        let (mut guest, mut bench) = with_disk(memory_disk(1 << 16), features);
        let out = [header(OUT, 5), data.clone()].concat();
        for cuts in [&[1040][..], &[3, 1037], &[16, 1, 1023], &[10, 10, 1000, 20], &[1; 0]] {
            let mut rest = &out[..];
            let mut buffers = Vec::new();
            for &len in cuts {
                let (now, later) = rest.split_at(len);
                buffers.push(Ok(now));
                rest = later;
            }
            // Without cuts: 40 descriptors.
            buffers.extend(rest.chunks(26).map(Ok));
            buffers.push(Err(1));
            let sent = guest.offer(0, &buffers);
            assert_eq!(bench.ask(&mut guest, &sent), (OK, 1), "{cuts:?}");
            let head = header(IN, 5);
            let sent = guest.offer(0, &[Ok(&head[..7]), Ok(&head[7..]), Err(100), Err(925)]);
            assert_eq!(bench.ask(&mut guest, &sent), (OK, 1025));
            assert_eq!(guest.bytes(sent.at[2], 1024), data);
        }
    }
}

#[test]
fn the_serial_number_is_given_as_far_as_the_buffer_goes() {
    let (mut guest, mut bench) = with_disk(memory_disk(4096), SPLIT);
    for (room, used) in [(20, 21), (6, 7), (30, 20)] {
        let sent = guest.send(GET_ID, 0, Some(Err(room)));
        assert_eq!(bench.ask(&mut guest, &sent), (OK, used));
        let mut expected = b"disk-7".to_vec();
        expected.resize(room.min(20), 0);
        expected.resize(room, UNTOUCHED);
        assert_eq!(guest.bytes(sent.at[1], room), expected);
    }
}

#[test]
fn discarded_and_zeroed_sectors_read_as_zeroes() {
    let (mut guest, mut bench) = with_disk(memory_disk(1 << 16), SPLIT);
    for (kind, flags) in [(DISCARD, 0), (WRITE_ZEROES, 0), (WRITE_ZEROES, 1)] {
        let sent = guest.send(OUT, 0, Some(Ok(&[9; 8192])));
        assert_eq!(bench.ask(&mut guest, &sent), (OK, 1));
        let sent = guest.send(kind, 0, Some(Ok(&range(3, 8, flags))));
        assert_eq!(bench.ask(&mut guest, &sent), (OK, 1));
        let expected = [vec![9; 3 * 512], vec![0; 8 * 512], vec![9; 5 * 512]].concat();
        assert_eq!(read(&mut guest, &mut bench, 0, 16), expected, "{kind} {flags}");
    }
    assert_eq!((guest.counters.unmapped_bytes.get(), guest.counters.zeroes.get()), (3 * 4096, 2));
}

#[test]
fn a_request_of_many_turns_moves_all_its_bytes_while_others_are_served() {
    for features in FORMS {
        let disk = memory_disk(2 << 20);
        let (mut guest, mut bench) = with_disk(disk, features);
        let mut other = Guest::new(9, &disk.geometry(), 1, features);
        assert_eq!(bench.attach(&other, disk), Reply::Attached);
        // One megabyte, from memory that no other buffer has.
        let (from, len) = (0x20_0000_u64, 1 << 20);
        let data: Vec<u8> = (0..len).map(|n| (n % 255) as u8 ^ (n >> 12) as u8).collect();
        guest.memory.write(from, &data).unwrap();
        guest.memory.write(0x18_0000, &header(OUT, 100)).unwrap();
        guest.queues[0].add(&[(0x18_0000, 16, false), (from, len, false), (0x18_1000, 1, true)]).unwrap();
        guest.shared.kick(0);
        bench.turn();
        assert_eq!(guest.used(), None, "it takes more than a turn");
        let quick = other.send(OUT, 4000, Some(Ok(&[1; 512])));
        bench.turn();
        assert!(other.used().is_some() && other.status(&quick) == OK, "another guest does not wait for it");
        (0..3).for_each(|_| _ = bench.turn());
        assert_eq!(guest.used().map(|(_, used)| used), Some(1));
        guest.memory.zero(from, len.into()).unwrap();
        guest.memory.write(0x18_0000, &header(IN, 100)).unwrap();
        guest.queues[0].add(&[(0x18_0000, 16, false), (from, len, true), (0x18_1000, 1, true)]).unwrap();
        guest.shared.kick(0);
        (0..5).for_each(|_| _ = bench.turn());
        assert_eq!(guest.used().map(|(_, used)| used), Some(len + 1));
        assert_eq!(guest.bytes(from, len as usize), data);
    }
}

#[test]
fn a_reset_ends_a_long_request_and_another_guest_can_have_one() {
    let disk = memory_disk(2 << 20);
    let (mut guest, mut bench) = with_disk(disk, SPLIT);
    let mut other = Guest::new(9, &disk.geometry(), 1, SPLIT);
    assert_eq!(bench.attach(&other, disk), Reply::Attached);
    for guest in [&mut guest, &mut other] {
        guest.memory.write(0x18_0000, &header(IN, 0)).unwrap();
        guest.queues[0].add(&[(0x18_0000, 16, false), (0x20_0000, 1 << 20, true), (0x18_1000, 1, true)]).unwrap();
        guest.shared.kick(0);
        bench.turn();
    }
    assert_eq!(other.counters.busy.get(), 1, "there is one long request at a time");
    guest.shared.request_reset();
    bench.turn();
    assert!(guest.shared.reset_done());
    (0..8).for_each(|_| _ = bench.turn());
    assert_eq!(other.used().map(|(_, used)| used), Some((1 << 20) + 1));
}

#[test]
fn a_base_is_read_to_its_end_and_cannot_be_written() {
    let base = base(5000);
    let (mut guest, mut bench) = with_disk(Box::leak(Box::new(RamDisk::of_base(base))), SPLIT);
    let mut expected = base.to_vec();
    expected.resize(5120, 0);
    assert_eq!(read(&mut guest, &mut bench, 0, 10), expected);
    for (kind, data) in [(OUT, vec![1; 512]), (DISCARD, range(0, 8, 0)), (WRITE_ZEROES, range(0, 8, 0))] {
        let sent = guest.send(kind, 0, Some(Ok(&data)));
        let (status, _) = bench.ask(&mut guest, &sent);
        assert_ne!(status, OK);
    }
    let sent = guest.send(OUT, 0, Some(Ok(&[1; 512])));
    assert_eq!(bench.ask(&mut guest, &sent), (IOERR, 1));
    let sent = guest.send(FLUSH, 0, None);
    assert_eq!(bench.ask(&mut guest, &sent), (OK, 1));
}

#[test]
fn a_disk_keeps_its_contents_over_the_lives_of_its_guest() {
    let disk = memory_disk(1 << 16);
    let (mut guest, mut bench) = with_disk(disk, SPLIT);
    let sent = guest.send(OUT, 9, Some(Ok(&[5; 512])));
    assert_eq!(bench.ask(&mut guest, &sent), (OK, 1));
    assert!(matches!(bench.command(Command::Detach { slot: guest.slot }), Reply::Detached(Some(_))));
    let mut next = Guest::new(guest.slot, &disk.geometry(), 1, SPLIT);
    assert_eq!(bench.attach(&next, disk), Reply::Attached);
    assert_eq!(read(&mut next, &mut bench, 9, 1), [5; 512]);
}

/// A step of a driver: what, first sector, sectors, a value.
type Step = (u8, u64, usize, u8);

/// Carries out a step, and the same on plain bytes.
fn step(
    guest: &mut Guest,
    bench: &mut Bench<Ram>,
    model: &mut [u8],
    overlay: bool,
    (what, sector, sectors, value): Step,
) {
    let (first, sectors) = (sector.min(120), sectors.min(8));
    let bytes = first as usize * 512..(first as usize + sectors) * 512;
    match what % 4 {
        0 => assert_eq!(read(guest, bench, first, sectors), model[bytes]),
        1 => {
            let sent = guest.send(OUT, first, Some(Ok(&vec![value; 512 * sectors])));
            assert_eq!(bench.ask(guest, &sent), (OK, 1));
            model[bytes].fill(value);
        }
        kind => {
            let kind = if kind == 2 { WRITE_ZEROES } else { DISCARD };
            let sent = guest.send(kind, 0, Some(Ok(&range(first, sectors as u32, 0))));
            assert_eq!(bench.ask(guest, &sent), (OK, 1));
            let whole = if overlay && kind == DISCARD {
                // Only whole blocks are discarded.
                bytes.start.next_multiple_of(4096)..bytes.end / 4096 * 4096
            } else {
                bytes
            };
            if whole.start < whole.end {
                model[whole].fill(0);
            }
        }
    }
}

proptest! {
    #[test]
    fn a_disk_agrees_with_plain_bytes(
        steps in proptest::collection::vec((any::<u8>(), 0..128_u64, 1..9_usize, any::<u8>()), 0..40),
        overlay in any::<bool>(),
    ) {
        let contents = base(64 << 10);
        let disk = if overlay { overlay_disk(contents, 16) } else { memory_disk(64 << 10) };
        let mut model = if overlay { contents.to_vec() } else { vec![0; 64 << 10] };
        let (mut guest, mut bench) = with_disk(disk, SPLIT);
        for one in steps {
            step(&mut guest, &mut bench, &mut model, overlay, one);
        }
        for block in 0..16 {
            prop_assert_eq!(read(&mut guest, &mut bench, 8 * block, 8), &model[4096 * block as usize..][..4096]);
        }
        prop_assert_eq!(contents, base(64 << 10), "the base stays as it was");
    }
}
