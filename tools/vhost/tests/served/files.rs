//! Disks that libblkio, a front-end of others, writes and verifies, and disks that are files.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;

use block_bench::verify;
use vhost_front::disk::{Buffer, DiskOptions, IOERR, OK, kind};

use crate::disks::{ask, connect, pattern, range, read, write};
use crate::process::{Vhost, run, until};

const SECTOR: usize = 512;

/// A file in the build's folder, whose file system has O_DIRECT on most machines. It is removed at the end.
pub struct Temporary(PathBuf);

impl Temporary {
    pub fn new(name: &str, bytes: &[u8]) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        fs::write(&path, bytes).expect("a file");
        Self(path)
    }

    pub fn keys(&self) -> String {
        format!("file = \"{}\"", self.0.display())
    }

    fn contents(&self) -> Vec<u8> {
        fs::read(&self.0).expect("the file")
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Whether Linux allows io_uring here. Where it does not, the program must say so.
pub fn allowed() -> bool {
    if io_uring::IoUring::new(8).is_ok() {
        return true;
    }
    let file = Temporary::new("refused", &[0; 8 * SECTOR]);
    let config =
        Temporary::new("refused.toml", format!("[[disk]]\nsocket = \"/tmp/refused\"\n{}", file.keys()).as_bytes());
    let (code, words) = run(&["--config", config.0.to_str().unwrap()]);
    assert!(code == Some(3) && words.contains("io_uring, which is not allowed here"), "{code:?}: {words}");
    eprintln!("io_uring is not allowed here: files were not tested");
    false
}

#[test]
fn libblkio_finds_in_a_disk_what_it_wrote() {
    let file = Temporary::new("libblkio", &[]);
    File::options().write(true).open(&file.0).unwrap().set_len(4 << 20).unwrap();
    let mut disks = vec!["size = \"4M\"".to_owned(), "size = \"4M\"\nrequests = \"notify\"".to_owned()];
    if allowed() {
        disks.push(file.keys());
    }
    let disks: Vec<&str> = disks.iter().map(String::as_str).collect();
    let vhost = Vhost::start_disks("", &disks);
    for (name, _) in ["a", "b", "c"].iter().zip(&disks) {
        verify::verify(&vhost.socket(name), 2).unwrap_or_else(|error| panic!("disk {name}: {error:#}"));
    }
    let ended = vhost.end();
    for n in 0..disks.len() {
        assert_eq!((ended.disk(n, "errors"), ended.disk(n, "faults"), ended.disk(n, "flushes")), (0, 0, 2));
        assert_eq!(ended.disk(n, "written_bytes"), (4 << 20) * 2);
    }
}

#[test]
fn a_file_has_what_the_driver_wrote_whatever_the_alignment() {
    if !allowed() {
        return;
    }
    let mut expected = pattern(3, 1 << 20);
    for requests in ["requests = \"poll\"", "requests = \"notify\"\ncache = \"writethrough\""] {
        let file = Temporary::new("aligned", &expected);
        let vhost = Vhost::start_disks("", &[&format!("{}\n{requests}", file.keys())]);
        let options = DiskOptions { data: 512 << 10, ..DiskOptions::default() };
        for options in [options, options.packed()] {
            let mut disk = connect(&vhost, "a", &options);
            let block = u32::from_le_bytes(disk.config().unwrap()[20..24].try_into().unwrap()) as usize;
            // The two buffers of a read of one block are halves of it, which no file takes: they are bounced. Those of
            // two blocks are whole ones. The longest are more than a bounce buffer has.
            for (at, len) in [(0, 1), (1, 2), (9, 5), (2, 16), (40, 61)] {
                let (first, bytes) = (at * block, pattern(at as u64, len * block));
                assert_eq!(read(&mut disk, (first / SECTOR) as u64, len * block), expected[first..first + len * block]);
                write(&mut disk, (first / SECTOR) as u64, &bytes);
                expected[first..first + len * block].copy_from_slice(&bytes);
                assert_eq!(read(&mut disk, (first / SECTOR) as u64, len * block), bytes);
            }
            let long = 511 << 10 & !(block - 1);
            assert_eq!(read(&mut disk, 0, long), expected[..long], "a long read");
            let odd = 3 * (64 << 10) + block;
            assert_eq!(read(&mut disk, 0, odd), expected[..odd], "a long read through a bounce buffer");
            assert_eq!(ask(&mut disk, kind::FLUSH, 0, Buffer::Nothing).0, OK);
        }
        let ended = vhost.end();
        assert_eq!((ended.disk(0, "errors"), ended.disk(0, "flushes"), ended.disk(0, "writes")), (0, 2, 10));
        assert!(file.contents() == expected, "the file is not what was written");
    }
}

#[test]
fn discarded_blocks_are_given_back_and_zeroed_ones_are_zero() {
    if !allowed() {
        return;
    }
    let file = Temporary::new("discard", &pattern(5, 1 << 20));
    let vhost = Vhost::start_disks("", &[&file.keys()]);
    let mut disk = connect(&vhost, "a", &DiskOptions::default());
    let before = fs::metadata(&file.0).unwrap().blocks();
    assert_eq!(ask(&mut disk, kind::DISCARD, 0, Buffer::Out(&range(512, 512))).0, OK);
    assert_eq!(ask(&mut disk, kind::WRITE_ZEROES, 0, Buffer::Out(&range(1536, 512))).0, OK);
    vhost.end();
    let mut expected = pattern(5, 1 << 20);
    expected[512 * SECTOR..1024 * SECTOR].fill(0);
    expected[1536 * SECTOR..].fill(0);
    assert!(file.contents() == expected, "other blocks have changed, or these have not");
    let freed = before - fs::metadata(&file.0).unwrap().blocks();
    assert!(freed >= 512, "{freed} sectors were given back: the file system has holes, and 512 were discarded");
}

#[test]
fn errors_of_the_file_become_ioerr_and_a_read_only_file_is_not_written() {
    if !allowed() {
        return;
    }
    let contents = pattern(1, 64 << 10);
    let (short, fixed) = (Temporary::new("short", &contents), Temporary::new("fixed", &contents));
    let vhost = Vhost::start_disks("", &[&short.keys(), &format!("{}\nreadonly = true", fixed.keys())]);
    let mut disk = connect(&vhost, "a", &DiskOptions::default());
    assert_eq!(read(&mut disk, 64, 4096), contents[64 * SECTOR..72 * SECTOR]);
    File::options().write(true).open(&short.0).unwrap().set_len(16 << 10).unwrap();
    assert_eq!(ask(&mut disk, kind::IN, 64, Buffer::In(4096)).0, IOERR, "behind the file's new end");
    assert_eq!(read(&mut disk, 0, 4096), contents[..4096]);
    let mut disk = connect(&vhost, "b", &DiskOptions::default());
    assert_eq!(read(&mut disk, 64, 4096), contents[64 * SECTOR..72 * SECTOR]);
    assert_eq!(ask(&mut disk, kind::OUT, 0, Buffer::Out(&[1; 4096])).0, IOERR);
    assert!(fixed.contents() == contents);
    assert_eq!(vhost.end().disk(0, "errors"), 1);
}

#[test]
fn a_front_end_may_go_while_its_requests_are_at_the_file() {
    if !allowed() {
        return;
    }
    let file = Temporary::new("gone", &pattern(2, 1 << 20));
    let vhost = Vhost::start_disks("", &[&file.keys()]);
    for round in 0..20_u64 {
        let mut disk = connect(&vhost, "a", &DiskOptions::default());
        for n in 0..16 {
            assert!(disk.submit(0, kind::OUT, 16 * n, &Buffer::Out(&pattern(round * 16 + n, 8192))).is_some());
        }
        if round % 2 == 0 {
            until("a completion", || disk.completed(0).is_some());
        }
    }
    let mut disk = connect(&vhost, "a", &DiskOptions::default());
    write(&mut disk, 0, &[9; 4096]);
    assert_eq!(read(&mut disk, 0, 4096), [9; 4096]);
    assert_eq!(vhost.end().disk(0, "errors"), 0);
}

#[test]
fn a_file_that_is_no_disk_is_refused_by_name() {
    let odd = Temporary::new("odd", &[0; 1000]);
    let empty = Temporary::new("empty", &[]);
    let used = Temporary::new("used", &[0; 8 * SECTOR]);
    let folder = env!("CARGO_TARGET_TMPDIR");
    for (files, named) in [
        (vec![odd.0.as_path()], "it has 1000 bytes: expected a multiple"),
        (vec![empty.0.as_path()], "it has 0 bytes"),
        (vec![std::path::Path::new(folder)], "file = "),
        (vec![std::path::Path::new("/dev/null")], "file = /dev/null: "),
        (vec![used.0.as_path(), used.0.as_path()], "it is in use, by another disk or process"),
    ] {
        let disk =
            |(n, file): (usize, &&std::path::Path)| format!("[[disk]]\nsocket = \"/tmp/no-{n}\"\nfile = {file:?}\n");
        let text: String = files.iter().enumerate().map(disk).collect();
        let config = Temporary::new("refused.toml", text.as_bytes());
        let (code, words) = run(&["--config", config.0.to_str().unwrap()]);
        assert_eq!(code, Some(3), "{words}");
        assert!(words.contains(named), "{named}: {words}");
    }
    assert!(File::open(&used.0).unwrap().read_at(&mut [0; 1], 0).is_ok());
}
