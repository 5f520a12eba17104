//! How bad an error is (SDM vol. 3B 16.6, tables "MC Error Types" and "Overwrite Rules"; APM vol. 2 9.3).

use crate::{Format, Model, Status};

/// How bad an error is. Later ones are worse.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Hardware has put it right.
    Corrected,
    /// Data is lost, and nobody has used it: UCNA of Intel's, deferred of AMD's. Nothing has to be done.
    Deferred,
    /// Data is lost, and a machine check tells it early (SRAO). Nothing has to be done.
    Optional,
    /// The interrupted code was about to use lost data (SRAR). It must not go on as if nothing were.
    Required,
    /// Nobody knows what is damaged.
    Fatal,
}

/// Codes of errors for which action is required (SDM vol. 3B 16.9.3.2): data load, instruction fetch.
const REQUIRED: [u16; 2] = [0x0134, 0x0150];
/// The filter bit of a compound code says nothing about the kind.
const FILTER: u16 = 1 << 12;

/// Returns how bad the error of a bank is, or `None` if it has none.
#[must_use]
pub fn severity(status: Status, model: &Model) -> Option<Severity> {
    if !status.valid() {
        return None;
    }
    Some(match model.format {
        Format::Amd { containment, overflow_recovery } => amd(status, containment, overflow_recovery),
        _ if !status.uncorrected() => Severity::Corrected,
        // The bank was not to signal it. Then it is no reason for a machine check, and the manual says to log it.
        Format::Plain if !status.enabled() => Severity::Deferred,
        Format::Plain => Severity::Fatal,
        Format::Recovery => recovery(status),
    })
}

fn recovery(status: Status) -> Severity {
    let (enabled, required) = (status.enabled(), status.action_required());
    match (status.context_corrupt(), status.signaled(), required) {
        (true, _, _) if enabled => Severity::Fatal,
        (true, _, _) | (false, false, false) => Severity::Deferred,
        // Of the table's errors, those that a lost one may have been are no worse (overwrite rules).
        (false, true, false) => Severity::Optional,
        (false, true, true) if enabled && !status.overflow() && REQUIRED.contains(&(status.code() & !FILTER)) => {
            Severity::Required
        }
        // An unknown code, or an error that was lost and may have required action too. AR without S and AR without EN are
        // not in the table.
        (false, _, true) => Severity::Fatal,
    }
}

