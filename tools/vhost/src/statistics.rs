//! Prints the counters as a table or as JSON.

use std::fmt;
use std::sync::Arc;

use block::pair::Either;
use control::StageCounters;
use engine::counters::EngineCounters;
use engine::pair::Half;
use net::policy::configured::Rules;
use serde_json::{Map, Value, json};

use crate::clock;
use crate::port::Port;

/// Counters with their names.
type Named = Vec<(&'static str, u64)>;

/// A port or a disk: its name, its features, its counters, and the rules that its drivers broke.
type Device = (String, u64, Named, Named);

/// Counters at one moment.
pub struct Counted {
    ports: Vec<Device>,
    disks: Vec<Device>,
    /// The counters of each port's stages.
    stages: Vec<Vec<StageCounters>>,
    engine: Named,
}

/// Counters of a port with a column in the table. Other counters are shown if they are not zero.
const PORT_COLUMNS: [&str; 4] = ["rx_packets", "rx_bytes", "tx_packets", "tx_bytes"];
/// The same of a disk.
const DISK_COLUMNS: [&str; 4] = ["reads", "read_bytes", "writes", "written_bytes"];

fn value(counters: &[(&'static str, u64)], name: &str) -> u64 {
    counters.iter().find(|(known, _)| *known == name).map_or(0, |(_, count)| *count)
}

impl Counted {
    /// The counters now.
    pub fn now(ports: &[Arc<Port>], engine: &EngineCounters) -> Self {
        let turns = engine.busy_turns.get().wrapping_add(engine.idle_turns.get());
        let device = |port: &Arc<Port>| {
            let faults = port.shared.faults().filter(|(_, n)| *n != 0).map(|(fault, n)| (fault.text(), n));
            let own: Named = match port.backend {
                Half::First(port) => port.counters.iter().collect(),
                Half::Second(disk) => {
                    let overlay = match disk.volume {
                        Either::First(ram) => ram.overlay(),
                        Either::Second(_) => None,
                    };
                    let used = overlay.map(|overlay| {
                        [("overlay_blocks", overlay.blocks()), ("overlay_used", overlay.used())]
                            .map(|(name, count)| (name, u64::from(count)))
                    });
                    disk.counters.iter().chain(used.into_iter().flatten()).collect()
                }
            };
            let attached = ("attached_turns", port.turns.count(turns));
            let counters = port.shared.counters().iter().chain(own).chain([attached]).collect();
            (port.name.clone(), port.shared.negotiated(), counters, faults.collect())
        };
        let (disks, ports): (Vec<&Arc<Port>>, Vec<_>) =
            ports.iter().partition(|port| matches!(port.backend, Half::Second(_)));
        let stages = |port: &&Arc<Port>| port.rules.iter().flat_map(Rules::counters).flatten().collect();
        Self {
            stages: ports.iter().map(stages).collect(),
            ports: ports.into_iter().map(device).collect(),
            disks: disks.into_iter().map(device).collect(),
            engine: engine.iter().collect(),
        }
    }

    /// The counters as one JSON object.
    pub fn to_json(&self) -> Value {
        let object = |counters: &[(&'static str, u64)]| -> Map<String, Value> {
            counters.iter().map(|(name, n)| ((*name).to_owned(), json!(n))).collect()
        };
        let device = |(name, features, counters, faults): &Device| {
            let mut device = object(counters);
            device.insert("socket".to_owned(), json!(name));
            device.insert("features".to_owned(), json!(features));
            device.insert("broken_rules".to_owned(), Value::Object(object(faults)));
            device
        };
        let port = |(port, stages): (&Device, &Vec<StageCounters>)| {
            let mut port = device(port);
            port.insert("stages".to_owned(), json!(stages));
            Value::Object(port)
        };
        let ports: Vec<Value> = self.ports.iter().zip(&self.stages).map(port).collect();
        let disks: Vec<Value> = self.disks.iter().map(|disk| Value::Object(device(disk))).collect();
        let mut engine = object(&self.engine);
        engine.insert("cycles_per_microsecond".to_owned(), json!(clock::ticks_per_microsecond()));
        json!({ "ports": ports, "disks": disks, "engine": engine })
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.ports.iter().chain(&self.disks);
        let width = all.map(|(name, ..)| name.len()).max().unwrap_or(0).max(4);
        if !self.ports.is_empty() {
            writeln!(
                f,
                "{:<width$} {:>14} {:>16} {:>14} {:>16}",
                "port", "rx packets", "rx bytes", "tx packets", "tx bytes"
            )?;
        }
        for (port, stages) in self.ports.iter().zip(&self.stages) {
            write_counters(f, width, port, PORT_COLUMNS)?;
            for StageCounters { stage, direction, frames, bytes, dropped } in stages {
                let what = format!("stage {stage}, {direction}");
                writeln!(f, "{:<width$}   {what:<30}{frames:>14} frames, {bytes} bytes, {dropped} dropped", "")?;
            }
            write_faults(f, width, port)?;
        }
        if !self.disks.is_empty() {
            writeln!(
                f,
                "{:<width$} {:>14} {:>16} {:>14} {:>16}",
                "disk", "reads", "read bytes", "writes", "written bytes"
            )?;
        }
        for disk in &self.disks {
            write_counters(f, width, disk, DISK_COLUMNS)?;
            write_faults(f, width, disk)?;
        }
        let of = |name| value(&self.engine, name);
        let (busy, idle, requests) = (of("busy_cycles"), of("idle_cycles"), of("requests"));
        writeln!(
            f,
            "engine: busy {:.1} % of the time, {requests} requests, {:.0} cycles each while busy",
            100.0 * busy as f64 / (busy + idle).max(1) as f64,
            busy as f64 / requests.max(1) as f64
        )
    }
}

/// Writes a row with the columns, and a row for each other counter that is not zero.
fn write_counters(
    f: &mut fmt::Formatter<'_>,
    width: usize,
    (name, _, counters, _): &Device,
    columns: [&str; 4],
) -> fmt::Result {
    let [a, b, c, d] = columns.map(|column| value(counters, column));
    writeln!(f, "{name:<width$} {a:>14} {b:>16} {c:>14} {d:>16}")?;
    for (kind, count) in counters.iter().filter(|(kind, n)| *n != 0 && !columns.contains(kind)) {
        writeln!(f, "{:<width$}   {:<30}{count:>14}", "", kind.replace('_', " "))?;
    }
    Ok(())
}

/// Writes a row for each rule that its drivers broke.
fn write_faults(f: &mut fmt::Formatter<'_>, width: usize, (_, _, _, faults): &Device) -> fmt::Result {
    for (fault, count) in faults {
        writeln!(f, "{:<width$}   broken rule, {count} times: {fault}", "")?;
    }
    Ok(())
}
