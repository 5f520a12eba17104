//! A driver of a disk that keeps the rules of the rings. Its requests are of all kinds, right and wrong. It knows the answer
//! to each beforehand (virtio 1.3 5.2.6), and the contents of its disk.

use memory::GuestMemory;
use virtio::config::Features;
use virtio::shared::Shared;
use virtio::testing::{BUFFERS, DriverQueue, set_up_interrupts};

use crate::input::Input;
use crate::planted::planted;

/// Sectors of 512 bytes of the disk.
pub const SECTORS: u64 = REGION * SLOTS as u64;
/// The disk's serial number.
pub const SERIAL: &[u8; 20] = b"a serial of 20 bytes";
/// Requests in flight at most. Each has a region of the disk for itself, so that their order does not matter.
const SLOTS: usize = 8;
/// Sectors of a region.
const REGION: u64 = 16;
/// Bytes of a request's memory, and bytes between two of its buffers.
const AREA: usize = 0x4000;
const GAP: usize = 24;
/// What is in memory where nobody wrote.
const UNTOUCHED: u8 = 0xa5;

const OK: u8 = 0;
const IOERR: u8 = 1;
const UNSUPP: u8 = 2;

/// A request, and what its answer has to be.
struct Sent {
    id: u16,
    used: u32,
    /// All of its memory after the answer.
    memory: Vec<u8>,
    /// The sector from which on the disk changes, and its bytes then.
    change: Option<(u64, Vec<u8>)>,
}

/// The guest with that driver.
pub struct Orderly {
    /// Its memory.
    pub memory: GuestMemory,
    /// Its device.
    pub shared: &'static Shared,
    queue: DriverQueue,
    features: Features,
    sent: [Option<Sent>; SLOTS],
    /// The contents of its disk, where no request in flight changes them.
    disk: Vec<u8>,
    /// What a discard changes: only whole blocks of so many sectors, and all of their bytes are these then.
    discard: (u64, u8),
}

impl Orderly {
    /// A guest whose driver accepts these features, with [`MEMORY`](virtio::testing::MEMORY) bytes from address 0 on. Its
    /// device is idle.
    pub fn new(memory: GuestMemory, shared: &'static Shared, features: Features, discard: (u64, u8)) -> Self {
        let queue = DriverQueue::new(&memory, 0, shared.max_queue_size(), features);
        Self { memory, shared, queue, features, sent: [const { None }; SLOTS], disk: Vec::new(), discard }
    }

    /// The contents of its disk. No request is in flight.
    pub fn disk(&self) -> &[u8] {
        assert_eq!(self.in_flight(), 0);
        &self.disk
    }

    /// Sets up its queue and sets DRIVER_OK. The disk is zero.
    pub fn start(&mut self) {
        set_up_interrupts(&self.shared.msix, 0x50..0x53);
        self.queue = DriverQueue::new(&self.memory, 0, self.shared.max_queue_size(), self.features);
        self.sent = [const { None }; SLOTS];
        self.disk = vec![0; SECTORS as usize * 512];
        assert!(self.shared.configure_queue(0, &self.queue.config), "the device is idle");
        assert!(self.shared.activate(self.features.bits()), "the features are offered");
    }

    /// Requests without an answer.
    pub fn in_flight(&self) -> usize {
        self.sent.iter().flatten().count()
    }

