//! Writes counters as aligned tables, for a person on COM1. The output is any [`fmt::Write`]. Lines end in `\n`, which
//! the terminal's driver changes to `\r\n`.
//!
//! Nothing here needs the heap: a table's rows are made twice, first to find how wide its columns are.

pub(crate) mod layout;

use core::cmp::Reverse;
use core::fmt::{self, Write};
use core::iter;

use self::layout::Cell::{Bytes, Kind, Number, Numbers, Of, Text, Thousandths};
use self::layout::{Cell, GAP, line, table};
pub(crate) use self::layout::{cut, left, wide};
use crate::fold::{COLUMNS, Folded, sentence_line};
use crate::utilisation::busy_permille;
use crate::{Count, Counters, Engine, ExitCount, Guest, GuestSummary, Uplink, View};

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
    table(["guest", "state", "memory", "cores", "last stop"], "llrll", 1, rows, out)
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
        // They are not in the counters. `Audit::show` and `latency::show` write them, and the crate `config` what runs.
        View::Audit | View::Config | View::Latency | View::Modules | View::Apply => Ok(()),
    }
}

fn memory(counters: &Counters, out: &mut dyn Write) -> fmt::Result {
    let own = &counters.hypervisor;
    let first = [Text("sidecore"), Text(""), Bytes(own.memory), Text("")];
    let guests = counters
        .guests
        .iter()
        .map(|guest| [Text(&guest.name), Bytes(guest.memory), Bytes(guest.kept), Number(guest.starts)]);
    table(["", "RAM", "kept for it", "starts"], "lrrr", 1, iter::once(first).chain(guests), out)?;
    if own.heap.size > 0 {
        writeln!(out, "{} of the {} of the heap are in use", Bytes(own.heap.used), Bytes(own.heap.size))?;
    }
    let mut trouble = |count: u64, what: fmt::Arguments<'_>| {
        if count > 0 { sentence_line(out, format_args!("{count} {what}")) } else { Ok(()) }
    };
    trouble(own.log_dropped, format_args!("lines of the log were lost"))?;
    trouble(own.stray_interrupts, format_args!("interrupts on vectors that nobody uses"))?;
    trouble(own.system_errors, format_args!("NMIs of the chipset: SERR#, a PCI device or memory"))?;
    trouble(own.io_checks, format_args!("NMIs of the chipset: IOCHK#, a device on the LPC bus"))?;
    trouble(own.other_nmis, format_args!("NMIs that no core has sent and of which the chipset has no cause"))?;
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
    table(["guest", "vCPU", "exit", "count", "cycles", "mean"], "lrlrrr", 3, rows, out)
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
    let ports = || counters.guests.iter().flat_map(|guest| guest.ports.iter().map(move |port| (guest, port)));
    let rows = ports().map(|(guest, port)| {
        let drops = port.drops.iter().fold(0u64, |sum, drop| sum.saturating_add(drop.count));
        [
            Text(&guest.name),
            Text(&port.mac),
            Number(port.rx_packets),
            Bytes(port.rx_bytes),
            Number(port.tx_packets),
            Bytes(port.tx_bytes),
            Number(drops),
        ]
    });
    table(["guest", "MAC", "rx", "rx bytes", "tx", "tx bytes", "drops"], "llrrrrr", 2, rows, out)?;
    for (guest, port) in ports() {
        for drop in port.drops.iter().filter(|drop| drop.count > 0) {
            sentence_line(out, format_args!("{} {}: {} dropped: {}", guest.name, port.mac, drop.count, drop.kind))?;
        }
    }
    out.write_char('\n')?;
    let rows = ports().map(|(guest, port)| {
        let [interrupts, kicks, arms] = [port.interrupts, port.kicks, port.arms].map(Number);
        [Text(&guest.name), Text(&port.mac), interrupts, kicks, arms, Number(port.polls), Number(port.ring_errors)]
    });
    table(["guest", "MAC", "interrupts", "kicks", "arms", "polls", "ring errors"], "llrrrrr", 2, rows, out)?;
    let of_guests =
        ports().flat_map(|(guest, port)| port.stages.iter().map(move |stage| (&*guest.name, &*port.mac, stage)));
    let uplinks = counters.engines.iter().flat_map(|engine| &engine.uplinks);
    let of_uplinks = uplinks.flat_map(|uplink| uplink.stages.iter().map(|stage| ("uplink", &*uplink.name, stage)));
    let rows = of_guests.chain(of_uplinks).map(|(guest, port, s)| {
        [
            Text(guest),
            Text(port),
            Text(&s.direction),
            Text(&s.stage),
            Number(s.frames),
            Bytes(s.bytes),
            Number(s.dropped),
        ]
    });
    if rows.clone().next().is_none() {
        return Ok(());
    }
    out.write_char('\n')?;
    table(["guest", "port", "way", "stage", "frames", "bytes", "dropped"], "llllrrr", 4, rows, out)
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
        ]
    });
    let names = ["guest", "disk", "size", "reads", "read bytes", "writes", "written bytes", "errors"];
    table(names, "llrrrrrr", 2, rows, out)?;
    out.write_char('\n')?;
    let rows = devices().map(|(guest, device)| {
        [
            Text(&guest.name),
            Text(&device.serial),
            Of(device.overlay_used, device.overlay_blocks),
            Number(device.interrupts),
            Number(device.kicks),
            Number(device.ring_errors),
        ]
    });
    table(["guest", "disk", "overlay", "interrupts", "kicks", "ring errors"], "llrrrr", 2, rows, out)?;
    for (guest, device) in devices().filter(|(_, device)| device.overlay_full > 0) {
        let (name, failed) = (&guest.name, device.overlay_full);
        sentence_line(out, format_args!("{name} {}: {failed} writes failed, its overlay was full", device.serial))?;
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
    table(names, "lrrrrrr", 1, rows, out)?;
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
    table(names, "lllrrrrr", 2, rows, out)?;
    out.write_char('\n')
}

