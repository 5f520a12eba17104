//! Prints the counters as a table or as JSON.

use std::fmt;
use std::sync::Arc;

use control::StageCounters;
use engine::counters::EngineCounters;
use net::policy::configured::Rules;
use serde_json::{Map, Value, json};

use crate::clock;
use crate::port::Port;

/// Counters with their names.
type Named = Vec<(&'static str, u64)>;

/// Counters at one moment.
pub struct Counted {
    /// For each port: its name, its features, its counters, and the rules that its drivers broke.
    ports: Vec<(String, u64, Named, Named)>,
    /// The counters of each port's stages.
    stages: Vec<Vec<StageCounters>>,
    engine: Named,
}

/// Counters with a column in the table. Other counters are shown if they are not zero.
const COLUMNS: [&str; 4] = ["rx_packets", "rx_bytes", "tx_packets", "tx_bytes"];

fn value(counters: &[(&'static str, u64)], name: &str) -> u64 {
    counters.iter().find(|(known, _)| *known == name).map_or(0, |(_, count)| *count)
}

impl Counted {
    /// The counters now.
    pub fn now(ports: &[Arc<Port>], engine: &EngineCounters) -> Self {
        let port = |port: &Arc<Port>| {
            let faults = port.shared.faults().filter(|(_, n)| *n != 0).map(|(fault, n)| (fault.text(), n));
            (
                port.name.clone(),
                port.shared.negotiated(),
                port.shared.counters().iter().chain(port.switch_port.counters.iter()).collect(),
                faults.collect(),
            )
        };
        let stages = |port: &Arc<Port>| port.rules.iter().flat_map(Rules::counters).collect();
        Self {
            ports: ports.iter().map(port).collect(),
            stages: ports.iter().map(stages).collect(),
            engine: engine.iter().collect(),
        }
    }

    /// The counters as one JSON object.
    pub fn to_json(&self) -> Value {
        let object = |counters: &[(&'static str, u64)]| -> Map<String, Value> {
            counters.iter().map(|(name, n)| ((*name).to_owned(), json!(n))).collect()
        };
        let ports: Vec<Value> = self
            .ports
            .iter()
            .zip(&self.stages)
            .map(|((name, features, counters, faults), stages)| {
                let mut port = object(counters);
                port.insert("stages".to_owned(), json!(stages));
                port.insert("socket".to_owned(), json!(name));
                port.insert("features".to_owned(), json!(features));
                port.insert("broken_rules".to_owned(), Value::Object(object(faults)));
                Value::Object(port)
            })
            .collect();
        let mut engine = object(&self.engine);
        engine.insert("cycles_per_microsecond".to_owned(), json!(clock::ticks_per_microsecond()));
        json!({ "ports": ports, "engine": engine })
    }
}

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.ports.iter().map(|(name, ..)| name.len()).max().unwrap_or(0).max(4);
        writeln!(
            f,
            "{:<width$} {:>14} {:>16} {:>14} {:>16}",
            "port", "rx packets", "rx bytes", "tx packets", "tx bytes"
        )?;
        for ((name, _, counters, faults), stages) in self.ports.iter().zip(&self.stages) {
            let [a, b, c, d] = COLUMNS.map(|column| value(counters, column));
            writeln!(f, "{name:<width$} {a:>14} {b:>16} {c:>14} {d:>16}")?;
            for (kind, count) in counters.iter().filter(|(kind, n)| *n != 0 && !COLUMNS.contains(kind)) {
                writeln!(f, "{:<width$}   {:<30}{count:>14}", "", kind.replace('_', " "))?;
            }
            for StageCounters { stage, direction, frames, bytes, dropped } in stages {
                let what = format!("stage {stage}, {direction}");
                writeln!(f, "{:<width$}   {what:<30}{frames:>14} frames, {bytes} bytes, {dropped} dropped", "")?;
            }
            for (fault, count) in faults {
                writeln!(f, "{:<width$}   broken rule, {count} times: {fault}", "")?;
            }
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
