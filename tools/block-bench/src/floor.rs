//! The bare copy loop behind a vhost-user-blk socket: the least that a disk has to do. It reads descriptors, copies
//! bytes and writes used rings. It expects libblkio's chains of three descriptors, and checks nothing else than that
//! addresses are in the front-end's memory. It serves one front-end.

#![allow(unsafe_code, reason = "rings and buffers in memory that another process writes to")]

use std::fs::File;
use std::hint::spin_loop;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Context as _, Result as Outcome};
use memory::copy::Copier;
use switch_bench::process;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight, VhostUserLog,
    VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig, VhostUserSharedMsg,
    VhostUserSingleMemoryRegion, VhostUserVirtioFeatures, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{BackendReqHandler, Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

const SECTOR: u64 = 512;
/// VERSION_1 and SEG_MAX.
const FEATURES: u64 = 1 << 32 | 1 << 2;
/// `VRING_USED_F_NO_NOTIFY`: the driver need not kick.
const NO_NOTIFY: u16 = 1;
/// Most memory regions.
const REGIONS: usize = 8;

/// A region of the front-end: first address there, bytes, where it is mapped.
type Window = (u64, u64, usize);

/// The address here of `len` bytes of the front-end.
fn address(windows: &[Window], at: u64, len: u64) -> Option<*mut u8> {
    windows.iter().find_map(|&(first, bytes, here)| {
        let offset = at.wrapping_sub(first);
        let within = offset < bytes && len <= bytes - offset;
        within.then(|| ptr::with_exposed_provenance_mut::<u8>(here).wrapping_add(offset as usize))
    })
}

/// A queue's settings.
#[derive(Clone, Copy, Default)]
struct Queue {
    size: u16,
    desc: u64,
    avail: u64,
    used: u64,
}

struct Floor {
    disk: usize,
    bytes: usize,
    core: usize,
    windows: Vec<Window>,
    queue: Queue,
}

/// Serves the queue for ever.
fn copy_loop(floor: &Floor) -> Option<()> {
    let (Queue { size, desc, avail, used }, windows) = (floor.queue, &floor.windows[..]);
    let at = |place, len| address(windows, place, len);
    let entries = u64::from(size);
    let (table, ring) = (at(desc, 16 * entries)?, at(avail, 6 + 2 * entries)?);
    let back = at(used, 6 + 8 * entries)?;
    // SAFETY: a process may overwrite its own vector registers.
    let copier = unsafe { Copier::widest() };
    let half = |start: *mut u8, offset: usize| {
        // SAFETY: within a ring that was looked up with its whole length, and aligned as the ring is.
        unsafe { AtomicU16::from_ptr(start.wrapping_add(offset).cast()) }
    };
    half(back, 0).store(NO_NOTIFY, Ordering::Release);
    let mut next = half(back, 2).load(Ordering::Relaxed);
    loop {
        let offered = half(ring, 2).load(Ordering::Acquire);
        if offered == next {
            spin_loop();
            continue;
        }
        while next != offered {
            let slot = usize::from(next & (size - 1));
            let head = half(ring, 4 + 2 * slot).load(Ordering::Relaxed);
            let mut index = head;
            let mut chain = [(0u64, 0u32); 3];
            for part in &mut chain {
                let entry = table.wrapping_add(16 * usize::from(index & (size - 1)));
                // SAFETY: an entry of the table, which is aligned to 16 bytes.
                let words =
                    unsafe { [entry.cast::<u64>().read_volatile(), entry.cast::<u64>().add(1).read_volatile()] };
                *part = (words[0], words[1] as u32);
                index = (words[1] >> 48) as u16;
            }
            let [header, (data, len), (status, _)] = chain;
            let header = at(header.0, 16)?;
            // SAFETY: eight bytes of the header, which may have any alignment.
            let sector = unsafe { header.wrapping_add(8).cast::<u64>().read_unaligned() };
            let from = sector.checked_mul(SECTOR).filter(|from| from + u64::from(len) <= floor.bytes as u64)?;
            let source = ptr::with_exposed_provenance::<u8>(floor.disk).wrapping_add(from as usize);
            let (to, status) = (at(data, len.into())?, at(status, 1)?);
            let entry = back.wrapping_add(4 + 8 * slot).cast::<u64>();
            // SAFETY: the ranges were checked above; the disk and the front-end's memory are different mappings. The
            // used ring's entry is within the ring.
            unsafe {
                copier.copy(to, source, len as usize);
                status.write_volatile(0);
                entry.write_unaligned(u64::from(head) | u64::from(len + 1) << 32);
            }
            next = next.wrapping_add(1);
        }
        half(back, 2).store(next, Ordering::Release);
    }
}

fn map(file: Option<&File>, bytes: usize) -> io::Result<usize> {
    let (kind, fd) = match file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1),
    };
    let flags = kind | libc::MAP_POPULATE;
    // SAFETY: a new mapping at an address of the kernel's choice, which stays until the process ends.
    let start = unsafe { libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) };
    if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(start.expose_provenance()) }
}

