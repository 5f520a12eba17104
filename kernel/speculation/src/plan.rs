//! What is done about a CPU's vulnerabilities.

#![allow(unsafe_code, reason = "writes the MSRs that the plan names")]

use crate::affected::Vulnerabilities as V;
use crate::processor::{ArchCapabilities as Says, Leaf7Edx, Leaf8Ebx, Leaf21Eax, Processor, Vendor};

/// IA32_SPEC_CTRL.
pub(crate) const SPEC_CTRL: u32 = 0x48;
/// IA32_PRED_CMD.
pub(crate) const PRED_CMD: u32 = 0x49;
/// IA32_PRED_CMD: IBPB.
pub(crate) const IBPB: u64 = 1;
/// IA32_SPEC_CTRL: IBRS.
const IBRS: u64 = 1 << 0;
/// IA32_SPEC_CTRL: BHI_DIS_S.
const BHI_DIS_S: u64 = 1 << 10;

/// What keeps a guest's indirect branches from steering those of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Branches {
    /// The CPU does not need it.
    NotNeeded,
    /// The CPU needs it and has nothing.
    Unprotected,
    /// IBRS, written again at each exit.
    Ibrs,
    /// IBRS, written once: it stays on in the guest too.
    EnhancedIbrs,
    /// Automatic IBRS by EFER.
    AutoIbrs,
    /// IBPB at each exit. AMD's CPUs without automatic IBRS are meant to run code with other indirect branches
    /// ("retpolines"), which a stable Rust compiler does not make.
    Ibpb,
}

/// What is done about the history of branches, which a guest leaves to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bhb {
    /// The CPU does not need it.
    NotNeeded,
    /// The host's indirect branches do not use it (IA32_SPEC_CTRL.BHI_DIS_S).
    Disabled,
    /// It is overwritten at each exit.
    Overwritten,
}

/// What is done about predictions of returns, which a guest leaves to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rsb {
    /// The CPU does not need it.
    NotNeeded,
    /// One entry is made after each exit, so that the first return has one (PBRSB).
    One,
    /// All entries are overwritten after each exit.
    All,
}

/// What is done on one machine. All cores are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Against the guest's indirect branches.
    pub branches: Branches,
    /// Against the guest's history of branches.
    pub bhb: Bhb,
    /// Against the guest's returns.
    pub rsb: Rsb,
    /// IBPB when a core gets a guest.
    pub ibpb_between_guests: bool,
    /// All predictions of returns are overwritten when a core gets a guest. IBPB is not promised to do that everywhere.
    pub returns_between_guests: bool,
    /// IBPB after each exit.
    pub ibpb_at_exit: bool,
    /// BP_CFG.BpSpecReduce while a core has a guest.
    pub reduce: bool,
    /// VERW before each entry.
    pub verw: bool,
    /// The L1 data cache is flushed before each entry.
    pub l1d_flush: bool,
    /// The CPU has IA32_SPEC_CTRL.
    pub has_spec_ctrl: bool,
    /// The CPU has IA32_PRED_CMD.
    pub has_pred_cmd: bool,
}

