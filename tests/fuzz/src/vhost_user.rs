//! Messages of a vhost-user front-end, as they are once the crate `vhost` has decoded them: in any order, with any numbers, files and
//! addresses, while the front-end's driver writes anything to its rings. Beside it a front-end that keeps the rules uses a disk of the
//! same engine. Whatever happens: what the protocol does not allow is refused; the other front-end's requests are answered with its
//! own data, and its memory is not touched elsewhere; when the front-end has gone, nothing of it is left, and the next one can
//! use its device.

use std::sync::{Mutex, MutexGuard, PoisonError};

use vhost::vhost_user::VhostUserBackendReqHandlerMut as _;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserInflight, VhostUserMemoryRegion, VhostUserSingleMemoryRegion,
    VhostUserVringAddrFlags,
};
use virtio::config::Features;
use virtio::testing::BUFFERS;

use crate::input::Input;
use crate::planted::planted;

mod process;

use process::{Orderly as Guest, Process, Shared, open_files};

/// Messages of one run at most: each detaches and attaches a device.
const MOST_STEPS: usize = 60;
/// Bytes of a front-end's files.
const FILES: [u64; 3] = [0x4_0000, 0x1_0000, 0x1000];
/// Where a front-end says that its memory begins, for itself and for its guest.
const USER: u64 = 0x7f00_0000_0000;
const GUESTS: [u64; 4] = [0, 0x1_0000, 0x4_0000, 0xffff_ffff_ffff_0000];

/// Slots of the front-ends: a port of the switch, a disk, and the disk of the one that keeps the rules.
const PORT: usize = 0;
const DISK: usize = 1;
const ORDERLY: usize = 2;

/// What the harness knows of the front-end.
struct Model {
    slot: usize,
    queues: u32,
    offer: u64,
    max_size: u32,
    /// A guest of it whose driver keeps the rules of the ring, if it has begun to.
    guest: Option<Guest>,
    /// The file of its tracking, and what it was told of it. It outlives connections.
    tracking: Option<(VhostUserInflight, Shared)>,
}

/// The crate's own bit.
const PROTOCOL: u64 = 1 << 30;

fn region(input: &mut Input<'_>) -> (VhostUserMemoryRegion, usize) {
    let file = usize::from(input.byte()) % FILES.len();
    let gpa = if input.byte().is_multiple_of(8) { input.wide() } else { GUESTS[usize::from(input.byte() % 4)] };
    let user = if input.byte().is_multiple_of(8) { input.wide() } else { USER + GUESTS[usize::from(input.byte() % 3)] };
    let offset = if input.byte().is_multiple_of(8) {
        input.wide()
    } else {
        0x1000 * u64::from(input.byte() % 3) * u64::from(input.flag())
    };
    let len = if input.byte().is_multiple_of(8) { input.wide() } else { FILES[file].saturating_sub(offset).max(1) };
    (VhostUserMemoryRegion::new(gpa, len, user, offset), file)
}

/// An address of the front-end's own: most are in a region.
fn address(input: &mut Input<'_>) -> u64 {
    match input.byte() % 8 {
        0 => input.wide(),
        1 => USER + input.within(0, FILES[0]),
        _ => USER + 0x1000 * u64::from(input.byte() % 16),
    }
}

fn index(input: &mut Input<'_>) -> u32 {
    if input.byte().is_multiple_of(16) { input.wide() as u32 } else { u32::from(input.byte() % 4) }
}

