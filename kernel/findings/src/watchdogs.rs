//! Watchdogs of the machine, which reset it unless somebody feeds them: what ran when sidecore came, and what became of
//! it.

use alloc::format;
use boot::ipmi::Interface;
use control::{ReportEntry, ReportKind};
use drivers::ipmi::{self, Outcome};
use drivers::pci::Address;
use drivers::tco::{NoAnswer, NotArmed, Stopped};

use crate::{entry, fallback, found, warning};

/// Where a person finds the setting.
const SETUP: &str = "switch the watchdog off in the firmware's setup";

/// The TCO watchdog of one of Intel's chipsets that sidecore has tried to halt.
#[must_use]
pub fn tco(chipset: &str, stopped: Result<Stopped, NoAnswer>) -> ReportEntry {
    let name = format!("TCO watchdog of Intel's {chipset}");
    let Ok(Stopped { left, harmless, halts }) = stopped else {
        return warning(format!("{name}: nothing answers at its ports; it is left alone"));
    };
    let Some(left) = left else {
        return found(format!("{name} does not run"));
    };
    let effect = match harmless {
        Some(true) => ", without effect, because NO_REBOOT is set",
        Some(false) => " until it resets the machine",
        None => {
            " until it resets the machine, unless NO_REBOOT is set, which is behind P2SB or the PMC on this chipset"
        }
    };
    if halts {
        entry(ReportKind::Decision, format!("{name} was running, {left} s left{effect}; stopped"))
    } else {
        warning(format!(
            "{name} was running, {left} s left{effect}; it cannot be stopped: the control core feeds it, and if that \
             core hangs the machine is reset; {SETUP}"
        ))
    }
}

/// A chipset of Intel's whose watchdog cannot be reached. `id`: vendor and device of its LPC bridge.
#[must_use]
pub fn tco_unknown(at: Address, (vendor, device): (u16, u16)) -> ReportEntry {
    fallback(format!(
        "Intel's LPC bridge {vendor:04x}:{device:04x} at {at} is of no chipset whose TCO watchdog is known here; if \
         the machine is reset after minutes: {SETUP}"
    ))
}

/// A chipset of Intel's with a TCO watchdog that the firmware has given no ports.
#[must_use]
pub fn tco_without_ports(chipset: &str) -> ReportEntry {
    found(format!("TCO watchdog of Intel's {chipset} has no ports, so it is left as the firmware has set it"))
}

/// The option `machine-watchdog=`. `armed`: what became of the TCO watchdog; `None`: there is none.
#[must_use]
pub fn armed(seconds: u16, armed: Option<Result<(), NotArmed>>) -> ReportEntry {
    let why = match armed {
        Some(Ok(())) => {
            let text = format!("the TCO watchdog resets the machine if the control core hangs for {seconds} s");
            return entry(ReportKind::Decision, text);
        }
        Some(Err(NotArmed::Unknown)) => {
            "nobody can see here whether the TCO watchdog may reset the machine: NO_REBOOT is behind P2SB or the PMC, or \
             RCBA is off"
        }
        Some(Err(NotArmed::Strap)) => {
            "NO_REBOOT is set by a strap of the board, so that the TCO watchdog resets nothing"
        }
        Some(Err(NotArmed::Timer)) => "the TCO watchdog does not count",
        None => "there is no TCO watchdog that is known",
    };
    warning(format!("`machine-watchdog={seconds}` has no effect: {why}"))
}

/// The watchdog of a management controller that sidecore has asked by IPMI. `table`: what names the interface. `None`:
/// it is of no kind that sidecore drives.
#[must_use]
pub fn bmc(table: &str, interface: Interface, outcome: Option<Result<Outcome, ipmi::Error>>) -> ReportEntry {
    let name = format!("the management controller's watchdog ({interface}, by {table})");
    match outcome {
        None => fallback(format!(
            "{name}: sidecore knows KCS at ports only, and does not ask; if the machine is reset after minutes: {SETUP}"
        )),
        Some(Err(why)) => {
            warning(format!("{name} cannot be read: {why}; if the machine is reset after minutes: {SETUP}"))
        }
        Some(Ok(Outcome::Off)) => found(format!("{name} does not run")),
        Some(Ok(Outcome::Stopped(timer))) => {
            let (left, by, action) = (timer.left(), timer.started_by(), timer.action());
            let text = format!("{name} was running for {by}, {left} s left until {action}; stopped");
            entry(ReportKind::Decision, text)
        }
        Some(Ok(Outcome::Runs(timer, why))) => {
            let (left, by, action) = (timer.left(), timer.started_by(), timer.action());
            let why = why.map_or_else(|| "it runs on".into(), |why| format!("{why}"));
            warning(format!(
                "{name} is running for {by}, {left} s left until {action}, and cannot be stopped: {why}; {SETUP}"
            ))
        }
    }
}

