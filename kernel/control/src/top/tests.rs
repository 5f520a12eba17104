//! Tests of `top`: what a terminal shows, and how many bytes it gets.

use super::*;
use crate::{Block, Count, Engine, ExitCount, Guest, GuestState, Hypervisor, Port, VcpuCounters};

const HZ: u64 = 2_000_000_000;
const GUESTS: u64 = 7;
/// Most bytes of a refresh under load, and when nothing changes.
const MOST: usize = 4000;
const IDLE: usize = 300;

/// A machine with two engines and seven guests, whose counters can be moved.
struct Load {
    counters: Counters,
    random: u64,
}

impl Load {
    fn new() -> Self {
        let exit = |reason: &'static str| ExitCount { reason: reason.into(), count: 1, cycles: 1000 };
        let guest = |n: u64| Guest {
            name: format!("guest-{n}"),
            state: GuestState::Running,
            starts: 1,
            memory: 1 << 30,
            kept: 1 << 20,
            vcpus: vec![VcpuCounters { core: n, exits: ["hlt", "msr-write", "io", "npf"].map(exit).into() }; 2],
            ports: vec![Port {
                mac: format!("02:00:00:00:00:0{n}"),
                drops: vec![Count { kind: "no buffer".into(), count: 0 }],
                ..Port::default()
            }],
            blocks: vec![Block {
                serial: "root".into(),
                counts: ["reads", "writes"].map(|kind| Count { kind: kind.into(), count: 0 }).into(),
                ..Block::default()
            }],
            ..Guest::default()
        };
        let engine = |core| Engine { id: core - 1, core, ..Engine::default() };
        let counters = Counters {
            tsc: 100 * HZ,
            tsc_hz: HZ,
            hypervisor: Hypervisor::default(),
            guests: (1..=GUESTS).map(guest).collect(),
            engines: [1, 2].map(engine).into(),
            ..Counters::default()
        };
        Self { counters, random: 1 }
    }

    /// A number up to `most`, different each time (Knuth's linear congruential generator).
    fn number(&mut self, most: u64) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % most
    }

    /// A second passes, in which nothing happens.
    fn idle(&mut self) -> Counters {
        self.counters.tsc += HZ;
        for engine in &mut self.counters.engines {
            engine.idle_cycles += HZ;
            engine.idle_turns += 1_000_000;
        }
        self.counters.clone()
    }

    /// A second passes, in which everything changes.
    fn busy(&mut self) -> Counters {
        self.counters.tsc += HZ;
        let mut counters = self.counters.clone();
        for engine in &mut counters.engines {
            let busy = self.number(HZ);
            engine.busy_cycles += busy;
            engine.idle_cycles += HZ - busy;
            engine.busy_permille_minute = Some(self.number(1001));
            engine.busy_turns += self.number(300_000);
            engine.idle_turns += self.number(3_000_000);
            engine.long_turns += self.number(100);
        }
        for guest in &mut counters.guests {
            for exit in guest.vcpus.iter_mut().flat_map(|vcpu| &mut vcpu.exits) {
                exit.count += self.number(50_000);
                exit.cycles += self.number(HZ / 8);
            }
            for port in &mut guest.ports {
                port.rx_packets += self.number(900_000);
                port.tx_packets += self.number(900_000);
                port.drops[0].count += self.number(9000);
            }
            guest.blocks[0].counts[0].count += self.number(90_000);
        }
        self.counters = counters;
        self.counters.clone()
    }
}

/// `top` on a terminal.
struct Screen {
    top: Top,
    terminal: vt100::Parser,
}

impl Screen {
    fn new() -> Self {
        let mut out = String::new();
        let top = Top::new(&mut out).unwrap();
        let mut terminal = crate::screen_of::terminal();
        terminal.process(b"what was there\r\n");
        terminal.process(out.as_bytes());
        Self { top, terminal }
    }

    /// Refreshes the picture. Returns the bytes that the terminal got.
    fn refresh(&mut self) -> usize {
        let mut out = String::new();
        self.top.refresh(&mut out).unwrap();
        self.terminal.process(out.as_bytes());
        out.len()
    }

    fn read(&mut self, counters: Counters) -> usize {
        self.top.read(counters);
        self.refresh()
    }

    fn keys(&mut self, keys: &str) -> AfterKey {
        let mut last = AfterKey::Nothing;
        for byte in keys.bytes() {
            let mut out = String::new();
            last = self.top.feed(byte, &mut out).unwrap();
            self.terminal.process(out.as_bytes());
            if last == AfterKey::Refresh {
                self.refresh();
            }
        }
        last
    }

