//! A front-end's memory: the mapped files of SET_MEM_TABLE or ADD_MEM_REG.
//!
//! The front-end keeps the files open. If it shortens one, an access beyond its end raises SIGBUS in any thread. The
//! handler replaces the whole mapping by anonymous memory, so the access continues. It also marks the port as lost
//! ([`take_lost`]), and the server ends its connection. Nobody else is affected.

#![allow(unsafe_code, reason = "maps files, and mends a mapping in a signal's handler")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use memory::GuestMemory;
use memory::guest::{MAX_REGIONS, Region};
use net::ports::MAX_PORTS;
use vhost::vhost_user::message::VhostUserMemoryRegion;

const PAGE: u64 = 4096;

/// A mapping that the handler knows.
struct Guarded {
    start: AtomicUsize,
    len: AtomicUsize,
    port: AtomicUsize,
}

/// Mappings of a port at most: its regions, and the file of its in-flight tracking.
const MAPPINGS: usize = MAX_REGIONS + 1;

static GUARDED: [Guarded; MAX_PORTS * MAPPINGS] =
    [const { Guarded { start: AtomicUsize::new(0), len: AtomicUsize::new(0), port: AtomicUsize::new(0) } };
        MAX_PORTS * MAPPINGS];

/// Whether each port's memory was lost.
static LOST: [AtomicBool; MAX_PORTS] = [const { AtomicBool::new(false) }; MAX_PORTS];

/// Whether a port's memory was lost since the last call.
pub fn take_lost(port: usize) -> bool {
    LOST.get(port).is_some_and(|lost| lost.swap(false, Ordering::Relaxed))
}

/// Installs the handler. Call it once, before there is any mapping.
pub fn guard() -> io::Result<()> {
    // SAFETY: an all-zero `sigaction` is a valid one.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = on_bus_error as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO;
    // SAFETY: the handler has the signature that SA_SIGINFO requires, and calls only async-signal-safe functions.
    if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

extern "C" fn on_bus_error(_signal: i32, info: *mut libc::siginfo_t, _context: *mut libc::c_void) {
    // SAFETY: the kernel hands a handler that was set with SA_SIGINFO a valid one, and SIGBUS has an address.
    let address = unsafe { (*info).si_addr() } as usize;
    for guarded in &GUARDED {
        let (start, len) = (guarded.start.load(Ordering::Acquire), guarded.len.load(Ordering::Relaxed));
        if start == 0 || address.wrapping_sub(start) >= len {
            continue;
        }
        let flags = libc::MAP_FIXED | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: it replaces a mapping that is a front-end's memory and nothing else, to which there is no reference.
        let mended = unsafe { libc::mmap(start as *mut _, len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if mended != libc::MAP_FAILED {
            if let Some(lost) = LOST.get(guarded.port.load(Ordering::Relaxed)) {
                lost.store(true, Ordering::Relaxed);
            }
            return;
        }
    }
    // This is no front-end's memory, so it is a bug of ours. With the default action, the instruction faults again and
    // ends the process.
    // SAFETY: `signal` may be called in a handler.
    unsafe { libc::signal(libc::SIGBUS, libc::SIG_DFL) };
}

/// A mapping of a file from its beginning.
pub struct Mapping {
    start: *mut u8,
    len: usize,
    guarded: &'static Guarded,
}

// SAFETY: memory that another process shares; nothing but raw accesses are made to it, from any thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Where it begins.
    pub const fn start(&self) -> *mut u8 {
        self.start
    }

    /// Maps `len` bytes of a port's file, shared.
    ///
    /// # Errors
    /// Linux refuses it.
    pub fn new(port: usize, file: &File, len: usize) -> io::Result<Self> {
        let free = |g: &&Guarded| {
            // 1 is no valid address. It reserves the entry until the mapping exists.
            g.start.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        };
        let guarded = GUARDED.iter().find(free).ok_or_else(|| io::Error::other("too many regions in all"))?;
        guarded.len.store(0, Ordering::Relaxed);
        let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.as_raw_fd());
        // SAFETY: a new mapping at an address of the kernel's choice.
        let start = unsafe { libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, fd, 0) };
        if start == libc::MAP_FAILED {
            let error = io::Error::last_os_error();
            guarded.start.store(0, Ordering::Release);
            return Err(error);
        }
        guarded.port.store(port, Ordering::Relaxed);
        guarded.len.store(len, Ordering::Relaxed);
        guarded.start.store(start as usize, Ordering::Release);
        Ok(Self { start: start.cast(), len, guarded })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.guarded.start.store(0, Ordering::Release);
        // SAFETY: this is the whole mapping that `mmap` returned; its owner drops it only after the engine has detached
        // the device.
        unsafe { libc::munmap(self.start.cast(), self.len) };
    }
}

/// A front-end's regions. Change or drop them only while the engine has not attached the device.
#[derive(Default)]
pub struct Regions {
    windows: Vec<Window>,
    memory: GuestMemory,
}

