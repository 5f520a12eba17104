//! Tests of the tables.

use super::*;
use crate::{Block, Console, ConsolePort, Entropy, ExitCount, Guest, GuestState, Hypervisor, Port, VcpuCounters};

fn counters() -> Counters {
    let exit = |reason: &'static str, count, cycles| ExitCount { reason: reason.into(), count, cycles };
    Counters {
        tsc_hz: 2_500_000_000,
        hypervisor: Hypervisor { memory: 6 << 20, memory_without_guests: 5 << 20, ..Hypervisor::default() },
        guests: vec![Guest {
            name: "alpha".into(),
            state: GuestState::Running,
            starts: 1,
            memory: 512 << 20,
            kept: 0x1800,
            console_dropped: 0,
            lines_dropped: 0,
            input_dropped: 0,
            vcpus: vec![VcpuCounters {
                core: 2,
                exits: vec![exit("cpuid", 7, 700), exit("hlt", 1200, 2400), exit("never", 0, 0)],
            }],
            shadow_idt: vec![Count { kind: "shadowed".into(), count: 2 }],
            refusals: vec![Count { kind: "msr".into(), count: 3 }],
            ports: vec![Port {
                mac: "02:00:00:00:00:01".into(),
                rx_packets: 5,
                rx_bytes: 1500,
                engine_cycles: 200,
                drops: vec![Count { kind: "no buffer".into(), count: 2 }],
                stages: vec![crate::StageCounters {
                    stage: "no-telnet".into(),
                    direction: "tx".into(),
                    frames: 4,
                    bytes: 240,
                    dropped: 4,
                }],
                ..Port::default()
            }],
            blocks: vec![Block {
                serial: "root".into(),
                size: 64 << 20,
                counts: [("reads", 12), ("read_bytes", 4096), ("errors", 1)]
                    .map(|(kind, count)| Count { kind: kind.into(), count })
                    .into(),
                overlay_blocks: 256,
                overlay_used: 17,
                overlay_full: 2,
                ..Block::default()
            }],
            entropy: vec![Entropy { requests: 3, bytes: 192, engine_cycles: 50, ..Entropy::default() }],
            consoles: vec![Console {
                ports: vec![
                    ConsolePort { guest_open: true, output_bytes: 2048, ..ConsolePort::default() },
                    ConsolePort { name: "trace".into(), input_bytes: 7, ..ConsolePort::default() },
                ],
                kicks: 9,
                ..Console::default()
            }],
        }],
        engines: vec![Engine {
            id: 0,
            core: 1,
            node: None,
            busy_turns: 2,
            idle_turns: 8,
            busy_cycles: 300,
            idle_cycles: 700,
            busy_permille_second: None,
            busy_permille_minute: Some(75),
            long_turns: 42_195,
            longest_idle_turn: 75_000_000,
            speed_permille: Some(1523),
            throttled_seconds: 3,
            throttled_by: "heat, the power limit".into(),
            smis: Some(17),
            watched: None,
            uplinks: vec![
                Uplink {
                    name: "lan".into(),
                    device: "01:00.0".into(),
                    port: "SFP+ module 10GBASE-SR, Intel Corp MODEL-SR; the NIC's firmware did not release a semaphore"
                        .into(),
                    counts: [("tx_packets", 7), ("rx_packets", 123_456), ("link_changes", 0)]
                        .map(|(kind, count)| Count { kind: kind.into(), count })
                        .into(),
                    stages: Vec::new(),
                },
                Uplink { name: "outside".into(), ..Uplink::default() },
            ],
        }],
        ..Counters::default()
    }
}

fn shown(view: View) -> String {
    let mut out = String::new();
    show(view, &counters(), &mut out).unwrap();
    out
}

#[test]
fn exits_are_aligned_and_sorted_by_count() {
    let expected = "\
guest  vCPU  exit                  count  cycles  mean
alpha     0  hlt                    1200    2400     2
alpha     0  cpuid                     7     700   100
alpha        shadow IDT: shadowed      2
alpha        refused: msr              3
";
    assert_eq!(shown(View::Exits), expected);
}