    fn text(&self) -> String {
        self.terminal.screen().contents()
    }

    /// The line that begins with `start`.
    fn line(&self, start: &str) -> String {
        let found = self.text().lines().find(|line| line.trim_start().starts_with(start)).map(str::to_owned);
        found.unwrap_or_else(|| panic!("no line {start:?} in\n{}", self.text()))
    }

    /// The names of the guests from top to bottom.
    fn order(&self) -> Vec<String> {
        let text = self.text();
        let first = |line: &str| line.split(' ').next().unwrap_or_default().to_owned();
        text.lines().filter(|line| line.starts_with("guest-")).map(first).collect()
    }
}

#[test]
fn a_refresh_under_load_has_4000_bytes_at_most_and_an_idle_one_300() {
    let (mut screen, mut load) = (Screen::new(), Load::new());
    let mut most = screen.read(load.busy());
    for _ in 0..100 {
        most = screen.read(load.busy()).max(most);
    }
    assert!((1000..=MOST).contains(&most), "{most} bytes under load");
    // In the first idle second all rates fall to 0.
    assert!(screen.read(load.idle()) <= MOST);
    let idle = (0..100).map(|_| screen.read(load.idle())).max().unwrap();
    assert!((1..=IDLE).contains(&idle), "{idle} bytes when nothing changes");
    println!("{most} bytes under load at most, {idle} when nothing changes");
    // The picture of one guest.
    screen.keys("\r");
    let most = (0..100).map(|_| screen.read(load.busy())).max().unwrap();
    assert!((100..=MOST).contains(&most), "{most} bytes under load, one guest");
}

#[test]
fn the_largest_numbers_fit_and_the_picture_stays_within_its_bytes() {
    let (mut screen, mut load) = (Screen::new(), Load::new());
    screen.read(load.busy());
    let mut largest = load.busy();
    for guest in &mut largest.guests {
        guest.name = "a-guest-with-a-name-of-32-letter".into();
        guest.state = GuestState::Detaching;
        guest.ports[0].rx_packets = u64::MAX;
        guest.ports[0].tx_packets = u64::MAX;
        for exit in guest.vcpus.iter_mut().flat_map(|vcpu| &mut vcpu.exits) {
            (exit.count, exit.cycles) = (u64::MAX, u64::MAX);
        }
    }
    for engine in &mut largest.engines {
        (engine.busy_cycles, engine.idle_cycles, engine.busy_turns) = (u64::MAX, u64::MAX, u64::MAX);
        engine.busy_permille_minute = Some(u64::MAX);
    }
    assert!(screen.read(largest) <= MOST);
    assert!(screen.line("a-guest-with").starts_with("a-guest-with.. detaching"), "{}", screen.text());
}

#[test]
fn the_picture_shows_what_happens_in_a_second() {
    let (mut screen, mut load) = (Screen::new(), Load::new());
    screen.read(load.idle());
    let mut next = load.idle();
    next.engines[0].busy_cycles += HZ;
    next.engines[0].busy_permille_minute = Some(875);
    let guest = &mut next.guests[2];
    guest.vcpus[0].exits[1].count += 1234;
    guest.vcpus[1].exits[1].count += 1000;
    guest.vcpus[0].exits[0].count += 10;
    // Half of a second of one of its two vCPUs.
    guest.vcpus[0].exits[1].cycles += HZ / 2;
    guest.ports[0].rx_packets += 250_000;
    guest.ports[0].tx_packets += 77;
    guest.ports[0].drops[0].count += 3;
    guest.blocks[0].counts[1].count += 42;
    screen.read(next);
    let engine: Vec<_> = screen.line("0    1").split_whitespace().map(str::to_owned).collect();
    assert_eq!(engine, ["0", "1", "50.0", "87.5", "##########..........", "0", "1000K", "0"]);
    let engine: Vec<_> = screen.line("1    2").split_whitespace().map(str::to_owned).collect();
    assert_eq!(engine, ["1", "2", "0.0", "-", "....................", "0", "1000K", "0"]);
    let line = screen.line("guest-3");
    let fields: Vec<_> = line.split_whitespace().collect();
    assert_eq!(fields, ["guest-3", "running", "2244", "msr-write", "25.0", "250K", "77", "3", "42"]);
    assert_eq!(screen.order()[0], "guest-3", "it has the most exits");
    assert_eq!(
        screen.line("sidecore top"),
        format!("sidecore top  up 0:01:42{:12}7 of 7 guests run{:12}sorted by exits", "", "")
    );

    // Enter shows the chosen guest: the first one of the configuration. The one above it in the picture is guest 3.
    screen.keys("\r");
    assert!(screen.text().contains("guest-1") && !screen.text().contains("guest-3"), "{}", screen.text());
    screen.keys("\x1b[A");
    let reason: Vec<_> = screen.line("msr-write").split_whitespace().map(str::to_owned).collect();
    let mean = (HZ / 2 / 2234).to_string();
    assert_eq!(reason, ["msr-write", "2234", &*format!("{}K", mean.parse::<u64>().unwrap() / 1000), "25.0"]);
    assert!(screen.line("port").contains("02:00:00:00:00:03"));
    assert!(screen.line("disk").ends_with("42"));
}