/// A region as the front-end sees it.
struct Window {
    /// First address in the front-end.
    user: u64,
    bytes: u64,
    /// First guest-physical address.
    gpa: u64,
    _mapping: Mapping,
}

impl Regions {
    /// Maps the regions. The error says which region is wrong, and why, with its values.
    pub fn map(port: usize, table: &[VhostUserMemoryRegion], files: &[File]) -> Result<Self, String> {
        if table.len() > MAX_REGIONS || table.len() != files.len() {
            return Err(format!(
                "{} memory regions with {} files: expected at most {MAX_REGIONS}, a file each",
                table.len(),
                files.len()
            ));
        }
        let mut regions = Self::default();
        table.iter().zip(files).try_for_each(|(region, file)| regions.add(port, region, file))?;
        Ok(regions)
    }

    /// Maps one more region. The error says what is wrong with it, with its values.
    pub fn add(&mut self, port: usize, region: &VhostUserMemoryRegion, file: &File) -> Result<(), String> {
        let VhostUserMemoryRegion { guest_phys_addr: gpa, memory_size: size, user_addr: user, mmap_offset: offset } =
            *region;
        if self.windows.len() >= MAX_REGIONS {
            return Err(format!("one more memory region: expected at most {MAX_REGIONS}"));
        }
        self.map_one(port, gpa, size, user, offset, file).map_err(|what| {
            format!(
                "memory region of {size:#x} bytes at guest address {gpa:#x}, user address {user:#x}, file offset \
                 {offset:#x}: {what}"
            )
        })
    }

    /// Unmaps a region, which is named by its addresses and size.
    pub fn remove(&mut self, region: &VhostUserMemoryRegion) -> Result<(), String> {
        let VhostUserMemoryRegion { guest_phys_addr: gpa, memory_size: size, user_addr: user, .. } = *region;
        let Some(at) = self.windows.iter().position(|w| (w.user, w.gpa, w.bytes) == (user, gpa, size)) else {
            return Err(format!(
                "no memory region of {size:#x} bytes at guest address {gpa:#x}, user address {user:#x}"
            ));
        };
        let mut rest = GuestMemory::new();
        for region in self.memory.regions().iter().filter(|region| region.gpa != gpa) {
            // SAFETY: it was added before, and its mapping stays.
            unsafe { rest.add(*region) }.map_err(|_| "refused".to_owned())?;
        }
        self.memory = rest;
        self.windows.remove(at);
        Ok(())
    }

    fn map_one(&mut self, port: usize, gpa: u64, size: u64, user: u64, offset: u64, file: &File) -> Result<(), String> {
        if size == 0 || [gpa, offset].iter().any(|n| n % PAGE != 0) {
            return Err("guest address and offset must be multiples of 4 KiB, and the size not 0".to_owned());
        }
        let end = offset.checked_add(size).ok_or("offset and size wrap")?;
        let user_end = user.checked_add(size).ok_or("user address and size wrap")?;
        // libblkio's regions need not end at a page. The rest of the last page is mapped with it, and is the
        // front-end's own.
        let in_pages = size.checked_next_multiple_of(PAGE).filter(|pages| gpa.checked_add(*pages).is_some());
        let in_pages = in_pages.ok_or("guest address and size wrap")?;
        if self.windows.iter().any(|w| user < w.user + w.bytes && w.user < user_end) {
            return Err("its user addresses overlap another region's".to_owned());
        }
        if self.memory.regions().iter().any(|r| gpa < r.gpa + r.size && r.gpa < gpa + in_pages) {
            return Err("its guest addresses overlap another region's".to_owned());
        }
        let metadata = file.metadata().map_err(|error| format!("its file: {error}"))?;
        if !metadata.is_file() || metadata.len() < end {
            return Err(format!(
                "its file is no regular file of {end:#x} bytes or more, but has {:#x}",
                metadata.len()
            ));
        }
        // A mapping of huge pages can only be unmapped in whole huge pages.
        let page = metadata.blksize().max(PAGE);
        let len = end.div_ceil(page).checked_mul(page).and_then(|len| usize::try_from(len).ok()).ok_or("too large")?;
        let mapping = Mapping::new(port, file, len).map_err(|error| format!("it cannot be mapped: {error}"))?;
        let host = mapping.start.wrapping_add(offset as usize);
        // SAFETY: the memory is mapped for as long as this value lives, and the owner keeps this value until the engine
        // has given up its copy of `memory`. If the file shrinks, the handler above keeps the addresses readable and
        // writable. Nobody forms a reference to the memory.
        unsafe { self.memory.add(Region { gpa, size: in_pages, host }) }.map_err(|_| "refused".to_owned())?;
        self.windows.push(Window { user, bytes: size, gpa, _mapping: mapping });
        Ok(())
    }

    /// The memory, for the engine.
    pub fn memory(&self) -> GuestMemory {
        self.memory.clone()
    }