impl Model {
    /// The front-end takes its device by the rules, or nearly: with packed or split rings, and with tracking or without.
    fn begin(&mut self, process: &mut Process, files: &[Shared; 3], input: &mut Input<'_>) {
        let how = input.byte();
        if how & 1 != 0 || self.guest.is_none() {
            let packed = if how & 2 != 0 { Features::RING_PACKED } else { Features::empty() };
            let indirect = if how & 4 != 0 { Features::INDIRECT_DESC } else { Features::empty() };
            self.guest = Some(Guest::of(Features::VERSION_1 | packed | indirect));
        }
        let Some(guest) = &self.guest else { return };
        let client = &mut process.clients[self.slot];
        if how & 8 != 0 {
            drop(client.set_features(guest.features().bits()));
        }
        if how & 16 != 0 {
            if self.tracking.is_none() || how & 32 != 0 {
                let wanted = VhostUserInflight::new(0, 0, 1, [16, 16, 64, 8][usize::from(input.byte() % 4)]);
                self.tracking = client.get_inflight_fd(&wanted).ok().map(|(told, file)| (told, file.into()));
            }
            if let Some((told, file)) = &self.tracking {
                drop(client.set_inflight_fd(told, file.file()));
            }
        }
        let base = match input.byte() {
            0..32 => input.wide() as u32,
            _ if how & 2 != 0 => 0x8000_8000,
            _ => 0,
        };
        let more = [(files[0].file(), FILES[0])];
        // What it was refused does not matter.
        let _ = guest.go_on(process, self.slot, base, if how & 64 != 0 { &more } else { &[] });
    }

    /// Its guest's driver offers some requests.
    fn offer(&self, input: &mut Input<'_>) {
        let Some(guest) = &self.guest else { return };
        for _ in 0..1 + input.byte() % 4 {
            let kind = [0, 1, 0, 1, 4, 8, 11, 77][usize::from(input.byte() % 8)];
            let place = match input.byte() % 4 {
                0 => process::ELSEWHERE + 0x1000 * u64::from(input.byte() % 64),
                1 => input.wide(),
                _ => BUFFERS + 0x1000,
            };
            let bytes = [0, 512, 512, 4096, 20, 16][usize::from(input.byte() % 6)];
            guest.offer(kind, input.within(0, 2100), (place, bytes));
        }
    }
}

