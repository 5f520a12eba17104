//! `sidecore-doctor` on a Linux that runs on the same machine: it has to say what sidecore's own report has said.

use anyhow::{Context as _, Result, ensure};
use control::{ReportEntry, ReportKind};
use serde_json::{Value, json};
use std::thread;
use std::time::Instant;

use crate::boot::{Boot, alone};
use crate::guests::server;
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::{Session, number};
use crate::setup::{Feature, Uplink};

/// Where the report of the machine begins and ends on COM1. Where something required is missing, it ends with the machine.
const BEGIN: &str = "what this machine has:";
const ENDS: [&str; 2] = ["what it is used for:", "something required is missing"];
/// Parts of the lines that only the hypervisor can say. The program comes when Linux has taken the machine over, and measures nothing.
/// Each is of a sentence that a machine of this scenario may have; `tools/doctor/README.md` lists those of other machines too.
const OWN: [&str; 12] = [
    // Where GRUB has put it, and what GRUB has loaded.
    "sidecore's image at ",
    "boot module ",
    // Measured: the TSC's rate, how certain it is (a busy host makes it uncertain), and how far cores' TSCs are apart.
    "TSC at ",
    "the TSC's rate is not certain",
    "CPUID says that the TSC has ",
    "their TSCs were ",
    // What the firmware had left on, which Linux has put right before the program can look.
    "I/O APICs: ",
    "HPET at ",
    "MSI is off for every PCI bridge",
    "USB controllers: ",
    "TCO watchdog of ",
    "for every PCI device that sidecore does not drive; the firmware had left them on",
];

/// This scenario.
pub fn list() -> Vec<Box<dyn Boot>> {
    let about = "sidecore-doctor on a Linux of the same machine says each line of sidecore's report; with SVM off, with x2APIC off, \
                 with one core";
    vec![alone(Scenario::new("doctor", about, QEMU).taking_turns(), doctor)]
}

fn doctor(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    compare(context, "usual", 4, None)?;
    compare(context, "svm-off", 4, Some(Feature::Virtualization))?;
    compare(context, "x2apic-off", 4, Some(Feature::X2apic))?;
    compare(context, "one-core", 1, None)
}

/// Boots sidecore, then Linux on the same machine, and compares what they say of it.
fn compare(context: &mut Context<'_>, name: &str, cpus: u32, lacks: Option<Feature>) -> Result<()> {
    let mut setup = server(&format!("doctor-{name}"), &[]);
    (setup.cpus, setup.lacks, setup.uplink) = (cpus, lacks, Uplink::Virtio);
    // Nothing may end the emulator, and Linux needs memory too.
    (setup.options, setup.memory_mib, setup.after_reset) = ("", 512, Some("doctor"));
    let mut session = context.boot(&setup)?;
    let report = report(&session)?;
    let judged = session.reset_into_linux("doctor", seconds(180))?;
    let lines = judged["said"]["lines"].as_array().context("no lines")?;
    let said: Vec<String> = lines.iter().filter(|line| line["in_report"] == true).map(shown).collect::<Result<_>>()?;
    let figures = &mut context.figures;
    let missing =
        report.iter().filter(|line| line.trim_start().starts_with(ReportKind::RequiredMissing.label())).count();
    figures.exactly(
        &format!("{name}: lines on what is required and missing"),
        missing,
        usize::from(lacks.is_some()),
    )?;
    figures.exactly(&format!("{name}: the doctor's exit code"), number(&judged, "code")?, missing as u64)?;
    figures.at_least(&format!("{name}: files that it saved"), number(&judged, "files")?, 10)?;
    let unsaid: Vec<_> = report.iter().filter(|line| !said.contains(line)).collect();
    ensure!(unsaid.is_empty(), "{name}: the doctor has not said {unsaid:#?}; it said {said:#?}");
    // Without x2APIC sidecore says no more than that.
    if lacks != Some(Feature::X2apic) {
        let own: Vec<_> = said.iter().filter(|line| !report.contains(line)).collect();
        ensure!(own.is_empty(), "{name}: sidecore has not said {own:#?}");
        ensure!(said == report, "{name}: the same lines in another order");
        figures.at_least(&format!("{name}: lines that are the same"), said.len(), 8)?;
    }
    // Another user reads less. What it says is what root says, or that it does not know.
    let others = judged["user_said"]["lines"].as_array().context("no lines of another user")?;
    let (unknown, known): (Vec<_>, Vec<_>) = others.iter().partition(|line| line["kind"] == "unknown");
    let made_up: Vec<_> = known.iter().filter(|line| !lines.contains(line)).collect();
    ensure!(made_up.is_empty(), "{name}: another user is told {made_up:#?}, and root is not");
    let figures = &mut context.figures;
    figures.at_least(&format!("{name}: lines that another user gets as unknown"), unknown.len(), 3)?;
    // What CPUID shows to be missing is known to everybody.
    let code = number(&judged, "user_code")?;
    figures.exactly(
        &format!("{name}: the doctor's exit code for another user"),
        code,
        if missing == 0 { 3_u64 } else { 1 },
    )?;
    let nics =
        lines.iter().filter(|line| line["text"].as_str().is_some_and(|text| text.contains("can be a port"))).count();
    figures.exactly(&format!("{name}: NICs that it names"), nics, 1)
}

/// The lines on the machine in sidecore's report, without those that only it can say.
fn report(session: &Session) -> Result<Vec<String>> {
    let (begun, limit) = (Instant::now(), seconds(120));
    loop {
        let console = session.console()?;
        if let Some((_, report)) = console.split_once(BEGIN).or_else(|| console.split_once("sidecore 0"))
            && let Some(end) = ENDS.iter().filter_map(|end| report.find(end)).min()
        {
            let is_line =
                |line: &&str| line.get(8..12).is_some_and(|rest| rest.contains(": ")) && line.starts_with("  ");
            let lines = report.get(..end).unwrap_or_default().lines().filter(is_line);
            return Ok(lines.filter(|line| !OWN.iter().any(|own| line.contains(own))).map(str::to_owned).collect());
        }
        ensure!(begun.elapsed() < limit, "no report\n{console}");
        thread::sleep(seconds(1) / 10);
    }
}

/// A line of the doctor's as sidecore's console shows it.
fn shown(line: &Value) -> Result<String> {
    let entry = json!({ "kind": line["kind"], "text": line["text"] });
    let entry: ReportEntry =
        serde_json::from_value(entry).with_context(|| format!("no sentence of a report: {line}"))?;
    Ok(entry.to_string())
}
