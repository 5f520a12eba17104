//! Handles exits of instructions that access a register of the host's emulation: CPUID, MSRs, XCR0.
//!
//! Follows SDM vol. 2 (the instructions), vol. 3C 26.1.3 and vol. 4 (MSRs), APM vol. 3.

use iced_x86::Mnemonic;

use super::{
    context::Context,
    host::{Host, now},
    outcome::Outcome,
    state::Machine,
};
use crate::{
    cpuid::Current,
    decode,
    msr::{self, Kind},
    vcpu::{Event, Vcpu},
};

const CR4_OSXSAVE: u64 = 1 << 18;

impl Machine {
    pub(super) fn cpuid_exit(&self, vcpu: &mut impl Vcpu, context: &Context) -> Outcome {
        let current = Current { apic_id: context.index as u32, cr4: vcpu.cr4(), xcr0: context.xcr0 };
        self.step(
            vcpu,
            |m| m == Mnemonic::Cpuid,
            |vcpu| {
                let gprs = vcpu.gprs_mut();
                let r = self.cpuid.answer(gprs.rax as u32, gprs.rcx as u32, &current);
                (gprs.rax, gprs.rbx) = (u64::from(r.eax), u64::from(r.ebx));
                (gprs.rcx, gprs.rdx) = (u64::from(r.ecx), u64::from(r.edx));
            },
        )
    }

    pub(super) fn read_msr(&self, vcpu: &mut impl Vcpu, context: &mut Context, host: &impl Host) -> Outcome {
        let number = vcpu.gprs().rcx as u32;
        let value = match msr::readable(number, self.cpuid.vendor()) {
            // The list allows the back-end to pass the register through. The back-end may keep it instead, and then it
            // exits.
            Some(Kind::PassThrough | Kind::BackEnd) => vcpu.msr(number),
            Some(Kind::LocalApic) => context.apic.read(number, now(host, context)).ok(),
            Some(Kind::Fixed(value) | Kind::Ignored(value)) => Some(value),
            Some(Kind::MtrrDefaultType) => Some(context.mtrr_default_type),
            Some(Kind::MiscEnable) => Some(context.misc_enable),
            Some(Kind::Tsc) => Some(Self::tsc(context, host)),
            Some(Kind::TscAdjust) => self.tsc_adjust(context),
            Some(Kind::SpecCtrl) if self.cpuid.spec_ctrl() != 0 => vcpu.msr(number),
            Some(Kind::ArchCapabilities) if self.cpuid.arch_capabilities() => Some(self.platform.arch_capabilities),
            Some(Kind::WallClock | Kind::SystemTime | Kind::SpecCtrl | Kind::PredCmd | Kind::ArchCapabilities)
            | None => None,
        };
        let Some(value) = value else { return self.refuse_msr(number, false) };
        self.step(vcpu, |m| m == Mnemonic::Rdmsr, |vcpu| vcpu.gprs_mut().set_edx_eax(value))
    }

    pub(super) fn write_msr(&self, vcpu: &mut impl Vcpu, context: &mut Context, host: &impl Host) -> Outcome {
        let next = match decode::after(vcpu, &self.memory, |m| m == Mnemonic::Wrmsr) {
            Ok(next) => next,
            Err(e) => return e.into(),
        };
        let (number, value) = (vcpu.gprs().rcx as u32, vcpu.gprs().edx_eax());
        let done = match msr::writable(number, self.cpuid.vendor()) {
            Some(Kind::PassThrough | Kind::BackEnd) => vcpu.set_msr(number, value),
            Some(Kind::LocalApic) => self.write_apic(number, value, context, host),
            Some(Kind::Fixed(fixed)) => value == fixed,
            Some(Kind::Ignored(_)) => true,
            Some(Kind::MtrrDefaultType) if msr::mtrr_default_type_allowed(value) => {
                context.mtrr_default_type = value;
                true
            }
            Some(Kind::Tsc) => self.set_tsc(value, vcpu, context, host),
            Some(Kind::TscAdjust) => self.set_tsc_offset(value, vcpu, context, host),
            Some(Kind::MiscEnable) => match msr::misc_enable_after(context.misc_enable, value) {
                Some(new) => {
                    context.misc_enable = new;
                    true
                }
                None => false,
            },
            Some(Kind::WallClock) => {
                let (wall, tsc) = (host.wall_clock(), host.tsc());
                self.clock.write_wall_clock(&self.memory, value, wall, tsc).is_ok()
            }
            Some(Kind::SystemTime) => self.clock.write_system_time(&self.memory, context.index, value).is_ok(),
            Some(Kind::SpecCtrl) => value & !self.cpuid.spec_ctrl() == 0 && vcpu.set_msr(number, value),
            Some(Kind::PredCmd) => self.cpuid.pred_cmd() && value & !1 == 0 && vcpu.set_msr(number, value),
            Some(Kind::MtrrDefaultType | Kind::ArchCapabilities) | None => false,
        };
        if !done {
            return self.refuse_msr(number, true);
        }
        vcpu.skip_to(next);
        Outcome::Done
    }

    fn refuse_msr(&self, number: u32, write: bool) -> Outcome {
        if self.refusals.count_msr(number, write) {
            let verb = if write { "wrote" } else { "read" };
            log::info!("guest {}: {verb} MSR {number:#x}, which it does not have: #GP", self.name);
        }
        Outcome::Raise(Event::GENERAL_PROTECTION)
    }

    pub(super) fn xsetbv(&self, vcpu: &mut impl Vcpu, context: &mut Context) -> Outcome {
        // Hardware checks this before the privilege level. On SVM the intercept comes first.
        if vcpu.cr4() & CR4_OSXSAVE == 0 {
            return Outcome::Raise(Event::INVALID_OPCODE);
        }
        let (index, value) = (vcpu.gprs().rcx as u32, vcpu.gprs().edx_eax());
        if vcpu.cpl() != 0 || index != 0 || !self.cpuid.xcr0_allowed(value) {
            return Outcome::Raise(Event::GENERAL_PROTECTION);
        }
        self.step(
            vcpu,
            |m| m == Mnemonic::Xsetbv,
            |vcpu| {
                vcpu.set_xcr0(value);
                context.xcr0 = value;
            },
        )
    }
}