    /// Translates an address of the front-end into a guest-physical address.
    pub fn guest_address(&self, user: u64) -> Option<u64> {
        self.windows.iter().find_map(|window| {
            let offset = user.checked_sub(window.user)?;
            (offset < window.bytes).then(|| window.gpa + offset)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd as _;

    fn file(bytes: u64) -> File {
        // SAFETY: a name with its zero.
        let fd = unsafe { libc::memfd_create(c"memory".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: just made, and nobody else's.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(bytes).unwrap();
        file
    }

    const fn region(gpa: u64, size: u64, user: u64, offset: u64) -> VhostUserMemoryRegion {
        VhostUserMemoryRegion { guest_phys_addr: gpa, memory_size: size, user_addr: user, mmap_offset: offset }
    }

    #[test]
    fn addresses_are_translated_and_bytes_are_the_files() {
        let f = file(0x4000);
        let table = [region(0x10_0000, 0x2000, 0x7000_0000, 0x1000), region(0, 0x1000, 0x8000_0000, 0x3000)];
        let regions = Regions::map(0, &table, &[f.try_clone().unwrap(), f]).unwrap();
        assert_eq!(regions.guest_address(0x7000_1fff), Some(0x10_1fff));
        assert_eq!(regions.guest_address(0x7000_2000), None);
        assert_eq!(regions.guest_address(0x8000_0000), Some(0));
        regions.memory().write(0x10_0000, b"here").unwrap();
        assert!(regions.memory().write(0x10_1ffd, b"here").is_err());
    }

    #[test]
    fn regions_that_overlap_or_are_larger_than_their_file_are_refused_by_name() {
        let refused = |table: &[VhostUserMemoryRegion]| {
            let files: Vec<File> = table.iter().map(|_| file(0x4000)).collect();
            Regions::map(0, table, &files).err().unwrap_or_default()
        };
        let good = region(0x1000, 0x2000, 0x7000_0000, 0);
        assert!(refused(&[good, region(0x2000, 0x1000, 0x9000_0000, 0)]).contains("guest address 0x2000"));
        assert!(refused(&[good, region(0x8000, 0x1000, 0x7000_1000, 0)]).contains("user addresses overlap"));
        assert!(refused(&[region(0, 0x4000, 0, 0x1000)]).contains("0x5000 bytes or more, but has 0x4000"));
        assert!(
            refused(&[good, region(0x3000, 0x801, 0x9000_0000, 0), region(0x3000, 0x1000, 0xa000_0000, 0)])
                .contains("guest addresses overlap")
        );
        assert!(refused(&[region(0x800, 0x1000, 0, 0)]).contains("multiples of 4 KiB"));
        assert!(refused(&[region(u64::MAX - 0xfff, 0x1000, 0, 0)]).contains("wrap"));
        assert!(refused(&[region(0, 0x1000, 0, u64::MAX - 0xfff)]).contains("wrap"));
        assert!(refused(&vec![good; MAX_REGIONS + 1]).contains("expected at most 8"));
    }

    #[test]
    fn regions_come_and_go_one_by_one() {
        let mut regions = Regions::default();
        // The end of the second is within a page.
        let (a, b) = (region(0x1000, 0x2000, 0x7000_0000, 0), region(0x8000, 0x810, 0x9000_0000, 0x1000));
        regions.add(9, &a, &file(0x2000)).unwrap();
        regions.add(9, &b, &file(0x1810)).unwrap();
        assert_eq!((regions.guest_address(0x9000_0800), regions.guest_address(0x9000_0810)), (Some(0x8800), None));
        regions.memory().write(0x8800, b"here").unwrap();
        let other = region(0x1000, 0x1000, 0x7000_0000, 0);
        assert!(regions.remove(&other).unwrap_err().contains("no memory region of 0x1000 bytes"));
        regions.remove(&a).unwrap();
        assert_eq!(regions.guest_address(0x7000_0000), None);
        assert!(regions.memory().write(0x1000, b"gone").is_err());
        regions.memory().write(0x8800, b"here").unwrap();
        regions.add(9, &a, &file(0x2000)).unwrap();
        regions.memory().write(0x1000, b"back").unwrap();
    }

    #[test]
    fn a_file_that_shrinks_costs_its_port_and_nothing_else() {
        guard().unwrap();
        let (f, other) = (file(0x4000), file(0x1000));
        let (mine, others) = (
            Regions::map(7, &[region(0, 0x4000, 0, 0)], &[f.try_clone().unwrap()]).unwrap(),
            Regions::map(8, &[region(0, 0x1000, 0, 0)], &[other]).unwrap(),
        );
        others.memory().write(0, b"mine").unwrap();
        f.set_len(0x1000).unwrap();
        assert_eq!(mine.memory().read_u32(0x2000), Ok(0));
        assert!(take_lost(7));
        mine.memory().write(0x3000, b"gone").unwrap();
        let mut bytes = [0; 4];
        others.memory().read(0, &mut bytes).unwrap();
        assert_eq!((&bytes, take_lost(7)), (b"mine", false));
    }
}