fn amd(status: Status, containment: bool, overflow_recovery: bool) -> Severity {
    if !status.uncorrected() {
        return if status.deferred() { Severity::Deferred } else { Severity::Corrected };
    }
    let lost = status.overflow() && !overflow_recovery;
    if status.context_corrupt() || status.deferred() || lost || !containment {
        Severity::Fatal
    } else {
        Severity::Required
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RECOVERY: Model = Model { format: Format::Recovery, counts: false };
    const PLAIN: Model = Model { format: Format::Plain, counts: false };

    /// Bits in the order of the SDM's table.
    fn status(uc: u8, en: u8, pcc: u8, s: u8, ar: u8, over: u8, code: u16) -> Status {
        let on = |bit: u8| bit != 0;
        Status::new()
            .with_valid(true)
            .with_uncorrected(on(uc))
            .with_enabled(on(en))
            .with_context_corrupt(on(pcc))
            .with_signaled(on(s))
            .with_action_required(on(ar))
            .with_overflow(on(over))
            .with_code(code)
    }

    #[test]
    fn a_bank_without_an_error_has_none() {
        let all_but_valid = Status::from_bits(!0).with_valid(false);
        for model in [RECOVERY, PLAIN, amd_model(true, true)] {
            assert_eq!(severity(all_but_valid, &model), None);
        }
    }

    #[test]
    fn the_table_of_error_types() {
        use Severity::*;
        // UC EN PCC S AR OVER MCACOD, and the table's answer. 2 stands for both values.
        let rows: &[([u8; 6], u16, Severity)] = &[
            ([1, 1, 1, 2, 2, 2], 0x134, Fatal),     // uncorrected: "If EN=1, reset the system"
            ([1, 0, 1, 2, 2, 2], 0x134, Deferred),  // "else log and OK to keep the system running"
            ([1, 1, 0, 1, 1, 0], 0x134, Required),  // SRAR, data load
            ([1, 1, 0, 1, 1, 0], 0x150, Required),  // SRAR, instruction fetch
            ([1, 1, 0, 1, 1, 0], 0x1134, Required), // with the filter bit
            ([1, 1, 0, 1, 1, 0], 0x17a, Fatal),     // SRAR, "for unknown MCACOD, must bugcheck"
            ([1, 1, 0, 1, 1, 0], 0, Fatal),
            ([1, 1, 0, 1, 1, 1], 0x134, Fatal),    // "If OVER=1, reset system"
            ([1, 0, 0, 1, 1, 2], 0x134, Fatal),    // not in the table
            ([1, 2, 0, 1, 0, 2], 0xc0, Optional),  // SRAO, memory scrubbing
            ([1, 2, 0, 1, 0, 2], 0x17a, Optional), // SRAO, explicit write-back
            ([1, 2, 0, 1, 0, 2], 0x9f, Optional),  // "for unknown MCACOD, OK to keep the system running"
            ([1, 2, 0, 0, 0, 2], 0x9f, Deferred),  // UCNA
            ([1, 2, 0, 0, 1, 2], 0x134, Fatal),    // not in the table
            ([0, 2, 2, 2, 2, 2], 0x134, Corrected),
        ];
        let combination = |bits: u8, pattern: &[u8; 6]| (0..6).all(|n| pattern[n] == 2 || pattern[n] == bits >> n & 1);
        for bits in 0..64_u8 {
            let rows = rows.iter().filter(|(pattern, ..)| combination(bits, pattern));
            assert!(rows.clone().next().is_some(), "no row for {bits:#b}");
            for &(_, code, expected) in rows {
                let value = |n: usize| bits >> n & 1;
                let s = status(value(0), value(1), value(2), value(3), value(4), value(5), code);
                assert_eq!(severity(s, &RECOVERY), Some(expected), "{s:?}");
            }
        }
    }

    #[test]
    fn without_software_recovery_an_uncorrected_error_is_fatal_unless_it_was_not_enabled() {
        for bits in 0..64_u8 {
            let value = |n: usize| bits >> n & 1;
            let s = status(value(0), value(1), value(2), value(3), value(4), value(5), 0x134);
            let expected = match (value(0), value(1)) {
                (0, _) => Severity::Corrected,
                (1, 0) => Severity::Deferred,
                _ => Severity::Fatal,
            };
            assert_eq!(severity(s, &PLAIN), Some(expected), "{s:?}");
        }
    }

    fn amd_model(containment: bool, overflow_recovery: bool) -> Model {
        Model { format: Format::Amd { containment, overflow_recovery }, counts: false }
    }

    #[test]
    fn the_bits_of_amd() {
        const DEFERRED: u64 = 1 << 44;
        const POISON: u64 = 1 << 43;
        const TCC: u64 = 1 << 55;
        let (vc, uc, pcc, over) = (1_u64 << 63, 1_u64 << 61, 1_u64 << 57, 1_u64 << 62);
        let at = |bits: u64, model| severity(Status::from_bits(bits), &model);
        let full = amd_model(true, true);
        for (bits, model, expected) in [
            (vc, full, Severity::Corrected),
            (vc | over | pcc, full, Severity::Corrected),
            (vc | DEFERRED, full, Severity::Deferred),
            (vc | DEFERRED | over, amd_model(false, false), Severity::Deferred),
            (vc | uc | POISON, full, Severity::Required),
            (vc | uc | POISON | TCC, full, Severity::Required),
            (vc | uc | over, full, Severity::Required),
            (vc | uc | over, amd_model(true, false), Severity::Fatal),
            (vc | uc, amd_model(true, false), Severity::Required),
            (vc | uc, amd_model(false, true), Severity::Fatal),
            (vc | uc | pcc, full, Severity::Fatal),
            (vc | uc | DEFERRED, full, Severity::Fatal),
        ] {
            assert_eq!(at(bits, model), Some(expected), "{bits:#x}");
        }
    }
}
