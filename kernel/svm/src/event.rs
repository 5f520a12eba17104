//! Events for the guest: injection of new ones, and delivery again of those that an exit interrupted (APM vol. 2
//! 15.7.2, 15.20).

use crate::fields::{EventInfo, EventKind};
use machine::eli::Interrupted;
use machine::vcpu::{Event, is_fault};

/// First vector that cannot be an exception.
const FIRST_INTERRUPT: u8 = 32;

/// EVENTINJ for an event from the layers above.
pub fn injection(event: Event) -> EventInfo {
    let info = EventInfo::new().with_valid(true);
    match event {
        Event::Interrupt(vector) => info.with_kind(EventKind::INTERRUPT).with_vector(vector),
        Event::Nmi => info.with_kind(EventKind::NMI).with_vector(2),
        Event::Exception(vector, error) => info
            .with_kind(EventKind::EXCEPTION)
            .with_vector(vector)
            .with_error_valid(error.is_some())
            .with_error(error.unwrap_or(0)),
    }
}

/// Returns EVENTINJ for the next entry, which delivers the event of the exit's EXITINTINFO again.
///
/// INT n, INT3 and INTO are left out: RIP still points at them, so the guest executes them again. QEMU's emulation
/// records every other event as an exception, even a hardware interrupt. There the vector tells them apart.
pub fn taken_up(interrupted: EventInfo) -> EventInfo {
    let none = EventInfo::new();
    if !interrupted.valid() {
        return none;
    }
    let vector = interrupted.vector();
    match interrupted.kind() {
        EventKind::INTERRUPT => injection(Event::Interrupt(vector)),
        EventKind::NMI => injection(Event::Nmi),
        EventKind::EXCEPTION => match vector {
            2 => injection(Event::Nmi),
            3 | 4 => none,
            FIRST_INTERRUPT.. => injection(Event::Interrupt(vector)),
            _ => {
                let error = has_error_code(vector) && interrupted.error_valid();
                injection(Event::Exception(vector, error.then_some(interrupted.error())))
            }
        },
        _ => none,
    }
}

/// Whether EVENTINJ holds a fault. Its handler must find RFLAGS.RF set, and VMRUN pushes RFLAGS as the VMCB has it.
pub fn pushes_rf(injection: EventInfo) -> bool {
    injection.valid() && injection.kind() == EventKind::EXCEPTION && is_fault(injection.vector())
}

/// What happens to an event if an exception that exits (#DB, #AC, #MC, #UD) occurs during its delivery.
///
/// All of them are benign (APM vol. 2 table 8-3): there is no double fault, and the exception is delivered. If the event
/// was an exception or a software interrupt, it comes again by itself, because RIP still points to its instruction. An
/// interrupt or NMI does not come again, so it is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Superseded {
    /// It comes again by itself, or there was none.
    Nothing,
    /// A maskable interrupt. It is delivered when the guest can take it.
    Interrupt(u8),
    /// An NMI. It is delivered when the guest can take it.
    Nmi,
}

impl Superseded {
    /// Decides what happens to the event of an EXITINTINFO.
    pub fn by_exception(info: EventInfo) -> Self {
        match interrupted(info) {
            Some(Interrupted::External(vector)) => Self::Interrupt(vector),
            Some(Interrupted::Nmi) => Self::Nmi,
            Some(Interrupted::Exception(_) | Interrupted::Software(_)) | None => Self::Nothing,
        }
    }
}

/// Returns the event of an EXITINTINFO, for a caller that does not want it delivered again. QEMU's kinds are treated as
/// in [`taken_up`].
pub fn interrupted(info: EventInfo) -> Option<Interrupted> {
    let vector = info.vector();
    info.valid().then(|| match info.kind() {
        EventKind::INTERRUPT => Interrupted::External(vector),
        EventKind::NMI => Interrupted::Nmi,
        EventKind::EXCEPTION => match vector {
            2 => Interrupted::Nmi,
            3 | 4 => Interrupted::Software(vector),
            FIRST_INTERRUPT.. => Interrupted::External(vector),
            _ => Interrupted::Exception(vector),
        },
        _ => Interrupted::Software(vector),
    })
}

