//! What sets the speed of cores, how fast an engine's core was asked to be, and the revisions of the microcode.

use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use control::ReportEntry;
use speed::{Asked, Features, Halts, Left, Outcome, Processor, Refused, Sleep, Turbo, Watched};

use crate::cores::ranges;
use crate::{fallback, found, warning};

/// What sets the speed of this processor's cores. `None`: it is in a virtual machine, where the hypervisor beneath does.
#[must_use]
pub fn means(processor: &Processor) -> Option<ReportEntry> {
    if processor.has(Features::VIRTUAL) {
        return None;
    }
    let mut means: Vec<&str> = [
        (Features::HWP.union(Features::EPP), "HWP with EPP"),
        (Features::HWP, "HWP"),
        (Features::CPPC, "CPPC"),
        (Features::P_STATES, "P-states"),
        (Features::PERF_CTL, "SpeedStep"),
        (Features::EPB, "the energy bias"),
    ]
    .into_iter()
    .filter_map(|(feature, name)| processor.has(feature).then_some(name))
    .collect();
    if means.starts_with(&["HWP with EPP", "HWP"]) {
        means.remove(1);
    }
    Some(if means.is_empty() {
        fallback("CPUID has nothing that sets the frequency: the firmware has chosen it")
    } else {
        found(format!("the frequency is set by {}", means.join(", ")))
    })
}

/// How a core without work sleeps. `None`: this is a virtual machine, where the hypervisor beneath decides it.
#[must_use]
pub fn idle(sleep: Result<Sleep, Halts>) -> Option<ReportEntry> {
    let because = |why: &str| Some(fallback(format!("cores without work halt by HLT, which is C1: {why}")));
    match sleep {
        Ok(sleep) => {
            let (state, hint) = (sleep.state(), sleep.hint);
            Some(found(format!("cores without work sleep in MWAIT's state C{state} (hint {hint:#x})")))
        }
        Err(Halts::Virtual) => None,
        Err(Halts::Vendor) => because("what is deeper is the firmware's choice on this processor"),
        Err(Halts::NoMwait) => because("the processor has no MWAIT, or the firmware has switched it off"),
        Err(Halts::NoDeeper) => because("CPUID names no deeper state, so the firmware may have switched C-states off"),
    }
}

/// How an engine's core was raised to full speed. `others`: number of the cores that run besides.
#[must_use]
pub fn raised(core: u32, outcome: &Outcome, others: usize) -> ReportEntry {
    let Outcome { asked, bias, turbo } = outcome;
    let rest = match others {
        0 => String::new(),
        1 => "; the other core is as the firmware has it".to_string(),
        _ => format!("; the {others} other cores are as the firmware has them"),
    };
    let bias = match bias {
        None => String::new(),
        Some(Ok(())) => ", energy bias 0".to_string(),
        Some(Err(refused)) => format!(", energy bias unchanged ({refused})"),
    };
    let turbo_is_off = *turbo == Turbo::Off;
    let turbo = match turbo {
        Turbo::On => "; turbo is on",
        Turbo::Off => "; turbo is off: the firmware has switched it off",
        Turbo::Absent if asked.is_ok() => "; the processor has no turbo",
        Turbo::Absent => "",
    };
    let left = |why: &str| fallback(format!("speed: the engine's core {core} is left as it is: {why}"));
    let slow = |why: &str| {
        warning(format!("speed: the engine's core {core} may not be at full speed: {why}{bias}{turbo}{rest}"))
    };
    match asked {
        Ok(asked) => {
            let text =
                format!("speed: the engine's core {core} is asked for {}{bias}{turbo}{rest}", description(asked));
            let limited = matches!(asked, Asked::PState { state: 1.., .. } | Asked::Bias);
            if limited || turbo_is_off { warning(text) } else { found(text) }
        }
        Err(Left::Virtual) => left("this is a virtual machine, and what runs it sets the frequency"),
        Err(Left::Nothing) => left("CPUID has nothing that sets the frequency"),
        Err(Left::SpeedStepOff) => {
            slow("the firmware has switched SpeedStep off; switch it on in its setup (P-states, EIST)")
        }
        Err(Left::UnknownModel) => slow("it is not known how this model is asked for a frequency"),
        Err(Left::NoLevels { msr }) => slow(&format!("the highest level in MSR {msr:#x} reads as 0")),
        Err(Left::NotTaken { msr }) => slow(&format!(
            "MSR {msr:#x} does not take the request: the firmware keeps the frequency for itself; have the operating system \
             control it in the firmware's setup, or choose maximum performance there"
        )),
        Err(Left::Refused(refused)) => slow(&refused.to_string()),
    }
}

