//! A log of all writes to a disk, and the disk as it may be after the power was cut at any point of the log.
//!
//! The log is that of QEMU's filter `blklogwrites`, in the format of Linux's dm-log-writes: a superblock in the first
//! sector, then for each request a header in a sector of its own, and its data. A request is in the log when it has ended.
//! All numbers are little-endian.
//!
//! | at | superblock | header of an entry |
//! |---|---|---|
//! | 0 | magic | first sector |
//! | 8 | version | number of sectors |
//! | 16 | number of entries, at the last flush or later | flags |
//! | 24 | bytes of a sector, 32 bits | bytes of data that are not sectors: a mark's |
//!
//! A power cut leaves everything that ended before the last flush. Of each later write it leaves all or nothing, unless the
//! write was durable by itself (FUA).

use std::collections::BTreeSet;
use std::ops::Range;

use anyhow::{Context as _, Result, ensure};
use fastrand::Rng;

/// Bytes of a sector of the logs that scenarios make.
pub const LOG_SECTOR: usize = 512;

const MAGIC: u64 = 0x006a_7366_7773_6872;
const VERSION: u64 = 1;
const FLUSH: u64 = 1 << 0;
const FUA: u64 = 1 << 1;
const DISCARD: u64 = 1 << 2;
const MARK: u64 = 1 << 3;

/// What a request did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Wrote. `durable`: the write is not lost with power.
    Write {
        /// FUA was set.
        durable: bool,
    },
    /// Made durable what had ended before.
    Flush,
    /// Discarded. The contents are anything then; here they stay as they were.
    Discard,
    /// A mark that somebody set.
    Mark,
}

/// A request of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What it did.
    pub kind: Kind,
    /// The first byte on the disk.
    pub at: u64,
    /// Its data, as a part of the log.
    data: Range<usize>,
}

/// A log.
pub struct WriteLog<'l> {
    bytes: &'l [u8],
    entries: Vec<Entry>,
}

