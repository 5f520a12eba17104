//! Writes counters as aligned tables, for a person on COM1. The output is any [`fmt::Write`]. Lines end in `\n`, which
//! the terminal's driver changes to `\r\n`.

//!
//! Nothing here needs the heap: a table's rows are made twice, first to find how wide its columns are.

use core::cmp::Reverse;
use core::fmt::{self, Display, Write};
use core::iter;

use crate::{Count, Counters, Engine, ExitCount, Guest, GuestSummary, Uplink, View};

/// What stands in a table.
#[derive(Clone, Copy)]
enum Cell<'a> {
    Text(&'a str),
    /// A text, a space and another one.
    Pair(&'a str, &'a str),
    /// A text, a colon and another one.
    Kind(&'a str, &'a str),
    Number(u64),
    /// Bytes, in the largest binary unit that gives at least 1, cut to one decimal.
    Bytes(u64),
    /// Thousandths, shown as percent.
    Thousandths(u128),
    /// So many of all. Nothing if there are none.
    Of(u64, u64),
    /// Numbers, with commas.
    Numbers(&'a [u64]),
}

use Cell::{Bytes, Kind, Number, Numbers, Of, Pair, Text, Thousandths};

impl Display for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Text(text) => f.write_str(text),
            Pair(first, second) => write!(f, "{first} {second}"),
            Kind(what, kind) => write!(f, "{what}: {kind}"),
            Number(number) => write!(f, "{number}"),
            Bytes(value) => bytes(value, f),
            Thousandths(value) => write!(f, "{}.{} %", value / 10, value % 10),
            Of(_, 0) => Ok(()),
            Of(some, all) => write!(f, "{some}/{all}"),
            Numbers(numbers) => numbers
                .iter()
                .enumerate()
                .try_for_each(|(n, number)| write!(f, "{}{number}", if n == 0 { "" } else { "," })),
        }
    }
}