fn description(asked: &Asked) -> String {
    match *asked {
        Asked::Hwp { highest, guaranteed } => {
            format!("level {highest} of HWP, the highest (level {guaranteed} is guaranteed)")
        }
        Asked::Ratio { ratio, base, unit } => {
            let mhz = |ratio: u8| u32::from(ratio).saturating_mul(unit.into());
            format!("{} MHz, its highest ({} MHz without turbo)", mhz(ratio), mhz(base))
        }
        Asked::Bias => {
            "performance by the energy bias alone: how this model is asked for a frequency is not known".into()
        }
        Asked::Cppc { highest, nominal } => {
            format!("level {highest} of CPPC, the highest (level {nominal} without boost)")
        }
        Asked::PState { state, mhz } => {
            let mhz = mhz.map_or_else(String::new, |mhz| format!(" of {mhz} MHz without boost"));
            let limit = if state == 0 { "" } else { ", the fastest that the firmware allows" };
            format!("P-state {state}{mhz}{limit}")
        }
    }
}

/// An engine's core did not say how it was raised.
#[must_use]
pub fn unknown(core: u32) -> ReportEntry {
    warning(format!("speed: the engine's core {core} has not said how fast it is"))
}

/// The longest gap that an engine's core saw while it was watched before its first turn. `rate`: ticks of a second.
#[must_use]
pub fn gap(core: u32, watched: &Watched, rate: u64, is_virtual: bool) -> ReportEntry {
    /// Microseconds of a gap that a frame feels. A reading of the clock takes less than a tenth of one.
    const LONG: u64 = 50;
    let micros = |ticks: u64| {
        let scaled = u128::from(ticks).saturating_mul(1_000_000);
        u64::try_from(scaled.checked_div(rate.into()).unwrap_or(0)).unwrap_or(u64::MAX)
    };
    let (longest, millis) = (micros(watched.longest), micros(watched.ticks) / 1000);
    let smis = match watched.smis {
        Some(1) => "; 1 system management interrupt".to_string(),
        Some(smis) => format!("; {smis} system management interrupts"),
        None => "; the processor does not count system management interrupts".to_string(),
    };
    let text = format!(
        "interruptions: the engine's core {core} was watched for {millis} ms before its first turn, and something else had it for \
         {longest} us at most{smis}"
    );
    if is_virtual {
        found(format!("{text}; this is a virtual machine, whose host may take it at any time"))
    } else if longest >= LONG || watched.smis.is_some_and(|smis| smis != 0) {
        warning(format!(
            "{text}; frames wait that long: look in the firmware's setup for what works in system management mode (legacy USB \
             support, memory error reports, power capping)"
        ))
    } else {
        found(text)
    }
}