impl Plan {
    /// Makes the plan for a CPU.
    #[must_use]
    pub fn new(cpu: &Processor) -> Self {
        let affected = cpu.affected();
        let has = |set| affected.intersects(set);
        let has_ibpb = cpu.leaf_7.contains(Leaf7Edx::SPEC_CTRL) || cpu.leaf_8.contains(Leaf8Ebx::IBPB);
        let branches = if !has(V::SPECTRE_V2) {
            Branches::NotNeeded
        } else if cpu.vendor == Vendor::Intel {
            match (cpu.leaf_7.contains(Leaf7Edx::SPEC_CTRL), cpu.says(Says::IBRS_ALL)) {
                (true, true) => Branches::EnhancedIbrs,
                (true, false) => Branches::Ibrs,
                (false, _) => Branches::Unprotected,
            }
        } else if cpu.leaf_21.contains(Leaf21Eax::AUTO_IBRS) {
            Branches::AutoIbrs
        } else if cpu.is_amd() && has_ibpb {
            Branches::Ibpb
        } else {
            Branches::Unprotected
        };
        let reduce = has(V::SPEC_RSTACK_OVERFLOW) && cpu.leaf_21.contains(Leaf21Eax::BP_SPEC_REDUCE);
        // On AMD's CPUs, the host's returns can be steered too, and no automatic IBRS helps.
        let returns = cpu.is_amd() && (has(V::RETBLEED) || has(V::SPEC_RSTACK_OVERFLOW) && !reduce);
        let ibpb_at_exit = has_ibpb && (branches == Branches::Ibpb || returns);
        let rsb = match branches {
            Branches::NotNeeded | Branches::AutoIbrs => Rsb::NotNeeded,
            Branches::EnhancedIbrs if cpu.has_pbrsb() => Rsb::One,
            Branches::EnhancedIbrs => Rsb::NotNeeded,
            Branches::Ibpb if cpu.leaf_8.contains(Leaf8Ebx::IBPB_RET) => Rsb::NotNeeded,
            Branches::Ibpb | Branches::Ibrs | Branches::Unprotected => Rsb::All,
        };
        let bhb = match (cpu.has_bhi(), cpu.bhi_ctrl && branches == Branches::EnhancedIbrs) {
            (false, _) => Bhb::NotNeeded,
            (true, true) => Bhb::Disabled,
            (true, false) => Bhb::Overwritten,
        };
        Self {
            branches,
            bhb,
            rsb,
            ibpb_between_guests: has_ibpb && has(V::SPECTRE_V2),
            returns_between_guests: has(V::SPECTRE_V2),
            ibpb_at_exit,
            reduce,
            verw: has(V::MDS | V::TSX_ASYNC_ABORT | V::MMIO_STALE_DATA | V::REG_FILE_DATA_SAMPLING | V::TSA),
            l1d_flush: has(V::L1TF) && cpu.leaf_7.contains(Leaf7Edx::L1D_FLUSH) && !cpu.says(Says::SKIP_L1DFL_VMENTRY),
            has_spec_ctrl: cpu.has_spec_ctrl(),
            has_pred_cmd: has_ibpb,
        }
    }

    /// IA32_SPEC_CTRL in host mode. 0 if the plan does not use it.
    #[must_use]
    pub fn host_spec_ctrl(&self) -> u64 {
        let ibrs = matches!(self.branches, Branches::Ibrs | Branches::EnhancedIbrs);
        let disabled = self.bhb == Bhb::Disabled;
        (if ibrs { IBRS } else { 0 }) | (if disabled { BHI_DIS_S } else { 0 })
    }

    /// Returns the MSRs that a guest reads and writes without an exit: IA32_SPEC_CTRL where an exit reads and writes it
    /// anyway, and IA32_PRED_CMD, which has no state.
    pub fn passed_through(&self) -> impl Iterator<Item = u32> {
        let spec_ctrl = self.branches == Branches::Ibrs;
        [(SPEC_CTRL, spec_ctrl), (PRED_CMD, self.has_pred_cmd)].into_iter().filter(|p| p.1).map(|p| p.0)
    }
}

/// Access to MSRs. Only [`Plan`] calls it, with MSRs that the CPU has.
pub trait Msrs {
    /// RDMSR.
    fn read(&self, number: u32) -> u64;
    /// WRMSR.
    fn write(&mut self, number: u32, value: u64);
}

/// The MSRs of the core that runs this.
#[derive(Debug)]
pub struct Physical(());

impl Physical {
    /// Gives access to them.
    ///
    /// # Safety
    /// This is CPL 0, and the plan was made from this CPU's CPUID.
    #[must_use]
    pub unsafe fn new() -> Self {
        Self(())
    }
}

impl Msrs for Physical {
    fn read(&self, number: u32) -> u64 {
        let (low, high): (u32, u32);
        // SAFETY: by `new` the MSR exists. Reading it has no effect.
        unsafe {
            core::arch::asm!("rdmsr", in("ecx") number, out("eax") low, out("edx") high, options(nostack, preserves_flags));
        }
        u64::from(high) << 32 | u64::from(low)
    }

    fn write(&mut self, number: u32, value: u64) {
        let (low, high) = (value as u32, (value >> 32) as u32);
        // SAFETY: by `new` the MSR exists. The plan writes only bits that concern predictions.
        unsafe {
            core::arch::asm!("wrmsr", in("ecx") number, in("eax") low, in("edx") high, options(nostack, preserves_flags));
        }
    }
}