/// Writes the guests and their states, for `list`.
///
/// # Errors
/// Those of `out`.
pub fn list(guests: &[GuestSummary], out: &mut dyn Write) -> fmt::Result {
    if guests.is_empty() {
        return out.write_str("no guests\n");
    }
    let rows = guests.iter().map(|guest| {
        let reason = guest.reason.map_or("", crate::StopReason::name);
        [Text(&guest.name), Text(guest.state.name()), Bytes(guest.memory), Numbers(&guest.cores), Text(reason)]
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
    let first = [Text("sidecore"), Text(""), Bytes(own.memory), Text("")];
    let guests = counters
        .guests
        .iter()
        .map(|guest| [Text(&guest.name), Bytes(guest.memory), Bytes(guest.kept), Number(guest.starts)]);
    table(["", "RAM", "kept for it", "starts"], "lrrr", iter::once(first).chain(guests), out)?;
    if own.heap.size > 0 {
        writeln!(out, "{} of the {} of the heap are in use", Bytes(own.heap.used), Bytes(own.heap.size))?;
    }
    let mut trouble = |count: u64, what: fmt::Arguments<'_>| {
        if count > 0 { writeln!(out, "{count} {what}") } else { Ok(()) }
    };
    trouble(own.log_dropped, format_args!("lines of the log were lost"))?;
    trouble(own.stray_interrupts, format_args!("interrupts on vectors that nobody uses"))?;
    trouble(own.system_errors, format_args!("NMIs of the chipset: SERR#, a PCI device or memory"))?;
    trouble(own.io_checks, format_args!("NMIs of the chipset: IOCHK#, a device on the LPC bus"))?;
    let errors = &own.machine_checks;
    trouble(errors.interrupts, format_args!("machine checks"))?;
    trouble(errors.corrected, format_args!("corrected errors of the machine"))?;
    trouble(errors.deferred, format_args!("uncorrected errors of the machine, for which nothing had to be done"))?;
    trouble(errors.ended, format_args!("uncorrected errors because of which a guest ended"))?;
    trouble(errors.left_by_firmware, format_args!("errors that the firmware had left"))?;
    for (name, port) in ["COM1", "COM2"].into_iter().zip(&own.serial) {
        trouble(port.dropped, format_args!("pieces of output for {name} were lost"))?;
        trouble(port.overruns, format_args!("times {name} lost input"))?;
    }
    for guest in &counters.guests {
        trouble(guest.console_dropped, format_args!("bytes of {}'s console were lost", guest.name))?;
        trouble(guest.lines_dropped, format_args!("lines of {}'s console were lost", guest.name))?;
        trouble(guest.input_dropped, format_args!("bytes typed for {} were lost", guest.name))?;
    }
    Ok(())
}

fn exits(counters: &Counters, out: &mut dyn Write) -> fmt::Result {
    let rows = counters.guests.iter().flat_map(|guest| exits_of(guest).chain(counts_of(guest)));
    table(["guest", "vCPU", "exit", "count", "cycles", "mean"], "lrlrrr", rows, out)
}

fn exits_of(guest: &Guest) -> impl Iterator<Item = [Cell<'_>; 6]> + Clone {
    guest.vcpus.iter().zip(0..).flat_map(move |(vcpu, index)| {
        by_count(&vcpu.exits).filter(|exit| exit.count > 0).map(move |exit| {
            let mean = exit.cycles.checked_div(exit.count).unwrap_or(0);
            let (count, cycles) = (Number(exit.count), Number(exit.cycles));
            [Text(&guest.name), Number(index), Text(&exit.reason), count, cycles, Number(mean)]
        })
    })
}

fn counts_of(guest: &Guest) -> impl Iterator<Item = [Cell<'_>; 6]> + Clone {
    let shadow = guest.shadow_idt.iter().map(|count| ("shadow IDT", count));
    let counts = shadow.chain(guest.refusals.iter().map(|count| ("refused", count)));
    counts.filter(|(_, count)| count.count > 0).map(|(what, Count { kind, count })| {
        [Text(&guest.name), Text(""), Kind(what, kind), Number(*count), Text(""), Text("")]
    })
}

/// The exits with the highest counts first, those with the same count in their order. There are a few dozen reasons, so each
/// step may look at all of them.
fn by_count(exits: &[ExitCount]) -> impl Iterator<Item = &ExitCount> + Clone {
    let key = |(index, exit): (usize, &ExitCount)| (Reverse(exit.count), index);
    let after = move |last: Option<(Reverse<u64>, usize)>| {
        exits.iter().enumerate().map(key).filter(|&key| last.is_none_or(|last| key > last)).min()
    };
    iter::successors(after(None), move |&last| after(Some(last))).filter_map(|(_, index)| exits.get(index))
}

fn ports(counters: &Counters, out: &mut dyn Write) -> fmt::Result {
    let rows = counters.guests.iter().flat_map(|guest| {
        guest.ports.iter().map(|port| {
            let drops = port.drops.iter().fold(0u64, |sum, drop| sum.saturating_add(drop.count));
            [
                Text(&guest.name),
                Text(&port.mac),
                Number(port.rx_packets),
                Bytes(port.rx_bytes),
                Number(port.tx_packets),
                Bytes(port.tx_bytes),
                Number(drops),
                Number(port.interrupts),
                Number(port.kicks),
                Number(port.arms),
                Number(port.polls),
                Number(port.ring_errors),
            ]
        })
    });
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
    table(names, "llrrrrrrrrrr", rows, out)?;
    for guest in &counters.guests {
        for (port, drop) in guest.ports.iter().flat_map(|port| port.drops.iter().map(move |drop| (port, drop))) {
            if drop.count > 0 {
                writeln!(out, "{} {}: {} dropped: {}", guest.name, port.mac, drop.count, drop.kind)?;
            }
        }
    }
    let of_guests = counters.guests.iter().flat_map(|guest| {
        guest.ports.iter().flat_map(|port| port.stages.iter().map(|stage| (Pair(&guest.name, &port.mac), stage)))
    });
    let uplinks = counters.engines.iter().flat_map(|engine| &engine.uplinks);
    let of_uplinks = uplinks.flat_map(|uplink| uplink.stages.iter().map(|stage| (Pair("uplink", &uplink.name), stage)));
    let rows = of_guests.chain(of_uplinks).map(|(port, s)| {
        [port, Text(&s.direction), Text(&s.stage), Number(s.frames), Bytes(s.bytes), Number(s.dropped)]
    });
    if rows.clone().next().is_none() {
        return Ok(());
    }
    out.write_char('\n')?;
    table(["port", "way", "stage", "frames", "bytes", "dropped"], "lllrrr", rows, out)
}

/// Writes the block devices and then an empty line. Writes nothing if there are none.
fn blocks(counters: &Counters, out: &mut dyn Write) -> fmt::Result {
    let devices = || counters.guests.iter().flat_map(|guest| guest.blocks.iter().map(move |device| (guest, device)));
    if devices().next().is_none() {
        return Ok(());
    }
    let rows = devices().map(|(guest, device)| {
        [
            Text(&guest.name),
            Text(&device.serial),
            Bytes(device.size),
            Number(device.count("reads")),
            Bytes(device.count("read_bytes")),
            Number(device.count("writes")),
            Bytes(device.count("written_bytes")),
            Number(device.count("errors")),
            Of(device.overlay_used, device.overlay_blocks),
            Number(device.interrupts),
            Number(device.kicks),
            Number(device.ring_errors),
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
    let rows = devices.map(|(guest, device)| {
        [
            Text(&guest.name),
            Number(device.requests),
            Bytes(device.bytes),
            Number(device.starved),
            Number(device.interrupts),
            Number(device.kicks),
            Number(device.ring_errors),
        ]
    });
    if rows.clone().next().is_none() {
        return Ok(());
    }
    let names = ["guest", "entropy requests", "bytes", "starved", "interrupts", "kicks", "ring errors"];
    table(names, "lrrrrrr", rows, out)?;
    out.write_char('\n')
}

/// Writes the ports of console devices and then an empty line. Writes nothing if there are none.
fn consoles(counters: &Counters, out: &mut dyn Write) -> fmt::Result {
    let devices = counters.guests.iter().flat_map(|guest| guest.consoles.iter().map(move |device| (guest, device)));
    let ports = devices.flat_map(|(guest, device)| device.ports.iter().map(move |port| (guest, device, port)));
    let rows = ports.map(|(guest, device, port)| {
        [
            Text(&guest.name),
            Text(if port.name.is_empty() { "console" } else { &port.name }),
            Text(if port.guest_open { "yes" } else { "no" }),
            Bytes(port.output_bytes),
            Bytes(port.output_dropped),
            Bytes(port.input_bytes),
            Number(device.kicks),
            Number(device.ring_errors),
        ]
    });
    if rows.clone().next().is_none() {
        return Ok(());
    }
    let names = ["guest", "port", "open in it", "output", "dropped", "input", "kicks", "ring errors"];
    table(names, "lllrrrrr", rows, out)?;
    out.write_char('\n')
}

fn engines(counters: &Counters, out: &mut dyn Write) -> fmt::Result {
    let rows = counters.engines.iter().map(|engine| {
        let cycles = engine.busy_cycles.saturating_add(engine.idle_cycles);
        // In tenths of a percent, through u128 because the product does not fit.
        let busy = (u128::from(engine.busy_cycles) * 1000).checked_div(u128::from(cycles)).unwrap_or(0);
        [
            Number(engine.core),
            Number(engine.busy_turns),
            Number(engine.idle_turns),
            Thousandths(busy),
            Number(engine.busy_cycles.checked_div(engine.busy_turns).unwrap_or(0)),
            Number(engine.long_turns),
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
            out.write_str("  ")?;
            match n {
                0 => left(14, format_args!("1"), out)?,
                _ if n.saturating_add(1) == sizes => left(14, format_args!("{least} and more"), out)?,
                _ => left(14, format_args!("{least} to {}", least.saturating_mul(2).saturating_sub(1)), out)?,
            }
            writeln!(out, "{count:>14}")?;
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
        [Text(&guest.name), Text(device), Number(cycles), Thousandths(share)]
    });
    out.write_char('\n')?;
    table(["guest", "device", "engine cycles", "share"], "llrr", rows, out)
}

/// Writes a column for each uplink, and a row for each kind that was counted on one of them.
fn uplinks(counters: &Counters, out: &mut dyn Write) -> fmt::Result {
    for engine in counters.engines.iter().filter(|engine| !engine.uplinks.is_empty()) {
        let kinds = || counted(engine);
        let first = ["uplink", "device"].into_iter().chain(kinds()).map(str::len).max().unwrap_or(0);
        let width = |uplink: &Uplink| {
            let names = [uplink.name.as_str(), device(uplink)].map(|text| text.chars().count());
            names.into_iter().chain(kinds().map(|kind| wide(&uplink.count(kind)))).max().unwrap_or(0)
        };
        out.write_char('\n')?;
        let mut row = |name: &str, cell: &dyn Fn(&Uplink, usize, &mut dyn Write) -> fmt::Result| {
            write!(out, "{name:<first$}")?;
            for uplink in &engine.uplinks {
                out.write_str("  ")?;
                cell(uplink, width(uplink), out)?;
            }
            out.write_char('\n')
        };
        row("uplink", &|uplink, width, out| write!(out, "{:>width$}", uplink.name))?;
        row("device", &|uplink, width, out| write!(out, "{:>width$}", device(uplink)))?;
        for kind in kinds() {
            row(kind, &|uplink, width, out| write!(out, "{:>width$}", uplink.count(kind)))?;
        }
    }
    Ok(())
}

fn device(uplink: &Uplink) -> &str {
    if uplink.device.is_empty() { "no device" } else { &uplink.device }
}

/// The kinds that were counted on an uplink of an engine.
fn counted(engine: &Engine) -> impl Iterator<Item = &str> {
    let all =
        engine.uplinks.iter().find(|uplink| !uplink.counts.is_empty()).into_iter().flat_map(|uplink| &uplink.counts);
    all.map(|count| &*count.kind).filter(|kind| engine.uplinks.iter().any(|uplink| uplink.count(kind) > 0))
}

/// Writes bytes in the largest binary unit that gives at least 1, cut to one decimal.
fn bytes(value: u64, out: &mut dyn Write) -> fmt::Result {
    let (shift, unit) = match value {
        0..0x400 => return write!(out, "{value} B"),
        0x400..0x10_0000 => (10, "KiB"),
        0x10_0000..0x4000_0000 => (20, "MiB"),
        _ => (30, "GiB"),
    };
    let tenths = (u128::from(value) * 10) >> shift;
    if tenths.is_multiple_of(10) {
        write!(out, "{} {unit}", tenths / 10)
    } else {
        write!(out, "{}.{} {unit}", tenths / 10, tenths % 10)
    }
}

/// Counts the characters that are written.
struct Counting(usize);

impl Write for Counting {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 = self.0.saturating_add(text.chars().count());
        Ok(())
    }
}

/// How wide a value is, in characters.
fn wide(value: &dyn Display) -> usize {
    let mut counting = Counting(0);
    // Counting does not fail.
    let _ = write!(counting, "{value}");
    counting.0
}

/// Writes a value and blanks after it.
pub(crate) fn left(width: usize, value: impl Display, out: &mut dyn Write) -> fmt::Result {
    write!(out, "{value}{:1$}", "", width.saturating_sub(wide(&value)))
}

/// Writes rows below their column names. A column is as wide as its widest cell. `align` has `l` or `r` for each
/// column.
fn table<'a, const N: usize>(
    names: [&'a str; N],
    align: &str,
    rows: impl Iterator<Item = [Cell<'a>; N]> + Clone,
    out: &mut dyn Write,
) -> fmt::Result {
    let mut widths = [0; N];
    for row in iter::once(names.map(Text)).chain(rows.clone()) {
        for (width, cell) in widths.iter_mut().zip(&row) {
            *width = wide(cell).max(*width);
        }
    }
    for row in iter::once(names.map(Text)).chain(rows) {
        // Blanks are written when something follows them.
        let mut blanks = 0;
        for ((cell, width), align) in row.iter().zip(widths).zip(align.bytes()) {
            let (len, before) = (wide(cell), blanks);
            let missing = width.saturating_sub(len);
            blanks = if align == b'r' { 2 } else { missing.saturating_add(2) };
            let before = if align == b'r' { before.saturating_add(missing) } else { before };
            if len == 0 {
                blanks = blanks.saturating_add(before);
            } else {
                write!(out, "{:before$}{cell}", "")?;
            }
        }
        out.write_char('\n')?;
    }
    Ok(())
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
        assert_eq!(Bytes(u64::MAX).to_string(), "17179869183.9 GiB");
        assert_eq!(Bytes(1023).to_string(), "1023 B");
    }
}
