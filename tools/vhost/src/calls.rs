//! Sends interrupts by a front-end's call eventfds, which take the place of a guest's MSI-X messages.
//!
//! The engine raises an MSI-X entry. In [`table`], entry n is a message that names queue n. [`Calls`] writes to that
//! queue's eventfd. The engine's thread must not wait, so [`event`] accepts only eventfds and makes them nonblocking.
//! The front-end can make its eventfd blocking again and fill it. [`unblock`] then finds the engine waiting, and ends
//! its wait.

#![allow(unsafe_code, reason = "system calls on a front-end's eventfds")]

use std::fs::{self, File};
use std::os::fd::{AsRawFd as _, IntoRawFd as _, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use engine::deliver::Deliver;
use net::ports::MAX_PORTS;
use virtio::config::{MAX_QUEUES, VECTORS};
use virtio::msix::{Interrupt, MsixState};

const NONE: i32 = -1;
/// The vector of entry 0.
const FIRST_VECTOR: u8 = 0x20;
const MESSAGE_ADDRESS: u32 = 0xfee0_0000;

static CALLS: [[AtomicI32; MAX_QUEUES]; MAX_PORTS] =
    [const { [const { AtomicI32::new(NONE) }; MAX_QUEUES] }; MAX_PORTS];
/// The eventfd that the engine is writing to, and the device that owns it.
static WRITING: (AtomicI32, AtomicI32) = (AtomicI32::new(NONE), AtomicI32::new(NONE));

/// A device's MSI-X table in which each queue has an entry of its own.
pub fn table() -> MsixState<VECTORS> {
    let entry = |n: usize| [MESSAGE_ADDRESS, 0, u32::from(FIRST_VECTOR) + n as u32, 0];
    MsixState { entries: std::array::from_fn(entry), pending: [false; VECTORS], enabled: true, masked: false }
}

/// Completion by eventfd.
pub struct Calls;

impl Deliver for Calls {
    fn deliver(&self, device: usize, interrupt: Interrupt) -> bool {
        let queue = usize::from(interrupt.vector.wrapping_sub(FIRST_VECTOR));
        let Some(fd) = CALLS.get(device).and_then(|calls| calls.get(queue)).map(|fd| fd.load(Ordering::Acquire)) else {
            return false;
        };
        if fd == NONE {
            return false;
        }
        WRITING.1.store(device as i32, Ordering::Relaxed);
        WRITING.0.store(fd, Ordering::Release);
        signal(fd);
        WRITING.0.store(NONE, Ordering::Release);
        true
    }
}

fn signal(fd: RawFd) {
    let one = 1u64.to_ne_bytes();
    // SAFETY: a live array of as many bytes. If the counter is full, the write fails; that is fine, because the
    // front-end has not read earlier signals yet.
    unsafe { libc::write(fd, one.as_ptr().cast(), one.len()) };
}

/// Checks the file that a front-end has sent and makes it nonblocking.
///
/// # Errors
/// It is not an eventfd. The error says what it is.
pub fn event(file: File) -> Result<File, String> {
    let fd = file.as_raw_fd();
    let link = fs::read_link(format!("/proc/self/fd/{fd}")).map_err(|error| error.to_string())?;
    let name = link.to_string_lossy();
    if name != "anon_inode:[eventfd]" {
        return Err(format!("a file descriptor of {name}: expected an eventfd"));
    }
    // SAFETY: flags of a file descriptor that is ours.
    let set = unsafe { libc::fcntl(fd, libc::F_SETFL, libc::fcntl(fd, libc::F_GETFL) | libc::O_NONBLOCK) };
    if set < 0 { Err(std::io::Error::last_os_error().to_string()) } else { Ok(file) }
}

/// Sets or removes the call eventfd of a queue. Returns the old one, which the engine may use until its turn ends.
#[must_use = "to be closed after the engine's turn"]
pub fn set(port: usize, queue: usize, call: Option<File>) -> Option<File> {
    let slot = CALLS.get(port)?.get(queue)?;
    let fd = call.map_or(NONE, |file| file.into_raw_fd());
    if fd != NONE {
        // Completions before this may not have been signalled to the new eventfd.
        signal(fd);
    }
    let old = slot.swap(fd, Ordering::AcqRel);
    // SAFETY: it came from `into_raw_fd` in an earlier call, and the swap gave it to us alone.
    (old != NONE).then(|| unsafe { std::os::fd::FromRawFd::from_raw_fd(old) })
}

/// Ends the engine's wait for an eventfd, by reading the eventfd. To be called if the engine's turn lasts too long.
/// Returns the device that owns the eventfd; `None` if the engine waits for none.
pub fn unblock() -> Option<usize> {
    let fd = WRITING.0.load(Ordering::Acquire);
    let device = WRITING.1.load(Ordering::Relaxed);
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one valid entry; the timeout of 0 does not wait.
    if fd == NONE || unsafe { libc::poll(&raw mut poll, 1, 0) } != 1 {
        return None;
    }
    let mut count = [0u8; 8];
    // SAFETY: a live array of as many bytes.
    unsafe { libc::read(fd, count.as_mut_ptr().cast(), count.len()) };
    usize::try_from(device).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::fd::FromRawFd as _;

    fn eventfd() -> File {
        // SAFETY: makes a new one, which is ours.
        unsafe { File::from_raw_fd(libc::eventfd(0, 0)) }
    }

    #[test]
    fn an_entry_of_the_table_reaches_the_eventfd_of_its_queue() {
        let call = eventfd();
        assert!(set(3, 1, Some(event(call.try_clone().unwrap()).unwrap())).is_none());
        let table = table();
        for (entry, delivered) in [(1, true), (0, false)] {
            let [address, _, data, _] = table.entries[entry];
            let message = virtio::msix::Message { address: u64::from(address), data };
            assert_eq!(Calls.deliver(3, message.decode().unwrap()), delivered);
        }
        let mut count = [0; 8];
        (&call).read_exact(&mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 2, "one for the new eventfd and one for the interrupt");
        assert!(set(3, 1, None).is_some());
    }

    #[test]
    fn what_is_no_eventfd_is_refused() {
        let error = event(File::open("/dev/null").unwrap()).unwrap_err();
        assert!(error.contains("/dev/null"), "{error}");
    }
}
