//! What the runs of each target add up to. On a machine without records they begin with those of the table.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// The figures of a target: of one run, or of all runs on this machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// Inputs that were run.
    pub executions: u64,
    /// Edges reached, and edges of the program.
    pub edges: u64,
    pub all_edges: u64,
    /// Seconds of running.
    pub seconds: f64,
    /// Seconds of running since the last new edge.
    pub quiet: f64,
    /// Inputs that it fails on and that are still kept.
    pub found: u64,
    /// Lines of the files under test that the corpus reaches, and all of them; 0 if they were not measured.
    pub lines: u64,
    pub all_lines: u64,
}

impl Record {
    /// Adds a run that began with the corpus of those before.
    pub fn add(&mut self, run: &Self) {
        let no_new_edge = run.quiet >= run.seconds;
        self.quiet = if no_new_edge { self.quiet + run.seconds } else { run.quiet };
        self.executions += run.executions;
        self.seconds += run.seconds;
        (self.edges, self.all_edges) = (run.edges, run.all_edges);
    }
}

/// The records of all targets, and the file that they are in.
pub struct Records {
    path: PathBuf,
    targets: BTreeMap<String, Record>,
}

impl Records {
    /// Reads the file; there are no records if there is none.
    pub fn read(path: &Path) -> Result<Self> {
        let mut targets = BTreeMap::new();
        if path.is_file() {
            let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
            let value: Value =
                serde_json::from_slice(&text).with_context(|| format!("{} is not JSON", path.display()))?;
            for (name, value) in value.as_object().into_iter().flatten() {
                targets.insert(name.clone(), from_json(value));
            }
        }
        Ok(Self { path: path.to_owned(), targets })
    }

    /// Takes over the records of targets that have none here.
    pub fn begin_with(&mut self, others: Vec<(String, Record)>) {
        for (name, record) in others {
            self.targets.entry(name).or_insert(record);
        }
    }

    /// The record of a target.
    pub fn of(&mut self, name: &str) -> &mut Record {
        self.targets.entry(name.to_owned()).or_default()
    }

    /// The record of a target that has run.
    pub fn get(&self, name: &str) -> Option<&Record> {
        self.targets.get(name)
    }

    /// All records as one JSON object.
    pub fn to_json(&self) -> Result<String> {
        let all: serde_json::Map<String, Value> =
            self.targets.iter().map(|(name, record)| (name.clone(), to_json(record))).collect();
        Ok(format!("{:#}\n", Value::Object(all)))
    }

    /// Writes the file.
    pub fn write(&self) -> Result<()> {
        fs::write(&self.path, self.to_json()?).with_context(|| format!("cannot write {}", self.path.display()))
    }
}

fn to_json(r: &Record) -> Value {
    json!({
        "executions": r.executions, "edges": r.edges, "all_edges": r.all_edges, "seconds": r.seconds,
        "quiet_seconds": r.quiet, "found": r.found, "lines": r.lines, "all_lines": r.all_lines,
    })
}

fn from_json(value: &Value) -> Record {
    let count = |name: &str| value[name].as_u64().unwrap_or(0);
    let seconds = |name: &str| value[name].as_f64().unwrap_or(0.0);
    Record {
        executions: count("executions"),
        edges: count("edges"),
        all_edges: count("all_edges"),
        seconds: seconds("seconds"),
        quiet: seconds("quiet_seconds"),
        found: count("found"),
        lines: count("lines"),
        all_lines: count("all_lines"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_add_up_and_a_new_edge_ends_the_quiet_time() {
        let run =
            |edges, quiet| Record { executions: 10, edges, all_edges: 99, seconds: 60.0, quiet, ..Record::default() };
        let mut sum = Record::default();
        sum.add(&run(7, 20.0));
        sum.add(&run(7, 60.0));
        assert_eq!(sum, Record { executions: 20, seconds: 120.0, ..run(7, 80.0) });
        sum.add(&run(8, 5.0));
        assert_eq!((sum.edges, sum.quiet), (8, 5.0));
    }

    #[test]
    fn a_record_is_the_same_when_read_again() {
        let record = Record {
            executions: 1,
            edges: 2,
            all_edges: 3,
            seconds: 4.5,
            quiet: 1.5,
            found: 6,
            lines: 7,
            all_lines: 8,
        };
        assert_eq!(from_json(&to_json(&record)), record);
    }
}
