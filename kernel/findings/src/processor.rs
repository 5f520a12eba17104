//! What the processor has besides virtualization. All cores are alike.

use alloc::format;
use alloc::vec::Vec;
use control::ReportEntry;
use mca::{Broadcast, Format, MAX_BANKS, Setup};
use speculation::{Plan, Processor, Status, Vulnerabilities};

use crate::{fallback, found, missing, warning};

/// What is said of a processor without x2APIC mode. `None`: it has it.
#[must_use]
pub fn x2apic(cpuid: impl Fn(u32, u32) -> [u32; 4]) -> Option<ReportEntry> {
    let [_, _, ecx, _] = cpuid(1, 0);
    (ecx & 1 << 21 == 0).then(|| {
        missing(
            "this CPU has no x2APIC, by which cores reach each other; switch it on in the firmware's setup, or give \
             the virtual machine a CPU that has it",
        )
    })
}

/// What is said if the boot core's APIC is not in x2APIC mode after it was switched on. `base`: IA32_APIC_BASE (SDM vol. 3A
/// 11.12.1).
#[must_use]
pub fn x2apic_mode(base: u64) -> Option<ReportEntry> {
    const ENABLED: u64 = 1 << 11;
    const EXTENDED: u64 = 1 << 10;
    (base & (ENABLED | EXTENDED) != ENABLED | EXTENDED).then(|| {
        missing(format!(
            "the local APIC does not take x2APIC mode, although CPUID has it (IA32_APIC_BASE is {base:#x}): the firmware has \
             locked it; switch x2APIC on in the firmware's setup"
        ))
    })
}

/// What is said of TSC and timer where they lack something.
#[must_use]
pub fn clock(cpuid: impl Fn(u32, u32) -> [u32; 4]) -> Vec<ReportEntry> {
    let mut said = Vec::new();
    if !has_invariant_tsc(&cpuid) {
        said.push(warning("CPUID does not promise that the TSC keeps its rate: guests' clocks are as good as it is"));
    }
    if !has_tsc_deadline(&cpuid) {
        said.push(fallback("the local APIC has no TSC-deadline timer: its one-shot timer is used"));
    }
    said
}

/// Whether the TSC's rate is the same in every power state of the processor (SDM vol. 3B 18.17.1; APM vol. 3 E.4.6).
#[must_use]
pub fn has_invariant_tsc(cpuid: impl Fn(u32, u32) -> [u32; 4]) -> bool {
    let [last, ..] = cpuid(0x8000_0000, 0);
    last >= 0x8000_0007 && cpuid(0x8000_0007, 0)[3] & 1 << 8 != 0
}

/// Whether the local APIC's timer has TSC-deadline mode (SDM vol. 3A 11.5.4.1).
#[must_use]
pub fn has_tsc_deadline(cpuid: impl Fn(u32, u32) -> [u32; 4]) -> bool {
    cpuid(1, 0)[2] & 1 << 24 != 0
}

/// Machine checks. `None`: the processor has none.
#[must_use]
pub fn machine_checks(setup: Option<&Setup>) -> Vec<ReportEntry> {
    let Some(setup) = setup else {
        return [warning("the CPU reports no errors of memory and caches: it has no machine-check architecture")]
            .into();
    };
    let to = match setup.broadcast {
        _ if setup.local => "to the core that has one",
        Broadcast::Never => "to one core",
        Broadcast::Always => "to all cores",
        Broadcast::Perhaps => "to one core or to all",
    };
    let contained = match setup.model.format {
        Format::Recovery | Format::Amd { containment: true, .. } => {
            "an uncorrected error in a guest's memory ends that guest"
        }
        Format::Plain | Format::Amd { .. } => "every uncorrected error stops the machine",
    };
    let banks = setup.capabilities.banks();
    let mut said = Vec::from([found(format!("machine checks from {banks} banks, {to}; {contained}"))]);
    if banks > MAX_BANKS {
        said.push(warning(format!("the machine-check banks from {MAX_BANKS} on are not read")));
    }
    said
}

