//! Disks: front-ends write, read, discard, go and come back.

use std::fs;

use vhost_front::disk::{Buffer, Disk, DiskOptions, IOERR, OK, UNSUPP, kind};

use crate::process::{Vhost, frame, introduce, passes, run, text, until};

const SECTOR: usize = 512;
/// Offset of `writeback` in the configuration.
const WRITEBACK: usize = 32;
/// Feature bits.
const RO: u64 = 1 << 5;
const MQ: u64 = 1 << 12;

pub fn connect(vhost: &Vhost, name: &str, options: &DiskOptions) -> Disk {
    Disk::connect(&vhost.socket(name), options).expect("a disk")
}

/// Sends a request and waits for it. Returns status, used length, and the first bytes of its data.
pub fn ask(disk: &mut Disk, kind: u32, sector: u64, buffer: Buffer<'_>) -> (u8, u32, Vec<u8>) {
    let slot = disk.submit(0, kind, sector, &buffer).expect("there is room");
    let mut used = None;
    until("a completion", || {
        used = disk.completed(0);
        used.is_some()
    });
    let (done, len) = used.unwrap();
    assert_eq!(done, slot);
    let bytes = if let Buffer::In(len) = buffer { len } else { 0 };
    (disk.status(0, slot).unwrap(), len, disk.data(0, slot, bytes))
}

pub fn write(disk: &mut Disk, sector: u64, bytes: &[u8]) {
    assert_eq!(ask(disk, kind::OUT, sector, Buffer::Out(bytes)), (OK, 1, vec![]));
}

pub fn read(disk: &mut Disk, sector: u64, len: usize) -> Vec<u8> {
    let (status, used, bytes) = ask(disk, kind::IN, sector, Buffer::In(len));
    assert_eq!((status, used), (OK, len as u32 + 1));
    bytes
}

/// Bytes that depend on `seed` and on their place.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|n| (n.wrapping_mul(31) ^ seed.wrapping_mul(0x9e37_79b9) ^ (n >> 8)) as u8).collect()
}

pub fn range(sector: u64, sectors: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &[0; 4]].concat()
}

