//! The report's sentences.

use crate::affected::Vulnerabilities as V;
use crate::plan::{Bhb, Branches, Plan};
use crate::processor::{ArchCapabilities as Says, Leaf7Edx, Leaf21Eax, Processor};

/// What is done about a vulnerability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// The CPU does not have it.
    NotAffected,
    /// What is done.
    Mitigated(&'static str),
    /// The CPU has it, and guests can use it. The text says what is missing.
    Vulnerable(&'static str),
}

use Status::{Mitigated, NotAffected, Vulnerable};

impl V {
    /// All of them, in Linux's order, with Linux's names.
    pub const NAMED: [(Self, &'static str); 16] = [
        (Self::GATHER_DATA_SAMPLING, "gather_data_sampling"),
        (Self::INDIRECT_TARGET_SELECTION, "indirect_target_selection"),
        (Self::ITLB_MULTIHIT, "itlb_multihit"),
        (Self::L1TF, "l1tf"),
        (Self::MDS, "mds"),
        (Self::MELTDOWN, "meltdown"),
        (Self::MMIO_STALE_DATA, "mmio_stale_data"),
        (Self::REG_FILE_DATA_SAMPLING, "reg_file_data_sampling"),
        (Self::RETBLEED, "retbleed"),
        (Self::SPEC_RSTACK_OVERFLOW, "spec_rstack_overflow"),
        (Self::SPEC_STORE_BYPASS, "spec_store_bypass"),
        (Self::SPECTRE_V1, "spectre_v1"),
        (Self::SPECTRE_V2, "spectre_v2"),
        (Self::SRBDS, "srbds"),
        (Self::TSA, "tsa"),
        (Self::TSX_ASYNC_ABORT, "tsx_async_abort"),
    ];
}

impl Plan {
    /// Returns what is done about one vulnerability on `cpu`, for which this plan was made.
    #[must_use]
    pub fn status(&self, cpu: &Processor, which: V) -> Status {
        if !cpu.affected().intersects(which) {
            return NotAffected;
        }
        let clears = |microcode: bool| {
            if microcode {
                Mitigated("CPU buffers are cleared before each entry (VERW)")
            } else {
                Vulnerable("VERW is executed before each entry, but this microcode does not clear buffers with it")
            }
        };
        let md_clear = cpu.leaf_7.contains(Leaf7Edx::MD_CLEAR);
        match which {
            V::MELTDOWN => Mitigated("no address space has both the host's memory and a guest's code"),
            V::SPECTRE_V1 => Vulnerable("bounds are checked, but indices are not masked"),
            V::SPECTRE_V2 => self.spectre_v2(),
            V::SPEC_STORE_BYPASS => Mitigated("the host runs no code of guests"),
            V::L1TF if self.l1d_flush => Mitigated("the L1 data cache is flushed before each entry"),
            V::L1TF if cpu.says(Says::SKIP_L1DFL_VMENTRY) => Mitigated("entries need no flush"),
            V::L1TF => Vulnerable("this microcode has no flush of the L1 data cache"),
            V::MDS | V::TSX_ASYNC_ABORT => clears(md_clear),
            // Microcode for CPUs with MDS clears all the buffers, and has no bit for it.
            V::MMIO_STALE_DATA => clears(cpu.says(Says::FB_CLEAR) || md_clear && !cpu.says(Says::MDS_NO)),
            V::REG_FILE_DATA_SAMPLING => clears(cpu.says(Says::RFDS_CLEAR)),
            V::ITLB_MULTIHIT => Mitigated("executable pages of guests have 4 KiB, and are split at the first fetch"),
            V::RETBLEED => self.retbleed(cpu),
            V::SRBDS if cpu.leaf_7.contains(Leaf7Edx::SRBDS_CTRL) => Mitigated("microcode"),
            V::GATHER_DATA_SAMPLING if cpu.says(Says::GDS_CTRL) => Mitigated("microcode"),
            V::SRBDS | V::GATHER_DATA_SAMPLING => Vulnerable("the microcode is too old"),
            V::SPEC_RSTACK_OVERFLOW => self.srso(cpu),
            V::TSA => clears(cpu.leaf_21.contains(Leaf21Eax::VERW_CLEAR)),
            V::INDIRECT_TARGET_SELECTION => {
                Vulnerable("indirect branches are not kept out of the lower halves of cache lines")
            }
            _ => Vulnerable("nothing is done"),
        }
    }

    fn spectre_v2(&self) -> Status {
        match (self.branches, self.bhb) {
            (Branches::NotNeeded, _) => NotAffected,
            (Branches::Unprotected, _) => Vulnerable("this microcode has no IBRS, automatic IBRS or IBPB"),
            (Branches::Ibrs, _) => Mitigated("IBRS and stuffed returns after each exit; IBPB when a core gets a guest"),
            (Branches::EnhancedIbrs, Bhb::NotNeeded) => Mitigated("enhanced IBRS; IBPB when a core gets a guest"),
            (Branches::EnhancedIbrs, Bhb::Disabled) => {
                Mitigated("enhanced IBRS, BHI_DIS_S; IBPB when a core gets a guest")
            }
            (Branches::EnhancedIbrs, Bhb::Overwritten) => {
                Mitigated("enhanced IBRS, branch history overwritten after each exit; IBPB when a core gets a guest")
            }
            (Branches::AutoIbrs, _) => Mitigated("automatic IBRS; IBPB when a core gets a guest"),
            (Branches::Ibpb, _) => Mitigated("IBPB after each exit, and when a core gets a guest"),
        }
    }

    fn retbleed(&self, cpu: &Processor) -> Status {
        match self.branches {
            _ if cpu.is_amd() && self.ibpb_at_exit => Mitigated("IBPB after each exit"),
            Branches::Ibrs => Mitigated("IBRS"),
            Branches::EnhancedIbrs => Mitigated("enhanced IBRS"),
            _ => Vulnerable("this microcode has neither IBRS nor IBPB"),
        }
    }

    fn srso(&self, cpu: &Processor) -> Status {
        // The first two generations need no microcode for it.
        let clears_types = cpu.leaf_21.contains(Leaf21Eax::IBPB_BRTYPE) || matches!(cpu.family, 0x17 | 0x18);
        match (self.reduce, self.ibpb_at_exit) {
            (true, _) => Mitigated("BpSpecReduce"),
            (false, true) if clears_types => Mitigated("IBPB after each exit"),
            (false, true) => Vulnerable("IBPB after each exit, but this microcode does not clear branch types with it"),
            (false, false) => Vulnerable("this microcode has no IBPB"),
        }
    }
}
