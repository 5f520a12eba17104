//! `cargo mk bench block --instructions`: instructions of the engine for a read or a write of 4 KiB of a RAM disk,
//! without the copy routine, and of an NVMe namespace, without the device; and of the NVMe driver alone. It counts them
//! in a process.

use anyhow::{Result, bail};

use super::figure::Figure;
use crate::{callgrind, fetch, ui};

/// Requests that kernel/block/src/testing.rs, kernel/block/benches/nvme.rs and drivers/nvme/benches/instructions.rs make.
const REQUESTS: f64 = 4096.0;
/// Largest ratio of a value to the kept value. A larger one is an error.
const TOLERANCE: f64 = 1.02;

/// One case that is counted.
struct Row {
    /// Requests that the queue holds when it is visited.
    batch: u32,
    packed: bool,
    write: bool,
    /// The disk is an NVMe namespace, not RAM.
    nvme: bool,
    /// The form is libblkio's: chains in the ring's own table, data in another region of memory than the rest.
    linked: bool,
    /// The aim, if there is one.
    aim: Option<f64>,
    /// The kept value, which the gate compares with.
    kept: f64,
}

/// Reads of a RAM disk, in batches.
const READ: Row =
    Row { batch: 32, packed: false, write: false, nvme: false, linked: false, aim: Some(250.0), kept: 233.8 };
/// The same, each request alone in its turn.
const LONE: Row = Row { batch: 1, aim: None, kept: 1313.1, ..READ };
/// Reads of an NVMe namespace, in batches.
const NVME: Row = Row { nvme: true, aim: Some(450.0), kept: 478.3, ..READ };

const ROWS: [Row; 16] = [
    READ,
    Row { packed: true, kept: 237.2, ..READ },
    Row { write: true, kept: 236.8, ..READ },
    Row { packed: true, write: true, kept: 241.2, ..READ },
    Row { linked: true, kept: 230.8, ..READ },
    Row { linked: true, write: true, kept: 233.8, ..READ },
    LONE,
    Row { packed: true, kept: 1571.1, ..LONE },
    Row { write: true, kept: 1316.1, ..LONE },
    Row { packed: true, write: true, kept: 1575.1, ..LONE },
    NVME,
    Row { packed: true, kept: 495.9, ..NVME },
    Row { write: true, kept: 476.3, ..NVME },
    Row { packed: true, write: true, kept: 490.1, ..NVME },
    Row { batch: 1, aim: None, kept: 2239.2, ..NVME },
    Row { batch: 1, packed: true, aim: None, kept: 2522.7, ..NVME },
];

impl Row {
    fn name(&self) -> String {
        let rings = if self.packed { ", packed ring" } else { "" };
        let request = if self.write { "write" } else { "read" };
        let disk = if self.nvme { "an NVMe namespace" } else { "RAM" };
        let form = if self.linked { ", as libblkio asks" } else { "" };
        format!("a {request} of 4 KiB of {disk}, batches of {}{rings}{form}", self.batch)
    }
}

/// One function of drivers/nvme/benches/instructions.rs that is counted.
struct DriverRow {
    function: &'static str,
    name: &'static str,
    aim: f64,
    kept: f64,
}

const DRIVER_ROWS: [DriverRow; 2] = [
    DriverRow {
        function: "*submit_measured*",
        name: "the NVMe driver submits a read of 4 KiB, batches of 32",
        aim: 60.0,
        kept: 62.0,
    },
    DriverRow {
        function: "*complete_measured*",
        name: "the NVMe driver completes a read of 4 KiB, batches of 32",
        aim: 40.0,
        kept: 33.1,
    },
];

/// A value with its kept value.
struct Counted {
    name: String,
    value: f64,
    aim: Option<f64>,
    kept: f64,
}

fn for_a_request(count: u64) -> f64 {
    (count as f64 / REQUESTS * 10.0).round() / 10.0
}

/// Counts the functions of the NVMe driver.
fn count_driver() -> Result<Vec<Counted>> {
    let program = callgrind::program("nvme", "instructions", None)?;
    let one = |DriverRow { function, name, aim, kept }| {
        let (count, _) = callgrind::instructions_apart(&program, &[], function, "nvme_model::")?;
        Ok(Counted { name: String::from(name), value: for_a_request(count), aim: Some(aim), kept })
    };
    DRIVER_ROWS.into_iter().map(one).collect()
}

/// Counts all rows: instructions for a request.
fn count() -> Result<Vec<Counted>> {
    fetch::ensure(false)?;
    let ram = callgrind::program("block", "read", Some("testing"))?;
    let nvme = callgrind::program("block", "nvme", Some("testing"))?;
    let one = |row: Row| {
        let (program, apart) = if row.nvme { (&nvme, "nvme_model::") } else { (&ram, "sidecore_copy_") };
        let batch = row.batch.to_string();
        let words = [("packed", row.packed), ("write", row.write), ("linked", row.linked)];
        let words = words.into_iter().filter_map(|(word, said)| said.then_some(word));
        let arguments: Vec<&str> = [batch.as_str()].into_iter().chain(words).collect();
        let (count, _) = callgrind::instructions_apart(program, &arguments, "*measured*", apart)?;
        Ok(Counted { name: row.name(), value: for_a_request(count), aim: row.aim, kept: row.kept })
    };
    let mut all = ROWS.into_iter().map(one).collect::<Result<Vec<_>>>()?;
    all.extend(count_driver()?);
    Ok(all)
}

/// Counts all rows, as figures.
pub fn figures() -> Result<Vec<Figure>> {
    let figure = |Counted { name, value, aim, .. }| Figure { name, value, unit: "", aim };
    Ok(count()?.into_iter().map(figure).collect())
}

/// Part of `cargo mk test`: fails if the engine or the driver has become slower.
pub fn gate() -> Result<String> {
    ui::step("bench", "instructions of the engine for disks");
    let mut said = Vec::new();
    for Counted { name, value, kept, .. } in count()? {
        if value > kept * TOLERANCE {
            bail!(
                "disks: {name}: {value} instructions, kept are {kept}; if it has to be, change mk/src/bench/block.rs"
            );
        }
        said.push(format!("{value} for {name}"));
    }
    Ok(format!("disks, instructions: {}", said.join("; ")))
}
