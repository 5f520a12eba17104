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
/// ACPI's tables that are left out, by the beginning of their names: with them somebody else could activate Windows.
const KEYS: [&str; 2] = ["MSDM", "SLIC"];
/// Most bytes of an ACPI table that are written.
const MOST: usize = 16 << 20;

/// Writes the lines, CPUID, MSRs, the PCI functions, the cores, the firmware's map of memory, the kernel's command line and ACPI's
/// tables, but for those with Windows' product keys. What is left out or cannot be read is named in the file `not-read`.
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
            Err(error) => writeln!(not_read, "{}", linux.explain(path, &error).0)?,
        }
    }
    let tables = "sys/firmware/acpi/tables";
    if let Err(why) = linux.lists(tables) {
        writeln!(not_read, "{}", why.0)?;
        return write("not-read", not_read.as_bytes());
    }
    for entry in fs::read_dir(linux.path(tables)).with_context(|| format!("cannot read /{tables}"))? {
        let path = entry.with_context(|| format!("cannot read /{tables}"))?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()).filter(|_| path.is_file()) else {
            continue;
        };
        let table = format!("{tables}/{name}");
        if KEYS.iter().any(|key| name.starts_with(key)) {
            writeln!(not_read, "/{table}: left out, because it may have the key of a Windows")?;
            continue;
        }
        match fs::read(&path) {
            Ok(content) if content.len() <= MOST => write(&format!("acpi-{name}"), &content)?,
            Ok(content) => writeln!(not_read, "/{table}: {} bytes are too many", content.len())?,
            Err(error) => writeln!(not_read, "{}", linux.explain(&table, &error).0)?,
        }
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn windows_product_keys_are_left_out_and_the_rest_is_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let (machine, saved) = (folder.path().join("machine"), folder.path().join("saved"));
        for path in [
            "sys/firmware/acpi/tables/DSDT",
            "sys/firmware/acpi/tables/MSDM",
            "sys/firmware/acpi/tables/SLIC1",
            "sys/firmware/acpi/tables/SSDT1",
            "sys/firmware/acpi/tables/data/BERT",
            "sys/bus/pci/devices/.keep",
            "proc/cmdline",
            "proc/cpuinfo",
        ] {
            let path = machine.join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(&path, b"AAAAA-BBBBB").expect("a file");
        }
        save(&saved, &[], &Linux::new(&machine), |_, _| [0; 4]).expect("written");
        let names: BTreeSet<String> = fs::read_dir(&saved)
            .expect("a folder")
            .map(|entry| entry.expect("a file").file_name().into_string().expect("a name"))
            .collect();
        let expected =
            ["acpi-DSDT", "acpi-SSDT1", "command-line", "cpuid", "cpuinfo", "msrs", "not-read", "pci", "report.json"];
        assert_eq!(names, expected.map(str::to_owned).into());
        let not_read = fs::read_to_string(saved.join("not-read")).expect("a file");
        for table in ["MSDM", "SLIC1"] {
            let line = format!("/sys/firmware/acpi/tables/{table}: left out, ");
            assert!(not_read.contains(&line), "{line}: {not_read}");
        }
        assert!(not_read.contains("/proc is not mounted") && not_read.contains("MSR 0x3a: "), "{not_read}");
    }
}
