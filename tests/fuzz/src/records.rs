//! What one boot finds of the boots before, and of other systems: memory that was not cleared, the firmware's store of records (ERST), logs
//! that a Linux has compressed there, a byte of CMOS memory, and boot modules that are compressed. All of it may be anything.
//!
//! - `area.rs`: areas of memory. A second reader with a check of its own says which record is the newest one, and which log is its.
//! - `store.rs`: the store by ERST's programs, on firmware that keeps the rules, or fails, lies about lengths and numbers, gives records in
//!   any order, or has any programs. Records are read as a second reader reads them; what is shown has nothing that a terminal obeys.
//! - `inflate.rs`: a second decoder of DEFLATE (RFC 1951), which says what a compressed log is.
//! - `zstd.rs`: a writer of zstd files (RFC 8878) that knows their contents, and damage to them.

mod area;
mod inflate;
mod log;
mod store;
mod zstd;

use boots::attempts::{self, LIMIT};
use boots::cmos;
use boots::record::{Record, State};
use boots::settling::{LASTS, Settling};

use crate::input::Input;
use crate::planted::planted;
use log::{packed_log, shown, text};

/// Compressed logs of pstore, good ones and damaged ones.
fn logs(input: &mut Input<'_>) {
    let room_len = input.within(0, 3000) as usize;
    let body = if input.flag() {
        let text = text(input, 200).repeat(1 + usize::from(input.byte() % 8));
        let mut body = miniz_oxide::deflate::compress_to_vec(&text, input.byte() % 10);
        for _ in 0..input.byte() % 4 {
            let at = input.within(0, body.len() as u64) as usize;
            body[at] ^= 1 << (input.byte() % 8);
        }
        let len = body.len();
        if input.byte() < 32 {
            body.truncate(input.within(0, len as u64) as usize);
        }
        body
    } else {
        std::iter::from_fn(|| (!input.is_empty()).then(|| input.byte())).collect()
    };
    packed_log(&body, room_len);
}

/// The count in the CMOS memory, the attempts, and the time until a boot counts.
fn counts(input: &mut Input<'_>) {
    let config: [u8; 32] = std::array::from_fn(|_| input.byte());
    let other: [u8; 32] = std::array::from_fn(|n| config[n] ^ if n == 0 { input.byte() } else { 0 });
    let (found, count) = (input.byte(), input.wide() as u32);
    let read = cmos::attempts(found, &config);
    assert!(read.is_none_or(|attempts| attempts <= LIMIT + 1), "{read:?}");
    let mut written = cmos::byte(count, &config);
    if planted() {
        written ^= 0x20;
    }
    assert_eq!(cmos::attempts(written, &config), Some(count.min(LIMIT + 1)));
    let same_file = config[0] >> 5 == other[0] >> 5;
    assert_eq!(cmos::attempts(written, &other), Some(if same_file { count.min(LIMIT + 1) } else { 0 }));

    let before = Record { boot: input.wide(), attempts: count, state: State::Booting, config: other };
    let attempts = attempts::with_this_one(Some(&before), &config);
    let expected = if config == other { count.min(LIMIT) + 1 } else { 1 };
    assert_eq!(attempts, expected);
    assert_eq!(attempts::takes_previous(attempts), attempts > LIMIT);

    let (mut settling, mut since) = (Settling::new(), None);
    let mut now = u64::from(input.byte());
    while !input.is_empty() {
        let starting = input.flag();
        now = now.saturating_add(input.within(0, LASTS));
        since = since.or((!starting).then_some(now));
        assert_eq!(settling.has_settled(now, starting), since.is_some_and(|since| now - since >= LASTS));
    }
}

/// Runs one input.
///
/// # Panics
/// Something was read wrongly.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    match input.byte() % 8 {
        0 => area::run(&mut input),
        1 | 2 => store::run(&mut input),
        3 | 4 => logs(&mut input),
        5 | 6 => zstd::run(&mut input),
        _ if input.flag() => shown(&text(&mut input, 100)),
        _ => counts(&mut input),
    }
}

crate::planted::tests!(what_is_left_is_read_rightly_or_refused, 512, 0..800);

/// Each part sees a fault of its own.
#[cfg(test)]
mod planted_in_parts {
    use super::*;

    #[test]
    fn a_planted_fault_is_found_in_each_part() {
        let parts: [fn(&mut Input<'_>); 5] = [area::run, store::run, logs, zstd::run, counts];
        for part in parts {
            crate::planted::is_found(|bytes| part(&mut Input::new(bytes)));
        }
    }
}
