//! Writes counters as aligned tables, for a person on COM1. The output is any [`fmt::Write`]. Lines end in `\n`, which
//! the terminal's driver changes to `\r\n`.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt::{self, Write};

use crate::{Count, Counters, Engine, GuestSummary, Uplink, View};

/// Writes the guests and their states, for `list`.
///
/// # Errors
/// Those of `out`.
pub fn list(guests: &[GuestSummary], out: &mut dyn Write) -> fmt::Result {
    if guests.is_empty() {
        return out.write_str("no guests\n");
    }
    let rows = guests.iter().map(|guest| {
        let cores: Vec<String> = guest.cores.iter().map(ToString::to_string).collect();
        let reason = guest.reason.map_or("", crate::StopReason::name);
        [guest.name.clone(), guest.state.name().into(), bytes(guest.memory), cores.join(","), reason.into()]
    });
    table(["guest", "state", "memory", "cores", "last stop"], "llrll", rows, out)
}

/// Writes what `show` asked for.
///
/// # Errors
/// Those of `out`.
pub fn show(view: View, counters: &Counters, out: &mut dyn Write) -> fmt::Result {
    match view {
        View::Counters => {
            memory(counters, out)?;
            out.write_char('\n')?;
            exits(counters, out)?;
            out.write_char('\n')?;
            ports(counters, out)?;
            out.write_char('\n')?;
            blocks(counters, out)?;
            entropy(counters, out)?;
            consoles(counters, out)?;
            engines(counters, out)
        }
        View::Exits => exits(counters, out),
        View::Engine => engines(counters, out),
        View::Ports => ports(counters, out),
        View::Memory => memory(counters, out),
    }
}

fn memory(counters: &Counters, out: &mut dyn Write) -> fmt::Result {
    let own = &counters.hypervisor;
    let first = [String::from("sidecore"), String::new(), bytes(own.memory), String::new()];
    let guests = counters
        .guests
        .iter()
        .map(|guest| [guest.name.clone(), bytes(guest.memory), bytes(guest.kept), guest.starts.to_string()]);
    table(["", "RAM", "kept for it", "starts"], "lrrr", core::iter::once(first).chain(guests), out)?;
    let mut trouble = |count: u64, what: &str| if count > 0 { writeln!(out, "{count} {what}") } else { Ok(()) };
    trouble(own.log_dropped, "lines of the log were lost")?;
    trouble(own.stray_interrupts, "interrupts on vectors that nobody uses")?;
    trouble(own.system_errors, "NMIs of the chipset: SERR#, a PCI device or memory")?;
    trouble(own.io_checks, "NMIs of the chipset: IOCHK#, a device on the LPC bus")?;
    let errors = &own.machine_checks;
    trouble(errors.interrupts, "machine checks")?;
    trouble(errors.corrected, "corrected errors of the machine")?;
    trouble(errors.deferred, "uncorrected errors of the machine, for which nothing had to be done")?;
    trouble(errors.ended, "uncorrected errors because of which a guest ended")?;
    trouble(errors.left_by_firmware, "errors that the firmware had left")?;
    for (name, port) in ["COM1", "COM2"].into_iter().zip(&own.serial) {
        trouble(port.dropped, &format!("pieces of output for {name} were lost"))?;
        trouble(port.overruns, &format!("times {name} lost input"))?;
    }
    for guest in &counters.guests {
        trouble(guest.console_dropped, &format!("bytes of {}'s console were lost", guest.name))?;
        trouble(guest.lines_dropped, &format!("lines of {}'s console were lost", guest.name))?;
        trouble(guest.input_dropped, &format!("bytes typed for {} were lost", guest.name))?;
    }
    Ok(())
}

fn exits(counters: &Counters, out: &mut dyn Write) -> fmt::Result {
    let mut rows = Vec::new();
    for guest in &counters.guests {
        for (index, vcpu) in guest.vcpus.iter().enumerate() {
            let mut exits: Vec<_> = vcpu.exits.iter().filter(|exit| exit.count > 0).collect();
            exits.sort_by_key(|exit| core::cmp::Reverse(exit.count));
            for exit in exits {
                let mean = exit.cycles.checked_div(exit.count).unwrap_or(0);
                rows.push([
                    guest.name.clone(),
                    index.to_string(),
                    exit.reason.to_string(),
                    exit.count.to_string(),
                    exit.cycles.to_string(),
                    mean.to_string(),
                ]);
            }
        }
        let shadow = guest.shadow_idt.iter().map(|c| ("shadow IDT", c));
        let counts = shadow.chain(guest.refusals.iter().map(|c| ("refused", c)));
        for (what, Count { kind, count }) in counts.filter(|(_, c)| c.count > 0) {
            let (kind, count) = (format!("{what}: {kind}"), count.to_string());
            rows.push([guest.name.clone(), String::new(), kind, count, String::new(), String::new()]);
        }
    }
    table(["guest", "vCPU", "exit", "count", "cycles", "mean"], "lrlrrr", rows.into_iter(), out)
}

