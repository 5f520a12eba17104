//! The process is killed in mid-request and started again: every request is answered, and its data is in the file.

use std::collections::HashMap;

use vhost_front::disk::{Buffer, Disk, DiskOptions, OK, kind};

use crate::disks::{ask, connect, pattern, read};
use crate::files::{Temporary, allowed};
use crate::process::{Vhost, until};

/// Bytes of a request.
const BYTES: usize = 8192;
/// Requests that the disk holds side by side.
const PLACES: u64 = 64;

/// A front-end under load: writes and reads of places, no two requests of the same place at the same time.
struct Load {
    /// The place and the write's number of each slot's request. Number 0: it is a read.
    asked: HashMap<u16, (u64, u64)>,
    /// The number of the last write to each place that was answered.
    written: Vec<u64>,
    number: u64,
    answers: u64,
}

impl Load {
    fn sector(place: u64) -> u64 {
        place * (BYTES / 512) as u64
    }

    /// Offers requests until there is no room.
    fn offer(&mut self, disk: &mut Disk) {
        loop {
            self.number += 1;
            let place = self.number * 7 % PLACES;
            if self.asked.values().any(|(busy, _)| *busy == place) {
                return;
            }
            let bytes = pattern(self.number, BYTES);
            let (kind, buffer, number) = match self.number % 4 {
                0 => (kind::IN, Buffer::In(BYTES), 0),
                _ => (kind::OUT, Buffer::Out(&bytes), self.number),
            };
            let Some(slot) = disk.submit(0, kind, Self::sector(place), &buffer) else { return };
            assert!(self.asked.insert(slot, (place, number)).is_none(), "slot {slot} was not answered");
        }
    }

    /// Takes answers and checks them.
    fn take(&mut self, disk: &mut Disk) {
        while let Some((slot, used)) = disk.completed(0) {
            // The queue itself fails if a request is answered twice.
            let (place, number) = self.asked.remove(&slot).expect("a request that was asked");
            assert_eq!(disk.status(0, slot), Some(OK));
            self.answers += 1;
            let written = &mut self.written[place as usize];
            if number != 0 {
                *written = number;
            } else {
                assert_eq!(used as usize, BYTES + 1);
                let expected = if *written == 0 { vec![0; BYTES] } else { pattern(*written, BYTES) };
                assert!(disk.data(0, slot, BYTES) == expected, "place {place} after write {written}");
            }
        }
    }
}

#[test]
fn a_front_end_goes_on_after_the_process_was_killed() {
    if !allowed() {
        return;
    }
    let split = DiskOptions { tracked: true, ..DiskOptions::default() };
    let forms = [
        ("", split),
        ("requests = \"notify\"", split),
        ("", split.packed()),
        ("requests = \"notify\"", split.packed()),
    ];
    for (requests, options) in forms {
        let file = Temporary::new("killed", &vec![0; PLACES as usize * BYTES]);
        let mut vhost = Vhost::start_disks("", &[&format!("{}\n{requests}", file.keys())]);
        let mut disk = connect(&vhost, "a", &options);
        let mut load = Load { asked: HashMap::new(), written: vec![0; PLACES as usize], number: 0, answers: 0 };
        for round in 0..12 {
            let before = load.answers;
            until("answers", || {
                load.offer(&mut disk);
                load.take(&mut disk);
                load.answers > before + 10 * round
            });
            load.offer(&mut disk);
            let waiting = load.asked.len();
            vhost.kill_and_start();
            disk.reconnect(&vhost.socket("a")).unwrap();
            // Also those that were answered before it was killed.
            until("the answers to all requests", || {
                load.take(&mut disk);
                load.asked.is_empty()
            });
            assert!(waiting != 0, "there was no load");
        }
        for place in 0..PLACES {
            let number = load.written[place as usize];
            let expected = if number == 0 { vec![0; BYTES] } else { pattern(number, BYTES) };
            assert!(read(&mut disk, Load::sector(place), BYTES) == expected, "place {place}");
        }
        assert_eq!(ask(&mut disk, kind::FLUSH, 0, Buffer::Nothing).0, OK);
        assert_eq!((vhost.end().disk(0, "errors"), load.asked.len()), (0, 0));
    }
}

#[test]
fn a_ram_disk_does_not_track_and_says_so() {
    let vhost = Vhost::start_disks("", &["size = \"1M\""]);
    let options = DiskOptions { tracked: true, ..DiskOptions::default() };
    assert!(Disk::connect(&vhost.socket("a"), &options).is_err());
    drop(connect(&vhost, "a", &DiskOptions::default()));
}
