//! Events to inject into the guest (SDM vol. 3C 25.8.3), and events that an exit interrupted (25.9.3, 28.2.4).

use bitfield_struct::bitfield;
use machine::{
    eli::Interrupted,
    vcpu::{Event, is_fault},
};

/// Interruption types (SDM vol. 3C table 25-18).
pub mod kind {
    /// A maskable interrupt.
    pub const EXTERNAL: u8 = 0;
    /// An NMI.
    pub const NMI: u8 = 2;
    /// A fault, trap or abort.
    pub const HARDWARE_EXCEPTION: u8 = 3;
    /// INT n.
    pub const SOFTWARE_INTERRUPT: u8 = 4;
    /// INT1.
    pub const PRIVILEGED_SOFTWARE_EXCEPTION: u8 = 5;
    /// INT3 or INTO.
    pub const SOFTWARE_EXCEPTION: u8 = 6;
}

/// The common layout of three fields: the entry's and the exit's interruption information, and the IDT-vectoring
/// information.
#[bitfield(u32)]
#[derive(PartialEq, Eq)]
pub struct Information {
    pub vector: u8,
    /// One of [`kind`].
    #[bits(3)]
    pub kind: u8,
    /// The event has an error code.
    pub has_error: bool,
    /// On exit only: the fault came from an IRET that had already ended the blocking of NMIs.
    pub nmi_unblocking_due_to_iret: bool,
    #[bits(18)]
    __: u32,
    pub valid: bool,
}

/// What the next entry delivers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Injection {
    /// Goes to the VM-entry interruption-information field.
    pub information: Information,
    /// Error code. Valid if the information says so.
    pub error: u32,
    /// Length of the instruction. Valid for INT n, INT1, INT3 and INTO.
    pub length: u32,
}

impl Injection {
    /// An event from the layers above.
    pub fn new(event: Event) -> Self {
        let (kind, vector, error) = match event {
            Event::Interrupt(vector) => (kind::EXTERNAL, vector, None),
            Event::Nmi => (kind::NMI, 2, None),
            Event::Exception(vector, error) => (kind::HARDWARE_EXCEPTION, vector, error),
        };
        let information =
            Information::new().with_vector(vector).with_kind(kind).with_has_error(error.is_some()).with_valid(true);
        Self { information, error: error.unwrap_or(0), length: 0 }
    }

    /// The event whose delivery an exit interrupted, to be delivered again. Returns `None` if there is none.
    /// `vectoring` is the IDT-vectoring information. Error code and instruction length are fields of the same exit.
    pub fn interrupted(vectoring: u32, error: u32, length: u32) -> Option<Self> {
        let information = Information::from_bits(vectoring);
        information.valid().then(|| Self {
            // Bit 12 is undefined in the IDT-vectoring information, and must be 0 at entry.
            information: Information::new()
                .with_vector(information.vector())
                .with_kind(information.kind())
                .with_has_error(information.has_error())
                .with_valid(true),
            error,
            length,
        })
    }

    /// The same event as a type of the layers above.
    pub fn described(&self) -> Interrupted {
        let vector = self.information.vector();
        match self.kind() {
            kind::EXTERNAL => Interrupted::External(vector),
            kind::NMI => Interrupted::Nmi,
            kind::HARDWARE_EXCEPTION => Interrupted::Exception(vector),
            _ => Interrupted::Software(vector),
        }
    }

    /// The kind, one of [`kind`].
    pub fn kind(&self) -> u8 {
        self.information.kind()
    }

    /// Whether it is a fault. Its handler must find RFLAGS.RF set, and an entry pushes RFLAGS as the VMCS has it (SDM vol.
    /// 3C 27.6.1.1).
    pub fn pushes_rf(&self) -> bool {
        self.kind() == kind::HARDWARE_EXCEPTION && is_fault(self.information.vector())
    }

    /// Whether the CPU needs the instruction's length for this event.
    pub fn has_length(&self) -> bool {
        matches!(self.kind(), kind::SOFTWARE_INTERRUPT | kind::PRIVILEGED_SOFTWARE_EXCEPTION | kind::SOFTWARE_EXCEPTION)
    }
}

/// What happens to an event if an exception that exits (#DB, #AC, #MC, #UD) occurs during its delivery.
///
/// All of them are benign in the sense of SDM vol. 3A table 6-5: there is no double fault, and the exception is
/// delivered. If the event was an exception or a software interrupt, it comes again by itself, because RIP still points
/// to its instruction. An interrupt or NMI does not come again, so it is kept.
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
    /// Decides what happens to the interrupted event.
    pub fn by_exception(interrupted: Option<Injection>) -> Self {
        match interrupted.map(|i| (i.kind(), i.information.vector())) {
            Some((kind::EXTERNAL, vector)) => Self::Interrupt(vector),
            Some((kind::NMI, _)) => Self::Nmi,
            _ => Self::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_have_the_manuals_encoding() {
        let bits = |e| Injection::new(e).information.into_bits();
        assert_eq!(bits(Event::Interrupt(0x31)), 0x8000_0031);
        assert_eq!(bits(Event::Nmi), 0x8000_0202);
        assert_eq!(bits(Event::GENERAL_PROTECTION), 0x8000_0b0d);
        assert_eq!(bits(Event::INVALID_OPCODE), 0x8000_0306);
        assert_eq!(Injection::new(Event::page_fault(6)).error, 6);
    }

    #[test]
    fn an_interrupted_int_n_comes_again_with_its_length_and_without_bit_12() {
        let i = Injection::interrupted(0x8000_1480, 0, 2).unwrap();
        assert_eq!(i.information.into_bits(), 0x8000_0480);
        assert!(i.has_length());
        assert_eq!(i.length, 2);
        assert_eq!(Injection::interrupted(0x0000_0480, 0, 2), None);
    }

    #[test]
    fn what_was_interrupted_is_told_in_the_words_of_the_layers_above() {
        let told = |bits| Injection::interrupted(bits, 0, 0).map(|i| i.described());
        assert_eq!(told(0x8000_00f5), Some(Interrupted::External(0xf5)));
        assert_eq!(told(0x8000_0202), Some(Interrupted::Nmi));
        assert_eq!(told(0x8000_0b0e), Some(Interrupted::Exception(14)));
        assert_eq!(told(0x8000_04f5), Some(Interrupted::Software(0xf5)));
        assert_eq!(told(0x8000_0603), Some(Interrupted::Software(3)));
    }

    #[test]
    fn faults_push_rf_and_nothing_else_does() {
        let pushes = |event| Injection::new(event).pushes_rf();
        assert!(pushes(Event::GENERAL_PROTECTION) && pushes(Event::INVALID_OPCODE) && pushes(Event::page_fault(2)));
        for event in [Event::Exception(1, None), Event::Exception(8, Some(0)), Event::Interrupt(14), Event::Nmi] {
            assert!(!pushes(event), "{event:?}");
        }
        let software = Injection::interrupted(0x8000_060e, 0, 1);
        assert!(!software.unwrap().pushes_rf());
    }

    #[test]
    fn only_interrupts_and_nmis_are_kept_when_an_exception_supersedes_them() {
        let by = |bits| Superseded::by_exception(Injection::interrupted(bits, 0, 0));
        assert_eq!(by(0x8000_0031), Superseded::Interrupt(0x31));
        assert_eq!(by(0x8000_0202), Superseded::Nmi);
        assert_eq!(by(0x8000_0b0e), Superseded::Nothing);
        assert_eq!(by(0), Superseded::Nothing);
    }
}
