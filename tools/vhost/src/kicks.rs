//! Watches the kick eventfds of queues that are not polled, with one thread.
//!
//! The eventfds are edge-triggered and never read. Each write of a driver is an edge. Since this thread reads no
//! eventfd, no front-end can make it wait.

#![allow(unsafe_code, reason = "epoll")]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::thread;

use virtio::shared::Shared;

/// The kick eventfds that are watched.
pub struct Kicks(OwnedFd);

impl Kicks {
    /// Starts the thread. `ports` are indexed by the port number of [`Kicks::add`].
    pub fn start(ports: Vec<&'static Shared>) -> io::Result<Self> {
        // SAFETY: makes a new one.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and nobody else's.
        let kicks = Self(unsafe { OwnedFd::from_raw_fd(fd) });
        let watched = kicks.0.try_clone()?;
        thread::Builder::new().name("kicks".to_owned()).spawn(move || watch(&watched, &ports))?;
        Ok(kicks)
    }

    /// Watches a queue's kick. Reports a notification that was sent before at once.
    pub fn add(&self, port: usize, queue: u16, kick: &File) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: (libc::EPOLLIN | libc::EPOLLET) as u32,
            u64: (port as u64) << 16 | u64::from(queue),
        };
        // SAFETY: a valid event, and file descriptors that are open.
        let added =
            unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_ADD, kick.as_raw_fd(), &raw mut event) };
        if added < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Stops watching a kick. No effect if it was not watched.
    pub fn remove(&self, kick: &File) {
        // SAFETY: file descriptors that are open; no event is read for this operation.
        unsafe { libc::epoll_ctl(self.0.as_raw_fd(), libc::EPOLL_CTL_DEL, kick.as_raw_fd(), std::ptr::null_mut()) };
    }
}

fn watch(epoll: &OwnedFd, ports: &[&'static Shared]) {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 16];
    loop {
        // SAFETY: as many valid events as are said.
        let n = unsafe { libc::epoll_wait(epoll.as_raw_fd(), events.as_mut_ptr(), events.len() as i32, -1) };
        let n = usize::try_from(n).unwrap_or(0);
        for event in events.iter().take(n) {
            let id = event.u64;
            if let Some(shared) = ports.get((id >> 16) as usize) {
                shared.kick(id as u16);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;
    use std::time::{Duration, Instant};

    #[test]
    fn each_write_is_a_notification_without_being_read() {
        let shared: &'static Shared = Box::leak(Box::new(Shared::new(net::device::config([0; 6], 1500, 1))));
        let kicks = Kicks::start(vec![shared]).unwrap();
        // SAFETY: makes a new one, which is ours.
        let kick = unsafe { File::from_raw_fd(libc::eventfd(0, 0)) };
        (&kick).write_all(&1u64.to_ne_bytes()).unwrap();
        kicks.add(0, 1, &kick).unwrap();
        for wanted in 1..=10 {
            let deadline = Instant::now() + Duration::from_secs(60);
            while shared.counters().kicks.get() < wanted {
                assert!(Instant::now() < deadline, "notification {wanted} has not come");
                thread::yield_now();
            }
            (&kick).write_all(&1u64.to_ne_bytes()).unwrap();
        }
        kicks.remove(&kick);
    }
}
