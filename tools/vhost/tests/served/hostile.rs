//! Front-ends that misbehave. Each loses its connection, the server prints the wrong values, and nobody else notices.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use vhost_front::{Memory, Pages};
use vmm_sys_util::eventfd::EventFd;
use vmm_sys_util::sock_ctrl_msg::ScmSocket as _;

use crate::process::{Vhost, frame, introduce, passes, until};

const SET_FEATURES: u32 = 2;
const SET_MEM_TABLE: u32 = 5;
const SET_VRING_NUM: u32 = 8;
const SET_VRING_ADDR: u32 = 9;
const SET_VRING_BASE: u32 = 10;
const GET_VRING_BASE: u32 = 11;
const SET_VRING_KICK: u32 = 12;
const SET_VRING_CALL: u32 = 13;
const VERSION_1: u64 = 1 << 32;

/// A connection that can send any message.
struct Raw(UnixStream);

impl Raw {
    fn say(&self, request: u32, body: &[u8], fds: &[RawFd]) {
        let header = [request, 1, body.len() as u32].map(u32::to_ne_bytes).concat();
        let message = [&header, body].concat();
        // The server may have hung up already, because of an earlier message.
        let _ = self.0.send_with_fds(&[&message[..]], fds);
    }

    fn words(&self, request: u32, words: &[u64], fds: &[RawFd]) {
        self.say(request, &words.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<_>>(), fds);
    }

    fn state(&self, request: u32, index: u32, number: u32) {
        self.words(request, &[u64::from(number) << 32 | u64::from(index)], &[]);
    }

    fn table(&self, regions: &[[u64; 4]], file: &File) {
        let words: Vec<u64> = std::iter::once(regions.len() as u64).chain(regions.iter().flatten().copied()).collect();
        self.words(SET_MEM_TABLE, &words, &vec![file.as_raw_fd(); regions.len()]);
    }

    /// Sends the messages of a good device, up to the kick of its queues. Its rings are at the beginning of the memory.
    fn set_up(&self, file: &File, len: u64, kick: &EventFd) {
        self.words(SET_FEATURES, &[VERSION_1], &[]);
        self.table(&[[0, len, USER, 0]], file);
        for queue in [0, 1] {
            let rings = USER + 0x4000 * u64::from(queue);
            self.state(SET_VRING_NUM, queue, 16);
            self.state(SET_VRING_BASE, queue, 0);
            // Index, flags; descriptor table, used ring, available ring, log.
            self.words(SET_VRING_ADDR, &[u64::from(queue), rings, rings + 0x1000, rings + 0x2000, 0], &[]);
            self.words(SET_VRING_KICK, &[u64::from(queue)], &[kick.as_raw_fd()]);
        }
    }

    fn has_ended(&self) {
        self.0.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let mut rest = Vec::new();
        // Both are an end of the connection: bytes that the server had not read cause a reset.
        if let Err(error) = (&self.0).read_to_end(&mut rest) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
        }
    }
}

const USER: u64 = 0x7000_0000;
const LEN: u64 = 2 << 20;

