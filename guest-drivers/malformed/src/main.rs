//! A hostile peer on the wire: sends malformed frames from a Linux machine's `eth0`, by a packet socket.
//!
//! `malformed ROUNDS VICTIM OTHER` takes the MAC addresses of two guests at the other end. It reports how many frames of each kind
//! it has sent: `SC {"do":"malformed","broken":N,"stolen":N,"multicast":N,"strange":N,"reserved":N}`.
//!
//! - `broken`: to the victim, with headers that lie about lengths, tags and fragments.
//! - `stolen`: to the victim, with the other guest's address as the source.
//! - `multicast`: to the victim, with a multicast address as the source.
//! - `strange`: to and from addresses that nobody has, other ones each time.
//! - `reserved`: PAUSE and spanning tree, to groups that no bridge forwards.

#![allow(unsafe_code, reason = "a packet socket")]

use std::fs;
use std::io::{Error, Result};
use std::mem::{size_of, zeroed};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use libc::{AF_PACKET, SOCK_RAW, c_int, c_void, sockaddr, sockaddr_ll};

type Mac = [u8; 6];

/// Frames between two pauses, and how long a pause is: an emulated machine takes no more.
const BURST: u64 = 16;
const PAUSE: Duration = Duration::from_millis(2);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("SC {{\"do\":\"malformed\",\"error\":\"{error}\"}}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let [rounds, victim, other] = arguments else { return Err(Error::other("expected: a count and two addresses")) };
    let rounds: u32 = rounds.parse().map_err(Error::other)?;
    let (victim, other, own) = (mac(victim)?, mac(other)?, mac(&fs::read_to_string("/sys/class/net/eth0/address")?)?);
    let mut socket = Socket::open()?;
    let mut sent = [0_u64; 5];
    for round in 0..rounds {
        for (n, body) in (0_u32..).zip(bodies(victim)) {
            for tags in TAGS {
                sent[0] += socket.send(&[&victim[..], &own, tags, &body].concat())?;
            }
            let [_, _, a, b] = (round * 256 + n).to_be_bytes();
            sent[1] += socket.send(&[&victim[..], &other, &body].concat())?;
            sent[2] += socket.send(&[&victim[..], &[1, 0, 0x5e, 0, a, b], &body].concat())?;
            sent[3] +=
                socket.send(&[&[2, 0x77, 0x77, 0x77, a, b][..], &[2, 0x66, 0x66, 0x66, a, b], &body].concat())?;
            sent[4] += socket.send(&[&[1, 0x80, 0xc2, 0, 0, n as u8 % 16][..], &own, &body].concat())?;
        }
    }
    let [broken, stolen, multicast, strange, reserved] = sent;
    println!(
        "SC {{\"do\":\"malformed\",\"broken\":{broken},\"stolen\":{stolen},\"multicast\":{multicast},\"strange\":{strange},\
         \"reserved\":{reserved}}}"
    );
    Ok(())
}

/// Reads six hexadecimal pairs.
fn mac(text: &str) -> Result<Mac> {
    let pairs: Option<Vec<u8>> = text.trim().split(['-', ':']).map(|pair| u8::from_str_radix(pair, 16).ok()).collect();
    pairs.and_then(|pairs| pairs.try_into().ok()).ok_or_else(|| Error::other(format!("no MAC address: {text}")))
}

/// A packet socket on `eth0`.
struct Socket {
    file: c_int,
    to: sockaddr_ll,
    sent: u64,
}

impl Socket {
    fn open() -> Result<Self> {
        // SAFETY: the call has no pointers.
        let file = unsafe { libc::socket(AF_PACKET, SOCK_RAW, 0) };
        // SAFETY: the name ends with a zero byte.
        let index = unsafe { libc::if_nametoindex(c"eth0".as_ptr()) };
        if file < 0 || index == 0 {
            return Err(Error::last_os_error());
        }
        // SAFETY: all zeroes are a value of this structure.
        let mut to: sockaddr_ll = unsafe { zeroed() };
        (to.sll_family, to.sll_ifindex) = (AF_PACKET as u16, index as c_int);
        Ok(Self { file, to, sent: 0 })
    }

    /// Sends a frame. Returns 1.
    fn send(&mut self, frame: &[u8]) -> Result<u64> {
        let to = (&raw const self.to).cast::<sockaddr>();
        let length = size_of::<sockaddr_ll>() as u32;
        // SAFETY: both pointers are to objects that live as long as the call, of the lengths given.
        let done = unsafe { libc::sendto(self.file, frame.as_ptr().cast::<c_void>(), frame.len(), 0, to, length) };
        if done < 0 {
            return Err(Error::last_os_error());
        }
        self.sent += 1;
        if self.sent.is_multiple_of(BURST) {
            thread::sleep(PAUSE);
        }
        Ok(1)
    }
}

/// Tags before the EtherType: none, one, one without a VLAN, two, and a service tag.
const TAGS: [&[u8]; 5] =
    [&[], &[0x81, 0, 0, 7], &[0x81, 0, 0xe0, 0], &[0x81, 0, 0, 7, 0x81, 0, 0, 5], &[0x88, 0xa8, 0, 7]];

/// EtherTypes and payloads.
fn bodies(victim: Mac) -> Vec<Vec<u8>> {
    // First byte of the header, total length, fragment, protocol, and what is behind the header.
    let ip4 = |first: u8, length: u16, fragment: u16, protocol: u8| {
        let [[a, b], [c, d]] = [length, fragment].map(u16::to_be_bytes);
        [8, 0, first, 0, a, b, 0, 7, c, d, 64, protocol, 0, 0, 10, 0, 0, 9, 10, 0, 0, 1, 0, 7, 0, 7, 0xff, 0xff, 0, 0]
            .to_vec()
    };
    // Payload length, next header, and what is behind the header.
    let ip6 = |length: u16, next: u8, rest: &[u8]| {
        let [a, b] = length.to_be_bytes();
        [&[0x86, 0xdd, 0x60, 0, 0, 0, a, b, next, 255][..], &[0xfe; 16], &[0xff; 16], rest].concat()
    };
    let hops: Vec<u8> = (0..16).flat_map(|_| [0, 0, 1, 4, 0, 0, 0, 0]).collect();
    vec![
        ip4(0x45, 0xffff, 0, 17),
        ip4(0x45, 0, 0, 17),
        ip4(0x4f, 28, 0, 17),
        ip4(0x40, 28, 0, 6),
        ip4(0x65, 28, 0, 17),
        ip4(0x45, 28, 0x2000, 17),
        ip4(0x45, 28, 0x3fff, 1),
        ip6(0xffff, 17, &[0; 8]),
        ip6(128, 0, &hops),
        ip6(16, 44, &[17, 0, 0xff, 0xf9, 0, 0, 0, 9]),
        ip6(8, 43, &[17, 255, 0, 0, 0, 0, 0, 0]),
        // ARP whose lengths are wrong.
        [&[8, 6, 0, 1, 8, 0, 200, 200, 0, 2][..], &victim, &[10, 0, 0, 1]].concat(),
        // A length instead of a type, and types that nobody has.
        [&[5, 0xdc, 0xaa, 0xaa][..], &[0; 8]].concat(),
        vec![0, 0],
        vec![0xff, 0xff, 0xff],
        // PAUSE.
        vec![0x88, 8, 0, 1, 0xff, 0xff],
    ]
}
