//! Tests on files that `zstd` made.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::string::{String, ToString as _};
use std::vec::Vec;
use std::{format, vec};

use proptest::prelude::*;

use super::*;

/// Compressed by zstd 1.5.4: what [`lines`] returns.
const SIZED: &str = include_str!("sized.hex");
/// The same without the size of the contents.
const PIPED: &str = include_str!("piped.hex");

fn file(hex: &str) -> Vec<u8> {
    let digits: String = hex.lines().filter(|line| !line.starts_with('#')).collect();
    (0..digits.len() / 2).map(|n| u8::from_str_radix(&digits[2 * n..2 * n + 2], 16).expect("a byte")).collect()
}

fn lines() -> Vec<u8> {
    (0..300).map(|n| format!("block {n}\n")).collect::<String>().into_bytes()
}

/// Unpacks to a buffer of `room` bytes, and returns what was written to it.
fn unpacked(bytes: &[u8], room: usize) -> Result<Vec<u8>, Bad> {
    let mut into = vec![0; room];
    let len = unpack(bytes, &mut into)?;
    into.truncate(len);
    Ok(into)
}

#[test]
fn what_zstd_has_compressed_is_unpacked() {
    let (sized, piped, lines) = (file(SIZED), file(PIPED), lines());
    assert!(is_packed(&sized) && is_packed(&piped) && !is_packed(&lines) && !is_packed(&[]) && !is_packed(&sized[..3]));
    assert_eq!(header(&sized).map(|header| header.content), Ok(Some(lines.len() as u64)));
    assert_eq!(header(&piped).map(|header| header.content), Ok(None));
    for bytes in [&sized, &piped] {
        assert_eq!(unpacked(bytes, lines.len()).as_ref(), Ok(&lines));
        assert_eq!(unpacked(bytes, lines.len() + 1000).as_ref(), Ok(&lines));
        for room in [0, 1, lines.len() - 1] {
            assert_eq!(unpacked(bytes, room), Err(Bad::TooLong(room as u64)));
        }
    }
}

#[test]
fn several_frames_and_frames_to_be_skipped_are_one_file() {
    let skipped = [0x5f, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
    let all = [&skipped[..], &file(SIZED), &skipped, &file(PIPED)].concat();
    let twice = [lines(), lines()].concat();
    assert!(is_packed(&all));
    assert_eq!(header(&all).map(|header| header.content), Ok(Some(lines().len() as u64)), "of the first frame");
    assert_eq!(unpacked(&all, twice.len()), Ok(twice));
    // Empty frames with windows of 1 KiB and 8 MiB, the first one also with a checksum, with a block, and with one that repeats a byte.
    let next = [0x28, 0xb5, 0x2f, 0xfd, 0, 0x68, 1, 0, 0];
    for first in [
        &[0x28, 0xb5, 0x2f, 0xfd, 0, 0, 1, 0, 0][..],
        &[0x28, 0xb5, 0x2f, 0xfd, 4, 0, 1, 0, 0, 0x28, 0xb5, 0x2f, 0xfd],
        &[0x28, 0xb5, 0x2f, 0xfd, 0, 0, 25, 0, 0, 7, 7, 7],
        &[0x28, 0xb5, 0x2f, 0xfd, 0, 0, 0x83, 0, 0, 7],
    ] {
        let window = |bytes: &[u8]| header(bytes).map(|header| header.window);
        assert_eq!(window(&[first, &skipped, &next].concat()), Ok(8 << 20), "{first:x?}");
        assert_eq!(window(&[first, &next[..7]].concat()), Ok(8 << 20), "{first:x?}");
        assert_eq!(window(&[first, &next[..5]].concat()), Ok(1 << 10), "{first:x?}");
    }
    assert_eq!(header(&skipped), Err(Bad::Empty));
    assert_eq!(header(&skipped[..9]), Err(Bad::Short));
}

#[test]
fn a_damaged_file_is_an_error_that_names_what_is_wrong() {
    let good = file(SIZED);
    for len in 4..good.len() {
        assert!(unpacked(&good[..len], 1 << 20).is_err(), "{len} of {} bytes", good.len());
    }
    // The last four bytes are the checksum of the contents.
    let mut bad = good.clone();
    *bad.last_mut().expect("a byte") ^= 1;
    let said = unpacked(&bad, 1 << 20).expect_err("a wrong checksum").to_string();
    assert!(said.contains("the checksum of its contents is 0x"), "{said}");
    assert!(unpacked(&[&good[..], b"more"].concat(), 1 << 20).is_err());
}

#[test]
fn a_window_that_is_too_large_is_named_before_memory_is_taken() {
    // A frame header with a window of 2^27 bytes: no single segment, no size, exponent 17.
    let long = [0x28, 0xb5, 0x2f, 0xfd, 0, 17 << 3, 1, 0, 0];
    assert_eq!(header(&long), Err(Bad::Window(1 << 27)));
    assert_eq!(unpacked(&long, 10), Err(Bad::Window(1 << 27)));
    let largest = [0x28, 0xb5, 0x2f, 0xfd, 0, 13 << 3, 1, 0, 0];
    assert_eq!(header(&largest).map(|header| header.window), Ok(MAX_WINDOW));
    assert_eq!(unpacked(&largest, 10), Ok(Vec::new()));
}

/// Runs the tool over bytes. Returns `None` if this machine does not have it.
fn zstd(arguments: &[&str], bytes: &[u8]) -> Option<Vec<u8>> {
    let mut command = Command::new("zstd");
    command.args(arguments).arg("-qc").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().ok()?;
    let mut input = child.stdin.take().expect("a pipe");
    let bytes = bytes.to_vec();
    let writer = std::thread::spawn(move || input.write_all(&bytes));
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("it ends").expect("it reads");
    assert!(output.status.success(), "zstd {arguments:?}");
    Some(output.stdout)
}

#[test]
fn larger_files_of_every_kind_of_block_are_unpacked() {
    // Noise is stored, zeroes are runs, the rest is compressed. There are matches at every distance up to 6 MiB.
    let mut state = 1_u64;
    let noise: Vec<u8> = (0..2 << 20)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 56) as u8
        })
        .collect();
    let all = [&noise[..], &vec![0; 4 << 20], &lines(), &noise[1 << 20..], &lines(), &noise].concat();
    for arguments in [&["-1"][..], &["-3", "--check"], &["-19"]] {
        let Some(packed) = zstd(arguments, &all) else {
            std::eprintln!("zstd is not on this machine; the smaller files of it are still tested");
            return;
        };
        assert!(packed.len() < all.len());
        assert!(unpacked(&packed, all.len()).as_ref() == Ok(&all), "zstd {arguments:?}");
    }
    let long = zstd(&["-3", "--long=27"], &all).expect("it is there");
    assert_eq!(unpacked(&long, all.len()), Err(Bad::Window(1 << 27)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    /// Damage is an error, or goes unnoticed where there is no checksum; it is never a panic, and never leaves the buffer.
    #[test]
    fn no_damage_makes_it_panic(
        piped in any::<bool>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        room in 0_usize..8000,
    ) {
        let mut bytes = file(if piped { PIPED } else { SIZED });
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        drop(header(&bytes));
        if let Ok(found) = unpacked(&bytes, room) {
            prop_assert!(found.len() <= room);
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let all = [&MAGIC.to_le_bytes()[..], &bytes].concat();
        drop(header(&all));
        drop(unpacked(&all, 5000));
    }
}
