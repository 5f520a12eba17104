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

#[cfg(test)]
mod tests {
    use super::Wire;
    use std::path::{Path, PathBuf};
    use std::time::Duration;

    /// A place for a socket that no other test and no other run has.
    fn place(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("x520-server-{}-{name}", std::process::id()))
    }

    fn next(wire: &mut Wire) -> Option<Vec<u8>> {
        let mut buffer = [0; 16_384];
        wire.receive(&mut buffer, Duration::from_millis(1)).map(<[u8]>::to_vec)
    }

    #[test]
    fn two_ends_exchange_frames_in_order_and_whole() {
        let (a, b) = (place("a"), place("b"));
        let mut left = Wire::sockets(&a, b.clone()).unwrap();
        left.send(&[1; 60]);
        let mut right = Wire::sockets(&b, a.clone()).unwrap();
        assert_eq!(next(&mut right), None, "nobody was there to hear the first");
        let mut other = right.try_clone().unwrap();
        for n in 0..5 {
            left.send(&[n; 60]);
            other.send(&[0x80 | n; 9000]);
        }
        for n in 0..5 {
            assert_eq!(next(&mut right), Some(vec![n; 60]));
            assert_eq!(next(&mut left), Some(vec![0x80 | n; 9000]));
        }
        // A server that comes again takes its place.
        drop((right, other));
        let mut right = Wire::sockets(&b, a.clone()).unwrap();
        left.send(&[9; 60]);
        assert_eq!((next(&mut right), next(&mut right)), (Some(vec![9; 60]), None));
        for path in [a, b] {
            std::fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn a_tap_sends_what_its_interface_receives_and_the_other_way_round() {
        // An interface of its own, in a network of this thread's own. Whoever may not make one cannot use such a wire either.
        // SAFETY: this thread alone changes its network.
        if !has_tun() || unsafe { libc::unshare(libc::CLONE_NEWNET) } < 0 {
            return eprintln!("skipped: there is no right to make a tap interface");
        }
        let mut tap = match Wire::tap("x520") {
            Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => return eprintln!("skipped: {e}"),
            tap => tap.expect("a tap in a new network"),
        };
        up("x520");
        // What the system sends of itself when an interface comes up may be before it.
        let socket = socket(libc::AF_PACKET, libc::SOCK_RAW);
        let mut frame = vec![0xff; 6];
        frame.extend([2, 0, 0, 0, 0, 1, 0x88, 0xb5]);
        frame.resize(60, 0x5a);
        send(socket, &frame, "x520");
        let came = (0..10_000).any(|_| next(&mut tap).as_ref() == Some(&frame));
        assert!(came, "what leaves by the interface comes from the tap");
        tap.send(&frame);
        let received = || std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
        let line =
            received().lines().find_map(|l| l.trim().strip_prefix("x520:").map(str::to_owned)).expect("its counters");
        assert_eq!(
            line.split_whitespace().take(2).collect::<Vec<_>>(),
            ["60", "1"],
            "bytes and frames it has received"
        );
        // SAFETY: opened above, and not used any more.
        unsafe { libc::close(socket) };
    }

    fn has_tun() -> bool {
        Path::new("/dev/net/tun").exists()
            && std::fs::File::options().read(true).write(true).open("/dev/net/tun").is_ok()
    }

    fn socket(family: i32, kind: i32) -> i32 {
        // SAFETY: plain numbers.
        let socket = unsafe { libc::socket(family, kind, 0) };
        assert!(socket >= 0, "{}", std::io::Error::last_os_error());
        socket
    }

    fn request(name: &str) -> libc::ifreq {
        // SAFETY: a structure of integers and bytes, for which 0 is a value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as libc::c_char;
        }
        request
    }

    fn up(name: &str) {
        let (socket, mut request) = (socket(libc::AF_INET, libc::SOCK_DGRAM), request(name));
        request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
        // SAFETY: SIOCSIFFLAGS reads this structure, which outlives the call; the socket is this function's own.
        let done = unsafe { (libc::ioctl(socket, libc::SIOCSIFFLAGS as _, &raw mut request), libc::close(socket)) };
        assert_eq!(done, (0, 0), "{}", std::io::Error::last_os_error());
    }

    fn send(socket: i32, frame: &[u8], name: &str) {
        let mut request = request(name);
        // SAFETY: SIOCGIFINDEX writes this structure, which outlives the call.
        assert_eq!(unsafe { libc::ioctl(socket, libc::SIOCGIFINDEX as _, &raw mut request) }, 0);
        // SAFETY: a structure of integers, for which 0 is a value; the index is what was just asked for.
        let (mut to, index) = unsafe { (std::mem::zeroed::<libc::sockaddr_ll>(), request.ifr_ifru.ifru_ifindex) };
        to.sll_family = libc::AF_PACKET as u16;
        to.sll_ifindex = index;
        let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: frame and address outlive the call, with their lengths.
        let sent = unsafe { libc::sendto(socket, frame.as_ptr().cast(), frame.len(), 0, (&raw const to).cast(), size) };
        assert_eq!(sent, frame.len() as isize, "{}", std::io::Error::last_os_error());
    }
}
