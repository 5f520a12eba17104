//! `[[disk]]`: a RAM disk or a file behind a vhost-user-blk socket.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use block::backend::SERIAL_BYTES;
use block::device::{MAX_BLOCK_QUEUES, QUEUE_SIZE};
use engine::schedule::MAX_WEIGHT;
use serde::Deserialize;
use virtio::config::MAX_QUEUE_SIZE;

use super::requests::Requests;

/// Bytes of a sector: a disk's size is a multiple of it.
const SECTOR: u64 = 512;
/// Bytes of a block of an overlay.
const OVERLAY_BLOCK: u64 = 4096;

/// `[[disk]]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Disk {
    /// The path to which its front-end connects.
    pub socket: PathBuf,
    /// The size of an empty disk.
    #[serde(default)]
    pub size: Option<Size>,
    /// The file that is read into memory when the program starts. It is never written.
    #[serde(default)]
    pub image: Option<PathBuf>,
    /// The file or block device that is the disk.
    #[serde(default)]
    pub file: Option<PathBuf>,
    /// How much of the image's contents may be overwritten, in memory. Default: all of it.
    #[serde(default)]
    pub overlay: Option<Size>,
    /// The front-end cannot write.
    #[serde(default)]
    pub readonly: bool,
    /// The serial number. Default: the name of the socket.
    #[serde(default)]
    pub serial: Option<String>,
    /// The mode in which the disk starts, for drivers that ask.
    #[serde(default)]
    pub cache: Cache,
    /// Queues at most, 1 to [`MAX_BLOCK_QUEUES`].
    #[serde(default = "one")]
    pub queues: u16,
    /// Descriptors of a queue at most, a power of two.
    #[serde(default = "queue_size")]
    pub queue_size: u16,
    /// How the engine learns of its requests.
    #[serde(default)]
    pub requests: Option<Requests>,
    /// The share of the engine's time, 1 to [`MAX_WEIGHT`].
    #[serde(default = "one")]
    pub weight: u16,
}

/// `cache`.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Cache {
    /// The driver flushes when it wants its data to be durable.
    #[default]
    Writeback,
    /// Each write is durable when it completes.
    Writethrough,
}

/// A size in bytes, written with a binary unit: `512K`, `64M`, `1G`.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
pub struct Size(pub u64);

impl TryFrom<String> for Size {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let shift = match unit.trim_start() {
            "K" | "KB" | "KiB" => Some(10),
            "M" | "MB" | "MiB" => Some(20),
            "G" | "GB" | "GiB" => Some(30),
            _ => None,
        };
        let bytes = shift.and_then(|shift| number.parse::<u64>().ok()?.checked_mul(1 << shift));
        bytes.map(Self).ok_or_else(|| format!("{text:?} is no size: expected such as \"512K\", \"64M\" or \"1G\""))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} KiB", self.0 >> 10)
    }
}

const fn one() -> u16 {
    1
}

const fn queue_size() -> u16 {
    QUEUE_SIZE
}

impl Disk {
    /// Reads a disk from the command line: `PATH:SIZE`.
    pub fn from_argument(argument: &str) -> Result<Self, String> {
        let (socket, size) = argument.rsplit_once(':').ok_or("expected PATH:SIZE, such as /tmp/disk:64M")?;
        Ok(Self {
            socket: PathBuf::from(socket),
            size: Some(Size::try_from(size.to_owned())?),
            image: None,
            file: None,
            overlay: None,
            readonly: false,
            serial: None,
            cache: Cache::default(),
            queues: one(),
            queue_size: queue_size(),
            requests: None,
            weight: one(),
        })
    }

    /// Its serial number.
    pub fn serial(&self) -> String {
        let of_socket = || {
            let name = self.socket.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.chars().filter(char::is_ascii_graphic).take(SERIAL_BYTES).collect()
        };
        self.serial.clone().unwrap_or_else(of_socket)
    }

