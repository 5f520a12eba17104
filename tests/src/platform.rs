//! Where sidecore runs: the emulators.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};

/// Every platform.
pub const ALSO_NESTED: &[Platform] = &[Platform::Kvm, Platform::Qemu, Platform::Nested, Platform::Bochs];
/// Nested KVM only.
pub const NESTED: &[Platform] = &[Platform::Nested];
/// QEMU in either form, and Bochs.
pub const EVERYWHERE: &[Platform] = &[Platform::Kvm, Platform::Qemu, Platform::Bochs];
/// QEMU only: what takes too long on Bochs.
pub const QEMU: &[Platform] = &[Platform::Kvm, Platform::Qemu];
/// Bochs only: what needs VT-x.
pub const BOCHS: &[Platform] = &[Platform::Bochs];

/// Where sidecore runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// QEMU with hardware virtualization that nests.
    Kvm,
    /// QEMU's own translator, which has SVM.
    Qemu,
    /// QEMU with KVM, in a Linux that QEMU's translator runs. KVM offers sidecore the SVM that it nests.
    Nested,
    /// Bochs, which has VT-x.
    Bochs,
}

impl Platform {
    /// How many times longer than on QEMU a scenario may take before it counts as hung.
    pub fn patience(self) -> u32 {
        match self {
            Self::Kvm | Self::Qemu => 1,
            Self::Nested => 4,
            Self::Bochs => 8,
        }
    }

    /// Whether it is one of the two ways to run QEMU on this machine itself.
    pub fn is_qemu(self) -> bool {
        matches!(self, Self::Kvm | Self::Qemu)
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kvm => "kvm",
            Self::Qemu => "qemu",
            Self::Nested => "nested",
            Self::Bochs => "bochs",
        })
    }
}

impl FromStr for Platform {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "kvm" => Ok(Self::Kvm),
            "qemu" => Ok(Self::Qemu),
            "nested" => Ok(Self::Nested),
            "bochs" => Ok(Self::Bochs),
            _ => bail!("{text:?} is no platform: kvm, qemu, nested or bochs"),
        }
    }
}