/// What the processor is vulnerable to and what is done about it, with Linux's names.
#[must_use]
pub fn speculation(processor: &Processor, plan: &Plan) -> Vec<ReportEntry> {
    let (mut said, mut unaffected) = (Vec::new(), Vec::new());
    for (which, name) in Vulnerabilities::NAMED {
        match plan.status(processor, which) {
            Status::NotAffected => unaffected.push(name),
            Status::Mitigated(how) => said.push(found(format!("{name}: {how}"))),
            Status::Vulnerable(why) => said.push(warning(format!("{name}: vulnerable: {why}"))),
        }
    }
    said.push(found(format!("not affected: {}", unaffected.join(", "))));
    said
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::ReportKind;

    /// CPUID of a processor with these words, by leaf.
    fn leaves<const N: usize>(words: [(u32, [u32; 4]); N]) -> impl Fn(u32, u32) -> [u32; 4] {
        move |leaf, _| words.iter().find(|(known, _)| *known == leaf).map_or([0; 4], |(_, words)| *words)
    }

    #[test]
    fn only_what_is_lacking_of_the_clock_is_said() {
        let all = leaves([
            (1, [0, 0, 1 << 24 | 1 << 21, 0]),
            (0x8000_0000, [0x8000_0008, 0, 0, 0]),
            (0x8000_0007, [0, 0, 0, 1 << 8]),
        ]);
        assert_eq!(clock(&all), []);
        assert_eq!(x2apic(&all), None);
        // Leaf 8000_0007h is not there: what CPUID returns for it means nothing (SDM vol. 2A).
        let old = leaves([(0x8000_0000, [0x8000_0006, 0, 0, 0]), (0x8000_0007, [0, 0, 0, 1 << 8])]);
        let kinds: Vec<_> = clock(&old).iter().map(|entry| entry.kind).collect();
        assert_eq!(kinds, [ReportKind::Warning, ReportKind::Fallback]);
        assert_eq!(x2apic(&old).map(|entry| entry.kind), Some(ReportKind::RequiredMissing));
    }

    #[test]
    fn an_apic_that_stays_in_xapic_mode_is_told() {
        assert_eq!(x2apic_mode(0xfee0_0d00), None);
        for base in [0xfee0_0900, 0xfee0_0100, 0xfee0_0500] {
            let said = x2apic_mode(base).expect("not in x2APIC mode");
            assert_eq!(said.kind, ReportKind::RequiredMissing);
            assert!(said.text.contains(&format!("{base:#x}")));
        }
    }

    #[test]
    fn machine_checks_are_told_with_their_number_of_banks_and_what_they_end() {
        let amd = leaves([
            (0, [1, u32::from_le_bytes(*b"Auth"), u32::from_le_bytes(*b"cAMD"), u32::from_le_bytes(*b"enti")]),
            (1, [0x00a0_0f11, 0, 0, 1 << 7 | 1 << 14]),
            (0x8000_0000, [0x8000_0008, 0, 0, 0]),
            (0x8000_0007, [0, 2, 0, 0]),
        ]);
        let setup = Setup::find(&amd, |_| 40);
        let said = machine_checks(setup.as_ref());
        assert_eq!(said.len(), 2, "40 banks are more than are read");
        assert!(said[0].text.contains("from 40 banks, to one core; an uncorrected error in a guest's memory ends"));
        assert_eq!(machine_checks(None)[0].kind, ReportKind::Warning);
    }

    #[test]
    fn every_vulnerability_is_named_once() {
        let intel = leaves([
            (0, [7, u32::from_le_bytes(*b"Genu"), u32::from_le_bytes(*b"ntel"), u32::from_le_bytes(*b"ineI")]),
            (1, [0x0005_0654, 0, 0, 0]),
        ]);
        let processor = Processor::new(&intel, |_| 0);
        let said = speculation(&processor, &Plan::new(&processor));
        let text: Vec<&str> = said.iter().map(|entry| &*entry.text).collect();
        for (_, name) in Vulnerabilities::NAMED {
            let times = text.iter().flat_map(|text| text.split([':', ',', ' '])).filter(|word| word == &name).count();
            assert_eq!(times, 1, "{name} in {text:?}");
        }
        assert!(text.iter().any(|text| text.starts_with("l1tf: vulnerable")), "a Skylake without microcode");
    }
}