    /// Checks its values.
    pub fn check(&self) -> Result<()> {
        let range = |name: &str, value: u16, from: u16, to: u16| {
            ensure!((from..=to).contains(&value), "{name} = {value}: expected {from} to {to}");
            Ok(())
        };
        range("weight", self.weight, 1, MAX_WEIGHT)?;
        range("queues", self.queues, 1, MAX_BLOCK_QUEUES)?;
        range("queue-size", self.queue_size, 2, MAX_QUEUE_SIZE)?;
        ensure!(self.queue_size.is_power_of_two(), "queue-size = {}: expected a power of two", self.queue_size);
        let given = [self.size.is_some(), self.image.is_some(), self.file.is_some()];
        ensure!(given.into_iter().filter(|given| *given).count() == 1, "expected one of size, image and file");
        if let Some(size) = self.size {
            ensure!(size.0 >= SECTOR, "size = {size}: expected more");
        }
        if let Some(overlay) = self.overlay {
            ensure!(self.image.is_some(), "overlay = {overlay}: expected an image beneath it");
            ensure!(!self.readonly, "overlay = {overlay}: a read-only disk has none");
            ensure!(overlay.0 >= OVERLAY_BLOCK, "overlay = {overlay}: expected 4 KiB or more");
        }
        if let Some(serial) = &self.serial {
            ensure!(
                (1..=SERIAL_BYTES).contains(&serial.len()) && serial.bytes().all(|byte| byte.is_ascii_graphic()),
                "serial = {serial:?}: expected 1 to {SERIAL_BYTES} printable ASCII characters without spaces"
            );
        }
        Ok(())
    }

    /// The same as [`Disk::check`], with the disk's socket in the error.
    pub fn check_named(&self) -> Result<()> {
        self.check().with_context(|| format!("disk {}", Path::display(&self.socket)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(keys: &str) -> Result<Disk> {
        let disk: Disk = toml::from_str(&format!("socket = \"/run/system-disk\"\n{keys}"))?;
        disk.check_named()?;
        Ok(disk)
    }

    #[test]
    fn what_the_file_leaves_out_has_a_default() {
        let disk = disk("size = \"64M\"").unwrap();
        assert_eq!(disk.size, Some(Size(64 << 20)));
        assert_eq!((disk.queues, disk.queue_size, disk.weight, disk.readonly), (1, 256, 1, false));
        assert_eq!((disk.serial(), disk.cache), ("system-disk".to_owned(), Cache::Writeback));
    }

    #[test]
    fn a_disk_on_the_command_line_has_a_socket_and_a_size() {
        let disk = Disk::from_argument("/tmp/a:b:512K").unwrap();
        assert_eq!((disk.socket, disk.size), (PathBuf::from("/tmp/a:b"), Some(Size(512 << 10))));
        assert!(Disk::from_argument("/tmp/a").unwrap_err().contains("PATH:SIZE"));
        assert!(Disk::from_argument("/tmp/a:12").unwrap_err().contains("\"12\" is no size"));
    }

    #[test]
    fn a_mistake_is_named_with_its_value() {
        for (keys, named) in [
            ("", "disk /run/system-disk: expected one of size, image and file"),
            ("size = \"1M\"\nfile = \"f\"", "one of size, image and file"),
            ("image = \"f\"\nfile = \"f\"", "one of size, image and file"),
            ("file = \"f\"\noverlay = \"1M\"", "expected an image beneath it"),
            ("size = \"0K\"", "size = 0 KiB: expected more"),
            ("size = \"99999999999G\"", "is no size"),
            ("size = \"1M\"\noverlay = \"1M\"", "expected an image beneath it"),
            ("image = \"f\"\nreadonly = true\noverlay = \"1M\"", "a read-only disk has none"),
            ("image = \"f\"\noverlay = \"1K\"", "expected 4 KiB or more"),
            ("size = \"1M\"\nqueues = 9", "queues = 9: expected 1 to 8"),
            ("size = \"1M\"\nqueue-size = 100", "queue-size = 100: expected a power of two"),
            ("size = \"1M\"\nweight = 0", "weight = 0: expected 1 to 16"),
            ("size = \"1M\"\nserial = \"a b\"", "serial = \"a b\""),
            ("size = \"1M\"\nserial = \"123456789012345678901\"", "1 to 20 printable"),
            ("size = \"1M\"\nwight = 1", "wight"),
        ] {
            let error = format!("{:#}", disk(keys).expect_err(keys));
            assert!(error.contains(named), "{keys}: {error}");
        }
    }
}