fn ports(counters: &Counters, out: &mut dyn Write) -> fmt::Result {
    let mut rows = Vec::new();
    for guest in &counters.guests {
        for port in &guest.ports {
            let drops = port.drops.iter().fold(0u64, |sum, drop| sum.saturating_add(drop.count));
            rows.push([
                guest.name.clone(),
                port.mac.clone(),
                port.rx_packets.to_string(),
                bytes(port.rx_bytes),
                port.tx_packets.to_string(),
                bytes(port.tx_bytes),
                drops.to_string(),
                port.interrupts.to_string(),
                port.kicks.to_string(),
                port.arms.to_string(),
                port.polls.to_string(),
                port.ring_errors.to_string(),
            ]);
        }
    }
    let names = [
        "guest",
        "MAC",
        "rx",
        "rx bytes",
        "tx",
        "tx bytes",
        "drops",
        "interrupts",
        "kicks",
        "arms",
        "polls",
        "ring errors",
    ];
    table(names, "llrrrrrrrrrr", rows.into_iter(), out)?;
    for guest in &counters.guests {
        for (port, drop) in guest.ports.iter().flat_map(|port| port.drops.iter().map(move |drop| (port, drop))) {
            if drop.count > 0 {
                writeln!(out, "{} {}: {} dropped: {}", guest.name, port.mac, drop.count, drop.kind)?;
            }
        }
    }
    let of_guests = counters.guests.iter().flat_map(|guest| {
        guest
            .ports
            .iter()
            .flat_map(move |port| port.stages.iter().map(move |stage| (format!("{} {}", guest.name, port.mac), stage)))
    });
    let uplinks = counters.engines.iter().flat_map(|engine| &engine.uplinks);
    let of_uplinks =
        uplinks.flat_map(|uplink| uplink.stages.iter().map(move |stage| (format!("uplink {}", uplink.name), stage)));
    let rows: Vec<_> = of_guests
        .chain(of_uplinks)
        .map(|(port, s)| {
            [
                port,
                s.direction.to_string(),
                s.stage.clone(),
                s.frames.to_string(),
                bytes(s.bytes),
                s.dropped.to_string(),
            ]
        })
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    out.write_char('\n')?;
    table(["port", "way", "stage", "frames", "bytes", "dropped"], "lllrrr", rows.into_iter(), out)
}

/// Writes the block devices and then an empty line. Writes nothing if there are none.
fn blocks(counters: &Counters, out: &mut dyn Write) -> fmt::Result {
    let devices = || counters.guests.iter().flat_map(|guest| guest.blocks.iter().map(move |device| (guest, device)));
    if devices().next().is_none() {
        return Ok(());
    }
    let rows = devices().map(|(guest, device)| {
        let overlay = match device.overlay_blocks {
            0 => String::new(),
            all => format!("{}/{all}", device.overlay_used),
        };
        [
            guest.name.clone(),
            device.serial.clone(),
            bytes(device.size),
            device.count("reads").to_string(),
            bytes(device.count("read_bytes")),
            device.count("writes").to_string(),
            bytes(device.count("written_bytes")),
            device.count("errors").to_string(),
            overlay,
            device.interrupts.to_string(),
            device.kicks.to_string(),
            device.ring_errors.to_string(),
        ]
    });
    let names = [
        "guest",
        "disk",
        "size",
        "reads",
        "read bytes",
        "writes",
        "written bytes",
        "errors",
        "overlay",
        "interrupts",
        "kicks",
        "ring errors",
    ];
    table(names, "llrrrrrrrrrr", rows, out)?;
    for (guest, device) in devices().filter(|(_, device)| device.overlay_full > 0) {
        writeln!(out, "{} {}: {} writes failed, its overlay was full", guest.name, device.serial, device.overlay_full)?;
    }
    out.write_char('\n')
}

/// Writes the entropy devices and then an empty line. Writes nothing if there are none.
fn entropy(counters: &Counters, out: &mut dyn Write) -> fmt::Result {
    let devices = counters.guests.iter().flat_map(|guest| guest.entropy.iter().map(move |device| (guest, device)));
    let rows: Vec<_> = devices
        .map(|(guest, device)| {
            [
                guest.name.clone(),
                device.requests.to_string(),
                bytes(device.bytes),
                device.starved.to_string(),
                device.interrupts.to_string(),
                device.kicks.to_string(),
                device.ring_errors.to_string(),
            ]
        })
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let names = ["guest", "entropy requests", "bytes", "starved", "interrupts", "kicks", "ring errors"];
    table(names, "lrrrrrr", rows.into_iter(), out)?;
    out.write_char('\n')
}