#[test]
fn keys_sort_freeze_redraw_and_leave() {
    let (mut screen, mut load) = (Screen::new(), Load::new());
    screen.read(load.idle());
    let mut next = load.idle();
    next.guests[1].ports[0].tx_packets += 10;
    next.guests[4].blocks[0].counts[0].count += 10;
    next.guests[5].vcpus[0].exits[0].cycles += HZ / 4;
    next.guests[6].vcpus[0].exits[0].count += 10;
    screen.read(next);
    for (key, first) in [("e", "guest-7"), ("f", "guest-2"), ("d", "guest-5"), ("h", "guest-6"), ("n", "guest-1")] {
        assert_eq!(screen.keys(key), AfterKey::Refresh);
        assert_eq!(screen.order()[0], first, "{key}");
        assert_eq!(screen.order().len(), 7);
    }
    screen.keys("z");
    let frozen = screen.text();
    assert!(frozen.contains("frozen"));
    assert_eq!(screen.read(load.busy()), 0, "nothing changes while it is frozen");
    // Whatever the terminal shows, Ctrl-L draws all of it.
    screen.terminal.process(b"\x1b[5;5Hgarbage\x1b[7mmore");
    screen.keys("\x0c");
    assert_eq!(screen.text(), frozen);
    assert_eq!(screen.keys("x\x1b[C\x1b[1;5D"), AfterKey::Nothing);
    assert_eq!(screen.keys("q"), AfterKey::Leave);
    assert_eq!(screen.keys("\x03"), AfterKey::Leave);
    screen.terminal.process(LEAVE_TOP.as_bytes());
    assert_eq!(screen.text(), "what was there", "the first screen comes back");
    assert!(!screen.terminal.screen().hide_cursor());
}

#[test]
fn the_chosen_guest_is_always_in_the_picture() {
    let (mut screen, mut load) = (Screen::new(), Load::new());
    let guest = load.counters.guests[0].clone();
    load.counters.guests = (10..42).map(|n| Guest { name: format!("guest-{n}"), ..guest.clone() }).collect();
    screen.read(load.idle());
    screen.keys("n");
    for n in 10..42 {
        let name = format!("guest-{n}");
        assert!(screen.order().contains(&name), "{n}\n{}", screen.text());
        screen.keys("j");
    }
    assert_eq!(screen.keys("j"), AfterKey::Nothing, "there is no guest below the last one");
}

#[test]
fn counters_that_begin_again_and_guests_that_come_and_go_do_no_harm() {
    let (mut screen, mut load) = (Screen::new(), Load::new());
    screen.keys("jk\r");
    screen.read(load.busy());
    screen.keys("jjjjjjjj");
    let mut fewer = load.busy();
    fewer.guests.truncate(2);
    fewer.guests[0].ports.clear();
    fewer.engines.clear();
    fewer.tsc = 0;
    screen.read(fewer);
    screen.keys("jk\r\r");
    screen.read(Counters::default());
    screen.keys("jk\r\r");
    screen.read(load.busy());
    assert_eq!(screen.keys("q"), AfterKey::Leave);
}

#[test]
fn what_a_name_contains_does_not_reach_the_terminal_as_a_control() {
    let (mut screen, mut load) = (Screen::new(), Load::new());
    load.counters.guests[0].name = "\x1b[2J\u{9b}H".into();
    load.counters.guests[0].blocks[0].serial = "\x1b]0;x\x07".into();
    screen.read(load.idle());
    assert!(screen.text().contains("?[2J?H"), "{}", screen.text());
    screen.keys("n\r");
    assert!(screen.text().contains("?]0;x?"), "{}", screen.text());
}
