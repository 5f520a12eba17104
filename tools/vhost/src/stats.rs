//! Counters for people and scripts.

use std::time::Duration;

use engine::control::Control;
use engine::shared::Shared;
use serde_json::{Map, Value, json};

/// A port to report on.
pub struct Port {
    /// Its socket.
    pub name: String,
    /// Its device.
    pub shared: &'static Shared,
}

/// Prints what changed, each `interval`, for ever: a thread's work.
pub fn print(control: &'static Control, ports: &[Port], json: bool, interval: Duration) {
    let mut before = snapshot(control, ports);
    loop {
        std::thread::sleep(interval);
        let now = snapshot(control, ports);
        for ((name, old), (_, new)) in before.iter().zip(&now) {
            let changes: Map<String, Value> =
                new.iter().zip(old).map(|(&(what, n), &(_, o))| (what.into(), (n - o).into())).collect();
            if json {
                println!("{}", json!({ "name": name, "seconds": interval.as_secs_f64(), "counters": changes }));
            } else {
                let said: Vec<_> =
                    changes.iter().filter(|(_, n)| n.as_u64() != Some(0)).map(|(k, n)| format!("{k} {n}")).collect();
                println!("{name}: {}", if said.is_empty() { "nothing".into() } else { said.join(", ") });
            }
        }
        before = now;
    }
}

type Counters = Vec<(&'static str, u64)>;

fn snapshot(control: &Control, ports: &[Port]) -> Vec<(String, Counters)> {
    std::iter::once(("engine".to_owned(), control.counters.iter().collect()))
        .chain(ports.iter().map(|p| (p.name.clone(), p.shared.counters().iter().collect())))
        .collect()
}
