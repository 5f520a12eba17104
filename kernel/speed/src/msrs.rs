//! Access to the MSRs of a core, which may fail.

use core::fmt;

/// What was tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// RDMSR.
    Read,
    /// WRMSR.
    Write,
}

/// The processor has refused an access, by #GP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The register's number.
    pub msr: u32,
    /// What was tried.
    pub access: Access,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.access {
            Access::Read => "reading",
            Access::Write => "writing",
        };
        write!(f, "{what} MSR {:#x} is refused", self.msr)
    }
}

/// The MSRs of the core that calls this. This crate names only registers that CPUID or the manual for the model promises.
pub trait Msrs {
    /// RDMSR.
    ///
    /// # Errors
    /// The processor refuses.
    fn read(&mut self, msr: u32) -> Result<u64, Refused>;

    /// WRMSR.
    ///
    /// # Errors
    /// The processor refuses.
    fn write(&mut self, msr: u32, value: u64) -> Result<(), Refused>;
}
