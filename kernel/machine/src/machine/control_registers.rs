//! Handles exits of instructions that access CR0, CR4 and CR8: MOV, and for CR0 also LMSW, SMSW and CLTS.
//!
//! Follows SDM vol. 2 and APM vol. 2 3.1, 15.8.1 (MOV to and from control registers, and what of them exits) and vol. 3.
//! Only SVM has the exits of CR0 and CR4: on VT-x the guest/host masks do this.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::{context::Context, outcome::Outcome, state::Machine};
use crate::{
    control_registers::{self, Mode, TS},
    decode::{self, Gpr, Undecodable, mask},
    mmio,
    vcpu::{Event, Vcpu},
    walk::Access,
};

/// What an instruction writes to CR0 or CR4, and the address of the next one.
struct Write {
    value: u64,
    next: u64,
}

impl Machine {
    pub(super) fn cr8(
        &self,
        write: bool,
        register: Option<u8>,
        vcpu: &mut impl Vcpu,
        context: &mut Context,
    ) -> Outcome {
        let (register, next) = match self.moved(Register::CR8, write, register, vcpu) {
            Ok(found) => found,
            Err(e) => return e.into(),
        };
        if !write {
            register.write(vcpu, context.apic.cr8());
        } else if context.apic.set_cr8(register.read(vcpu)).is_err() {
            return Outcome::Raise(Event::GENERAL_PROTECTION);
        }
        vcpu.skip_to(next);
        Outcome::Done
    }

    /// Handles a write of CR0 or CR4. A value that hardware with the guest's CPUID would refuse is #GP.
    pub(super) fn write_control_register(&self, number: u8, register: Option<u8>, vcpu: &mut impl Vcpu) -> Outcome {
        let Write { value, next } = match self.written(number, register, vcpu) {
            Ok(write) => write,
            Err(e) => return e.into(),
        };
        let mode = Mode { efer: vcpu.efer(), cr3: vcpu.cr3(), cr4: vcpu.cr4(), cs_long: decode::bitness(vcpu) == 64 };
        let allowed = match number {
            0 => control_registers::cr0_allowed(vcpu.cr0(), value, &mode),
            _ => control_registers::cr4_allowed(value, self.cr4_offered, &mode),
        };
        if !allowed || vcpu.cpl() != 0 {
            return Outcome::Raise(Event::GENERAL_PROTECTION);
        }
        match number {
            0 => vcpu.set_cr0(value),
            _ => vcpu.set_cr4(value),
        }
        vcpu.skip_to(next);
        Outcome::Done
    }

    /// Handles a read of CR0 or CR4, by MOV or SMSW.
    pub(super) fn read_control_register(&self, number: u8, register: Option<u8>, vcpu: &mut impl Vcpu) -> Outcome {
        match self.read_into(number, register, vcpu) {
            Ok(next) => {
                vcpu.skip_to(next);
                Outcome::Done
            }
            Err(e) => e.into(),
        }
    }

    fn read_into(&self, number: u8, register: Option<u8>, vcpu: &mut impl Vcpu) -> Result<u64, Undecodable> {
        let (value, control) = if number == 0 { (vcpu.cr0(), Register::CR0) } else { (vcpu.cr4(), Register::CR4) };
        if register.is_some() {
            let (target, next) = self.moved(control, false, register, vcpu)?;
            target.write(vcpu, value);
            return Ok(next);
        }
        let i = decode::decode(vcpu, &self.memory)?;
        let next = decode::next_rip(vcpu, i.len() as u8);
        let smsw = number == 0 && i.mnemonic() == Mnemonic::Smsw;
        if smsw && i.op0_kind() == OpKind::Memory {
            let at = mmio::memory_operand(vcpu, &self.memory, &i, 2, Access::Write)?;
            // Where there is no memory, the store is dropped.
            let _ = self.memory.write(at, &(value as u16).to_le_bytes());
            return Ok(next);
        }
        let (target, value) = match i.op1_register() {
            _ if smsw => (Gpr::new(i.op0_register()).ok_or(Undecodable::Changed)?, value),
            // QEMU's translator says CR0 of a MOV from any control register, while reads of CR0 exit.
            control @ Register::CR2 => (general(&i, control, false)?, vcpu.cr2()),
            control @ Register::CR3 => (general(&i, control, false)?, vcpu.cr3()),
            control @ Register::CR4 => (general(&i, control, false)?, vcpu.cr4()),
            _ => (general(&i, control, false)?, value),
        };
        target.write(vcpu, value);
        Ok(next)
    }

    /// Returns what the instruction at RIP writes to CR0 or CR4.
    fn written(&self, number: u8, register: Option<u8>, vcpu: &impl Vcpu) -> Result<Write, Undecodable> {
        let control = if number == 0 { Register::CR0 } else { Register::CR4 };
        if register.is_some() {
            let (source, next) = self.moved(control, true, register, vcpu)?;
            return Ok(Write { value: source.read(vcpu), next });
        }
        let i = decode::decode(vcpu, &self.memory)?;
        let next = decode::next_rip(vcpu, i.len() as u8);
        let value = match i.mnemonic() {
            Mnemonic::Clts if number == 0 => vcpu.cr0() & !TS,
            Mnemonic::Lmsw if number == 0 => control_registers::after_lmsw(vcpu.cr0(), self.lmsw_source(&i, vcpu)?),
            _ => general(&i, control, true)?.read(vcpu),
        };
        Ok(Write { value, next })
    }

    fn lmsw_source(&self, i: &Instruction, vcpu: &impl Vcpu) -> Result<u64, Undecodable> {
        if i.op0_kind() != OpKind::Memory {
            return Gpr::new(i.op0_register()).map(|r| r.read(vcpu) & mask(2)).ok_or(Undecodable::Changed);
        }
        let at = mmio::memory_operand(vcpu, &self.memory, i, 2, Access::Read)?;
        let mut bytes = [0xff; 2];
        // Where there is no memory, it reads as all ones.
        let _ = self.memory.read(at, &mut bytes);
        Ok(u16::from_le_bytes(bytes).into())
    }

    /// Returns the general register of a MOV to or from a control register, and the address of the next instruction.
    /// `told`: the register's number, if hardware gives it.
    fn moved(
        &self,
        control: Register,
        write: bool,
        told: Option<u8>,
        vcpu: &impl Vcpu,
    ) -> Result<(Gpr, u64), Undecodable> {
        let size = if decode::bitness(vcpu) == 64 { 8 } else { 4 };
        if let Some(number) = told {
            let next = decode::after(vcpu, &self.memory, |m| m == Mnemonic::Mov)?;
            return Ok((Gpr { number: number & 15, size, high: false }, next));
        }
        let i = decode::decode(vcpu, &self.memory)?;
        let general = general(&i, control, write)?;
        Ok((general, decode::next_rip(vcpu, i.len() as u8)))
    }
}

/// Returns the general register of a MOV to or from `control`.
fn general(i: &Instruction, control: Register, write: bool) -> Result<Gpr, Undecodable> {
    let (at, other) = if write { (0, 1) } else { (1, 0) };
    let operand = |n| i.try_op_register(n).unwrap_or(Register::None);
    if i.mnemonic() != Mnemonic::Mov || operand(at) != control {
        return Err(Undecodable::Changed);
    }
    Gpr::new(operand(other)).ok_or(Undecodable::Changed)
}