#[test]
fn memory_engine_and_ports_show_their_figures() {
    let expected = "              RAM  kept for it  starts
sidecore                 6 MiB
alpha     512 MiB        6 KiB       1
";
    assert_eq!(shown(View::Memory), expected);
    let engine = shown(View::Engine);
    let expected = "\
core    busy  1 s   60 s  busy turns  idle turns  cycles/busy  long turns
   1  30.0 %    -  7.5 %           2           8          150       42195
engine 0 once did nothing for 30000 us: something else had its core
engine 0 ran at 152.3 % of the TSC's rate in the last second
engine 0 was slowed down in 3 of the seconds so far, by heat, the power limit
the firmware has stopped engine 0's core 17 times (SMIs)
";
    assert!(engine.starts_with(expected), "{engine}");
    assert!(engine.contains("02:00:00:00:00:01            200  80.0 %"), "{engine}");
    assert!(engine.contains("alpha  entropy                       50  20.0 %"), "{engine}");
    let uplinks = "
uplink          lan    outside
device      01:00.0  no device
tx_packets        7          0
rx_packets   123456          0

uplink lan: SFP+ module 10GBASE-SR, Intel Corp MODEL-SR; the NIC's firmware did
  not release a semaphore
";
    assert!(engine.ends_with(uplinks), "{engine}");
    let ports = shown(View::Ports);
    let expected = "\
guest  MAC                rx  rx bytes  tx  tx bytes  drops
alpha  02:00:00:00:00:01   5   1.4 KiB   0       0 B      2
alpha 02:00:00:00:00:01: 2 dropped: no buffer

guest  MAC                interrupts  kicks  arms  polls  ring errors
alpha  02:00:00:00:00:01           0      0     0      0            0

guest  port               way  stage      frames  bytes  dropped
alpha  02:00:00:00:00:01  tx   no-telnet       4  240 B        4
";
    assert_eq!(ports, expected);
    let all = shown(View::Counters);
    assert!(all.contains("alpha                 3  192 B        0"), "{all}");
    let disk = "\
guest  disk    size  reads  read bytes  writes  written bytes  errors
alpha  root  64 MiB     12       4 KiB       0            0 B       1

guest  disk  overlay  interrupts  kicks  ring errors
alpha  root   17/256           0      0            0
";
    assert!(all.contains(disk), "{all}");
    assert!(all.contains("alpha root: 2 writes failed, its overlay was full"), "{all}");
    assert!([View::Exits, View::Engine, View::Ports, View::Memory].iter().all(|view| all.contains(&shown(*view))));
}

#[test]
fn the_largest_values_do_not_overflow() {
    let engine = Engine { core: 1, busy_cycles: u64::MAX, idle_cycles: u64::MAX, ..Engine::default() };
    let counters = Counters { engines: vec![engine], ..Counters::default() };
    show(View::Counters, &counters, &mut String::new()).unwrap();
    assert_eq!(Bytes(u64::MAX).to_string(), "17179869183.9 GiB");
    assert_eq!(Bytes(1023).to_string(), "1023 B");
}