/// Listens at `socket` and serves one front-end.
pub fn serve(socket: &Path, bytes: usize, core: usize) -> Outcome<()> {
    let disk = map(None, bytes).with_context(|| format!("no memory for {bytes} bytes"))?;
    // A private mapping that was never written is one page of zeroes, which would be in the cache always.
    let start = ptr::with_exposed_provenance_mut::<u8>(disk);
    // SAFETY: the whole mapping, which nobody else uses yet.
    unsafe { start.write_bytes(1, bytes) };
    let listener = UnixListener::bind(socket).with_context(|| format!("cannot listen on {}", socket.display()))?;
    let (stream, _) = listener.accept()?;
    let floor = Floor { disk, bytes, core, windows: Vec::new(), queue: Queue::default() };
    let mut handler = BackendReqHandler::from_stream(stream, Arc::new(Mutex::new(floor)));
    loop {
        match handler.handle_request() {
            Ok(()) => {}
            Err(Error::Disconnected | Error::PartialMessage | Error::SocketBroken(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

fn refused<T>() -> Result<T> {
    Err(Error::ReqHandlerError(io::Error::other("the floor has no such message")))
}

impl VhostUserBackendReqHandlerMut for Floor {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        refused()
    }

    fn reset_device(&mut self) -> Result<()> {
        refused()
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(FEATURES | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits())
    }

    fn set_features(&mut self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::CONFIG | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, _features: u64) -> Result<()> {
        Ok(())
    }

    fn set_mem_table(
        &mut self,
        _table: &[VhostUserMemoryRegion],
        _files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<u64>>> {
        refused()
    }

    fn set_vring_num(&mut self, _index: u32, size: u32) -> Result<()> {
        self.queue.size = size as u16;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        _index: u32,
        _flags: VhostUserVringAddrFlags,
        desc: u64,
        used: u64,
        avail: u64,
        _log: u64,
    ) -> Result<()> {
        self.queue = Queue { desc, avail, used, ..self.queue };
        Ok(())
    }

    fn set_vring_base(&mut self, _index: u32, _base: u32) -> Result<()> {
        Ok(())
    }

    fn get_vring_base(&mut self, _index: u32) -> Result<VhostUserVringState> {
        refused()
    }

    fn set_vring_kick(&mut self, _index: u8, _file: Option<File>) -> Result<()> {
        Ok(())
    }

    fn set_vring_call(&mut self, _index: u8, _file: Option<File>) -> Result<()> {
        Ok(())
    }

    fn set_vring_err(&mut self, _index: u8, _file: Option<File>) -> Result<()> {
        Ok(())
    }

    fn set_vring_enable(&mut self, _index: u32, _enable: bool) -> Result<()> {
        // The rings' memory is there before. That of the buffers comes later, so the loop starts with it.
        Ok(())
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let mut config = [0; 60];
        config[..8].copy_from_slice(&(self.bytes as u64 / SECTOR).to_le_bytes());
        config[12..16].copy_from_slice(&126u32.to_le_bytes());
        config[20..24].copy_from_slice(&512u32.to_le_bytes());
        config[34..36].copy_from_slice(&1u16.to_le_bytes());
        let byte = |at: u32| config.get(at as usize).copied().unwrap_or(0);
        Ok((offset..offset.saturating_add(size)).map(byte).collect())
    }

    fn set_config(&mut self, _offset: u32, _bytes: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        refused()
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(1)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<u64>> {
        let VhostUserMemoryRegion { memory_size, user_addr, mmap_offset, .. } = **region;
        if self.windows.len() == REGIONS {
            return refused();
        }
        let here = map(Some(&file), (mmap_offset + memory_size) as usize).map_err(Error::ReqHandlerError)?;
        self.windows.push((user_addr, memory_size, here + mmap_offset as usize));
        // libblkio maps its buffers after the queue is set up.
        if self.queue.size != 0 && self.windows.len() == 2 {
            let floor = Self { windows: self.windows.clone(), ..*self };
            thread::spawn(move || {
                if let Err(error) = process::pin(floor.core) {
                    eprintln!("block-bench: the copy loop: {error:#}");
                }
                copy_loop(&floor);
                eprintln!("block-bench: the copy loop has ended: this is no chain of libblkio");
            });
        }
        Ok(None)
    }

    fn remove_mem_region(&mut self, _region: &VhostUserSingleMemoryRegion) -> Result<()> {
        // The front-end goes. Its memory stays mapped until this process ends.
        Ok(())
    }

    fn set_gpu_socket(&mut self, _backend: GpuBackend) -> Result<()> {
        refused()
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        refused()
    }

    fn get_inflight_fd(&mut self, _inflight: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        refused()
    }

    fn set_inflight_fd(&mut self, _inflight: &VhostUserInflight, _file: File) -> Result<()> {
        refused()
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _file: File,
    ) -> Result<Option<File>> {
        refused()
    }

    fn check_device_state(&mut self) -> Result<()> {
        refused()
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        refused()
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        refused()
    }
}