/// One message, or something that the front-end's driver does. Checks the answer where it follows from the message alone.
fn step(process: &mut Process, model: &mut Model, files: &[Shared; 3], input: &mut Input<'_>) {
    let Model { slot, queues, offer, max_size, .. } = *model;
    let any_file = |input: &mut Input<'_>| match input.byte() % 8 {
        0 => None,
        1 => Some(files[usize::from(input.byte()) % 3].file()),
        _ => Some(process::eventfd()),
    };
    let client = &mut process.clients[slot];
    match input.byte() % 36 {
        0 => assert_eq!(client.get_features().ok(), Some(offer | PROTOCOL)),
        1 | 2 => {
            let features = match input.byte() % 8 {
                0 => input.wide(),
                1 => offer & input.wide() | PROTOCOL,
                _ => {
                    let mut features = offer | (PROTOCOL * u64::from(input.flag()));
                    if input.flag() {
                        features &= !Features::RING_PACKED.bits();
                    }
                    features & !Features::IN_ORDER.bits()
                }
            };
            let done = client.set_features(features);
            assert!(done.is_err() || features & !(offer | PROTOCOL) == 0, "features that were not offered");
        }
        3 => drop(client.set_protocol_features(input.wide() >> (input.byte() % 64))),
        4 | 5 => {
            let all: Vec<_> = (0..input.byte() % 4).map(|_| region(input)).collect();
            let table: Vec<_> = all.iter().map(|(region, _)| *region).collect();
            let given = all.iter().map(|&(_, file)| files[file].file()).collect();
            drop(client.set_mem_table(&table, given, None));
        }
        6 => {
            let (VhostUserMemoryRegion { guest_phys_addr, memory_size, user_addr, mmap_offset }, file) = region(input);
            let region = VhostUserSingleMemoryRegion::new(guest_phys_addr, memory_size, user_addr, mmap_offset);
            if input.flag() {
                drop(client.add_mem_region(&region, files[file].file(), None));
            } else {
                drop(client.remove_mem_region(&region));
            }
        }
        7 | 8 => {
            let (index, size) = (
                index(input),
                if input.byte().is_multiple_of(8) { input.wide() as u32 } else { 1 << (input.byte() % 10) },
            );
            let done = client.set_vring_num(index, size);
            assert!(done.is_err() || index < queues && size != 0 && size <= max_size, "queue {index} of {size}");
        }
        9..12 => {
            let logged = input.byte().is_multiple_of(16);
            let (log, none) = (VhostUserVringAddrFlags::VHOST_VRING_F_LOG, VhostUserVringAddrFlags::empty());
            let (index, flags) = (index(input), if logged { log } else { none });
            let done = client.set_vring_addr(index, flags, address(input), address(input), address(input), 0);
            assert!(done.is_err() || index < queues && !logged, "queue {index}");
        }
        12 => {
            let (index, base) =
                (index(input), if input.flag() { u32::from(input.byte()) } else { input.wide() as u32 });
            let done = client.set_vring_base(index, base);
            assert!(done.is_err() || index < queues, "queue {index}");
        }
        13 => {
            let index = index(input);
            let done = client.get_vring_base(index);
            assert!(done.is_err() || index < queues, "queue {index}");
        }
        14 | 15 => {
            let (index, file) = (index(input), any_file(input));
            let done = client.set_vring_kick(index as u8, file);
            assert!(done.is_err() || index & 0xff < queues, "queue {index}");
        }
        16 => {
            let (index, file) = (index(input), any_file(input));
            let done = if input.flag() {
                client.set_vring_call(index as u8, file)
            } else {
                client.set_vring_err(index as u8, file)
            };
            assert!(done.is_err() || index & 0xff < queues, "queue {index}");
        }
        17 => {
            let (index, enable) = (index(input), u32::from(input.byte() % 3));
            let done = client.enable(index, enable);
            assert!(done.is_err() || index < queues && enable < 2, "queue {index} enabled by {enable}");
        }
        18 => {
            let (offset, len) = (u32::from(input.byte()), u32::from(input.byte()));
            let config = client.get_config(offset, len, VhostUserConfigFlags::empty()).expect("any range can be read");
            assert_eq!(config.len(), len as usize);
        }
        19 => {
            let bytes: Vec<u8> = (0..input.byte() % 8).map(|_| input.byte() % 3).collect();
            let done = client.set_config(input.byte().into(), &bytes, VhostUserConfigFlags::empty());
            assert!(done.is_err() || bytes.iter().all(|byte| *byte < 2), "0 or 1");
        }
        20 => {
            let wanted = VhostUserInflight::new(0, 0, u16::from(input.byte() % 6), 1 << (input.byte() % 12));
            if let Ok((told, file)) = client.get_inflight_fd(&wanted) {
                assert!(u32::from(wanted.num_queues) <= queues && u32::from(wanted.queue_size) <= max_size);
                let told = if input.byte().is_multiple_of(4) {
                    VhostUserInflight::new(input.wide(), input.wide() >> 52, wanted.num_queues, wanted.queue_size)
                } else {
                    told
                };
                drop(client.set_inflight_fd(&told, file));
            }
        }
        21 => {
            let told = VhostUserInflight::new(
                input.within(0, 0x2_0000),
                0,
                u16::from(input.byte() % 4),
                u16::from(input.byte()),
            );
            drop(client.set_inflight_fd(&told, files[usize::from(input.byte()) % 3].file()));
        }
        22 => {
            // The driver: descriptors, rings and indices of any kind.
            let file = &files[usize::from(input.byte()) % 3];
            let at = 0x1000 * u64::from(input.byte() % 16) + u64::from(input.byte() % 32) * 2;
            let value = match input.byte() % 4 {
                0 => input.wide(),
                1 => GUESTS[usize::from(input.byte() % 3)] + 0x1000 * u64::from(input.byte() % 16),
                2 => u64::from(input.byte()) | u64::from(input.byte() % 8) << 32,
                _ => u64::from(input.byte()) << 16,
            };
            file.write(at, &value.to_le_bytes());
        }
        23..26 => model.begin(process, files, input),
        26..31 => {
            model.offer(input);
            process.turns();
        }
        31 | 32 => {
            // The file of the tracking: the head of a queue's part, or the state of a descriptor.
            let at = if input.flag() { 8 * u64::from(input.byte() % 4) } else { 32 * u64::from(input.byte() % 17) };
            let at = at + [0, 16][usize::from(input.byte() % 2)];
            let value = match input.byte() % 4 {
                0 => input.wide(),
                1 => 1 | u64::from(input.byte() % 20) << 48,
                2 => u64::from(input.byte() % 20) | u64::from(input.byte() % 2) << 32,
                _ => u64::from(input.byte()) << 56,
            };
            if let Some((_, file)) = &model.tracking {
                file.write(at, &value.to_le_bytes());
            }
        }
        33 => {
            // A file that is shortened: an access raises SIGBUS, and whose it is ends.
            if let Some((_, file)) = &model.tracking.as_ref().filter(|_| input.flag()) {
                file.shorten(0);
            } else {
                files[usize::from(input.byte() % 3)].shorten(0x1000 * u64::from(input.byte() % 3));
            }
            process.turns();
        }
        _ => {
            if input.flag() {
                client.leave();
            } else {
                drop(client.reset_owner());
            }
        }
    }
}

