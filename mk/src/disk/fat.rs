//! Writes a FAT12, FAT16 or FAT32 file system with files into a partition of a disk image, by mkfs.fat and mtools.
//!
//! The crate fatfs (0.3.6) does not serve: it gives `.` and `..` long names, which fsck.fat rejects.

use std::collections::BTreeSet;
use std::fs;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::seed;
use crate::tools;

/// Bytes of a block.
const BLOCK: u64 = 512;
/// Blocks of a cluster. A cluster is large enough that firmware, which asks the table about every cluster, reads files
/// quickly.
const CLUSTER_BLOCKS: u64 = 8;
/// Bytes of a cluster.
const CLUSTER: u64 = BLOCK * CLUSTER_BLOCKS;
/// Most blocks before the tables, and of the root folder of FAT12 and FAT16.
const RESERVED_BLOCKS: u64 = 64;
/// Most bytes of a file on FAT.
const MOST: u64 = u32::MAX as u64;

/// A file of the file system.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Its path, with `/` between folders and none in front.
    pub path: String,
    /// The file with its content.
    pub source: PathBuf,
}

/// The width of a table's entries. It is determined by the number of clusters (Microsoft's FAT specification 1.03, "FAT type
/// determination").
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// 12 bits.
    Fat12,
    /// 16 bits.
    Fat16,
    /// 32 bits.
    Fat32,
}

impl Kind {
    /// Bits of an entry.
    fn bits(self) -> u64 {
        match self {
            Self::Fat12 => 12,
            Self::Fat16 => 16,
            Self::Fat32 => 32,
        }
    }

    /// The numbers of clusters that make it this kind.
    fn clusters(self) -> RangeInclusive<u64> {
        match self {
            Self::Fat12 => 1..=4_084,
            Self::Fat16 => 4_085..=65_524,
            Self::Fat32 => 65_525..=0x0fff_fff4,
        }
    }

    /// Bytes of what lies around so many clusters: the reserved blocks and two tables.
    fn around(self, clusters: u64) -> u64 {
        RESERVED_BLOCKS * BLOCK + 2 * (clusters * self.bits() / 8 + 2 * BLOCK)
    }

    /// The sizes of a partition for it, in bytes.
    fn sizes(self) -> RangeInclusive<u64> {
        let clusters = self.clusters();
        clusters.start() * CLUSTER + self.around(*clusters.start())..=clusters.end() * CLUSTER
    }
}

/// A FAT file system.
pub struct Fat<'a> {
    /// The width of its tables' entries.
    pub kind: Kind,
    /// Its label: at most 11 characters.
    pub label: &'a str,
    /// The volume's number.
    pub serial: u32,
    /// The date of all files, in seconds since 1970.
    pub date: u64,
    /// Its files, in their order on the disk.
    pub files: &'a [Entry],
}

/// Writes the file system into these bytes of an image. They must be zero.
pub fn write(image: &Path, range: &Range<u64>, fat: &Fat<'_>) -> Result<()> {
    check(fat.files, range.end - range.start, fat.kind)?;
    let dated = |mut command: Command| {
        command.env(seed::DATE, fat.date.to_string()).env("TZ", "UTC").env("LC_ALL", "C.UTF-8");
        command
    };
    let mut make = dated(tools::disk_tool("usr/sbin/mkfs.fat"));
    make.args(["-F", &fat.kind.bits().to_string(), "-S", &BLOCK.to_string(), "-s", &CLUSTER_BLOCKS.to_string()]);
    make.arg("--invariant");
    make.args(["-n", fat.label, "-i", &format!("{:08x}", fat.serial)]);
    make.arg(format!("--offset={}", range.start / BLOCK))
        .arg(image)
        .arg(((range.end - range.start) / 1024).to_string());
    tools::quietly(&mut make, "mkfs.fat")?;

    let place = format!("{}@@{}", image.display(), range.start);
    let tool = |name: &str| {
        let mut command = dated(tools::program(&format!("usr/bin/{name}")));
        command.env("MTOOLSRC", "/dev/null").args(["-i", &place]);
        command
    };
    let mut folders = BTreeSet::new();
    for file in fat.files {
        let parents = Path::new(&file.path).ancestors().skip(1).filter(|folder| !folder.as_os_str().is_empty());
        let mut parents: Vec<&Path> = parents.collect();
        parents.reverse();
        for folder in parents {
            if folders.insert(folder) {
                tools::quietly(tool("mmd").arg(format!("::/{}", folder.display())), "mmd")?;
            }
        }
        tools::quietly(tool("mcopy").arg(&file.source).arg(format!("::/{}", file.path)), "mcopy")?;
    }
    Ok(())
}

/// Checks before anything is written that each file can be on FAT and that together they fit.
fn check(files: &[Entry], size: u64, kind: Kind) -> Result<()> {
    let sizes = kind.sizes();
    ensure!(
        sizes.contains(&size),
        "{size} bytes are no size for {kind:?}, which takes {} to {}: make the partition larger or smaller",
        sizes.start(),
        sizes.end()
    );
    let mut total = 0;
    for Entry { path, source } in files {
        let length = fs::metadata(source).with_context(|| format!("cannot read {}", source.display()))?.len();
        ensure!(
            length <= MOST,
            "{path} has {length} bytes, and a file on FAT has at most {MOST}: make it smaller, or put it into another file \
             system"
        );
        // A folder's cluster is counted for each file, which is more than enough.
        total += length.next_multiple_of(CLUSTER) + CLUSTER;
    }
    // The root folder has a cluster too.
    let room = size - kind.around(size / CLUSTER) - CLUSTER;
    ensure!(total <= room, "the files need {total} bytes, and the FAT partition holds {room}: make it larger");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;
    use std::fs::File;

    fn refused(length: u64, size: u64) -> String {
        let source = env::temp_dir().join(format!("mk-fat-{}-{length}-{size}", std::process::id()));
        File::create(&source).unwrap().set_len(length).unwrap();
        let files = [Entry { path: "large".to_owned(), source: source.clone() }];
        let result = check(&files, size, Kind::Fat32);
        fs::remove_file(source).unwrap();
        result.map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn a_file_of_4_gib_is_refused() {
        let error = refused(1 << 32, 8 << 30);
        assert!(error.contains("large has 4294967296 bytes") && error.contains("at most 4294967295"), "{error}");
        assert_eq!(refused((1 << 32) - 1, 8 << 30), "");
    }

    #[test]
    fn files_that_do_not_fit_are_refused() {
        assert_eq!(refused(256 << 20, 288 << 20), "");
        assert!(refused(288 << 20, 288 << 20).contains("make it larger"));
    }

    #[test]
    fn the_size_of_a_partition_fits_the_kind() {
        assert!(refused(0, 1 << 20).contains("no size for Fat32"));
        assert_eq!(refused(0, *Kind::Fat32.sizes().start()), "");
        assert!(check(&[], 15 << 20, Kind::Fat16).is_err() && check(&[], 24 << 20, Kind::Fat16).is_ok());
        assert!(check(&[], 256 << 20, Kind::Fat16).is_err());
        assert!(check(&[], 17 << 20, Kind::Fat12).is_err() && check(&[], 2 << 20, Kind::Fat12).is_ok());
    }
}
