//! What the sockets' threads share of the engine: its command slot, one caller at a time, and the doorbells.

use std::fs::File;
use std::sync::Mutex;

use engine::control::{Command, Control, Reply};
use engine::shared::Shared;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::os::fd::OwnedFd;

/// The engine as the sockets' threads see it.
pub struct Seat {
    control: &'static Control,
    turn: Mutex<()>,
    /// Kicks of all ports.
    pub doorbells: Doorbells,
}

impl Seat {
    /// Of an engine that runs.
    ///
    /// # Errors
    /// No event file can be made.
    pub fn new(control: &'static Control) -> std::io::Result<Self> {
        Ok(Self { control, turn: Mutex::new(()), doorbells: Doorbells::new()? })
    }

    /// Tells the engine something and waits for its answer: a few of its turns.
    pub fn command(&self, mut command: Command) -> Reply {
        let _turn = self.turn.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        while let Err(back) = self.control.submit(command) {
            command = back;
            std::thread::yield_now();
        }
        loop {
            if let Some(reply) = self.control.reply() {
                return reply;
            }
            std::thread::yield_now();
        }
    }
}

struct Bell {
    port: usize,
    queue: u16,
    file: File,
    shared: &'static Shared,
}

/// The kick files of queues (VHOST_USER_SET_VRING_KICK). An engine that polls asks drivers not to write them; it is for
/// queues that it has left in peace.
pub struct Doorbells {
    bells: Mutex<Vec<Bell>>,
    changed: OwnedFd,
}

impl Doorbells {
    fn new() -> std::io::Result<Self> {
        Ok(Self { bells: Mutex::new(Vec::new()), changed: eventfd(0, EventfdFlags::NONBLOCK)? })
    }

    fn edit(&self, f: impl FnOnce(&mut Vec<Bell>)) {
        f(&mut self.bells.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
        // Full is as good as written: the watcher wakes up.
        let _ = rustix::io::write(&self.changed, &1u64.to_ne_bytes());
    }

    /// Sets or takes away a queue's kick file and the device it is for.
    pub fn set(&self, port: usize, queue: u16, bell: Option<(File, &'static Shared)>) {
        self.edit(|bells| {
            bells.retain(|b| (b.port, b.queue) != (port, queue));
            bells.extend(bell.map(|(file, shared)| Bell { port, queue, file, shared }));
        });
    }

    /// Takes all of a port's away.
    pub fn forget(&self, port: usize) {
        self.edit(|bells| bells.retain(|b| b.port != port));
    }

    /// Waits for kicks and hands them on, for ever: a thread's work.
    pub fn watch(&self) {
        loop {
            // Clones, so that nothing is locked while waiting.
            let files: Vec<_> = {
                let bells = self.bells.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                bells.iter().filter_map(|b| Some((b.file.try_clone().ok()?, b.queue, b.shared))).collect()
            };
            let mut fds: Vec<_> = std::iter::once(PollFd::new(&self.changed, PollFlags::IN))
                .chain(files.iter().map(|(file, ..)| PollFd::new(file, PollFlags::IN)))
                .collect();
            if poll(&mut fds, None).is_err() {
                continue;
            }
            let rung: Vec<bool> = fds.iter().map(|fd| fd.revents().contains(PollFlags::IN)).collect();
            let mut count = [0; 8];
            if rung.first() == Some(&true) {
                let _ = rustix::io::read(&self.changed, &mut count);
            }
            for ((file, queue, shared), _) in files.iter().zip(&rung[1..]).filter(|(_, rung)| **rung) {
                // Emptied first: a kick from now on rings again.
                let _ = rustix::io::read(file, &mut count);
                shared.kick(*queue);
            }
        }
    }
}
