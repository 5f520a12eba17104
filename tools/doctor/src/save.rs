//! Writes into a folder what somebody needs who is to find out why sidecore does not run on a machine.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use crate::linux::{Function, Linux};
use crate::look::{Line, to_json};

/// Last leaf of each range of CPUID that is written, at most, and sub-leaves of each leaf.
const LEAVES: u32 = 0x40;
const SUBLEAVES: u32 = 8;
/// MSRs that decide something: machine checks, IA32_FEATURE_CONTROL, microcode revision, VT-x's capabilities,
/// IA32_ARCH_CAPABILITIES, AMD's VM_CR.
const MSRS: [(u32, u32); 6] =
    [(0x3a, 0x3a), (0x8b, 0x8b), (0x10a, 0x10a), (0x179, 0x179), (0x480, 0x493), (0xc001_0114, 0xc001_0114)];
/// Most bytes of an ACPI table that are written.
const MOST: usize = 16 << 20;

/// Writes the lines, CPUID, MSRs, ACPI's tables, the PCI functions and the firmware's map of memory. What cannot be read is named
/// in the file `not-read`.
///
/// # Errors
/// The folder cannot be made, or a file cannot be written.
pub fn save(folder: &Path, lines: &[Line], linux: &Linux, cpuid: impl Fn(u32, u32) -> [u32; 4]) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let write = |name: &str, content: &[u8]| {
        let path = folder.join(name);
        fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))
    };
    let mut not_read = String::new();
    write("report.json", format!("{:#}\n", to_json(lines)).as_bytes())?;
    write("cpuid", leaves(cpuid).as_bytes())?;
    let mut msrs = String::new();
    for number in MSRS.iter().flat_map(|&(first, last)| first..=last) {
        match linux.msr(number) {
            Ok(value) => writeln!(msrs, "{number:#010x} {value:#018x}")?,
            Err(why) => writeln!(not_read, "MSR {number:#x}: {}", why.0)?,
        }
    }
    write("msrs", msrs.as_bytes())?;
    match linux.functions() {
        Ok(functions) => {
            let mut text = String::new();
            for f in functions {
                let driver = f.driver.as_deref().unwrap_or("-");
                let Function { segment, at, vendor, device, class, .. } = &f;
                writeln!(text, "{segment:04x}:{at} {vendor:04x}:{device:04x} class {class:06x} driver {driver}")?;
            }
            write("pci", text.as_bytes())?;
        }
        Err(why) => writeln!(not_read, "{}", why.0)?,
    }
    for (name, path) in [("cpuinfo", "proc/cpuinfo"), ("iomem", "proc/iomem"), ("command-line", "proc/cmdline")] {
        match fs::read(linux.path(path)) {
            Ok(content) => write(name, &content)?,
            Err(error) => writeln!(not_read, "/{path}: {error}")?,
        }
    }
    let tables = "sys/firmware/acpi/tables";
    match fs::read_dir(linux.path(tables)) {
        Ok(entries) => {
            for entry in entries {
                let path = entry.with_context(|| format!("cannot read /{tables}"))?.path();
                let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|_| path.is_file()) else {
                    continue;
                };
                match fs::read(&path) {
                    Ok(table) if table.len() <= MOST => write(&format!("acpi-{name}"), &table)?,
                    Ok(table) => writeln!(not_read, "/{tables}/{name}: {} bytes are too many", table.len())?,
                    Err(error) => writeln!(not_read, "/{tables}/{name}: {error}")?,
                }
            }
        }
        Err(error) => writeln!(not_read, "/{tables}: {error}")?,
    }
    write("not-read", not_read.as_bytes())
}

/// The leaves of CPUID on the core that runs this: leaf, sub-leaf, EAX, EBX, ECX, EDX. Those of 0 only are left out.
fn leaves(cpuid: impl Fn(u32, u32) -> [u32; 4]) -> String {
    let mut text = String::new();
    for base in [0, 0x4000_0000, 0x8000_0000] {
        let last = cpuid(base, 0)[0];
        if last < base {
            continue;
        }
        for leaf in base..=last.min(base + LEAVES) {
            for subleaf in 0..SUBLEAVES {
                let [a, b, c, d] = cpuid(leaf, subleaf);
                if [a, b, c, d] != [0; 4] {
                    text.push_str(&format!("{leaf:08x} {subleaf:02x} {a:08x} {b:08x} {c:08x} {d:08x}\n"));
                }
            }
        }
    }
    text
}
