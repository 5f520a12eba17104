//! The registers of the machine-check architecture.

use bitfield_struct::bitfield;

/// IA32_MCG_CAP (SDM vol. 3B 16.3.1.1).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct GlobalCapabilities {
    /// Number of banks.
    #[bits(8)]
    pub banks: u8,
    /// IA32_MCG_CTL exists.
    pub control: bool,
    /// Extended state registers exist.
    pub extended_registers: bool,
    /// Corrected errors are counted in the bank's status, and may interrupt.
    pub corrected_count: bool,
    /// The status tells thresholds of corrected errors.
    pub threshold: bool,
    #[bits(12)]
    __: u16,
    /// MCG_SER_P: software error recovery. The bits S and AR of a bank's status mean something.
    pub software_recovery: bool,
    #[bits(2)]
    __: u8,
    /// MCG_LMCE_P: a machine check may go to one core only.
    pub local: bool,
    #[bits(36)]
    __: u64,
}

/// IA32_MCG_STATUS (SDM vol. 3B 16.3.1.2).
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct GlobalStatus {
    /// RIPV: the interrupted code can go on.
    pub restartable: bool,
    /// EIPV: the instruction that the machine check interrupted has to do with the error.
    pub instruction_known: bool,
    /// MCIP: a machine check is in progress. A second one shuts the core down.
    pub in_progress: bool,
    /// LMCE_S: only this core got it.
    pub local: bool,
    #[bits(60)]
    __: u64,
}

/// IA32_MCi_STATUS (SDM vol. 3B 16.3.2.2; APM vol. 2 9.3.2.5). The names are Intel's where the two agree.
#[bitfield(u64)]
#[derive(PartialEq, Eq)]
pub struct Status {
    /// MCACOD: the architecture's code of the error.
    #[bits(16)]
    pub code: u16,
    /// MSCOD: the model's code of the error.
    #[bits(16)]
    pub model_code: u16,
    #[bits(6)]
    __: u8,
    /// Number of corrected errors, if [`GlobalCapabilities::corrected_count`].
    #[bits(15)]
    pub corrected: u16,
    #[bits(2)]
    __: u8,
    /// AR: action required, if [`GlobalCapabilities::software_recovery`].
    pub action_required: bool,
    /// S: signalled by a machine check, if [`GlobalCapabilities::software_recovery`].
    pub signaled: bool,
    /// PCC: the core's state is corrupt.
    pub context_corrupt: bool,
    /// ADDRV: the bank's address is valid.
    pub address_valid: bool,
    /// MISCV: the bank's further register is valid.
    pub further_valid: bool,
    /// EN: the error's kind is enabled in the bank's control register.
    pub enabled: bool,
    /// UC: not corrected.
    pub uncorrected: bool,
    /// OVER: an error was lost.
    pub overflow: bool,
    /// VAL: there is an error.
    pub valid: bool,
}

impl Status {
    /// Deferred (AMD): data is lost, and nobody has used it.
    #[must_use]
    pub const fn deferred(self) -> bool {
        self.into_bits() >> 44 & 1 != 0
    }

    /// Poison (AMD): lost data was used.
    #[must_use]
    pub const fn poison(self) -> bool {
        self.into_bits() >> 43 & 1 != 0
    }

    /// TCC (AMD): the interrupted program cannot go on.
    #[must_use]
    pub const fn task_corrupt(self) -> bool {
        self.into_bits() >> 55 & 1 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_manuals_have_them() {
        let s = Status::from_bits;
        for (bit, field) in [
            (63, Status::valid as fn(&Status) -> bool),
            (62, Status::overflow),
            (61, Status::uncorrected),
            (60, Status::enabled),
            (59, Status::further_valid),
            (58, Status::address_valid),
            (57, Status::context_corrupt),
            (56, Status::signaled),
            (55, Status::action_required),
        ] {
            assert!(field(&s(1 << bit)), "{bit}");
            assert!(!field(&s(!(1 << bit))), "{bit}");
        }
        assert!(s(1 << 44).deferred() && s(1 << 43).poison() && s(1 << 55).task_corrupt());
        let codes = s(0x0012_3456_789a_bcde);
        assert_eq!((codes.code(), codes.model_code()), (0xbcde, 0x789a));
        assert_eq!(s(0x7fff << 38).corrected(), 0x7fff);
        assert_eq!(s(!(0x7fff << 38)).corrected(), 0);
    }

    #[test]
    fn global_registers_are_where_the_manuals_have_them() {
        let cap = GlobalCapabilities::from_bits(0x0f00_0c14 | 1 << 8);
        assert_eq!(cap.banks(), 0x14);
        assert!(cap.control() && cap.corrected_count() && cap.threshold() && cap.software_recovery() && cap.local());
        assert!(!GlobalCapabilities::from_bits(!(1 << 24)).software_recovery());
        assert!(!GlobalCapabilities::from_bits(!(1 << 27)).local());
        let status = GlobalStatus::from_bits(0b1101);
        assert!(status.restartable() && !status.instruction_known() && status.in_progress() && status.local());
    }
}
