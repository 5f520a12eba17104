//! Interrupt messages: destination and delivery. A write of the ICR, an input of the IOAPIC and an MSI each become a
//! [`Message`].
//!
//! Follows SDM vol. 3A 11.6 (IPIs), 11.12.9 and 11.12.10 (x2APIC ICR and logical destinations).

use bitfield_struct::bitfield;

/// The destination of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Destination {
    /// An APIC ID. 0xffff_ffff means all APICs.
    Physical(u32),
    /// An x2APIC logical destination: the cluster in the upper half, one bit per member in the lower. 0xffff_ffff means
    /// all APICs.
    Logical(u32),
    /// All APICs except this APIC ID.
    AllBut(u32),
}

impl Destination {
    /// All APICs.
    pub const ALL: Self = Self::Physical(u32::MAX);

    /// Returns the destination of an MSI or IOAPIC message, which has eight bits. 0xff means all APICs in both modes.
    #[must_use]
    pub const fn of_message(destination: u8, logical: bool) -> Self {
        match (destination, logical) {
            (0xff, _) => Self::ALL,
            (d, false) => Self::Physical(d as u32),
            (d, true) => Self::Logical(d as u32),
        }
    }

    /// Whether the destination includes the CPU with APIC ID `id`.
    #[must_use]
    pub const fn includes(&self, id: u32) -> bool {
        match *self {
            Self::Physical(u32::MAX) | Self::Logical(u32::MAX) => true,
            Self::Physical(d) => d == id,
            Self::Logical(d) => d >> 16 == id >> 4 && d & logical_id(id) & 0xffff != 0,
            Self::AllBut(d) => d != id,
        }
    }
}

/// Returns the LDR: the x2APIC logical ID that hardware derives from an APIC ID.
#[must_use]
pub const fn logical_id(id: u32) -> u32 {
    (id >> 4) << 16 | 1 << (id & 0xf)
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// An interrupt.
    Fixed {
        /// Its vector.
        vector: u8,
        /// Whether it is level-triggered. Then its EOI must reach the IOAPIC.
        level: bool,
    },
    /// An interrupt for one of the APICs in the destination.
    LowestPriority {
        /// Its vector.
        vector: u8,
        /// Level-triggered.
        level: bool,
    },
    /// NMI.
    Nmi,
    /// INIT.
    Init,
    /// Start-up at this page number.
    Startup(u8),
}

/// An interrupt message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its destination.
    pub destination: Destination,
    /// Its kind.
    pub delivery: Delivery,
}

impl From<virtio::msix::Interrupt> for Message {
    fn from(interrupt: virtio::msix::Interrupt) -> Self {
        let vector = interrupt.vector;
        // An MSI's destination has eight bits. A wider one names no APIC. It must not be cut to eight bits, which may
        // name one.
        let destination = match u8::try_from(interrupt.destination) {
            Ok(d) => Destination::of_message(d, interrupt.logical),
            Err(_) => Destination::Physical(u32::MAX - 1),
        };
        let delivery = if interrupt.lowest_priority {
            Delivery::LowestPriority { vector, level: false }
        } else {
            Delivery::Fixed { vector, level: false }
        };
        Self { destination, delivery }
    }
}

impl Message {
    /// Returns the APIC IDs below `count` that this message reaches. For lowest priority it is one APIC of the
    /// destination, always the same for a vector. Only an APIC's own core knows its priority, and the manual leaves the
    /// choice among equals open.
    pub fn targets(&self, count: u32) -> impl Iterator<Item = u32> + use<> {
        let destination = self.destination;
        let named = move || (0..count).filter(move |id| destination.includes(*id));
        let (skip, take) = match self.delivery {
            Delivery::LowestPriority { vector, .. } => match usize::from(vector).checked_rem(named().count()) {
                None => (0, 0),
                Some(skip) => (skip, 1),
            },
            _ => (0, usize::MAX),
        };
        named().skip(skip).take(take)
    }
}