fn forms() -> [(&'static str, DiskOptions); 4] {
    let split = DiskOptions::default();
    let plain = DiskOptions { features: split.features & !(1 << 29), ..split };
    [("", split), ("", split.packed()), ("requests = \"notify\"", split), ("requests = \"notify\"", plain.packed())]
}

#[test]
fn what_is_written_is_read_and_each_request_is_answered() {
    for (requests, options) in forms() {
        let vhost = Vhost::start_disks(requests, &["size = \"1M\"\nserial = \"the-serial\""]);
        let mut disk = connect(&vhost, "a", &options);
        assert_eq!(read(&mut disk, 0, SECTOR), vec![0; SECTOR], "an empty disk");
        let bytes = pattern(1, 5 * SECTOR);
        write(&mut disk, 7, &bytes);
        assert_eq!(ask(&mut disk, kind::FLUSH, 0, Buffer::Nothing).0, OK);
        assert_eq!(read(&mut disk, 7, 5 * SECTOR), bytes);
        assert_eq!(read(&mut disk, 8, SECTOR), bytes[SECTOR..2 * SECTOR]);

        assert_eq!(ask(&mut disk, kind::DISCARD, 0, Buffer::Out(&range(8, 1))).0, OK);
        assert_eq!(ask(&mut disk, kind::WRITE_ZEROES, 0, Buffer::Out(&range(10, 2))).0, OK);
        let mut left = bytes.clone();
        left[SECTOR..2 * SECTOR].fill(0);
        left[3 * SECTOR..].fill(0);
        assert_eq!(read(&mut disk, 7, 5 * SECTOR), left);

        let (status, used, id) = ask(&mut disk, kind::GET_ID, 0, Buffer::In(20));
        assert_eq!((status, used, &id[..]), (OK, 21, &b"the-serial\0\0\0\0\0\0\0\0\0\0"[..]));
        // 1 MiB is 2,048 sectors.
        write(&mut disk, 2047, &bytes[..SECTOR]);
        for (what, sector, buffer) in [
            (kind::IN, 2047, Buffer::In(2 * SECTOR)),
            (kind::IN, 2048, Buffer::In(SECTOR)),
            (kind::IN, u64::MAX, Buffer::In(SECTOR)),
            (kind::IN, 0, Buffer::In(SECTOR - 1)),
            (kind::OUT, 2047, Buffer::Out(&bytes[..2 * SECTOR])),
            (kind::DISCARD, 0, Buffer::Out(&range(2047, 2))),
        ] {
            assert_eq!(ask(&mut disk, what, sector, buffer).0, IOERR, "type {what}, sector {sector}");
        }
        assert_eq!(ask(&mut disk, 99, 0, Buffer::Nothing).0, UNSUPP);
        assert_eq!(read(&mut disk, 2047, SECTOR), bytes[..SECTOR]);
        let ended = vhost.end();
        let counted = |name| ended.disk(0, name);
        assert_eq!(["reads", "writes", "flushes", "discards", "zeroes"].map(counted), [5, 2, 1, 1, 1]);
        assert_eq!(["identities", "errors", "unsupported", "faults"].map(counted), [1, 6, 1, 0]);
    }
}

#[test]
fn the_configuration_is_read_and_only_writeback_is_written() {
    let vhost = Vhost::start_disks(
        "",
        &["size = \"1M\"\nqueues = 2", "size = \"1M\"\ncache = \"writethrough\"", "size = \"1M\"\nreadonly = true"],
    );
    let mut disk = connect(&vhost, "a", &DiskOptions { queues: 2, ..DiskOptions::default() });
    let config = disk.config().unwrap();
    assert_eq!(config[..8], 2048_u64.to_le_bytes());
    assert_eq!(config[12..16], 126_u32.to_le_bytes(), "seg_max suits queues of 128");
    assert_eq!((config[WRITEBACK], &config[34..36]), (1, &2_u16.to_le_bytes()[..]));
    assert!(disk.features & MQ != 0);
    disk.set_config(WRITEBACK as u32, 0).unwrap();
    assert_eq!(disk.config().unwrap()[WRITEBACK], 0);
    // The device keeps it while its queues stop and start.
    let base = disk.stop(0).unwrap();
    disk.resume(0, base).unwrap();
    assert_eq!(disk.config().unwrap()[WRITEBACK], 0);
    assert_eq!(read(&mut disk, 0, SECTOR), vec![0; SECTOR]);
    drop(disk);
    vhost.says("the front-end has gone");
    let mut disk = connect(&vhost, "a", &DiskOptions::default());
    assert_eq!(disk.config().unwrap()[WRITEBACK], 1, "the next front-end finds it as configured");
    // The reply to this message would be an error; the connection ends instead.
    let _ = disk.set_config(0, 1);
    vhost.says("byte 0 of the configuration set to 1: expected 0 or 1 in `writeback`");

    let mut through = connect(&vhost, "b", &DiskOptions::default());
    assert_eq!(through.config().unwrap()[WRITEBACK], 0);
    let mut readonly = connect(&vhost, "c", &DiskOptions::default());
    assert!(readonly.features & RO != 0);
    assert_eq!(ask(&mut readonly, kind::OUT, 0, Buffer::Out(&[1; SECTOR])).0, IOERR);
    assert_eq!(read(&mut readonly, 0, SECTOR), vec![0; SECTOR]);
    vhost.end();
}

#[test]
fn a_front_end_that_comes_back_finds_its_data() {
    let vhost = Vhost::start_disks("", &["size = \"8M\"", "size = \"1M\""]);
    let options = DiskOptions { data: 1 << 20, ..DiskOptions::default() };
    for (turn, options) in [options, options.packed(), options].into_iter().enumerate() {
        let mut disk = connect(&vhost, "a", &options);
        if turn != 0 {
            assert_eq!(read(&mut disk, 100, 64 << 10), pattern(turn as u64 - 1, 64 << 10));
        }
        write(&mut disk, 100, &pattern(turn as u64, 64 << 10));
        // It leaves with requests in flight: these are too long for one turn of the engine.
        for _ in 0..4 {
            disk.submit(0, kind::IN, 0, &Buffer::In(1 << 20)).unwrap();
        }
        drop(disk);
        vhost.says("the front-end has gone");
    }
    assert_eq!(read(&mut connect(&vhost, "b", &options), 100, SECTOR), vec![0; SECTOR], "the other disk is another");
    vhost.end();
}

#[test]
fn no_request_is_lost_when_a_queue_stops_with_requests_in_flight() {
    let options = DiskOptions { data: 1 << 20, ..DiskOptions::default() };
    for options in [options, options.packed()] {
        let vhost = Vhost::start_disks("", &["size = \"1M\"\nqueues = 2"]);
        let mut disk = connect(&vhost, "a", &DiskOptions { queues: 2, ..options });
        for round in 0..20 {
            let sent = [(); 6].map(|()| disk.submit(0, kind::IN, 0, &Buffer::In(1 << 20)).unwrap());
            // Each of these detaches the device, with both queues.
            let base = disk.stop(1).unwrap();
            disk.resume(1, base).unwrap();
            let mut done = Vec::new();
            until("all completions", || {
                done.extend(disk.completed(0));
                done.len() == sent.len()
            });
            assert!(
                done.iter().all(|(slot, len)| disk.status(0, *slot) == Some(OK) && *len == (1 << 20) + 1),
                "{round}"
            );
        }
        assert_eq!(vhost.end().disk(0, "stale_tokens"), 0);
    }
}

#[test]
fn queues_work_at_the_same_time_each_with_its_own_interrupt() {
    for (requests, options) in forms() {
        let vhost = Vhost::start_disks(requests, &["size = \"4M\"\nqueues = 8"]);
        let mut disk = connect(&vhost, "a", &DiskOptions { queues: 8, data: 4096, ..options });
        for n in 0..8 {
            // The first one is the new eventfd's.
            let _ = disk.interrupts(n);
        }
        for round in 0..50_u64 {
            for queue in 0..8 {
                let bytes = pattern(round * 8 + queue as u64, 4096);
                disk.submit(queue, kind::OUT, 8 * (round * 8 + queue as u64), &Buffer::Out(&bytes)).unwrap();
            }
            for queue in 0..8 {
                until("an interrupt", || disk.interrupts(queue) != 0);
                let mut used = None;
                until("a completion", || {
                    used = disk.completed(queue);
                    used.is_some()
                });
                assert_eq!(used.map(|(slot, len)| (disk.status(queue, slot), len)), Some((Some(OK), 1)));
            }
        }
        for n in 0..400 {
            assert_eq!(read(&mut disk, 8 * n, 4096), pattern(n, 4096), "block {n}");
        }
        vhost.end();
    }
}

#[test]
fn a_file_is_the_base_and_stays_as_it_is() {
    let file = std::env::temp_dir().join(format!("sidecore-vhost-base-{}", std::process::id()));
    let base = pattern(9, 10_000);
    fs::write(&file, &base).unwrap();
    let keys = format!("image = \"{}\"", file.display());
    let vhost =
        Vhost::start_disks("", &[&keys, &format!("{keys}\nreadonly = true"), &format!("{keys}\noverlay = \"4K\"")]);
    let mut disk = connect(&vhost, "a", &DiskOptions::default());
    // 20 sectors: zeroes follow the file's end.
    assert_eq!(disk.config().unwrap()[..8], 20_u64.to_le_bytes());
    let mut all = base.clone();
    all.resize(20 * SECTOR, 0);
    assert_eq!(read(&mut disk, 0, 20 * SECTOR), all);
    write(&mut disk, 3, &[7; SECTOR]);
    all[3 * SECTOR..4 * SECTOR].fill(7);
    assert_eq!(read(&mut disk, 0, 20 * SECTOR), all);
    assert_eq!(read(&mut connect(&vhost, "b", &DiskOptions::default()), 0, 10_000 / SECTOR * SECTOR), base[..9728]);
    let mut small = connect(&vhost, "c", &DiskOptions::default());
    write(&mut small, 0, &[1; SECTOR]);
    write(&mut small, 7, &[1; SECTOR]);
    assert_eq!(ask(&mut small, kind::OUT, 8, Buffer::Out(&[1; SECTOR])).0, IOERR, "the overlay is full");
    let ended = vhost.end();
    assert_eq!((ended.disk(2, "overlay_used"), ended.disk(2, "overlay_blocks")), (1, 1));
    assert_eq!(fs::read(&file).unwrap(), base);
    fs::remove_file(&file).unwrap();
}

#[test]
fn ports_and_disks_are_served_together() {
    let socket = std::env::temp_dir().join(format!("sidecore-vhost-disk-{}", std::process::id()));
    let vhost = Vhost::start_with(2, &format!("[[disk]]\nsocket = \"{}\"\nsize = \"1M\"\n", socket.display()));
    let (mut a, mut b) = (vhost.connect("a"), vhost.connect("b"));
    introduce(&mut a, &mut b);
    let mut disk = Disk::connect(&socket, &DiskOptions::default()).expect("a disk");
    for n in 0..100_u64 {
        passes(&mut a, &mut b, &frame(2, 1, 100, n as u32));
        write(&mut disk, n, &pattern(n, SECTOR));
        assert_eq!(read(&mut disk, n, SECTOR), pattern(n, SECTOR));
    }
    let ended = vhost.end();
    assert_eq!((ended.disk(0, "writes"), ended.disk(0, "reads"), ended.disk(0, "faults")), (100, 100, 0));
    assert_eq!(ended.port(1, "rx_packets"), 101);
    assert!(!socket.exists(), "its socket is left behind");
}

#[test]
fn mistakes_end_the_program_with_their_values() {
    for (disk, named) in [
        ("/tmp/x", "PATH:SIZE"),
        ("/tmp/x:12", "\"12\" is no size"),
        ("/tmp/x:0K", "size = 0 KiB: expected more"),
        ("/tmp/x:9999999999G", "there is no memory"),
    ] {
        let (code, words) = run(&["--disk", disk]);
        assert!(code == Some(2) || code == Some(3), "{disk}: {code:?}");
        assert!(words.contains(named), "{disk}: {words}");
    }
    let (code, words) = run(&["--disk", &format!("{}:1M", text(&std::env::temp_dir().join("no/such/folder")))]);
    assert_eq!(code, Some(3), "{words}");
    assert!(words.contains("cannot listen on"), "{words}");
}
