//! Answers KVM's hypercalls. CPUID 0x4000_0000 shows KVM's signature, and whoever finds it may make one (Linux,
//! Documentation/virt/kvm/x86/hypercalls.rst). CPUID 0x4000_0001 offers none, so each is answered with an error.
//!
//! A CPU knows only one of VMCALL and VMMCALL, and that one exits. The other is #UD, which exits too. KVM takes both,
//! and guests rely on it.

use iced_x86::{Instruction, Mnemonic};

use super::{outcome::Outcome, state::Machine};
use crate::{
    decode::{self, bitness},
    vcpu::{Event, Vcpu},
};

/// "-KVM_ENOSYS": there is no such hypercall.
const NO_SUCH_CALL: i64 = -1000;
/// "-KVM_EPERM": only CPL 0 may make hypercalls.
const NOT_PERMITTED: i64 = -1;

impl Machine {
    /// Handles VMCALL or VMMCALL, whichever the CPU has.
    pub(super) fn hypercall(&self, vcpu: &mut impl Vcpu) -> Outcome {
        self.step(vcpu, is_hypercall, answer)
    }

    /// Handles #UD. If the instruction is the other vendor's hypercall, answers it. Otherwise the guest gets its #UD.
    pub(super) fn invalid_opcode(&self, vcpu: &mut impl Vcpu) -> Outcome {
        // Hardware gives no instruction length with an exception.
        match decode::decode(vcpu, &self.memory) {
            Ok(instruction) if is_hypercall(Instruction::mnemonic(&instruction)) => {
                answer(vcpu);
                vcpu.skip_to(decode::next_rip(vcpu, instruction.len() as u8));
                Outcome::Done
            }
            _ => Outcome::Raise(Event::INVALID_OPCODE),
        }
    }
}

fn is_hypercall(mnemonic: Mnemonic) -> bool {
    matches!(mnemonic, Mnemonic::Vmcall | Mnemonic::Vmmcall)
}

/// Puts the answer into RAX, or into EAX outside 64-bit code.
fn answer(vcpu: &mut impl Vcpu) {
    let error = if vcpu.cpl() == 0 { NO_SUCH_CALL } else { NOT_PERMITTED };
    let all = error as u64;
    vcpu.gprs_mut().rax = if bitness(vcpu) == 64 { all } else { all & 0xffff_ffff };
}