/// The messages of a front-end, given memory and an eventfd, and the server's words about them.
type Case = (fn(&Raw, &Memory, &EventFd), &'static str);

const CASES: &[Case] = &[
    (|raw, m, _| raw.table(&[[0, 0x2000, USER, 0], [0x1000, 0x1000, 2 * USER, 0]], m.file()), "guest address 0x1000"),
    (
        |raw, m, _| raw.table(&[[0, 0x2000, USER, 0], [0x8000, 0x1000, USER + 0x1000, 0]], m.file()),
        "user address 0x70001000",
    ),
    (|raw, m, _| raw.table(&[[0, LEN, USER, 0x1000]], m.file()), "file offset 0x1000"),
    (|raw, m, _| raw.table(&[[0, 1 << 46, USER, 0]], m.file()), "0x400000000000 bytes"),
    (|raw, m, _| raw.table(&[[0x123, 0x1000, USER, 0]], m.file()), "guest address 0x123"),
    (|raw, m, _| raw.table(&[[0, 0, USER, 0]], m.file()), "no such message"),
    (|raw, _, _| raw.words(SET_MEM_TABLE, &[1, 0, 0x1000, USER, 0], &[]), "no such message"),
    (|raw, _, _| raw.words(SET_MEM_TABLE, &[1, 0, 0x1000, USER, 0], &[raw.0.as_raw_fd()]), "no regular file"),
    (|raw, _, _| raw.state(SET_VRING_NUM, 2, 256), "queue 2: this port has 2"),
    (|raw, _, _| raw.state(SET_VRING_NUM, u32::MAX, 256), "queue 4294967295: this port has 2"),
    (|raw, _, _| raw.state(SET_VRING_NUM, 0, 100), "queue 0 with 100 descriptors"),
    (|raw, _, _| raw.state(SET_VRING_NUM, 0, 0), "queue 0 with 0 descriptors"),
    (|raw, _, _| raw.state(SET_VRING_NUM, 0, 1 << 20), "queue 0 with 1048576 descriptors"),
    (|raw, _, _| raw.state(SET_VRING_BASE, 0, 0x1_0000), "position 0x10000"),
    (|raw, _, _| raw.state(GET_VRING_BASE, 77, 0), "queue 77: this port has 2"),
    (|raw, _, e| raw.words(SET_VRING_KICK, &[200], &[e.as_raw_fd()]), "queue 200: this port has 2"),
    (|raw, m, _| raw.words(SET_VRING_KICK, &[0], &[m.file().as_raw_fd()]), "the kick of queue 0"),
    (|raw, _, _| raw.words(SET_VRING_CALL, &[1], &[raw.0.as_raw_fd()]), "the call of queue 1"),
    (|raw, _, _| raw.words(SET_FEATURES, &[1 << 63 | VERSION_1], &[]), "0x8000000000000000 was not offered"),
    (|raw, _, _| raw.words(999, &[0], &[]), "no such message"),
    (|raw, _, _| raw.words(SET_FEATURES, &[0, 0, 0], &[]), "no such message"),
    (
        |raw, m, e| {
            raw.set_up(m.file(), LEN, e);
            raw.words(SET_VRING_ADDR, &[1, USER + LEN, USER, USER, 0], &[]);
        },
        "the descriptor table of queue 1 at 0x70200000",
    ),
    (
        |raw, m, e| {
            raw.set_up(m.file(), LEN, e);
            raw.words(SET_VRING_ADDR, &[1, USER, USER + LEN - 4, USER, 0], &[]);
        },
        "a ring that is misaligned or outside",
    ),
    (
        |raw, m, e| {
            raw.set_up(m.file(), LEN, e);
            raw.words(SET_FEATURES, &[0], &[]);
        },
        "features 0x0: expected VERSION_1",
    ),
    (|raw, _, _| drop((&raw.0).write_all(&[0xff; 64])), "no such message"),
];

#[test]
fn a_message_that_is_wrong_costs_its_sender_the_connection_and_nobody_else_anything() {
    let vhost = Vhost::start(3);
    let (mut a, mut b) = (vhost.connect("a"), vhost.connect("b"));
    introduce(&mut a, &mut b);
    let (memory, event) = (Memory::new(LEN as usize, Pages::Small).unwrap(), EventFd::new(0).unwrap());
    for (number, (bad, said)) in CASES.iter().enumerate() {
        let raw = Raw(UnixStream::connect(vhost.socket("c")).unwrap());
        bad(&raw, &memory, &event);
        vhost.says(said);
        raw.has_ended();
        passes(&mut a, &mut b, &frame(2, 1, 300, number as u32));
        passes(&mut b, &mut a, &frame(1, 2, 300, number as u32));
    }
    let mut c = vhost.connect("c");
    passes(&mut c, &mut a, &frame(1, 3, 60, 0));
    let ended = vhost.end();
    assert_eq!(ended.port(0, "faults") + ended.port(1, "faults"), 0);
    assert_eq!(ended.port(0, "tx_packets"), CASES.len() as u64 + 1);
}

#[test]
fn half_a_message_keeps_nobody_else_waiting() {
    let vhost = Vhost::start(3);
    let half = UnixStream::connect(vhost.socket("c")).unwrap();
    (&half).write_all(&[SET_FEATURES as u8, 0, 0, 0, 1]).unwrap();
    let (mut a, mut b) = (vhost.connect("a"), vhost.connect("b"));
    introduce(&mut a, &mut b);
    drop(half);
    let mut c = vhost.connect("c");
    passes(&mut c, &mut a, &frame(1, 3, 60, 0));
    assert!(vhost.end().status.success());
}

#[test]
fn memory_that_is_taken_back_costs_its_front_end_the_connection_and_nobody_else_anything() {
    let vhost = Vhost::start(3);
    let (mut a, mut b) = (vhost.connect("a"), vhost.connect("b"));
    introduce(&mut a, &mut b);
    for round in 0..3 {
        let c = vhost.connect("c");
        c.memory().file().set_len(0).unwrap();
        vhost.says("has taken back memory that it shared");
        vhost.says("c: the front-end has gone");
        passes(&mut a, &mut b, &frame(2, 1, 300, round));
    }
    assert_eq!(vhost.end().port(0, "faults"), 0);
}

#[test]
fn a_driver_that_breaks_the_rings_rules_loses_its_device_until_it_sets_it_up_anew() {
    let vhost = Vhost::start(3);
    let (mut a, mut b) = (vhost.connect("a"), vhost.connect("b"));
    introduce(&mut a, &mut b);
    let mut c = vhost.connect("c");
    passes(&mut c, &mut a, &frame(1, 3, 60, 0));
    // More than a queue ahead.
    let _ = c.tx.offer(5000);
    vhost.says("the available index moved back or more than a queue ahead");
    for tag in 0..100 {
        passes(&mut a, &mut b, &frame(2, 1, 300, tag));
    }
    drop(c);
    let mut c = vhost.connect("c");
    passes(&mut c, &mut a, &frame(1, 3, 60, 1));
    let ended = vhost.end();
    assert_eq!((ended.port(0, "faults"), ended.port(1, "faults"), ended.port(2, "faults")), (0, 0, 1));
}

#[test]
fn a_call_eventfd_that_blocks_stops_the_engine_for_a_moment_only() {
    let vhost = Vhost::start(3);
    let (mut a, mut b) = (vhost.connect("a"), vhost.connect("b"));
    introduce(&mut a, &mut b);
    let mut c = vhost.connect("c");
    passes(&mut c, &mut a, &frame(1, 3, 60, 0));
    c.block_interrupts(0);
    c.rx.want_interrupts(true);
    until("room to send", || a.send(&frame(3, 1, 60, 0)));
    vhost.says("c: the front-end let a call eventfd block");
    vhost.says("c: the front-end has gone");
    passes(&mut a, &mut b, &frame(2, 1, 300, 1));
    assert!(vhost.end().status.success());
}