/// Writes the ports of console devices and then an empty line. Writes nothing if there are none.
fn consoles(counters: &Counters, out: &mut dyn Write) -> fmt::Result {
    let devices = counters.guests.iter().flat_map(|guest| guest.consoles.iter().map(move |device| (guest, device)));
    let rows: Vec<_> = devices
        .flat_map(|(guest, device)| device.ports.iter().map(move |port| (guest, device, port)))
        .map(|(guest, device, port)| {
            [
                guest.name.clone(),
                if port.name.is_empty() { "console".into() } else { port.name.clone() },
                if port.guest_open { "yes".into() } else { "no".into() },
                bytes(port.output_bytes),
                bytes(port.output_dropped),
                bytes(port.input_bytes),
                device.kicks.to_string(),
                device.ring_errors.to_string(),
            ]
        })
        .collect();
    if rows.is_empty() {
        return Ok(());
    }
    let names = ["guest", "port", "open in it", "output", "dropped", "input", "kicks", "ring errors"];
    table(names, "lllrrrrr", rows.into_iter(), out)?;
    out.write_char('\n')
}

fn engines(counters: &Counters, out: &mut dyn Write) -> fmt::Result {
    let rows = counters.engines.iter().map(|engine| {
        let cycles = engine.busy_cycles.saturating_add(engine.idle_cycles);
        // In tenths of a percent, through u128 because the product does not fit.
        let busy = (u128::from(engine.busy_cycles) * 1000).checked_div(u128::from(cycles)).unwrap_or(0);
        [
            engine.core.to_string(),
            engine.busy_turns.to_string(),
            engine.idle_turns.to_string(),
            format!("{}.{} %", busy / 10, busy % 10),
            engine.busy_cycles.checked_div(engine.busy_turns).unwrap_or(0).to_string(),
            engine.long_turns.to_string(),
        ]
    });
    let head = ["engine core", "busy turns", "idle turns", "busy", "cycles/busy turn", "long turns"];
    table(head, "rrrrrr", rows, out)?;
    watched(counters, out)?;
    shares(counters, out)?;
    uplinks(counters, out)
}

/// Writes what was counted while engines were watched. It has a column for each size of a visit.
fn watched(counters: &Counters, out: &mut dyn Write) -> fmt::Result {
    for engine in &counters.engines {
        let Some(watched) = &engine.watched else { continue };
        writeln!(out, "\nwhile engine {} was watched, visits by requests:", engine.id)?;
        let sizes = watched.visits.len();
        for (n, count) in watched.visits.iter().enumerate() {
            let least = 1_u64.checked_shl(n as u32).unwrap_or(u64::MAX);
            let size = match n {
                0 => "1".to_string(),
                _ if n.saturating_add(1) == sizes => format!("{least} and more"),
                _ => format!("{least} to {}", least.saturating_mul(2).saturating_sub(1)),
            };
            writeln!(out, "  {size:<14}{count:>14}")?;
        }
        writeln!(out, "  {:<14}{:>14}", "none", watched.empty_visits)?;
        writeln!(
            out,
            "longest turn {} cycles; drivers were interrupted {} times, and wanted no interrupt {} times",
            watched.longest_turn, watched.notified, watched.suppressed
        )?;
    }
    Ok(())
}

/// Writes each device's share of the time that engines spent on queues.
fn shares(counters: &Counters, out: &mut dyn Write) -> fmt::Result {
    let devices = || {
        counters.guests.iter().flat_map(|guest| {
            let ports = guest.ports.iter().map(|port| (port.mac.as_str(), port.engine_cycles));
            let blocks = guest.blocks.iter().map(|device| (device.serial.as_str(), device.engine_cycles));
            let entropy = guest.entropy.iter().map(|device| ("entropy", device.engine_cycles));
            let consoles = guest.consoles.iter().map(|device| ("console", device.engine_cycles));
            ports.chain(blocks).chain(entropy).chain(consoles).map(move |(device, cycles)| (guest, device, cycles))
        })
    };
    let all: u128 = devices().map(|(.., cycles)| u128::from(cycles)).sum();
    if all == 0 {
        return Ok(());
    }
    let rows = devices().map(|(guest, device, cycles)| {
        let share = u128::from(cycles).saturating_mul(1000).checked_div(all).unwrap_or(0);
        let share = format!("{}.{} %", share / 10, share % 10);
        [guest.name.clone(), device.into(), cycles.to_string(), share]
    });
    out.write_char('\n')?;
    table(["guest", "device", "engine cycles", "share"], "llrr", rows, out)
}

