//! Watchdogs of the machine, which reset it unless somebody feeds them: what ran when sidecore came, and what became of
//! it.

use alloc::format;
use alloc::string::ToString as _;
use boot::ipmi::Interface;
use control::{ReportEntry, ReportKind};
use drivers::ipmi::{self, Outcome};
use drivers::pci::Address;
use drivers::tco::{NotArmed, Stopped};
use drivers::watchdog::{Became, NoAnswer};
use drivers::wdat;

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
        None => " until it resets the machine, unless NO_REBOOT is set, which cannot be read",
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

/// The watchdog of ACPI's WDAT. `became`: what became of it; an error says why the table is not used. `is_tco`: it is the
/// TCO watchdog, of which the report has a sentence already.
#[must_use]
pub fn wdat(became: &Result<Became, wdat::Unusable>, is_tco: bool) -> ReportEntry {
    match became {
        Ok(_) if is_tco => found("ACPI's WDAT is for the same TCO watchdog, which is left to the TCO's own registers"),
        Ok(became) => stopped(
            "the watchdog of ACPI's WDAT",
            *became,
            "the control core feeds it, and if that core hangs the machine is reset; ",
        ),
        Err(wdat::Unusable::Off) => found("ACPI's WDAT: the firmware has switched its watchdog off"),
        Err(why) => fallback(format!("ACPI's WDAT is not used: {why}; if the machine is reset after minutes: {SETUP}")),
    }
}

/// The watchdog of AMD's chipset. `at`: the chipset's SMBus controller.
#[must_use]
pub fn fch(at: Address, became: Result<Became, NoAnswer>) -> ReportEntry {
    match became {
        Ok(became) => stopped("the watchdog of AMD's chipset", became, ""),
        Err(NoAnswer) => fallback(format!(
            "AMD's chipset (SMBus controller at {at}): its watchdog's registers do not answer; if the machine is reset after \
             minutes: {SETUP}"
        )),
    }
}

/// HPE's management controller, whose watchdog the firmware's Automatic Server Recovery (ASR) uses. `None`: it does not
/// answer in memory.
#[must_use]
pub fn hpe(at: Address, became: Option<Result<Became, NoAnswer>>) -> ReportEntry {
    match became {
        Some(Ok(became)) => stopped("the watchdog of HPE's management controller (iLO)", became, ""),
        Some(Err(NoAnswer)) | None => fallback(format!(
            "HPE's management controller (iLO) at {at}: its watchdog's registers do not answer; if the machine is reset \
             after minutes, switch \"Automatic Server Recovery\" (ASR) off in the firmware's setup"
        )),
    }
}

/// A watchdog that sidecore has tried to stop. `consequence`: what follows if it runs on, with a semicolon.
fn stopped(name: &str, became: Became, consequence: &str) -> ReportEntry {
    let left = |left: Option<u64>| match left {
        Some(left) => format!(", {left} s left until it resets the machine"),
        None => ", and would have reset the machine".into(),
    };
    match became {
        Became::Off => found(format!("{name} does not run")),
        Became::Stopped { left: seconds } => {
            entry(ReportKind::Decision, format!("{name} was running{}; stopped", left(seconds)))
        }
        Became::Runs { left: seconds } => {
            warning(format!("{name} was running{}; it cannot be stopped: {consequence}{SETUP}", left(seconds)))
        }
    }
}

/// What became of the option `machine-watchdog=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Armed {
    /// The TCO watchdog. `None`: there is none.
    pub tco: Option<Result<(), NotArmed>>,
    /// The watchdog of ACPI's WDAT. `None`: there is none, or the TCO watchdog is armed.
    pub wdat: Option<Result<(), wdat::NotArmed>>,
}