fn word(bytes: &[u8], at: usize) -> Result<u64> {
    let part = bytes.get(at..at + 8).with_context(|| format!("the log ends before byte {}", at + 8))?;
    Ok(part.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
}

impl<'l> WriteLog<'l> {
    /// Reads a log with sectors of this many bytes. The superblock may be missing: it is written at a flush.
    ///
    /// # Errors
    /// It is no such log, or it ends within an entry.
    pub fn read(bytes: &'l [u8], sector: usize) -> Result<Self> {
        let (magic, version, count) = (word(bytes, 0)?, word(bytes, 8)?, word(bytes, 16)?);
        if magic != 0 {
            ensure!(magic == MAGIC && version == VERSION, "not a log of writes: magic {magic:#x}, version {version}");
            let found = word(bytes, 24)? & 0xffff_ffff;
            ensure!(found == sector as u64, "the log has sectors of {found} bytes, expected {sector}");
        }
        let (mut entries, mut at) = (Vec::new(), sector);
        while at + sector <= bytes.len() {
            let [first, sectors, flags] = [0, 8, 16].map(|field| word(bytes, at + field));
            let (first, sectors, flags) = (first?, sectors?, flags?);
            // Behind the last entry there may be zeroes. An entry of no sectors without a flag does nothing.
            if sectors == 0 && flags == 0 {
                break;
            }
            ensure!(flags & !(FLUSH | FUA | DISCARD | MARK) == 0, "entry {}: unknown flags {flags:#x}", entries.len());
            let extra = word(bytes, at + 24)?;
            let len = if flags & DISCARD != 0 { 0 } else { sectors.saturating_mul(sector as u64) };
            let len = if flags & MARK != 0 { extra.next_multiple_of(sector as u64) } else { len };
            let begin = at + sector;
            let end =
                usize::try_from(len).ok().and_then(|len| begin.checked_add(len)).filter(|end| *end <= bytes.len());
            let end = end.with_context(|| format!("the log ends within entry {} of {len} bytes", entries.len()))?;
            let kind = match flags {
                flags if flags & MARK != 0 => Kind::Mark,
                flags if flags & DISCARD != 0 => Kind::Discard,
                flags if flags & FLUSH != 0 && sectors == 0 => Kind::Flush,
                flags => Kind::Write { durable: flags & FUA != 0 },
            };
            // A write may ask for a flush before it (FLUSH and data): then everything before it is durable.
            if flags & FLUSH != 0 && sectors != 0 {
                entries.push(Entry { kind: Kind::Flush, at: 0, data: begin..begin });
            }
            entries.push(Entry { kind, at: first.saturating_mul(sector as u64), data: begin..end });
            at = end;
        }
        ensure!(entries.len() as u64 >= count, "the log has {} entries, its superblock says {count}", entries.len());
        Ok(Self { bytes, entries })
    }

    /// Its requests, in the order in which they ended.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The data of a request.
    pub fn data(&self, entry: &Entry) -> &'l [u8] {
        &self.bytes[entry.data.clone()]
    }

    /// Cuts the power after the first `entries` requests. Each write after the last flush among them is lost with a
    /// probability that is drawn for the cut.
    pub fn cut(&self, entries: usize, random: &mut Rng) -> Cut {
        let entries = entries.min(self.entries.len());
        let before = &self.entries[..entries];
        let flushed = before.iter().rposition(|entry| entry.kind == Kind::Flush).unwrap_or(0);
        let loss = random.f64();
        let lost =
            (flushed..entries).filter(|n| before[*n].kind == Kind::Write { durable: false } && random.f64() < loss);
        Cut { entries, lost: lost.collect() }
    }

    /// The contents of a disk of `bytes` bytes after a cut. It was zero at first.
    ///
    /// # Errors
    /// A request was beyond the end of the disk.
    pub fn disk_after(&self, cut: &Cut, bytes: usize) -> Result<Vec<u8>> {
        let mut disk = vec![0; bytes];
        for (n, entry) in self.entries.iter().enumerate().take(cut.entries) {
            if cut.lost.contains(&n) || !matches!(entry.kind, Kind::Write { .. }) {
                continue;
            }
            let (data, at) = (self.data(entry), usize::try_from(entry.at)?);
            let place = at.checked_add(data.len()).and_then(|end| disk.get_mut(at..end));
            place.with_context(|| format!("entry {n} writes beyond the end of the disk"))?.copy_from_slice(data);
        }
        Ok(disk)
    }
}