/// Interrupt command register in x2APIC mode, MSR 0x830 (SDM vol. 3A figure 11-28).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Icr {
    /// Vector, or page number of a start-up.
    pub vector: u8,
    /// Delivery mode.
    #[bits(3)]
    pub delivery_mode: u8,
    /// Destination is logical.
    pub logical: bool,
    /// Delivery status in xAPIC mode. In x2APIC mode the bit does not exist. A write of it counts as 0, because a guest
    /// may write back what it read on an older CPU.
    pub delivery_status: bool,
    __: bool,
    /// Assert (not de-assert).
    pub assert: bool,
    /// Level (not edge).
    pub level: bool,
    #[bits(2)]
    __: u8,
    /// Shorthand: none, self, all, all but self.
    #[bits(2)]
    pub shorthand: u8,
    #[bits(12)]
    __: u16,
    /// Destination.
    pub destination: u32,
}

/// The effect of a write to the ICR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Send this message.
    Send(Message),
    /// An interrupt with this vector for this CPU.
    SelfInterrupt(u8),
    /// A fixed or lowest-priority interrupt with a vector below 16.
    IllegalVector,
    /// No effect: INIT de-assert, SMI (this machine has no SMM), reserved modes, or a combination that the manual calls
    /// invalid.
    Nothing,
}

impl Icr {
    const RESERVED: u64 = 0xfff3_2000;

    /// Whether a reserved bit is set. That is #GP.
    #[must_use]
    pub const fn has_reserved_bits(self) -> bool {
        self.into_bits() & Self::RESERVED != 0
    }