    /// Sends a request of any kind, if one of the slots is free.
    pub fn send(&mut self, input: &mut Input<'_>) {
        let Some(slot) = self.sent.iter().position(Option::is_none) else { return };
        let kind = [0_u32, 0, 0, 1, 1, 1, 4, 8, 11, 13, 2, 0x8000_0001][usize::from(input.byte() % 12)];
        let (first, end) = (slot as u64 * REGION, (slot as u64 + 1) * REGION);
        let begin = first + u64::from(input.byte()) % REGION;
        let sectors = 1 + u64::from(input.byte()) % (end - begin);
        let sector = match input.byte() {
            0..8 => SECTORS - u64::from(input.byte().is_multiple_of(4)),
            8..12 => input.wide() | SECTORS,
            _ => begin,
        };
        // Only the last region's requests may reach over the end of the disk, but a wrong one does nothing.
        let inside = sector.checked_add(sectors).is_some_and(|end| end <= SECTORS);
        let sectors = if inside && sector != begin { SECTORS } else { sectors };
        let wrong_way = input.byte() < 16;
        let ranged = matches!(kind, 11 | 13);
        let flags = if input.byte() < 64 { u32::from(input.byte() % 4) } else { 0 };
        let mut data = match kind {
            4 => Vec::new(),
            8 => vec![0; 1 + usize::from(input.byte() % 40)],
            _ if ranged => {
                let count = sectors as u32;
                [&sector.to_le_bytes()[..], &count.to_le_bytes(), &flags.to_le_bytes()].concat()
            }
            _ => (0..sectors.min(REGION + 1) * 512).map(|n| (n as u8).wrapping_mul(7) ^ input_tag(slot, n)).collect(),
        };
        match input.byte() {
            0..8 => data.truncate(data.len().saturating_sub(1)),
            8..12 => data.clear(),
            12..16 => data.push(1),
            _ => {}
        }
        let writable = matches!(kind, 0 | 8) != wrong_way;
        // A range is 16 bytes long or wrong, so the sectors of a transfer follow from its length.
        let transferred = data.len() as u64 / 512;
        let within = |count: u64| count != 0 && sector.checked_add(count).is_some_and(|end| end <= SECTORS);
        let status = match kind {
            _ if data.is_empty() => {
                if kind == 4 {
                    OK
                } else if kind > 13 || kind == 2 {
                    UNSUPP
                } else {
                    IOERR
                }
            }
            0 if writable && data.len().is_multiple_of(512) && within(transferred) => OK,
            1 if !writable && data.len().is_multiple_of(512) && within(transferred) => OK,
            8 if writable => OK,
            0 | 1 | 4 | 8 => IOERR,
            11 | 13 if writable || data.len() != 16 => IOERR,
            11 if flags != 0 => UNSUPP,
            13 if flags & !1 != 0 => UNSUPP,
            11 | 13 if within(sectors) => OK,
            11 | 13 => IOERR,
            _ => UNSUPP,
        };
        let at = sector.wrapping_mul(512) as usize;
        let (answer, change) = match (status, kind) {
            (OK, 0) => (self.disk[at..at + data.len()].to_vec(), None),
            (OK, 8) => (SERIAL[..data.len().min(SERIAL.len())].to_vec(), None),
            (OK, 1) => (Vec::new(), Some((sector, data.clone()))),
            (OK, 11) => {
                let (unit, byte) = self.discard;
                let (first, end) = (sector.next_multiple_of(unit), (sector + sectors) / unit * unit);
                (Vec::new(), Some((first, vec![byte; end.saturating_sub(first) as usize * 512])))
            }
            (OK, 13) => (Vec::new(), Some((sector, vec![0; sectors as usize * 512]))),
            _ => (Vec::new(), None),
        };
        let input_bytes = if writable { data.len() } else { 0 };
        let used = match (status, kind) {
            (OK, 0 | 8) if answer.len() == data.len() => answer.len() + 1,
            (OK, 0 | 8) => answer.len(),
            _ => usize::from(input_bytes == 0),
        };

        let head = [&kind.to_le_bytes()[..], &[0x5a; 4], &sector.to_le_bytes()].concat();
        let (readable, written) = if writable { (head, data) } else { ([head, data].concat(), Vec::new()) };
        let mut layout = Layout::new(self.area(slot));
        layout.add(&readable, None, input);
        // Data and status, as they are after the answer.
        let mut after = vec![UNTOUCHED; written.len() + 1];
        after[..answer.len()].copy_from_slice(&answer);
        after[written.len()] = status;
        layout.add(&vec![UNTOUCHED; after.len()], Some(&after), input);
        self.memory.write(layout.at, &layout.before).expect("in its memory");
        let id = self.queue.add(&layout.chain).expect("the queue has room for all slots");
        if self.queue.kick_prepare() {
            self.shared.kick(0);
        }
        self.sent[slot] = Some(Sent { id, used: used as u32, memory: layout.after, change });
    }

    /// Takes all answers, and compares each with what it has to be.
    pub fn receive(&mut self) {
        while let Some((id, used)) = self.queue.take_used() {
            let slot = self.sent.iter().position(|sent| sent.as_ref().is_some_and(|sent| sent.id == id));
            let slot = slot.expect("an answer to a request that waits for one");
            let sent = self.sent[slot].take().expect("it was found");
            let mut found = vec![0; AREA];
            self.memory.read(self.area(slot), &mut found).expect("in its memory");
            if planted() {
                found[GAP] ^= 1;
            }
            let differs = found.iter().zip(&sent.memory).position(|(found, expected)| found != expected);
            assert_eq!(differs, None, "the offset in the request's memory at which it is not as it has to be");
            assert_eq!(used, sent.used, "the used length");
            if let Some((sector, bytes)) = sent.change {
                let at = sector as usize * 512;
                self.disk[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        }
    }

    fn area(&self, slot: usize) -> u64 {
        BUFFERS + (slot * AREA) as u64
    }
}

const fn input_tag(slot: usize, n: u64) -> u8 {
    (slot as u8) << 5 | (n >> 9) as u8
}

/// The buffers of a request.
struct Layout {
    at: u64,
    /// Its memory before the request, and after it.
    before: Vec<u8>,
    after: Vec<u8>,
    end: usize,
    chain: Vec<(u64, u32, bool)>,
}

impl Layout {
    fn new(at: u64) -> Self {
        Self { at, before: vec![UNTOUCHED; AREA], after: vec![UNTOUCHED; AREA], end: GAP, chain: Vec::new() }
    }

    /// Adds bytes, divided among buffers as the input says. `written`: the device writes them, and they are these then.
    fn add(&mut self, bytes: &[u8], written: Option<&[u8]>, input: &mut Input<'_>) {
        let mut done = 0;
        let mut cuts = input.byte() % 4;
        while done < bytes.len() {
            let left = bytes.len() - done;
            let len = if cuts == 0 { left } else { (1 + input.within(0, left as u64) as usize).min(left) };
            cuts = cuts.saturating_sub(1);
            let place = self.end..self.end + len;
            self.before[place.clone()].copy_from_slice(&bytes[done..done + len]);
            self.after[place].copy_from_slice(&written.unwrap_or(bytes)[done..done + len]);
            self.chain.push((self.at + self.end as u64, len as u32, written.is_some()));
            self.end += len + GAP;
            done += len;
        }
    }
}