/// A point at which the power is cut, and what is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Requests that ended before.
    pub entries: usize,
    /// The numbers of those that are lost.
    pub lost: BTreeSet<usize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTOR: usize = LOG_SECTOR;

    /// An entry of a log: first sector, number of sectors, flags, and the byte that its data consist of.
    type Logged = (u64, u64, u64, u8);

    fn log(entries: &[Logged], count: Option<u64>) -> Vec<u8> {
        let mut bytes = vec![0; SECTOR];
        if let Some(count) = count {
            let superblock = [MAGIC, VERSION, count, SECTOR as u64].map(u64::to_le_bytes).concat();
            bytes[..32].copy_from_slice(&superblock);
        }
        for (first, sectors, flags, byte) in entries {
            let mut header = [*first, *sectors, *flags, 0].map(u64::to_le_bytes).concat();
            header.resize(SECTOR, 0);
            bytes.extend(header);
            if flags & DISCARD == 0 {
                bytes.extend(vec![*byte; *sectors as usize * SECTOR]);
            }
        }
        bytes
    }

    const LOG: [Logged; 7] =
        [(0, 2, 0, 1), (2, 1, 0, 2), (0, 0, FLUSH, 0), (0, 1, 0, 3), (3, 1, FUA, 4), (1, 1, DISCARD, 0), (2, 1, 0, 5)];

    /// The first byte of each sector.
    fn sectors(disk: &[u8]) -> Vec<u8> {
        disk.chunks(SECTOR).map(|sector| sector[0]).collect()
    }

    #[test]
    fn entries_are_found_with_their_data() {
        let bytes = log(&LOG, Some(7));
        let log = WriteLog::read(&bytes, SECTOR).unwrap();
        let kinds: Vec<Kind> = log.entries().iter().map(|entry| entry.kind).collect();
        let (write, durable) = (Kind::Write { durable: false }, Kind::Write { durable: true });
        assert_eq!(kinds, [write, write, Kind::Flush, write, durable, Kind::Discard, write]);
        assert_eq!(log.entries()[1].at, 1024);
        assert!(log.entries().iter().zip(LOG).all(|(entry, (.., byte))| log.data(entry).iter().all(|b| *b == byte)));
    }

    #[test]
    fn nothing_before_the_last_flush_and_no_durable_write_is_lost() {
        let bytes = log(&LOG, Some(7));
        let log = WriteLog::read(&bytes, SECTOR).unwrap();
        let (mut random, mut seen) = (Rng::with_seed(1), BTreeSet::new());
        for _ in 0..100 {
            let cut = log.cut(7, &mut random);
            assert!(cut.lost.iter().all(|n| [3, 6].contains(n)), "{cut:?}");
            let disk = sectors(&log.disk_after(&cut, 4 * SECTOR).unwrap());
            assert_eq!((disk[1], disk[3]), (1, 4));
            seen.insert((disk[0], disk[2]));
        }
        // Each of the two writes after the flush is there or not, independently of the other.
        assert_eq!(seen, BTreeSet::from([(1, 2), (1, 5), (3, 2), (3, 5)]));
    }

    #[test]
    fn without_a_flush_everything_may_be_lost() {
        let bytes = log(&LOG[..2], None);
        let log = WriteLog::read(&bytes, SECTOR).unwrap();
        let mut random = Rng::with_seed(1);
        let disks: BTreeSet<Vec<u8>> =
            (0..100).map(|_| sectors(&log.disk_after(&log.cut(2, &mut random), 3 * SECTOR).unwrap())).collect();
        assert_eq!(disks.len(), 4, "{disks:?}");
    }

    #[test]
    fn a_cut_before_a_request_is_a_disk_without_it() {
        let bytes = log(&LOG, Some(7));
        let log = WriteLog::read(&bytes, SECTOR).unwrap();
        for _ in 0..20 {
            let cut = log.cut(3, &mut Rng::with_seed(7));
            assert!(cut.lost.is_empty(), "the third request is a flush");
            assert_eq!(sectors(&log.disk_after(&cut, 4 * SECTOR).unwrap()), [1, 1, 2, 0]);
        }
        assert_eq!(sectors(&log.disk_after(&log.cut(0, &mut Rng::with_seed(7)), SECTOR).unwrap()), [0]);
    }

    #[test]
    fn a_damaged_log_is_refused_with_a_reason() {
        let read =
            |bytes: &[u8]| WriteLog::read(bytes, SECTOR).map(drop).map_err(|error| error.to_string()).unwrap_err();
        let good = log(&LOG, Some(7));
        assert!(read(&good[..good.len() - 1]).contains("ends within entry 6"));
        assert!(read(&good[..20]).contains("ends before byte 24"));
        assert!(read(&log(&LOG, Some(8))).contains("has 7 entries"));
        assert!(read(&log(&[(0, 1, 64, 1)], None)).contains("unknown flags 0x40"));
        let mut endless = good.clone();
        endless[SECTOR + 8..SECTOR + 16].fill(0xff);
        assert!(read(&endless).contains("ends within entry 0"));
        let mut other = good.clone();
        other[0] ^= 1;
        assert!(read(&other).contains("not a log"));
        assert!(WriteLog::read(&good, 4096).is_err());
        let log = WriteLog::read(&good, SECTOR).unwrap();
        assert!(log.disk_after(&log.cut(7, &mut Rng::with_seed(1)), SECTOR).is_err(), "beyond the end");
    }
}
