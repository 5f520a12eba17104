//! The program's threads, files that front-ends share, and a front-end that keeps the rules.

use std::fs::{self, File};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use engine::pair::Half;
use memory::copy::Copier;
use memory::{GuestMemory, Region};
use sidecore_vhost::backends::{Control, IoEngine};
use sidecore_vhost::client::Client;
use sidecore_vhost::config::{Config, Disk};
use sidecore_vhost::control::EngineControl;
use sidecore_vhost::kicks::Kicks;
use sidecore_vhost::port::Port;
use sidecore_vhost::{clock, map, server};
use vhost::vhost_user::VhostUserBackendReqHandlerMut as _;
use vhost::vhost_user::message::{VhostUserMemoryRegion, VhostUserVringAddrFlags};
use virtio::config::Features;
use virtio::testing::{BUFFERS, DriverQueue, MEMORY};

/// Turns of the engine within which it serves a request.
const TURNS: usize = 50;
/// Where the orderly front-end's memory begins for itself.
const USER: u64 = 0x5500_0000_0000;
/// A page of its memory in which nobody has any business, and what is in it.
const FENCE: u64 = BUFFERS + 0x20_0000;
const UNTOUCHED: [u8; 0x1000] = [0xa5; 0x1000];
/// Where more of its memory is, if it has more.
pub const ELSEWHERE: u64 = 0x1000_0000;
/// Descriptors of its queue.
const SIZE: u16 = 16;
/// Sectors of each disk: a megabyte.
const SECTORS: u64 = 2048;

/// The program's ports, clients and engine. There is one thread for all of them.
pub struct Process {
    /// The ports and disks, by slot.
    pub ports: Vec<Arc<Port>>,
    /// The front-ends, by slot.
    pub clients: Vec<Client>,
    engine: Arc<Mutex<Box<IoEngine>>>,
}

fn turn(engine: &Mutex<Box<IoEngine>>) {
    let mut engine = engine.lock().unwrap_or_else(PoisonError::into_inner);
    engine.turn(clock::now());
    // The clients wait for turns that are counted. The loop of the program's thread counts them.
    engine.control().counters.idle_turns.add(1);
}

impl Process {
    /// A port of the switch and two disks in memory.
    /// The first disk has a record, as one in a file that is there for longer than the process.
    pub fn new() -> Self {
        map::guard().expect("a handler of SIGBUS");
        let disks = ["/disk:1M", "/orderly:1M"].map(|disk| Disk::from_argument(disk).expect("a disk"));
        let config = Config::read(None, &[PathBuf::from("/port")], disks.into()).expect("a configuration");
        let mut ports = server::ports(&config).expect("ports");
        if let Some(Half::Second(disk)) = ports.get_mut(1).and_then(Arc::get_mut).map(|port| &mut port.backend) {
            disk.record = Some(Box::leak(Box::default()));
        }
        let control: &'static Control = Box::leak(Box::default());
        let engine = server::new_engine(control, &config).expect("an engine");
        let engine = Arc::new(Mutex::new(engine));
        let of_control = Arc::clone(&engine);
        let kicks = Arc::new(Kicks::start(ports.iter().map(|port| port.shared).collect()).expect("a thread"));
        let control = Arc::new(EngineControl::with_pause(control, move || turn(&of_control)));
        let client = |port: &Arc<Port>| {
            Client::new(Arc::clone(port), Arc::clone(&control), Arc::clone(&kicks), Copier::default())
        };
        let clients = ports.iter().map(client).collect();
        Self { ports, clients, engine }
    }

    /// Lets the engine make some turns.
    pub fn turns(&self) {
        (0..TURNS).for_each(|_| turn(&self.engine));
    }
}

/// A new eventfd.
pub fn eventfd() -> File {
    // SAFETY: makes a new one, which is ours.
    unsafe { File::from_raw_fd(libc::eventfd(0, 0)) }
}

/// Open files of the kinds that front-ends give, memory files and eventfds, and mappings of memory files. Other tests of this
/// process open and close files of other kinds.
pub fn open_files() -> (usize, usize) {
    let files = fs::read_dir("/proc/self/fd").expect("Linux").flatten();
    let of_front_end =
        |path: PathBuf| path.to_string_lossy().contains("memfd:") || path.ends_with("anon_inode:[eventfd]");
    // One that is closed meanwhile has no path.
    let files = files.filter(|entry| fs::read_link(entry.path()).is_ok_and(of_front_end)).count();
    let maps = fs::read_to_string("/proc/self/maps").expect("Linux");
    (files, maps.lines().filter(|line| line.contains("memfd:")).count())
}

/// A file that a front-end shares.
pub struct Shared(File);

impl From<File> for Shared {
    fn from(file: File) -> Self {
        Self(file)
    }
}

impl Shared {
    /// Of so many bytes, all of them 0.
    pub fn new(bytes: u64) -> Self {
        // SAFETY: makes a new one, which is ours.
        let file = unsafe { File::from_raw_fd(libc::memfd_create(c"shared".as_ptr(), libc::MFD_CLOEXEC)) };
        file.set_len(bytes).expect("memory");
        Self(file)
    }

    /// The file as it comes with a message.
    pub fn file(&self) -> File {
        self.0.try_clone().expect("a file descriptor")
    }

    /// Shortens the file.
    pub fn shorten(&self, bytes: u64) {
        self.0.set_len(bytes).expect("a file of ours");
    }

