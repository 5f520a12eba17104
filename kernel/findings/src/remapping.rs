//! DMA remapping units (IOMMUs): what the firmware had left on, and what became of it.

use alloc::{format, string::String};
use boot::acpi::{Maker, RemappingUnit};
use control::{ReportEntry, ReportKind};
use drivers::remapping::{Ended, NoAnswer, Parts};

use crate::{entry, found, warning};

/// Where a person finds the setting.
const SETUP: &str = "switch VT-d or the AMD IOMMU, or its \"DMA protection\", off in the firmware's setup";

fn name(unit: RemappingUnit) -> String {
    let maker = match unit.maker {
        Maker::Intel => "Intel's",
        Maker::Amd => "AMD's",
    };
    format!("{maker} IOMMU at {:#x}", unit.registers)
}

/// What became of a unit that sidecore has tried to switch off.
#[must_use]
pub fn unit(unit: RemappingUnit, ended: Result<Ended, NoAnswer>) -> ReportEntry {
    let name = name(unit);
    let Ok(Ended { was, left, had_refused }) = ended else {
        return warning(format!("{name}: ACPI lists it, and nothing answers there; it is left alone"));
    };
    let refused = if had_refused { "; it had refused accesses of devices" } else { "" };
    if left.intersects(Parts::TRANSLATION | Parts::PROTECTED_MEMORY) {
        warning(format!(
            "{name}: {left} cannot be switched off, so that NICs and disks may reach no memory, and work in silence for nobody: {SETUP}"
        ))
    } else if !left.is_empty() {
        warning(format!("{name}: {left} cannot be switched off; the unit may write to memory: {SETUP}"))
    } else if was.is_empty() {
        found(format!("{name} is off, as the firmware left it{refused}"))
    } else {
        entry(
            ReportKind::Decision,
            format!("{name}: the firmware had left on {was}; it is off now, so that devices reach memory{refused}"),
        )
    }
}

/// A unit whose registers cannot be mapped.
#[must_use]
pub fn unreachable(unit: RemappingUnit) -> ReportEntry {
    warning(format!(
        "{}: its registers cannot be mapped, so that nobody knows whether it is on; if a NIC or a disk does nothing: {SETUP}",
        name(unit)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTEL: RemappingUnit = RemappingUnit { maker: Maker::Intel, registers: 0xfed9_0000 };
    const AMD: RemappingUnit = RemappingUnit { maker: Maker::Amd, registers: 0xfd20_0000 };

    fn ended(was: Parts, left: Parts, had_refused: bool) -> Result<Ended, NoAnswer> {
        Ok(Ended { was, left, had_refused })
    }

    #[test]
    fn what_was_on_and_is_off_is_a_decision() {
        let said = unit(INTEL, ended(Parts::TRANSLATION | Parts::INTERRUPTS, Parts::empty(), true));
        assert_eq!(said.kind, ReportKind::Decision);
        assert_eq!(
            said.text,
            "Intel's IOMMU at 0xfed90000: the firmware had left on translation, interrupt remapping; it is off now, so that devices \
             reach memory; it had refused accesses of devices"
        );
        let said = unit(AMD, ended(Parts::empty(), Parts::empty(), false));
        assert_eq!(said, found("AMD's IOMMU at 0xfd200000 is off, as the firmware left it"));
    }

    #[test]
    fn what_stays_on_is_a_warning_with_a_way_out() {
        for left in [Parts::TRANSLATION, Parts::PROTECTED_MEMORY, Parts::LOG, Parts::COMMANDS] {
            let said = unit(AMD, ended(Parts::all(), left, false));
            assert_eq!(said.kind, ReportKind::Warning);
            assert!(said.text.contains(&format!("{left} cannot be switched off")) && said.text.ends_with(SETUP));
        }
        for said in [unit(INTEL, Err(NoAnswer)), unreachable(INTEL)] {
            assert_eq!(said.kind, ReportKind::Warning);
            assert!(said.text.starts_with("Intel's IOMMU at 0xfed90000: "));
        }
    }
}