/// Counters with the longest names and the largest numbers that there can be.
fn largest() -> Counters {
    let mut counters = counters();
    let most = u64::MAX;
    let long = "a-guest-with-a-name-of-32-letters";
    counters.hypervisor.heap = crate::Heap { size: most, used: most };
    counters.hypervisor.log_dropped = most;
    counters.hypervisor.machine_checks.deferred = most;
    counters.hypervisor.memory = most;
    let guest = &mut counters.guests[0];
    guest.name = long[..32].into();
    (guest.memory, guest.kept, guest.starts) = (most, most, most);
    (guest.console_dropped, guest.lines_dropped, guest.input_dropped) = (most, most, most);
    let exit = ExitCount { reason: "external-interrupt-x".into(), count: most, cycles: most };
    guest.vcpus = vec![VcpuCounters { core: 63, exits: vec![exit.clone(), exit] }];
    guest.refusals = vec![Count { kind: "a-long-kind-of-refusal".into(), count: most }];
    let count = |kind: &'static str| Count { kind: kind.into(), count: most };
    let stage = crate::StageCounters {
        stage: "s".repeat(32),
        direction: "tx".into(),
        frames: most,
        bytes: most,
        dropped: most,
    };
    guest.ports = vec![Port {
        rx_packets: most,
        rx_bytes: most,
        tx_packets: most,
        tx_bytes: most,
        interrupts: most,
        kicks: most,
        arms: most,
        polls: most,
        ring_errors: most,
        engine_cycles: most,
        drops: vec![count("a source address that is not its own")],
        stages: vec![stage.clone()],
        ..guest.ports[0].clone()
    }];
    let kinds = ["reads", "read_bytes", "writes", "written_bytes", "errors"];
    guest.blocks = vec![Block {
        serial: "s".repeat(20),
        size: most,
        counts: kinds.map(count).into(),
        overlay_blocks: most,
        overlay_used: most,
        overlay_full: most,
        interrupts: most,
        kicks: most,
        ring_errors: most,
        engine_cycles: most,
        ..Block::default()
    }];
    guest.entropy = vec![Entropy {
        requests: most,
        bytes: most,
        starved: most,
        interrupts: most,
        kicks: most,
        ring_errors: most,
        ..Entropy::default()
    }];
    let port = ConsolePort {
        name: "p".repeat(64),
        output_bytes: most,
        output_dropped: most,
        input_bytes: most,
        ..ConsolePort::default()
    };
    guest.consoles = vec![Console { ports: vec![port], kicks: most, ring_errors: most, ..Console::default() }];
    let uplink = Uplink {
        name: "u".repeat(32),
        device: "0000:01:00.0".into(),
        port: "a word and another ".repeat(30),
        counts: vec![count("rx_no_descriptor_drops_of_the_nic")],
        stages: vec![stage],
    };
    counters.engines = vec![Engine {
        core: 63,
        busy_turns: most,
        idle_turns: most,
        busy_cycles: most / 2,
        idle_cycles: most / 2,
        busy_permille_second: Some(most),
        busy_permille_minute: Some(most),
        long_turns: most,
        longest_idle_turn: most,
        speed_permille: Some(most),
        throttled_seconds: most,
        throttled_by: "a word and another ".repeat(10),
        smis: Some(most),
        watched: Some(crate::Watched {
            visits: vec![most; 9],
            empty_visits: most,
            longest_turn: most,
            notified: most,
            suppressed: most,
        }),
        uplinks: vec![uplink; 4],
        ..Engine::default()
    }];
    counters
}

#[test]
fn no_line_has_more_than_80_columns() {
    let largest = largest();
    let guests = [GuestSummary {
        name: largest.guests[0].name.clone(),
        state: GuestState::Detaching,
        cores: vec![1000; 8],
        memory: u64::MAX,
        regions: Vec::new(),
        reason: Some(crate::StopReason::MemoryError),
    }];
    let mut all = String::new();
    list(&guests, &mut all).unwrap();
    View::ALL.into_iter().for_each(|view| show(view, &largest, &mut all).unwrap());
    for line in all.lines() {
        assert!(line.chars().count() <= COLUMNS, "{} columns: {line}\n{all}", line.chars().count());
    }
    // Nothing is left out but the ends of names.
    assert!(all.matches("18446744073709551615").count() > 40, "{all}");
    for name in ["rx bytes", "ring errors", "input", "overlay", "mean", "last stop", "long turns", "dropped"] {
        assert!(all.contains(name), "{name} is missing in\n{all}");
    }
}

#[test]
fn a_wide_table_comes_in_parts_with_its_first_columns() {
    let row = [Text("a-long-guest"), Number(1), Number(u64::MAX), Number(u64::MAX), Number(u64::MAX)];
    let mut out = String::new();
    table(["guest", "n", "first", "second", "third"], "lrrrr", 2, iter::once(row), &mut out).unwrap();
    let expected = "\
guest         n                 first                second
a-long-guest  1  18446744073709551615  18446744073709551615

guest         n                 third
a-long-guest  1  18446744073709551615
";
    assert_eq!(out, expected);
}
