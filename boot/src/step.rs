//! The steps of the boot, each with a code for I/O port 0x80, which many servers show on a display, by LEDs or in their
//! management controller. A code is written, and the step's line is on the consoles, when the step begins. So the last one
//! tells where the boot has stopped. `start.s` writes the codes of its steps itself.

/// The I/O port of the codes.
pub const PORT: u16 = 0x80;

/// A step, or an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Step {
    /// 32-bit code.
    Entry = 0xa0,
    /// The end: the processor has no 64-bit mode.
    NoLongMode = 0xa1,
    /// 64-bit code.
    LongMode = 0xa2,
    /// Serial ports and screen are chosen: GRUB's information and ACPI's SPCR are read.
    Consoles = 0xa3,
    /// The memory map is read.
    Memory = 0xa4,
    /// ACPI's tables are read.
    Acpi = 0xa5,
    /// The hypervisor's own page tables are made.
    Paging = 0xa6,
    /// The boot core gets its own stack, and its local APIC and the PIC are set up.
    Core = 0xa7,
    /// The TSC's rate is measured.
    Clock = 0xa8,
    /// The PCI devices are found, and their bus mastering is taken away.
    Pci = 0xa9,
    /// The other cores are started.
    Cores = 0xaa,
    /// SVM or VT-x is looked at.
    Virtualization = 0xab,
    /// The boot modules are hashed, and `sidecore.toml` is read.
    Configuration = 0xac,
    /// NICs are set up.
    Nics = 0xad,
    /// Disks are set up.
    Disks = 0xae,
    /// The engines get their memory.
    Engines = 0xaf,
    /// The guests get their memory.
    Guests = 0xb0,
    /// Each core gets page tables of its own.
    Maps = 0xb1,
    /// The engines run, and the control loop begins: the boot is over.
    Running = 0xb2,
    /// The end: the boot has found something that it cannot go on with. The console says what.
    Halt = 0xbe,
    /// The end: a panic. The console says where.
    Panic = 0xbf,
}

impl Step {
    /// All of them in their order. The ends are where they may come.
    pub const ALL: [Self; 21] = [
        Self::Entry,
        Self::NoLongMode,
        Self::LongMode,
        Self::Consoles,
        Self::Memory,
        Self::Acpi,
        Self::Paging,
        Self::Core,
        Self::Clock,
        Self::Pci,
        Self::Cores,
        Self::Virtualization,
        Self::Configuration,
        Self::Nics,
        Self::Disks,
        Self::Engines,
        Self::Guests,
        Self::Maps,
        Self::Running,
        Self::Halt,
        Self::Panic,
    ];

    /// The code.
    #[must_use]
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The words of its line on the consoles.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Entry => "32-bit code",
            Self::NoLongMode => "the processor has no 64-bit mode",
            Self::LongMode => "64-bit code",
            Self::Consoles => "serial ports and screen",
            Self::Memory => "memory map",
            Self::Acpi => "ACPI's tables",
            Self::Paging => "page tables",
            Self::Core => "the boot core",
            Self::Clock => "the rate of the TSC",
            Self::Pci => "PCI devices",
            Self::Cores => "the other cores",
            Self::Virtualization => "SVM or VT-x",
            Self::Configuration => "boot modules and configuration",
            Self::Nics => "NICs",
            Self::Disks => "disks",
            Self::Engines => "engines",
            Self::Guests => "guests",
            Self::Maps => "page tables of each core",
            Self::Running => "the control loop",
            Self::Halt => "the boot cannot go on",
            Self::Panic => "panic",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_readme_has_each_code() {
        let readme = include_str!("../README.md");
        for step in Step::ALL {
            let row = format!("| `{:02X}` | {} |", step.code(), step.text());
            assert!(readme.contains(&row), "boot/README.md has no row {row}");
        }
        let codes: std::collections::BTreeSet<u8> = Step::ALL.iter().map(|step| step.code()).collect();
        assert_eq!(codes.len(), Step::ALL.len());
    }

    #[test]
    fn the_assembly_writes_its_own_codes() {
        let assembly = include_str!("start.s");
        for step in [Step::Entry, Step::NoLongMode, Step::LongMode] {
            let store = format!("mov al, {:#x} ", step.code());
            let behind = assembly.split_once(&store).map(|(_, behind)| behind.lines().nth(1).unwrap_or_default());
            assert!(behind.is_some_and(|line| line.trim().starts_with("out 0x80, al")), "{step:?}");
        }
    }
}
