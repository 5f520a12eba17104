//! The other end of a pipe that frames are written to.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Whether nobody reads `out` any more. A pipe, and sshd for its client, say so before anything is written.
#[must_use]
pub fn has_no_reader(out: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(out, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let gone = PollFlags::ERR | PollFlags::HUP;
    poll(&mut polled, Some(&now)).is_ok() && polled.iter().any(|fd| fd.revents().intersects(gone))
}