/// The option `machine-watchdog=`.
#[must_use]
pub fn armed(seconds: u16, armed: Armed) -> ReportEntry {
    let by = |name: &str| {
        let text = format!("{name} resets the machine if the control core hangs for {seconds} s");
        entry(ReportKind::Decision, text)
    };
    let tco = match armed.tco {
        Some(Ok(())) => return by("the TCO watchdog"),
        Some(Err(NotArmed::Unknown)) => {
            "nobody can see here whether the TCO watchdog may reset the machine: its bit NO_REBOOT cannot be read (RCBA is \
             off, or the bridge P2SB does not answer)"
        }
        Some(Err(NotArmed::Strap)) => {
            "NO_REBOOT is set by a strap of the board, so that the TCO watchdog resets nothing"
        }
        Some(Err(NotArmed::Timer)) => "the TCO watchdog does not count",
        None => "there is no TCO watchdog that is known",
    };
    let wdat = match armed.wdat {
        Some(Ok(())) => return by("the watchdog of ACPI's WDAT"),
        Some(Err(wdat::NotArmed::Missing(action))) => format!("ACPI's WDAT has no program for {action}"),
        Some(Err(wdat::NotArmed::Range(least, most))) => {
            format!("the watchdog of ACPI's WDAT takes {least} to {most} s")
        }
        Some(Err(wdat::NotArmed::ResetsNothing)) => {
            "the watchdog of ACPI's WDAT says that it resets nothing".to_string()
        }
        Some(Err(wdat::NotArmed::Stays)) => "the watchdog of ACPI's WDAT does not start".to_string(),
        None => "there is no WDAT that can be used".to_string(),
    };
    warning(format!("`machine-watchdog={seconds}` has no effect: {tco}; and {wdat}"))
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

#[cfg(test)]
mod tests {
    use super::*;
    use drivers::ipmi::{Timer, kcs::Failure};

    fn halted(left: Option<u16>, harmless: Option<bool>, halts: bool) -> Result<Stopped, NoAnswer> {
        Ok(Stopped { left, harmless, halts })
    }

    #[test]
    fn one_that_ran_and_is_stopped_is_a_decision() {
        let said = tco("ICH9", halted(Some(54), Some(false), true));
        assert_eq!(said.kind, ReportKind::Decision);
        assert_eq!(
            said.text,
            "TCO watchdog of Intel's ICH9 was running, 54 s left until it resets the machine; stopped"
        );
        let said = tco("ICH9", halted(Some(54), Some(true), true));
        assert!(said.text.ends_with("54 s left, without effect, because NO_REBOOT is set; stopped"), "{}", said.text);
        let said = tco("C620", halted(Some(9), None, true));
        assert!(
            said.text.contains("NO_REBOOT is set, which cannot be read") && said.text.ends_with("; stopped"),
            "{}",
            said.text
        );
    }

    #[test]
    fn one_that_cannot_be_stopped_is_a_warning_with_a_way_out() {
        let said = tco("ICH9", halted(Some(54), Some(false), false));
        assert_eq!(said.kind, ReportKind::Warning);
        assert!(said.text.contains("the control core feeds it") && said.text.ends_with(SETUP), "{}", said.text);
        assert_eq!(tco("ICH9", Err(NoAnswer)).kind, ReportKind::Warning);
    }

    #[test]
    fn one_that_does_not_run_is_found() {
        for halts in [true, false] {
            assert_eq!(
                tco("ICH9", halted(None, Some(true), halts)),
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
    fn watchdogs_of_other_kinds_are_told_alike() {
        let at = Address { bus: 0, device: 0x14, function: 0 };
        let of = |became| {
            let all = [wdat(&Ok(became), false), fch(at, Ok(became)), hpe(at, Some(Ok(became)))];
            all.map(|entry| (entry.kind, entry.text.to_string()))
        };
        let names = [
            "the watchdog of ACPI's WDAT",
            "the watchdog of AMD's chipset",
            "the watchdog of HPE's management controller (iLO)",
        ];
        for (became, kind, words) in [
            (Became::Off, ReportKind::Found, " does not run"),
            (
                Became::Stopped { left: Some(54) },
                ReportKind::Decision,
                " was running, 54 s left until it resets the machine; stopped",
            ),
            (
                Became::Stopped { left: None },
                ReportKind::Decision,
                " was running, and would have reset the machine; stopped",
            ),
        ] {
            assert_eq!(of(became), names.map(|name| (kind, format!("{name}{words}"))));
        }
        for (said, name) in of(Became::Runs { left: Some(54) }).into_iter().zip(names) {
            assert_eq!(said.0, ReportKind::Warning);
            assert!(
                said.1.starts_with(name) && said.1.ends_with(SETUP) && said.1.contains("cannot be stopped"),
                "{}",
                said.1
            );
        }
        for said in [fch(at, Err(NoAnswer)), hpe(at, Some(Err(NoAnswer))), hpe(at, None)] {
            assert!(said.kind == ReportKind::Fallback && said.text.contains("00:14.0"), "{}", said.text);
        }
    }

    #[test]
    fn a_wdat_that_is_not_used_is_told_with_the_reason() {
        let said = wdat(&Err(wdat::Unusable::Period(0)), false);
        assert_eq!(said.kind, ReportKind::Fallback);
        assert!(said.text.starts_with("ACPI's WDAT is not used: its period is 0 ms"), "{}", said.text);
        assert_eq!(wdat(&Err(wdat::Unusable::Off), false).kind, ReportKind::Found);
        assert_eq!(wdat(&Ok(Became::Off), true).kind, ReportKind::Found);
    }

    #[test]
    fn an_option_without_effect_is_a_warning_with_both_reasons() {
        assert_eq!(armed(20, Armed { tco: Some(Ok(())), wdat: None }).kind, ReportKind::Decision);
        let not = |tco, wdat| armed(20, Armed { tco, wdat });
        let of_tco = [Some(Err(NotArmed::Unknown)), Some(Err(NotArmed::Strap)), Some(Err(NotArmed::Timer)), None];
        let of_wdat = [
            Some(Err(wdat::NotArmed::Missing(wdat::Action::Start))),
            Some(Err(wdat::NotArmed::Range(2, 10))),
            Some(Err(wdat::NotArmed::ResetsNothing)),
            Some(Err(wdat::NotArmed::Stays)),
            None,
        ];
        for tco in of_tco {
            assert_eq!(
                not(tco, Some(Ok(()))),
                entry(
                    ReportKind::Decision,
                    "the watchdog of ACPI's WDAT resets the machine if the control core hangs for 20 s"
                )
            );
            for wdat in of_wdat {
                let said = not(tco, wdat);
                assert_eq!(said.kind, ReportKind::Warning, "{tco:?} {wdat:?}");
                assert!(
                    said.text.starts_with("`machine-watchdog=20` has no effect: ") && said.text.contains("; and "),
                    "{}",
                    said.text
                );
            }
        }
    }
}