/// Whether an exception pushes an error code (APM vol. 2 8.2, table 8-1): #DF, #TS, #NP, #SS, #GP, #PF, #AC, #CP,
/// #VC, #SX.
pub const fn has_error_code(vector: u8) -> bool {
    matches!(vector, 8 | 10..=14 | 17 | 21 | 29 | 30)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interrupted(kind: EventKind, vector: u8, error: Option<u32>) -> EventInfo {
        EventInfo::new()
            .with_valid(true)
            .with_kind(kind)
            .with_vector(vector)
            .with_error_valid(error.is_some())
            .with_error(error.unwrap_or(0))
    }

    #[test]
    fn events_have_the_manual_s_encoding() {
        assert_eq!(injection(Event::Interrupt(0x41)).into_bits(), 0x8000_0041);
        assert_eq!(injection(Event::Nmi).into_bits(), 0x8000_0202);
        assert_eq!(injection(Event::page_fault(6)).into_bits(), 0x6_8000_0b0e);
        assert_eq!(injection(Event::INVALID_OPCODE).into_bits(), 0x8000_0306);
    }

    #[test]
    fn an_interrupted_event_is_taken_up_as_it_was() {
        for event in [Event::Interrupt(0xec), Event::Nmi, Event::page_fault(2), Event::INVALID_OPCODE] {
            assert_eq!(taken_up(injection(event)), injection(event));
        }
    }

    #[test]
    fn a_hardware_interrupt_recorded_as_an_exception_is_known_by_its_vector() {
        let recorded = interrupted(EventKind::EXCEPTION, 0xec, None);
        assert_eq!(taken_up(recorded), injection(Event::Interrupt(0xec)));
        assert_eq!(taken_up(interrupted(EventKind::EXCEPTION, 2, None)), injection(Event::Nmi));
    }

    #[test]
    fn who_was_interrupted_is_told_in_the_words_of_the_layers_above() {
        let told = |kind, vector| super::interrupted(interrupted(kind, vector, None));
        assert_eq!(told(EventKind::INTERRUPT, 0xf5), Some(Interrupted::External(0xf5)));
        assert_eq!(told(EventKind::EXCEPTION, 0xf5), Some(Interrupted::External(0xf5)), "as QEMU records it");
        assert_eq!(told(EventKind::EXCEPTION, 13), Some(Interrupted::Exception(13)));
        assert_eq!(told(EventKind::EXCEPTION, 3), Some(Interrupted::Software(3)));
        assert_eq!(told(EventKind::SOFTWARE, 0xf5), Some(Interrupted::Software(0xf5)));
        assert_eq!(told(EventKind::NMI, 2), Some(Interrupted::Nmi));
        assert_eq!(super::interrupted(EventInfo::new()), None);
    }

    #[test]
    fn only_interrupts_and_nmis_are_kept_when_an_exception_supersedes_them() {
        let by = |kind, vector| Superseded::by_exception(super::tests::interrupted(kind, vector, None));
        assert_eq!(by(EventKind::INTERRUPT, 0x31), Superseded::Interrupt(0x31));
        assert_eq!(by(EventKind::EXCEPTION, 0x31), Superseded::Interrupt(0x31), "as QEMU records it");
        assert_eq!(by(EventKind::NMI, 2), Superseded::Nmi);
        assert_eq!(by(EventKind::EXCEPTION, 14), Superseded::Nothing);
        assert_eq!(by(EventKind::SOFTWARE, 0x80), Superseded::Nothing);
        assert_eq!(Superseded::by_exception(EventInfo::new()), Superseded::Nothing);
    }

    #[test]
    fn faults_push_rf_and_nothing_else_does() {
        assert!(pushes_rf(injection(Event::GENERAL_PROTECTION)) && pushes_rf(injection(Event::INVALID_OPCODE)));
        assert!(pushes_rf(taken_up(interrupted(EventKind::EXCEPTION, 14, Some(2)))));
        for event in [Event::Exception(1, None), Event::Exception(8, Some(0)), Event::Interrupt(14), Event::Nmi] {
            assert!(!pushes_rf(injection(event)), "{event:?}");
        }
        assert!(!pushes_rf(EventInfo::new()));
    }

    #[test]
    fn software_interrupts_are_executed_again_instead() {
        assert!(!taken_up(interrupted(EventKind::SOFTWARE, 0x80, None)).valid());
        assert!(!taken_up(interrupted(EventKind::EXCEPTION, 3, None)).valid());
        assert!(!taken_up(interrupted(EventKind::EXCEPTION, 4, None)).valid());
    }

    #[test]
    fn an_exit_that_interrupted_nothing_leaves_nothing() {
        assert!(!taken_up(injection(Event::Nmi).with_valid(false)).valid());
    }

    #[test]
    fn an_error_code_is_kept_only_where_the_vector_has_one() {
        let taken = taken_up(interrupted(EventKind::EXCEPTION, 6, Some(9)));
        assert_eq!(taken, injection(Event::INVALID_OPCODE));
    }
}