/// A front-end by the rules takes the device: it can be set up and its requests are answered.
fn use_disk(process: &mut Process, slot: usize, sector: u8) {
    let memory = process::Orderly::new();
    let answer = memory.read_sector(process, slot, sector.into());
    let expected = if planted() { None } else { Some(()) };
    assert_eq!(answer, expected, "a front-end that keeps the rules has its answer");
}

/// There is one process, with its engine.
fn process() -> MutexGuard<'static, Option<Process>> {
    static PROCESS: Mutex<Option<Process>> = Mutex::new(None);
    PROCESS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The target.
///
/// # Panics
/// The program is wrong.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let mut guard = process();
    // A process in which something was found is not used again.
    let mut process = guard.take().unwrap_or_else(Process::new);
    let files: [Shared; 3] = FILES.map(Shared::new);
    let slot = if input.flag() { PORT } else { DISK };
    let shared = process.ports[slot].shared;
    let mut model = Model {
        guest: None,
        tracking: None,
        slot,
        queues: shared.queues().into(),
        offer: shared.offered(),
        max_size: shared.max_queue_size().into(),
    };
    let before = open_files();
    let orderly = process::Orderly::new();
    assert!(orderly.set_up(&mut process, ORDERLY), "a front-end by the rules is set up");
    for number in 0..MOST_STEPS {
        if input.is_empty() {
            break;
        }
        step(&mut process, &mut model, &files, &mut input);
        if input.byte().is_multiple_of(4) {
            process.turns();
        }
        if number % 16 == 15 {
            assert!(orderly.read(&process, number as u64).is_some(), "the other front-end has its answer");
        }
    }
    assert!(orderly.read(&process, 1).is_some() && orderly.is_untouched(), "the other front-end's requests and memory");
    process.clients[ORDERLY].leave();
    drop(orderly);
    process.clients[slot].leave();
    drop(model);
    assert_eq!(open_files(), before, "files and mappings that are left when the front-ends have gone");
    use_disk(&mut process, DISK, 3);
    *guard = Some(process);
}

crate::planted::tests!(no_message_hurts_another_front_end, 96, 1..600);

#[cfg(test)]
mod found {
    /// A front-end that tracks a packed ring gives other memory and a split ring, with tracking again. The engine went on to access
    /// the packed ring, which was unmapped.
    #[test]
    fn a_split_ring_is_not_tracked_as_the_packed_one_before_it() {
        super::run(b"\x2c\x3c\x2e\x3b<<<<<\x3d\x88\x34\x88\x88\x3c\x2e\x88\x2b<<\x3d\x88\x34\x88\x88\x3c\x2e\x88\x2b");
    }
}

#[cfg(test)]
mod books {
    #[test]
    fn a_file_that_is_left_is_seen() {
        // Nobody else opens and closes files of these kinds meanwhile.
        let _guard = super::process();
        let before = super::open_files();
        let left = (super::process::eventfd(), super::Shared::new(1));
        assert_eq!(super::open_files().0, before.0 + 2);
        drop(left);
        assert_eq!(super::open_files(), before);
    }
}