/// Writes a column for each uplink, and a row for each kind that was counted on one of them.
fn uplinks(counters: &Counters, out: &mut dyn Write) -> fmt::Result {
    for engine in counters.engines.iter().filter(|engine| !engine.uplinks.is_empty()) {
        let here = |uplink: &Uplink| if uplink.device.is_empty() { "no device".into() } else { uplink.device.clone() };
        let mut rows = Vec::from([("uplink", names(engine, |u| u.name.clone())), ("device", names(engine, here))]);
        for Count { kind, .. } in engine.uplinks.iter().find(|u| !u.counts.is_empty()).map_or(&[][..], |u| &u.counts) {
            if engine.uplinks.iter().any(|uplink| uplink.count(kind) > 0) {
                rows.push((kind, names(engine, |uplink| uplink.count(kind).to_string())));
            }
        }
        let width = |column: usize| {
            rows.iter().filter_map(|(_, cells)| Some(cells.get(column)?.chars().count())).max().unwrap_or(0)
        };
        let first = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        out.write_char('\n')?;
        for (name, cells) in &rows {
            write!(out, "{name:<first$}")?;
            for (column, cell) in cells.iter().enumerate() {
                write!(out, "  {cell:>width$}", width = width(column))?;
            }
            out.write_char('\n')?;
        }
    }
    Ok(())
}

fn names(engine: &Engine, name: impl Fn(&Uplink) -> String) -> Vec<String> {
    engine.uplinks.iter().map(name).collect()
}

/// Shows bytes in the largest binary unit that gives at least 1, cut to one decimal.
fn bytes(value: u64) -> String {
    let (shift, unit) = match value {
        0..0x400 => return format!("{value} B"),
        0x400..0x10_0000 => (10, "KiB"),
        0x10_0000..0x4000_0000 => (20, "MiB"),
        _ => (30, "GiB"),
    };
    let tenths = (u128::from(value) * 10) >> shift;
    if tenths.is_multiple_of(10) {
        format!("{} {unit}", tenths / 10)
    } else {
        format!("{}.{} {unit}", tenths / 10, tenths % 10)
    }
}

/// Writes rows below their column names. A column is as wide as its widest cell. `align` has `l` or `r` for each
/// column.
fn table<const N: usize>(
    names: [&str; N],
    align: &str,
    rows: impl Iterator<Item = [String; N]>,
    out: &mut dyn Write,
) -> fmt::Result {
    let rows: Vec<[String; N]> = rows.collect();
    let mut width = names.map(str::len);
    for row in &rows {
        for (width, cell) in width.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut line = |cells: [&str; N]| {
        let mut text = String::new();
        for ((cell, width), align) in cells.iter().zip(width).zip(align.bytes()) {
            // Writing to a String cannot fail.
            let _ = if align == b'r' { write!(text, "{cell:>width$}  ") } else { write!(text, "{cell:<width$}  ") };
        }
        writeln!(out, "{}", text.trim_end())
    };
    line(names)?;
    rows.iter().try_for_each(|row| line(row.each_ref().map(String::as_str)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Block, Console, ConsolePort, Entropy, ExitCount, Guest, GuestState, Hypervisor, Port, VcpuCounters};

    fn counters() -> Counters {
        let exit = |reason: &'static str, count, cycles| ExitCount { reason: reason.into(), count, cycles };
        Counters {
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
                long_turns: 42_195,
                watched: None,
                uplinks: vec![
                    Uplink {
                        name: "lan".into(),
                        device: "01:00.0".into(),
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
        assert!(engine.contains("30.0 %") && engine.contains("02:00:00:00:00:01            200  80.0 %"), "{engine}");
        assert!(engine.contains("alpha  entropy                       50  20.0 %"), "{engine}");
        assert!(engine.contains("42195"), "{engine}");
        let uplinks = "
uplink          lan    outside
device      01:00.0  no device
tx_packets        7          0
rx_packets   123456          0
";
        assert!(engine.ends_with(uplinks), "{engine}");
        let ports = shown(View::Ports);
        assert!(ports.contains("1.4 KiB") && ports.contains("2 dropped: no buffer"), "{ports}");
        let all = shown(View::Counters);
        assert!(all.contains("alpha                 3  192 B        0"), "{all}");
        let disk = "alpha  root  64 MiB     12       4 KiB       0            0 B       1   17/256           0      0            0";
        assert!(all.contains(disk), "{all}");
        assert!(all.contains("alpha root: 2 writes failed, its overlay was full"), "{all}");
        assert!([View::Exits, View::Engine, View::Ports, View::Memory].iter().all(|view| all.contains(&shown(*view))));
    }

    #[test]
    fn the_largest_values_do_not_overflow() {
        let engine = Engine { core: 1, busy_cycles: u64::MAX, idle_cycles: u64::MAX, ..Engine::default() };
        let counters = Counters { engines: vec![engine], ..Counters::default() };
        show(View::Counters, &counters, &mut String::new()).unwrap();
        assert_eq!(bytes(u64::MAX), "17179869183.9 GiB");
        assert_eq!(bytes(1023), "1023 B");
    }
}