/// The revisions of the cores' microcode: number of the core and what reading it gave. Empty: nobody has one, as in a virtual machine.
#[must_use]
pub fn microcode(revisions: &[(u32, Result<u32, Refused>)]) -> ReportEntry {
    const NONE_IS_LOADED: &str = "sidecore loads none, because it must be there before anything asks the processor what it has: \
                                  a newer one comes with newer firmware";
    let mut classes: BTreeMap<Option<u32>, Vec<u32>> = BTreeMap::new();
    for &(core, revision) in revisions {
        classes.entry(revision.ok()).or_default().push(core);
    }
    let name = |revision: &Option<u32>| match revision {
        Some(revision) => format!("{revision:#x}"),
        None => "unreadable".to_string(),
    };
    let mut each = classes.iter();
    match (each.next(), each.next()) {
        (None, _) => found("the microcode is not looked at: this is a virtual machine, or the processor has none"),
        (Some((revision, _)), None) => {
            let text = format!("microcode {} on all cores; {NONE_IS_LOADED}", name(revision));
            if revision.is_some() { found(text) } else { warning(text) }
        }
        _ => {
            let texts: Vec<String> = classes
                .iter()
                .map(|(revision, cores)| format!("{} on cores {}", name(revision), ranges(cores)))
                .collect();
            warning(format!(
                "the cores differ in their microcode: {}. What CPUID says of core 0 may not hold for all; {NONE_IS_LOADED}",
                texts.join(", ")
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use control::ReportKind;
    use speed::{Access, Vendor};

    const REFUSED: Refused = Refused { msr: 0x1b0, access: Access::Write };

    fn outcome(asked: Result<Asked, Left>, turbo: Turbo) -> Outcome {
        Outcome { asked, bias: None, turbo }
    }

    #[test]
    fn the_means_are_named_once_and_not_in_a_virtual_machine() {
        let of = |features| means(&Processor { vendor: Vendor::Intel, family: 6, model: 0, features });
        let text = |features| of(features).map(|entry| entry.text.to_string());
        let old = Features::PERF_CTL | Features::EPB;
        assert_eq!(
            text(old | Features::HWP | Features::EPP).as_deref(),
            Some("the frequency is set by HWP with EPP, SpeedStep, the energy bias")
        );
        assert_eq!(
            text(old | Features::HWP).as_deref(),
            Some("the frequency is set by HWP, SpeedStep, the energy bias")
        );
        assert_eq!(of(Features::empty()).map(|entry| entry.kind), Some(ReportKind::Fallback));
        assert_eq!(of(old | Features::VIRTUAL), None);
    }

    #[test]
    fn a_raised_core_is_told_with_its_turbo_and_the_others() {
        let hwp = Asked::Hwp { highest: 39, guaranteed: 21 };
        let entry = raised(1, &Outcome { bias: Some(Ok(())), ..outcome(Ok(hwp), Turbo::On) }, 3);
        assert_eq!(
            entry,
            found(
                "speed: the engine's core 1 is asked for level 39 of HWP, the highest (level 21 is guaranteed), energy bias 0; \
                 turbo is on; the 3 other cores are as the firmware has them"
            )
        );
        let old = Asked::Ratio { ratio: 26, base: 24, unit: 133 };
        let entry = raised(0, &Outcome { bias: Some(Err(REFUSED)), ..outcome(Ok(old), Turbo::Off) }, 0);
        assert_eq!(
            entry,
            warning(
                "speed: the engine's core 0 is asked for 3458 MHz, its highest (3192 MHz without turbo), energy bias unchanged \
                 (writing MSR 0x1b0 is refused); turbo is off: the firmware has switched it off"
            )
        );
        let amd = raised(1, &outcome(Ok(Asked::PState { state: 0, mhz: Some(2400) }), Turbo::On), 1);
        assert_eq!(
            amd,
            found(
                "speed: the engine's core 1 is asked for P-state 0 of 2400 MHz without boost; turbo is on; the other core is as \
                 the firmware has it"
            )
        );
        let limited = raised(1, &outcome(Ok(Asked::PState { state: 1, mhz: None }), Turbo::On), 1);
        assert_eq!(limited.kind, ReportKind::Warning);
        assert!(limited.text.contains("P-state 1, the fastest that the firmware allows"));
    }

    #[test]
    fn a_core_that_was_left_has_a_reason() {
        for (left, kind, words) in [
            (Left::Virtual, ReportKind::Fallback, "this is a virtual machine"),
            (Left::Nothing, ReportKind::Fallback, "CPUID has nothing"),
            (Left::SpeedStepOff, ReportKind::Warning, "EIST"),
            (Left::UnknownModel, ReportKind::Warning, "this model"),
            (Left::NoLevels { msr: 0x771 }, ReportKind::Warning, "0x771 reads as 0"),
            (Left::NotTaken { msr: 0x774 }, ReportKind::Warning, "0x774 does not take"),
            (Left::Refused(REFUSED), ReportKind::Warning, "writing MSR 0x1b0 is refused"),
        ] {
            let entry = raised(1, &outcome(Err(left), Turbo::Absent), 2);
            assert_eq!(entry.kind, kind, "{left:?}");
            assert!(entry.text.contains(words), "{left:?}: {}", entry.text);
        }
    }

    #[test]
    fn a_core_that_something_else_had_is_told_with_its_gap() {
        let told = |longest, smis, is_virtual| {
            let entry = gap(1, &Watched { ticks: 40_000_000, longest, smis }, 2_000_000_000, is_virtual);
            (entry.kind, entry.text.to_string())
        };
        let begin = "interruptions: the engine's core 1 was watched for 20 ms before its first turn, and something else had it for ";
        assert_eq!(
            told(99_999, Some(0), false),
            (ReportKind::Found, format!("{begin}49 us at most; 0 system management interrupts"))
        );
        for (longest, smis, words) in [
            (100_000, Some(0), "50 us at most; 0 system management interrupts; frames wait"),
            (99, Some(1), "0 us at most; 1 system management interrupt; frames wait"),
            (
                1 << 40,
                None,
                "549755813 us at most; the processor does not count system management interrupts; frames wait",
            ),
        ] {
            let (kind, text) = told(longest, smis, false);
            assert!(kind == ReportKind::Warning && text.starts_with(&format!("{begin}{words}")), "{text}");
        }
        assert_eq!(told(1 << 30, None, true).0, ReportKind::Found);
    }

    #[test]
    fn revisions_that_differ_are_named_with_their_cores() {
        let same = microcode(&[(0, Ok(0x0d00_03b9)), (1, Ok(0x0d00_03b9))]);
        assert_eq!(same.kind, ReportKind::Found);
        assert!(same.text.starts_with("microcode 0xd0003b9 on all cores; sidecore loads none"), "{}", same.text);
        let differ = microcode(&[(0, Ok(0x2b)), (1, Ok(0x2b)), (2, Ok(0x2a)), (3, Err(REFUSED)), (4, Ok(0x2a))]);
        assert_eq!(differ.kind, ReportKind::Warning);
        assert!(
            differ.text.contains("unreadable on cores 3, 0x2a on cores 2, 4, 0x2b on cores 0, 1."),
            "{}",
            differ.text
        );
        assert!(microcode(&[]).text.contains("not looked at"));
    }
}
