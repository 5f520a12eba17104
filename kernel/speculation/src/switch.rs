//! What assembly does at each entry and exit. It is decided once per vCPU.

#![allow(unsafe_code, reason = "declares the assembly")]

use crate::plan::{Bhb, Branches, IBPB, Msrs, PRED_CMD, Plan, Rsb, SPEC_CTRL};
use bitflags::bitflags;

core::arch::global_asm!(include_str!("switch.s"));

unsafe extern "C" {
    fn speculation_before_entry(switch: *mut Switch);
    fn speculation_after_exit(switch: *mut Switch);
}

bitflags! {
    /// The steps, in their order. switch.s has the same numbers.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Steps: u32 {
        /// Before an entry, last: VERW.
        const VERW = 1;
        /// Before an entry: IA32_FLUSH_CMD.
        const L1D_FLUSH = 2;
        /// Before an entry, first: the guest's IA32_SPEC_CTRL. After an exit, first: the host's.
        const SPEC_CTRL = 4;
        /// After an exit: IBPB.
        const IBPB = 8;
        /// After an exit: 32 predictions of returns are overwritten.
        const RSB_ALL = 16;
        /// After an exit: one prediction of a return is made.
        const RSB_ONE = 32;
        /// After an exit: the history of branches is overwritten.
        const BHB = 64;
    }
}

/// The argument of the two routines in switch.s.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Switch {
    steps: u32,
    /// Operand of VERW: a data segment that can be written, because with another one VERW is slow.
    selector: u16,
    /// IA32_SPEC_CTRL exists.
    has_spec_ctrl: bool,
    /// IA32_PRED_CMD exists.
    has_pred_cmd: bool,
    /// IA32_SPEC_CTRL in the guest.
    guest_spec_ctrl: u64,
    /// IA32_SPEC_CTRL in the host.
    host_spec_ctrl: u64,
}

const _: () = {
    use core::mem::offset_of;
    assert!(offset_of!(Switch, steps) == 0 && offset_of!(Switch, selector) == 4);
    assert!(offset_of!(Switch, guest_spec_ctrl) == 8 && offset_of!(Switch, host_spec_ctrl) == 16);
};

impl Switch {
    /// Makes it for a plan. `selector`: that of a data segment that can be written, which the GDT has as long as the vCPU
    /// runs.
    #[must_use]
    pub fn new(plan: &Plan, selector: u16) -> Self {
        let mut steps = Steps::empty();
        steps.set(Steps::VERW, plan.verw);
        steps.set(Steps::L1D_FLUSH, plan.l1d_flush);
        steps.set(Steps::SPEC_CTRL, plan.branches == Branches::Ibrs);
        steps.set(Steps::IBPB, plan.ibpb_at_exit);
        steps.set(Steps::RSB_ALL, plan.rsb == Rsb::All);
        steps.set(Steps::RSB_ONE, plan.rsb == Rsb::One);
        steps.set(Steps::BHB, plan.bhb == Bhb::Overwritten);
        Self {
            steps: steps.bits(),
            selector,
            has_spec_ctrl: plan.has_spec_ctrl,
            has_pred_cmd: plan.has_pred_cmd,
            guest_spec_ctrl: 0,
            host_spec_ctrl: plan.host_spec_ctrl(),
        }
    }

    /// Only overwrites the predictions of returns.
    pub(crate) const RETURNS: Self = Self {
        steps: Steps::RSB_ALL.bits(),
        selector: 0,
        has_spec_ctrl: false,
        has_pred_cmd: false,
        guest_spec_ctrl: 0,
        host_spec_ctrl: 0,
    };

    /// Whether there is anything to do. If not, the back-end enters and exits without the two routines.
    #[must_use]
    pub fn any(&self) -> bool {
        self.steps != 0
    }

    /// Returns the guest's IA32_SPEC_CTRL, or `None` if the CPU does not have it.
    #[must_use]
    pub fn guest_spec_ctrl(&self) -> Option<u64> {
        self.has_spec_ctrl.then_some(self.guest_spec_ctrl)
    }

    /// Gives the guest a value of IA32_SPEC_CTRL, which the caller has checked against the guest's CPUID. If exits do not
    /// write the register, it holds the host's bits and the guest's from now on: more bits protect more. Returns false if
    /// the CPU does not have it.
    pub fn set_guest_spec_ctrl(&mut self, value: u64, msrs: &mut impl Msrs) -> bool {
        if self.has_spec_ctrl {
            self.guest_spec_ctrl = value;
            if !self.steps().contains(Steps::SPEC_CTRL) {
                msrs.write(SPEC_CTRL, value | self.host_spec_ctrl);
            }
        }
        self.has_spec_ctrl
    }

    /// Carries out a guest's IBPB. Returns false if the CPU does not have it.
    pub fn guest_ibpb(&self, msrs: &mut impl Msrs) -> bool {
        if self.has_pred_cmd {
            msrs.write(PRED_CMD, IBPB);
        }
        self.has_pred_cmd
    }

    /// Returns the steps.
    #[must_use]
    pub fn steps(&self) -> Steps {
        Steps::from_bits_truncate(self.steps)
    }

    /// Addresses of the routines before an entry and after an exit, for tests that read their code.
    #[must_use]
    pub fn routines() -> [usize; 2] {
        [speculation_before_entry as *const () as usize, speculation_after_exit as *const () as usize]
    }
}

/// Overwrites this core's predictions of returns, as after an exit ([`Steps::RSB_ALL`]).
pub fn overwrite_returns() {
    let mut switch = Switch::RETURNS;
    // SAFETY: the routine keeps C's calling convention: it changes only registers that a call may change, and leaves RSP as it was. With this
    // one step it touches no MSR, and reads nothing but `switch`.
    unsafe { speculation_after_exit(&raw mut switch) };
}
