//! Opens a file as a disk, and finds its shape and its alignments (`statx(2)`, STATX_DIOALIGN).

use std::fs::{File, OpenOptions, TryLockError};
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use block::flushes::Record;
use block::storage::Geometry;

/// Most bytes of a discard, and of a request to write zeroes.
const MAX_RANGE: u32 = 1 << 30;
/// Block sizes that a device may have.
const BLOCKS: [u32; 2] = [512, 4096];
/// Alignments of a file whose file system does not say what it needs.
const PAGE: u32 = 4096;

/// A file, or a block device, that is a disk.
pub struct FileDisk {
    file: File,
    /// Its shape.
    pub geometry: Geometry,
    /// Buffers of the guest at a multiple of this need no bounce buffer.
    pub memory_alignment: usize,
    /// Whether a FLUSH has failed, whatever front-end it was for. A file that is opened anew begins anew.
    pub flushes: Record,
}

/// How long a lock is tried. Linux keeps the files of a process that was killed until its operations have ended, and
/// io_uring's end later than the process.
const LOCK_TIME: Duration = Duration::from_secs(5);

/// Locks a file, so that two processes do not write it.
fn lock(file: &File, read_only: bool) -> Result<()> {
    let begin = Instant::now();
    loop {
        match if read_only { file.try_lock_shared() } else { file.try_lock() } {
            Err(TryLockError::WouldBlock) if begin.elapsed() < LOCK_TIME => thread::sleep(Duration::from_millis(10)),
            Err(TryLockError::WouldBlock) => bail!("it is in use, by another disk or process"),
            other => return other.context("cannot lock it"),
        }
    }
}

impl FileDisk {
    /// Opens and locks a file. A file that is written is no other process's disk.
    ///
    /// # Errors
    /// It cannot be opened without the page cache, or is in use, or has a size or a block size that a disk cannot have.
    pub fn open(path: &Path, read_only: bool) -> Result<Self> {
        Self::open_this(path, read_only).with_context(|| format!("file = {}", path.display()))
    }

    fn open_this(path: &Path, read_only: bool) -> Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(!read_only).custom_flags(libc::O_DIRECT);
        let file = match options.open(path) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                bail!("its file system has no O_DIRECT; image = ... reads a file into memory")
            }
            other => other.context("cannot open it")?,
        };
        lock(&file, read_only)?;
        let metadata = file.metadata()?;
        let kind = metadata.file_type();
        ensure!(kind.is_file() || kind.is_block_device(), "expected a file or a block device");
        let bytes = if kind.is_file() { metadata.len() } else { device_bytes(&file)? };
        let (memory, block) = alignments(&file)?;
        let block_bytes = block.max(BLOCKS[0]);
        ensure!(BLOCKS.contains(&block_bytes), "its blocks have {block_bytes} bytes: expected 512 or 4096");
        let blocks = bytes / u64::from(block_bytes);
        ensure!(
            blocks != 0 && bytes.is_multiple_of(block_bytes.into()),
            "it has {bytes} bytes: expected a multiple of its blocks' {block_bytes}"
        );
        // Where physical blocks are larger, the file system says so by the size of its own.
        let physical_bytes = u32::try_from(metadata.blksize()).unwrap_or(PAGE).clamp(block_bytes, PAGE);
        let range = if read_only { 0 } else { MAX_RANGE / block_bytes };
        let geometry = Geometry {
            block_bytes,
            blocks,
            physical_bytes: physical_bytes.next_power_of_two(),
            read_only,
            // The drive's.
            volatile_cache: true,
            max_discard: range,
            discard_bytes: physical_bytes.next_power_of_two(),
            max_zeroes: range,
        };
        Ok(Self { file, geometry, memory_alignment: memory as usize, flushes: Record::new() })
    }

    /// Its descriptor, which stays open.
    pub fn fd(&self) -> i32 {
        self.file.as_raw_fd()
    }
}

/// Bytes of a block device.
fn device_bytes(file: &File) -> Result<u64> {
    use std::io::{Seek as _, SeekFrom};
    let mut file = file;
    Ok(file.seek(SeekFrom::End(0))?)
}

/// The alignments that O_DIRECT needs: of memory, and of offsets and lengths.
fn alignments(file: &File) -> Result<(u32, u32)> {
    let mut status = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: an empty path names the open file; the buffer is a statx, which the kernel fills.
    let result = unsafe {
        let mask = libc::STATX_DIOALIGN;
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, mask, status.as_mut_ptr())
    };
    if result != 0 {
        return Err(std::io::Error::last_os_error()).context("cannot find its alignments");
    }
    // SAFETY: all-zero bytes are a valid statx, and so is what the kernel has written.
    let status = unsafe { status.assume_init() };
    if status.stx_mask & libc::STATX_DIOALIGN == 0 {
        return Ok((PAGE, PAGE));
    }
    ensure!(
        status.stx_dio_offset_align != 0,
        "its file system has no O_DIRECT for it; image = ... reads a file into memory"
    );
    Ok((status.stx_dio_mem_align.max(1), status.stx_dio_offset_align))
}