    /// Writes as the front-end's driver does. What is behind the end is left out.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        let end = self.0.metadata().expect("a file").len();
        if at + bytes.len() as u64 <= end {
            self.0.write_all_at(bytes, at).expect("within the file");
        }
    }
}

/// A front-end by the rules: its memory, and the queue of its driver.
pub struct Orderly {
    file: Shared,
    start: *mut u8,
    memory: GuestMemory,
    features: Features,
    queue: std::cell::RefCell<DriverQueue>,
}

impl Orderly {
    /// One with a split ring.
    pub fn new() -> Self {
        Self::of(Features::VERSION_1)
    }

    /// One whose driver has negotiated these features. Its memory is mapped here too.
    pub fn of(features: Features) -> Self {
        let file = Shared::new(MEMORY as u64);
        let (protection, fd) = (libc::PROT_READ | libc::PROT_WRITE, file.0.as_raw_fd());
        // SAFETY: a new mapping of a file of that length, at an address of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), MEMORY, protection, libc::MAP_SHARED, fd, 0) };
        assert_ne!(start, libc::MAP_FAILED, "memory");
        let start = start.cast::<u8>();
        let mut memory = GuestMemory::new();
        // SAFETY: the mapping lives as long as this value, and nobody has a reference to it.
        unsafe { memory.add(Region { gpa: 0, size: MEMORY as u64, host: start }) }.expect("a region");
        memory.write(FENCE, &UNTOUCHED).expect("in its memory");
        let queue = DriverQueue::new(&memory, 0, SIZE, features).into();
        Self { file, start, memory, features, queue }
    }

    /// What its driver has negotiated.
    pub const fn features(&self) -> Features {
        self.features
    }

    /// Takes the device of a slot. Returns false if a message is refused.
    pub fn set_up(&self, process: &mut Process, slot: usize) -> bool {
        self.go_on(process, slot, 0, &[])
    }

    /// The same, from a position of the ring on. `more`: files that are memory of the front-end too, one behind the other from
    /// [`ELSEWHERE`] on, with their bytes.
    pub fn go_on(&self, process: &mut Process, slot: usize, base: u32, more: &[(File, u64)]) -> bool {
        let client = &mut process.clients[slot];
        let config = self.queue.borrow().config;
        let mut regions = vec![VhostUserMemoryRegion::new(0, MEMORY as u64, USER, 0)];
        let mut files = vec![self.file.file()];
        let mut at = ELSEWHERE;
        for (file, bytes) in more {
            regions.push(VhostUserMemoryRegion::new(at, *bytes, USER + at, 0));
            files.push(file.try_clone().expect("a file descriptor"));
            at += bytes;
        }
        let flags = VhostUserVringAddrFlags::empty();
        client.set_features(self.features.bits()).is_ok()
            && client.set_mem_table(&regions, files, None).is_ok()
            && client.set_vring_num(0, SIZE.into()).is_ok()
            && client.set_vring_base(0, base).is_ok()
            && client.set_vring_addr(0, flags, USER + config.desc, USER + config.used, USER + config.avail, 0).is_ok()
            && client.set_vring_kick(0, Some(eventfd())).is_ok()
    }

    /// Offers a request of this type, for `bytes` of data at `data`, and does not wait for it. Without room nothing happens.
    pub fn offer(&self, kind: u32, sector: u64, (data, bytes): (u64, u32)) {
        let (head, status) = (BUFFERS, BUFFERS + 0x2000);
        let _ = self.memory.write(head, &[&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat());
        let middle = (bytes != 0).then_some((data, bytes, matches!(kind, 0 | 8)));
        let chain: Vec<_> = [(head, 16, false)].into_iter().chain(middle).chain([(status, 1, true)]).collect();
        let _ = self.queue.borrow_mut().add(&chain);
    }

    /// Reads a sector of its disk, after it has written it. `None`: no answer, or a wrong one.
    pub fn read(&self, process: &Process, sector: u64) -> Option<()> {
        let sector = sector % SECTORS;
        let data: Vec<u8> = (0..512_u64).map(|i| (i * 7 + sector) as u8).collect();
        let (head, block, status) = (BUFFERS, BUFFERS + 0x1000, BUFFERS + 0x2000);
        for (kind, write) in [(1_u32, false), (0, true)] {
            self.memory.write(head, &[&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat()).ok()?;
            self.memory.write(block, if write { &[0; 512] } else { &data }).ok()?;
            self.memory.write(status, &[0xff]).ok()?;
            let mut queue = self.queue.borrow_mut();
            queue.add(&[(head, 16, false), (block, 512, write), (status, 1, true)])?;
            process.turns();
            queue.take_used()?;
            if self.memory.read_u8(status).ok()? != 0 {
                return None;
            }
        }
        let mut found = [0; 512];
        self.memory.read(block, &mut found).ok()?;
        (found[..] == data).then_some(())
    }

    /// Takes the device of a slot, reads a sector, and leaves.
    pub fn read_sector(&self, process: &mut Process, slot: usize, sector: u64) -> Option<()> {
        let answer = if self.set_up(process, slot) { self.read(process, sector) } else { None };
        process.clients[slot].leave();
        answer
    }

    /// Whether nothing was written where it has no buffer.
    pub fn is_untouched(&self) -> bool {
        let mut fence = [0; UNTOUCHED.len()];
        self.memory.read(FENCE, &mut fence).is_ok() && fence == UNTOUCHED
    }
}

impl Drop for Orderly {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and its users are gone with it.
        unsafe { libc::munmap(self.start.cast(), MEMORY) };
    }
}
