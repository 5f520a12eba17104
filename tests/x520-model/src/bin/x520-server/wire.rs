//! What a server's frames go to and come from: another server, or QEMU's own `-netdev dgram`, by UNIX datagram sockets;
//! or a tap interface of this machine.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A wire, as one end has it.
pub enum Wire {
    /// Bound here; frames go to the path, as soon as somebody is there.
    Sockets(UnixDatagram, PathBuf),
    /// A tap interface.
    Tap(File),
}

impl Wire {
    /// Binds `own`. Who was there before is gone.
    pub fn sockets(own: &Path, peer: PathBuf) -> io::Result<Self> {
        if let Err(e) = std::fs::remove_file(own)
            && e.kind() != io::ErrorKind::NotFound
        {
            return Err(e);
        }
        Ok(Self::Sockets(UnixDatagram::bind(own)?, peer))
    }

    /// Opens a tap interface of that name, which is made if need be.
    pub fn tap(name: &str) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
        // SAFETY: a structure of integers and bytes, for which 0 is a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.len() >= request.ifr_name.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name}: too long for an interface")));
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as libc::c_short;
        // SAFETY: TUNSETIFF reads and writes this structure, which outlives the call.
        if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self::Tap(file))
    }

    /// Another hold on the same end.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Sockets(socket, peer) => Self::Sockets(socket.try_clone()?, peer.clone()),
            Self::Tap(file) => Self::Tap(file.try_clone()?),
        })
    }

    /// Waits for a frame, not longer than `limit`.
    pub fn receive<'a>(&mut self, frame: &'a mut [u8], limit: Duration) -> Option<&'a [u8]> {
        let descriptor = match self {
            Self::Sockets(socket, _) => socket.as_raw_fd(),
            Self::Tap(file) => file.as_raw_fd(),
        };
        let mut poll = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        let limit = libc::timespec { tv_sec: 0, tv_nsec: i64::from(limit.subsec_nanos()) };
        // SAFETY: one structure and a time that outlive the call, and no signal mask.
        if unsafe { libc::ppoll(&raw mut poll, 1, &raw const limit, std::ptr::null()) } <= 0 {
            return None;
        }
        let len = match self {
            Self::Sockets(socket, _) => socket.recv(frame),
            Self::Tap(file) => file.read(frame),
        };
        frame.get(..len.ok()?)
    }

    /// Sends a frame; waits while the other end has no room, so that a burst is not lost on the way. Nobody there: nobody
    /// hears.
    pub fn send(&mut self, frame: &[u8]) {
        let _ = match self {
            Self::Sockets(socket, peer) => socket.send_to(frame, peer).map(drop),
            Self::Tap(file) => file.write_all(frame),
        };
    }
}