/// HPE's management controller, which may run a watchdog of its own (ASR).
#[must_use]
pub fn hpe(at: Address) -> ReportEntry {
    fallback(format!(
        "HPE's management controller (iLO) at {at}: sidecore does not stop its watchdog; if the machine is reset after \
         minutes, switch \"Automatic Server Recovery\" (ASR) off in the firmware's setup"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use drivers::ipmi::{Timer, kcs::Failure};

    fn stopped(left: Option<u16>, harmless: Option<bool>, halts: bool) -> Result<Stopped, NoAnswer> {
        Ok(Stopped { left, harmless, halts })
    }

    #[test]
    fn one_that_ran_and_is_stopped_is_a_decision() {
        let said = tco("ICH9", stopped(Some(54), Some(false), true));
        assert_eq!(said.kind, ReportKind::Decision);
        assert_eq!(
            said.text,
            "TCO watchdog of Intel's ICH9 was running, 54 s left until it resets the machine; stopped"
        );
        let said = tco("ICH9", stopped(Some(54), Some(true), true));
        assert!(said.text.ends_with("54 s left, without effect, because NO_REBOOT is set; stopped"), "{}", said.text);
        let said = tco("C620", stopped(Some(9), None, true));
        assert!(said.text.contains("behind P2SB or the PMC") && said.text.ends_with("; stopped"), "{}", said.text);
    }

    #[test]
    fn one_that_cannot_be_stopped_is_a_warning_with_a_way_out() {
        let said = tco("ICH9", stopped(Some(54), Some(false), false));
        assert_eq!(said.kind, ReportKind::Warning);
        assert!(said.text.contains("the control core feeds it") && said.text.ends_with(SETUP), "{}", said.text);
        assert_eq!(tco("ICH9", Err(NoAnswer)).kind, ReportKind::Warning);
    }

    #[test]
    fn one_that_does_not_run_is_found() {
        for halts in [true, false] {
            assert_eq!(
                tco("ICH9", stopped(None, Some(true), halts)),
                found("TCO watchdog of Intel's ICH9 does not run")
            );
        }
    }

    const KCS: Interface = Interface::Kcs { data: 0xca2, status: 0xca3 };

    #[test]
    fn a_controllers_watchdog_that_ran_is_told_with_its_use_its_time_and_what_would_have_followed() {
        let timer = Timer::from([0x43, 1, 0, 0, 0x58, 2, 0x37, 2]);
        let said = bmc("SMBIOS", KCS, Some(Ok(Outcome::Stopped(timer))));
        assert_eq!(said.kind, ReportKind::Decision);
        assert_eq!(
            said.text,
            "the management controller's watchdog (KCS at port 0xca2, by SMBIOS) was running for OS Load, 56 s left \
             until the machine is reset; stopped"
        );
        for why in [None, Some(ipmi::Error::Refused(0xcc))] {
            let said = bmc("SMBIOS", KCS, Some(Ok(Outcome::Runs(timer, why))));
            assert_eq!(said.kind, ReportKind::Warning);
            assert!(said.text.contains("and cannot be stopped: ") && said.text.ends_with(SETUP), "{}", said.text);
        }
        let said = bmc("SMBIOS", KCS, Some(Ok(Outcome::Off)));
        assert!(said.kind == ReportKind::Found && said.text.ends_with(" does not run"), "{}", said.text);
    }

    #[test]
    fn a_controller_that_cannot_be_asked_is_told_with_the_reason() {
        let said = bmc("ACPI's SPMI", KCS, Some(Err(ipmi::Error::Kcs(Failure::Silent))));
        assert_eq!(said.kind, ReportKind::Warning);
        assert!(said.text.contains("cannot be read: it does not go on within 5 s"), "{}", said.text);
        let said = bmc("SMBIOS", Interface::Type(4), None);
        assert_eq!(said.kind, ReportKind::Fallback);
        assert!(said.text.starts_with("the management controller's watchdog (SSIF, "), "{}", said.text);
    }

    #[test]
    fn an_option_without_effect_is_a_warning_with_its_reason() {
        assert_eq!(armed(20, Some(Ok(()))).kind, ReportKind::Decision);
        for why in [Some(Err(NotArmed::Unknown)), Some(Err(NotArmed::Strap)), Some(Err(NotArmed::Timer)), None] {
            let said = armed(20, why);
            assert_eq!(said.kind, ReportKind::Warning, "{why:?}");
            assert!(said.text.starts_with("`machine-watchdog=20` has no effect: "), "{}", said.text);
        }
    }
}