/// Writes the engines. "busy" is the busy part of an engine's time since the start, and then of the last second and minute.
fn engines(counters: &Counters, out: &mut dyn Write) -> fmt::Result {
    let share = |permille: Option<u64>| permille.map_or(Text("-"), |permille| Thousandths(permille.into()));
    let rows = counters.engines.iter().map(|engine| {
        let busy = busy_permille(engine.busy_cycles, engine.idle_cycles).unwrap_or(0);
        [
            Number(engine.core),
            Thousandths(busy.into()),
            share(engine.busy_permille_second),
            share(engine.busy_permille_minute),
            Number(engine.busy_turns),
            Number(engine.idle_turns),
            Number(engine.busy_cycles.checked_div(engine.busy_turns).unwrap_or(0)),
            Number(engine.long_turns),
        ]
    });
    let head = ["core", "busy", "1 s", "60 s", "busy turns", "idle turns", "cycles/busy", "long turns"];
    table(head, "rrrrrrrr", 1, rows, out)?;
    gaps(counters, out)?;
    speeds(counters, out)?;
    watched(counters, out)?;
    shares(counters, out)?;
    uplinks(counters, out)
}

/// Writes for how long something else had an engine's core.
fn gaps(counters: &Counters, out: &mut dyn Write) -> fmt::Result {
    for engine in counters.engines.iter().filter(|engine| engine.longest_idle_turn != 0) {
        let scaled = u128::from(engine.longest_idle_turn).saturating_mul(1_000_000);
        let micros = scaled.checked_div(counters.tsc_hz.into()).unwrap_or(0);
        let id = engine.id;
        sentence_line(out, format_args!("engine {id} once did nothing for {micros} us: something else had its core"))?;
    }
    Ok(())
}

/// Writes how fast the engines' cores were, and what has slowed them down or stopped them.
fn speeds(counters: &Counters, out: &mut dyn Write) -> fmt::Result {
    for engine in &counters.engines {
        let id = engine.id;
        if let Some(permille) = engine.speed_permille {
            let (percent, tenth) = (permille / 10, permille % 10);
            sentence_line(
                out,
                format_args!("engine {id} ran at {percent}.{tenth} % of the TSC's rate in the last second"),
            )?;
        }
        if engine.throttled_seconds != 0 {
            let (seconds, by) = (engine.throttled_seconds, &engine.throttled_by);
            sentence_line(
                out,
                format_args!("engine {id} was slowed down in {seconds} of the seconds so far, by {by}"),
            )?;
        }
        if let Some(smis @ 1..) = engine.smis {
            sentence_line(out, format_args!("the firmware has stopped engine {id}'s core {smis} times (SMIs)"))?;
        }
    }
    Ok(())
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
        sentence_line(
            out,
            format_args!(
                "longest turn {} cycles; drivers were interrupted {} times, and wanted no interrupt {} times",
                watched.longest_turn, watched.notified, watched.suppressed
            ),
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
    table(["guest", "device", "engine cycles", "share"], "llrr", 2, rows, out)
}

/// Writes a column for each uplink, and a row for each kind that was counted on one of them. What does not fit into a line comes
/// in a part of its own.
fn uplinks(counters: &Counters, out: &mut dyn Write) -> fmt::Result {
    for engine in &counters.engines {
        let kinds = || counted(engine);
        let first = ["uplink", "device"].into_iter().chain(kinds()).map(str::len).max().unwrap_or(0);
        let width = |uplink: &Uplink| {
            let names = [uplink.name.as_str(), device(uplink)].map(|text| text.chars().count());
            names.into_iter().chain(kinds().map(|kind| wide(&uplink.count(kind)))).max().unwrap_or(0)
        };
        let mut rest = engine.uplinks.as_slice();
        while !rest.is_empty() {
            let mut columns = first;
            let fits = rest.iter().take_while(|uplink| {
                columns = line(&[columns, width(uplink)]);
                columns <= COLUMNS
            });
            let (part, others) = rest.split_at_checked(fits.count().max(1)).unwrap_or((rest, &[]));
            rest = others;
            out.write_char('\n')?;
            let mut row = |name: &str, cell: &dyn Fn(&Uplink, usize, &mut dyn Write) -> fmt::Result| {
                write!(out, "{name:<first$}")?;
                for uplink in part {
                    write!(out, "{:GAP$}", "")?;
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
        engine.uplinks.iter().filter(|uplink| !uplink.port.is_empty()).try_for_each(|uplink| port(uplink, out))?;
    }
    Ok(())
}

/// Writes what an uplink's NIC says of its port, in lines that fit.
fn port(uplink: &Uplink, out: &mut dyn Write) -> fmt::Result {
    out.write_char('\n')?;
    let mut line = Folded::close(out);
    write!(line, "uplink {}: {}", uplink.name, uplink.port)?;
    line.end()
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

#[cfg(test)]
mod tests;
