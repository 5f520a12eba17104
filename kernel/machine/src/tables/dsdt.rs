//! The DSDT: host bridge, serial console, power button, soft-off.
//!
//! Follows ACPI 6.5 ch. 6 (devices), 19 and 20 (AML), 5.6.9 (generic event device), 7.4.2 (\_Sx), and PCI Firmware 3.3
//! 4.5 (_OSC).

extern crate alloc;

use acpi_tables::{
    Aml,
    aml::{
        self, AddressSpace, AddressSpaceCacheable, Device, EISAName, FieldAccessType, FieldEntry, FieldLockRule,
        FieldUpdateRule, IO, Memory32Fixed, Method, Name, OpRegionSpace, Path, ResourceTemplate, Scope,
    },
};
use alloc::{vec, vec::Vec};

use super::table::{bytes, header};
use crate::layout;

/// The table with its header.
pub(super) fn table() -> Vec<u8> {
    let mut dsdt = header(*b"DSDT", 36, 6);
    let mut body = Vec::new();
    Scope::new(Path::new("_SB_"), vec![&Bridge, &Board, &Com1, &PowerButton, &EventDevice]).to_aml_bytes(&mut body);
    Name::new("_S5_".into(), &aml::Package::new(vec![&layout::SLEEP_TYPE_S5])).to_aml_bytes(&mut body);
    dsdt.append_slice(&body);
    bytes(&dsdt)
}

/// Returns a _CRS with these resources.
fn resources(list: Vec<&dyn Aml>) -> Name {
    Name::new("_CRS".into(), &ResourceTemplate::new(list))
}

/// Each device below is a zero-sized value that writes itself.
macro_rules! device {
    ($(#[$doc:meta])* $name:ident, |$sink:ident| $body:block) => {
        $(#[$doc])*
        struct $name;

        impl Aml for $name {
            fn to_aml_bytes(&self, $sink: &mut dyn acpi_tables::AmlSink) $body
        }
    };
}

device!(
    /// The PCI host bridge. It has no _PRT, because the functions have MSI-X and no interrupt pin.
    Bridge,
    |sink| {
        let resources = resources(vec![
            &AddressSpace::<u16>::new_bus_number(0, 0),
            &IO::new(layout::CONFIG_ADDRESS, layout::CONFIG_ADDRESS, 1, 8),
            &AddressSpace::<u16>::new_io(*layout::PCI_IO.start(), *layout::PCI_IO.end(), None),
            &AddressSpace::<u32>::new_memory(
                AddressSpaceCacheable::NotCacheable,
                true,
                *layout::PCI_MEMORY.start() as u32,
                *layout::PCI_MEMORY.end() as u32,
                None,
            ),
        ]);
        Device::new(
            "PCI0".into(),
            vec![
                &Name::new("_HID".into(), &EISAName::new("PNP0A08")),
                &Name::new("_CID".into(), &EISAName::new("PNP0A03")),
                &Name::new("_UID".into(), &aml::ZERO),
                &Name::new("_SEG".into(), &aml::ZERO),
                &Name::new("_BBN".into(), &aml::ZERO),
                &resources,
                &OscMethod,
            ],
        )
        .to_aml_bytes(sink);
    }
);

device!(
    /// _OSC. The system gets control of nothing, because there is nothing to control: no hot plug, no AER, no power
    /// management events. Bit 2 of the first word reports an unknown UUID.
    OscMethod,
    |sink| {
        const HOST_BRIDGE: &str = "33DB4D5B-1FF7-401C-9657-7441C03DD766";
        let status: Path = "CDW1".into();
        let control: Path = "CDW3".into();
        Method::new(
            "_OSC".into(),
            4,
            true,
            vec![
                &aml::CreateDWordField::new(&status, &aml::Arg(3), &aml::ZERO),
                &aml::If::new(
                    &aml::Equal::new(&aml::Arg(0), &aml::Uuid::new(HOST_BRIDGE)),
                    vec![
                        &aml::CreateDWordField::new(&control, &aml::Arg(3), &8_u8),
                        &aml::Store::new(&control, &aml::ZERO),
                    ],
                ),
                &aml::Else::new(vec![&aml::Or::new(&status, &status, &4_u8)]),
                &aml::Return::new(&aml::Arg(3)),
            ],
        )
        .to_aml_bytes(sink);
    }
);

device!(
    /// Resources of the board that belong to no device: ECAM and the ACPI registers. Linux uses ECAM only if it is
    /// reserved here.
    Board,
    |sink| {
        const PORTS: u8 = (*layout::ACPI_PORTS.end() - *layout::ACPI_PORTS.start() + 1) as u8;
        let first = *layout::ACPI_PORTS.start();
        let resources = resources(vec![
            &Memory32Fixed::new(true, layout::ECAM as u32, layout::ECAM_SIZE as u32),
            &IO::new(first, first, 1, PORTS),
        ]);
        Device::new(
            "MBRD".into(),
            vec![
                &Name::new("_HID".into(), &EISAName::new("PNP0C02")),
                &Name::new("_UID".into(), &aml::ZERO),
                &resources,
            ],
        )
        .to_aml_bytes(sink);
    }
);

device!(
    /// The serial console, a 16550A.
    Com1,
    |sink| {
        let resources = resources(vec![
            &IO::new(layout::COM1, layout::COM1, 1, 8),
            &aml::Interrupt::new(true, true, false, false, u32::from(layout::COM1_GSI)),
        ]);
        Device::new(
            "COM1".into(),
            vec![
                &Name::new("_HID".into(), &EISAName::new("PNP0501")),
                &Name::new("_UID".into(), &aml::ONE),
                &resources,
            ],
        )
        .to_aml_bytes(sink);
    }
);

device!(
    /// The power button. The event device notifies it.
    PowerButton,
    |sink| {
        Device::new("PWRB".into(), vec![&Name::new("_HID".into(), &EISAName::new("PNP0C0C"))]).to_aml_bytes(sink);
    }
);

device!(
    /// The generic event device. Its interrupt says that a bit of the status register is set. Bit 0 is the power
    /// button. The method writes the bit back to clear it, and then notifies the button's driver.
    EventDevice,
    |sink| {
        let resources = resources(vec![&aml::Interrupt::new(
            true,
            true,
            false,
            false,
            u32::from(layout::POWER_BUTTON_GSI),
        )]);
        let status: Path = "EVST".into();
        let button: Path = "PWRB".into();
        Device::new(
            "GED0".into(),
            vec![
                &Name::new("_HID".into(), &"ACPI0013"),
                &Name::new("_UID".into(), &aml::ZERO),
                &resources,
                &aml::OpRegion::new("EVRG".into(), OpRegionSpace::SystemIO, &layout::EVENT_STATUS, &aml::ONE),
                &aml::Field::new(
                    "EVRG".into(),
                    FieldAccessType::Byte,
                    FieldLockRule::NoLock,
                    FieldUpdateRule::WriteAsZeroes,
                    vec![FieldEntry::Named(*b"EVST", 8)],
                ),
                &Method::new(
                    "_EVT".into(),
                    1,
                    true,
                    vec![
                        &aml::Store::new(&aml::Local(0), &status),
                        &aml::Store::new(&status, &aml::Local(0)),
                        &aml::And::new(&aml::Local(0), &aml::Local(0), &aml::ONE),
                        &aml::If::new(&aml::Local(0), vec![&aml::Notify::new(&button, &0x80_u8)]),
                    ],
                ),
            ],
        )
        .to_aml_bytes(sink);
    }
);