    /// Decodes a command of the CPU with APIC ID `own`. Table 11-3 says which combinations are valid.
    #[must_use]
    pub fn command(self, own: u32) -> Command {
        const SELF: u8 = 1;
        const ALL: u8 = 2;
        let vector = self.vector();
        let fixed = matches!(self.delivery_mode(), 0 | 1);
        if fixed && vector < 16 {
            return Command::IllegalVector;
        }
        // Trigger mode and level matter only for INIT. Everything else is edge-triggered (SDM vol. 3A 11.6.1).
        let delivery = match self.delivery_mode() {
            0 => Delivery::Fixed { vector, level: false },
            1 => Delivery::LowestPriority { vector, level: false },
            4 => Delivery::Nmi,
            5 if self.level() && !self.assert() => return Command::Nothing,
            5 => Delivery::Init,
            6 => Delivery::Startup(vector),
            _ => return Command::Nothing,
        };
        let destination = match self.shorthand() {
            SELF if self.delivery_mode() == 0 => return Command::SelfInterrupt(vector),
            SELF => return Command::Nothing,
            ALL if fixed => Destination::ALL,
            ALL => return Command::Nothing,
            0 if self.logical() => Destination::Logical(self.destination()),
            0 => Destination::Physical(self.destination()),
            _ => Destination::AllBut(own),
        };
        Command::Send(Message { destination, delivery })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(destination: Destination, delivery: Delivery) -> Vec<u32> {
        Message { destination, delivery }.targets(40).collect()
    }

    #[test]
    fn destinations_name_whom_the_manual_says() {
        let d = Delivery::Nmi;
        assert_eq!(targets(Destination::Physical(3), d), [3]);
        assert_eq!(targets(Destination::Physical(40), d), []);
        assert_eq!(targets(Destination::ALL, d).len(), 40);
        assert_eq!(targets(Destination::Logical(u32::MAX), d).len(), 40);
        assert_eq!(targets(Destination::AllBut(7), d).len(), 39);
        assert_eq!(targets(Destination::Logical(0x0001_8003), d), [16, 17, 31]);
        assert_eq!(targets(Destination::Logical(0x0003_ffff), d), []);
        assert_eq!(targets(Destination::Logical(0x0002_0000), d), []);
        assert_eq!(logical_id(0x25), 0x0002_0020);
        assert_eq!(Destination::of_message(0xff, false), Destination::ALL);
        assert_eq!(targets(Destination::of_message(0x06, true), d), [1, 2]);
        assert_eq!(targets(Destination::of_message(0x06, false), d), [6]);
    }

    #[test]
    fn lowest_priority_reaches_exactly_one_of_those_named() {
        for vector in 0x20..=0xff {
            let t = targets(Destination::Logical(0b1101), Delivery::LowestPriority { vector, level: false });
            assert_eq!(t.len(), 1);
            assert!([0, 2, 3].contains(&t[0]));
        }
        assert_eq!(targets(Destination::Physical(99), Delivery::LowestPriority { vector: 1, level: false }), []);
    }

    #[test]
    fn a_devices_interrupt_names_whom_its_message_named() {
        let interrupt = |destination, logical, lowest_priority| {
            Message::from(virtio::msix::Interrupt { destination, logical, lowest_priority, vector: 0x41 })
        };
        let t = |m: Message| m.targets(8).collect::<Vec<_>>();
        assert_eq!(t(interrupt(5, false, false)), [5]);
        assert_eq!(t(interrupt(0b110, true, false)), [1, 2]);
        assert_eq!(t(interrupt(0b110, true, true)).len(), 1);
        assert_eq!(t(interrupt(0xff, false, false)).len(), 8);
        assert_eq!(t(interrupt(0x105, false, false)), []);
    }

    #[test]
    fn linux_commands_decode() {
        let send = |destination, delivery| Command::Send(Message { destination, delivery });
        let fixed = |vector| Delivery::Fixed { vector, level: false };
        let decode = |v: u64| Icr::from_bits(v).command(2);
        assert_eq!(decode(0x0000_0003_0000_00fd), send(Destination::Physical(3), fixed(0xfd)));
        assert_eq!(decode(0x0001_0005_0000_08fb), send(Destination::Logical(0x0001_0005), fixed(0xfb)));
        assert_eq!(decode(0x000c_00fc), send(Destination::AllBut(2), fixed(0xfc)));
        assert_eq!(decode(0x0008_00fc), send(Destination::ALL, fixed(0xfc)));
        assert_eq!(decode(0x0004_00f6), Command::SelfInterrupt(0xf6));
        assert_eq!(decode(0x0000_0001_0000_c500), send(Destination::Physical(1), Delivery::Init));
        assert_eq!(decode(0x0000_0001_0000_8500), Command::Nothing, "INIT de-assert");
        assert_eq!(decode(0x0000_0001_0000_069a), send(Destination::Physical(1), Delivery::Startup(0x9a)));
        assert_eq!(decode(0x0000_0001_0000_0402), send(Destination::Physical(1), Delivery::Nmi));
        assert_eq!(decode(0x0000_0001_0000_000f), Command::IllegalVector);
        assert_eq!(
            decode(0x0000_0001_0000_0931),
            send(Destination::Logical(1), Delivery::LowestPriority { vector: 0x31, level: false })
        );
    }

    #[test]
    fn invalid_combinations_send_nothing() {
        for v in [
            0x0000_0231u64, // SMI
            0x0000_0331,    // reserved mode
            0x0000_0731,    // reserved mode
            0x0004_0431,    // NMI to self
            0x0004_0500,    // INIT to self
            0x0008_0600,    // start-up to all including self
            0x0008_0400,    // NMI to all including self
        ] {
            assert_eq!(Icr::from_bits(v).command(0), Command::Nothing, "{v:#x}");
        }
    }

    #[test]
    fn reserved_bits_are_those_of_the_manual() {
        for bit in 0..64 {
            let reserved = bit == 13 || bit == 16 || bit == 17 || (20..32).contains(&bit);
            assert_eq!(Icr::from_bits(1 << bit).has_reserved_bits(), reserved, "bit {bit}");
        }
    }
}
