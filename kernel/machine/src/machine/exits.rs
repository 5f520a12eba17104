//! What an exit was for, and what is done about it.
//!
//! Follows SDM vol. 3C ch. 26 (instructions that exit) and vol. 4 (MSRs), APM vol. 2 ch. 15. A guest is refused as
//! hardware would refuse it, and every refusal is counted.

extern crate alloc;

use alloc::{format, string::String};

use iced_x86::{Mnemonic, Register};

use super::{
    FIRST_INTERRUPT, Host, Machine, Stop,
    context::{Activity, Context},
    devices::Answer,
    refusals::Refusal,
};
use crate::{
    clock,
    cpuid::Current,
    decode::{self, Gpr, Undecodable},
    eli::Verdict,
    lapic::{self, Command, Delivery, Destination, Effect, Icr, LocalApic, Message},
    mmio,
    msr::{self, Kind},
    reason::Reason,
    vcpu::{Event, Exit, Interrupts, Vcpu},
};

/// How often an exit at one instruction may make no sense, because another vCPU is rewriting it, before it is #UD.
const RETRIES: u32 = 1000;
const MACHINE_CHECK: u8 = 18;
const SVR_ENABLED: u64 = 1 << 8;
const LVT_MASKED: u64 = 1 << 16;
/// Vector, mask and mode.
const LVT_TIMER_BITS: u64 = 0xff | LVT_MASKED | 3 << 17;

/// What comes after an exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// [`Machine::before_entry`].
    Continue,
    /// The guest has stopped as a whole; its other vCPUs have been asked to.
    Stop(Stop),
}

/// How an exit ends: done, or with an event for the guest, or with the guest's end.
pub(super) enum Outcome {
    Done,
    Raise(Event),
    Undecodable(Undecodable),
    Stop(Stop),
}

impl From<Undecodable> for Outcome {
    fn from(u: Undecodable) -> Self {
        Self::Undecodable(u)
    }
}

impl Machine {
    /// Handles an exit. Called between [`Mailbox::left_guest`](crate::mailbox::Mailbox::left_guest) and
    /// [`Machine::before_entry`].
    pub fn handle(&self, exit: Exit, vcpu: &mut impl Vcpu, context: &mut Context, host: &impl Host) -> Next {
        if exit == Exit::NotEntered {
            return Next::Continue;
        }
        if self.platform.quirks.after(&exit, vcpu, &self.memory) {
            log::debug!("guest {}: the emulator had left RIP behind; put right", self.name);
        }
        self.take_timer_back(context);
        context.begin(self.reason(&exit, vcpu, context), host.tsc());
        let outcome = match exit {
            Exit::ExternalInterrupt(_) | Exit::InterruptWindow => {
                self.interrupt_waits(context);
                Outcome::Done
            }
            Exit::Nmi | Exit::NotEntered | Exit::Deadline => Outcome::Done,
            Exit::EndOfInterrupt(vector) => self.level_ended(vector, host),
            Exit::ApicWrite(number) => self.apic_written(number, context, host),
            Exit::Cpuid => self.cpuid_exit(vcpu, context),
            Exit::Halt => self.step(vcpu, |m| m == Mnemonic::Hlt, |_| context.activity = Activity::Halted),
            Exit::ReadMsr => self.read_msr(vcpu, context, host),
            Exit::WriteMsr => match self.program_deadline(vcpu, context, host) {
                true => Outcome::Done,
                false => self.write_msr(vcpu, context, host),
            },
            Exit::Port(access) => self.port(&access, vcpu, host),
            Exit::NestedFault { gpa, write, .. } if self.shadow_fault(gpa, write, context, host) => Outcome::Done,
            Exit::NestedFault { gpa, fetch, .. } => self.nested_fault(gpa, fetch, vcpu, host),
            Exit::DescriptorTable => self.descriptor_table(context, host),
            Exit::NotPresent { error, interrupted } => self.not_present(error, interrupted, context, host),
            Exit::Cr8 { write, register } => self.cr8(write, register, vcpu, context),
            Exit::Xsetbv => self.xsetbv(vcpu, context),
            Exit::CacheFlush => {
                // Memory is write-back with nobody but CPUs looking at it, so there is nothing to flush.
                let flush = |m| matches!(m, Mnemonic::Invd | Mnemonic::Wbinvd | Mnemonic::Wbnoinvd);
                self.step(vcpu, flush, |_| {})
            }
            Exit::Hypercall | Exit::Forbidden => self.forbidden(),
            Exit::Exception { vector: MACHINE_CHECK, .. } => Outcome::Stop(failed("a machine check of the host's")),
            Exit::Exception { vector, error } => Outcome::Raise(Event::Exception(vector, error)),
            Exit::TripleFault => Outcome::Stop(Stop::TripleFault),
            Exit::Unexpected { reason, detail } => {
                Outcome::Stop(Stop::Failed(format!("unexpected exit {reason:#x} ({detail:#x}) at {:#x}", vcpu.rip())))
            }
        };
        self.conclude(outcome, vcpu, context, host)
    }

    fn conclude(&self, outcome: Outcome, vcpu: &mut impl Vcpu, context: &mut Context, host: &impl Host) -> Next {
        let mut retry = false;
        let event = match outcome {
            Outcome::Done => None,
            Outcome::Raise(event) => Some(event),
            Outcome::Undecodable(Undecodable::Fault(fault)) => {
                vcpu.set_cr2(fault.address);
                Some(Event::page_fault(fault.error))
            }
            Outcome::Undecodable(Undecodable::Changed) if !context.give_up_at(vcpu.rip()) => {
                retry = true;
                None
            }
            Outcome::Undecodable(_) => {
                self.refusals.count(Refusal::Instruction);
                log::debug!("guest {}: #UD at {:#x}: no instruction known here", self.name, vcpu.rip());
                Some(Event::INVALID_OPCODE)
            }
            Outcome::Stop(stop) => return self.stop(stop, context, host),
        };
        if !retry {
            context.retries = (0, 0);
        }
        match event {
            // A fault while another event is being delivered: a guest that lets it come to this has no way on.
            Some(_) if vcpu.event_waiting() => self.stop(Stop::TripleFault, context, host),
            Some(event) => {
                vcpu.inject(event);
                Next::Continue
            }
            None => Next::Continue,
        }
    }

    fn stop(&self, stop: Stop, context: &mut Context, host: &impl Host) -> Next {
        self.request_stop(stop.clone(), |s| host.signal(s));
        context.end(host.tsc());
        Next::Stop(self.stopped().unwrap_or(stop))
    }

    fn reason(&self, exit: &Exit, vcpu: &impl Vcpu, context: &Context) -> Reason {
        match *exit {
            Exit::ExternalInterrupt(_) => Reason::ExternalInterrupt,
            Exit::Nmi if self.is_late_wake(context) => Reason::LateWake,
            Exit::Nmi | Exit::NotEntered => Reason::Nmi,
            Exit::InterruptWindow => Reason::InterruptWindow,
            Exit::Deadline => Reason::Deadline,
            Exit::EndOfInterrupt(_) => Reason::VirtualEoi,
            Exit::ApicWrite(_) => Reason::ApicWrite,
            Exit::Cpuid => Reason::Cpuid,
            Exit::Halt => Reason::Halt,
            Exit::ReadMsr | Exit::WriteMsr => msr_reason(vcpu.gprs().rcx as u32),
            Exit::Port(access) => self.devices.lock().port_reason(access.port),
            Exit::NestedFault { gpa, .. } if self.is_shadowed(gpa) => Reason::ShadowWrite,
            Exit::NestedFault { gpa, .. } => self.devices.lock().memory_reason(gpa),
            Exit::Cr8 { .. } => Reason::Cr8,
            Exit::Xsetbv => Reason::Xsetbv,
            Exit::Hypercall => Reason::Hypercall,
            Exit::CacheFlush => Reason::CacheFlush,
            Exit::Forbidden => Reason::Forbidden,
            Exit::DescriptorTable => Reason::DescriptorTable,
            Exit::NotPresent { error, interrupted } => match self.judge(error, interrupted, context) {
                Verdict::Host(_) => Reason::ShadowInterrupt,
                _ => Reason::Exception,
            },
            Exit::Exception { .. } => Reason::Exception,
            Exit::TripleFault => Reason::TripleFault,
            Exit::Unexpected { .. } => Reason::Unexpected,
        }
    }

    /// Does something and steps over the instruction.
    fn step<V: Vcpu>(&self, vcpu: &mut V, expected: impl Fn(Mnemonic) -> bool, act: impl FnOnce(&mut V)) -> Outcome {
        match decode::after(vcpu, &self.memory, expected) {
            Ok(next) => {
                act(vcpu);
                vcpu.skip_to(next);
                Outcome::Done
            }
            Err(e) => e.into(),
        }
    }

    fn forbidden(&self) -> Outcome {
        self.refusals.count(Refusal::Instruction);
        Outcome::Raise(Event::INVALID_OPCODE)
    }

    fn cpuid_exit(&self, vcpu: &mut impl Vcpu, context: &Context) -> Outcome {
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

    fn read_msr(&self, vcpu: &mut impl Vcpu, context: &mut Context, host: &impl Host) -> Outcome {
        let number = vcpu.gprs().rcx as u32;
        let value = match msr::readable(number, self.cpuid.vendor()) {
            // A back-end may choose to keep what the list lets it pass through.
            Some(Kind::PassThrough | Kind::BackEnd) => vcpu.msr(number),
            Some(Kind::LocalApic) => context.apic.read(number, now(host)).ok(),
            Some(Kind::Fixed(value) | Kind::Ignored(value)) => Some(value),
            Some(Kind::MtrrDefaultType) => Some(context.mtrr_default_type),
            Some(Kind::WallClock | Kind::SystemTime) | None => None,
        };
        let Some(value) = value else { return self.refuse_msr(number, false) };
        self.step(vcpu, |m| m == Mnemonic::Rdmsr, |vcpu| vcpu.gprs_mut().set_edx_eax(value))
    }

    fn write_msr(&self, vcpu: &mut impl Vcpu, context: &mut Context, host: &impl Host) -> Outcome {
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
            Some(Kind::WallClock) => {
                let (wall, tsc) = (host.wall_clock(), host.tsc());
                self.clock.write_wall_clock(&self.memory, value, wall, tsc).is_ok()
            }
            Some(Kind::SystemTime) => self.clock.write_system_time(&self.memory, value).is_ok(),
            Some(Kind::MtrrDefaultType) | None => false,
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

    /// A write to the local APIC that exits. Of one that the guest owns these are the registers by which it could reach
    /// beyond itself: they are checked and remembered by the emulation, and what it accepts goes to the hardware.
    pub(super) fn write_apic(&self, number: u32, value: u64, context: &mut Context, host: &impl Host) -> bool {
        let owned = self.interrupts == Interrupts::Owned;
        if owned && number == lapic::msr::SELF_IPI {
            return self.send_to_self(value, context, host);
        }
        // The same by the ICR: were it requested in the emulation, nobody would end it there.
        let icr = Icr::from_bits(value);
        if owned
            && number == lapic::msr::ICR
            && !icr.has_reserved_bits()
            && let Command::SelfInterrupt(vector) = icr.command(context.apic.id())
        {
            context.apic.remember(icr);
            return self.send_to_self(vector.into(), context, host);
        }
        let written = context.apic.write(number, value, now(host));
        if owned && written.is_ok() && matches!(number, lapic::msr::SVR | lapic::msr::LVT_TIMER) {
            self.write_owned_apic(context, host);
        }
        match written {
            Ok(Effect::None) => {}
            Ok(Effect::Ipi(message)) => {
                let reached = self.send(message, |s| host.signal(s));
                // "All but me" is nobody on a guest with one vCPU, and no refusal.
                if !reached && !matches!(message.destination, Destination::AllBut(_)) {
                    self.refusals.count(Refusal::Icr);
                }
            }
            Ok(Effect::EndOfInterrupt(vector)) => {
                self.level_ended(vector, host);
            }
            Err(lapic::GeneralProtection) => return false,
        }
        if let Some(page) = self.virtual_apic(context.index) {
            context.apic.show(page);
        }
        true
    }

    /// LINT0, LINT1, thermal, performance and error are remembered only, and masked in the hardware.
    fn write_owned_apic(&self, context: &Context, host: &impl Host) {
        let read = |number| context.apic.read(number, now(host)).unwrap_or(0);
        let (svr, timer) = (read(lapic::msr::SVR), read(lapic::msr::LVT_TIMER));
        // The APIC itself stays enabled. The timer of one that the guest has disabled is masked, as the emulation shows
        // it, and a timer whose vector is an exception's counts as masked.
        for vector in [svr as u8, timer as u8] {
            self.guest_uses(vector, context, host);
        }
        host.write_apic(lapic::msr::SVR, svr & 0xff | SVR_ENABLED);
        let refused = timer & 0xff < u64::from(FIRST_INTERRUPT);
        host.write_apic(lapic::msr::LVT_TIMER, timer & LVT_TIMER_BITS | if refused { LVT_MASKED } else { 0 });
    }

    fn send_to_self(&self, value: u64, context: &Context, host: &impl Host) -> bool {
        let Ok(vector) = u8::try_from(value) else { return false };
        let destination = Destination::Physical(context.index as u32);
        let delivery = Delivery::Fixed { vector, level: false };
        if !self.send(Message { destination, delivery }, |s| host.signal(s)) {
            self.refusals.count(Refusal::Icr);
        }
        true
    }

    fn cr8(&self, write: bool, register: Option<u8>, vcpu: &mut impl Vcpu, context: &mut Context) -> Outcome {
        let (register, next) = match self.cr8_register(write, register, vcpu) {
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

    /// The general register of a MOV to or from CR8, and where the next instruction begins.
    fn cr8_register(&self, write: bool, told: Option<u8>, vcpu: &impl Vcpu) -> Result<(Gpr, u64), Undecodable> {
        let register = |number| Gpr { number, size: 8, high: false };
        if let Some(number) = told {
            let next = decode::after(vcpu, &self.memory, |m| m == Mnemonic::Mov)?;
            return Ok((register(number & 15), next));
        }
        let i = decode::decode(vcpu, &self.memory)?;
        let (control, general) = if write { (0, 1) } else { (1, 0) };
        let operand = |n| i.try_op_register(n).unwrap_or(Register::None);
        let general = Gpr::new(operand(general)).ok_or(Undecodable::Changed)?;
        if i.mnemonic() != Mnemonic::Mov || operand(control) != Register::CR8 {
            return Err(Undecodable::Changed);
        }
        Ok((register(general.number), decode::next_rip(vcpu, i.len() as u8)))
    }

    fn xsetbv(&self, vcpu: &mut impl Vcpu, context: &mut Context) -> Outcome {
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

    fn nested_fault(&self, gpa: u64, fetch: bool, vcpu: &mut impl Vcpu, host: &impl Host) -> Outcome {
        if self.memory.translate(gpa, 1).is_ok() {
            return Outcome::Stop(Stop::Failed(format!("no access to its own memory at {gpa:#x}")));
        }
        if fetch {
            // All ones, as code where nobody answers, are no instruction.
            self.refusals.count(Refusal::Memory);
            return Outcome::Raise(Event::INVALID_OPCODE);
        }
        if vcpu.event_waiting() {
            // Delivering an event touched it: the stack or a descriptor table is not memory.
            self.refusals.count(Refusal::Memory);
            return Outcome::Stop(Stop::TripleFault);
        }
        let mut bus = DeviceBus { machine: self, host };
        match mmio::emulate(vcpu, &self.memory, gpa, &mut bus) {
            Ok(()) => Outcome::Done,
            Err(e) => {
                if self.devices.lock().memory_reason(gpa) == Reason::NestedFault {
                    self.refusals.count(Refusal::Memory);
                }
                e.into()
            }
        }
    }

    /// Counts an access that found nobody. True: it did.
    pub(super) fn count_answer(&self, answer: Answer, nobody: Refusal) -> bool {
        match answer {
            Answer::Found(_) => return false,
            Answer::NoFunction => self.refusals.count(Refusal::PciConfig),
            Answer::Nobody => self.refusals.count(nobody),
        }
        true
    }
}

impl Context {
    /// Counts another exit at `rip` that made no sense. True: it has been too many.
    fn give_up_at(&mut self, rip: u64) -> bool {
        let (at, count) = self.retries;
        self.retries = (rip, if at == rip { count + 1 } else { 1 });
        self.retries.1 > RETRIES
    }
}

/// The devices as an emulated instruction sees them.
struct DeviceBus<'a, H> {
    machine: &'a Machine,
    host: &'a H,
}

impl<H: Host> mmio::Bus for DeviceBus<'_, H> {
    fn read(&mut self, gpa: u64, size: u8) -> u64 {
        let answer = self.machine.devices.lock().read_memory(gpa, size);
        match answer {
            Answer::Found(value) => value,
            _ => {
                self.machine.count_answer(answer, Refusal::Memory);
                u64::MAX
            }
        }
    }

    fn write(&mut self, gpa: u64, size: u8, value: u64) {
        let (machine, host) = (self.machine, self.host);
        let answer = machine.devices.lock().write_memory(gpa, size, value, |message| {
            machine.send(message, |s| host.signal(s));
        });
        machine.count_answer(answer, Refusal::Memory);
    }
}

pub(super) fn now(host: &impl Host) -> lapic::Clock {
    lapic::Clock { tsc: host.tsc(), offset: 0 }
}

pub(super) fn failed(why: &str) -> Stop {
    Stop::Failed(String::from(why))
}

fn msr_reason(number: u32) -> Reason {
    use lapic::msr::{CURRENT_COUNT, DIVIDE, EOI, ICR, INITIAL_COUNT, SELF_IPI, TSC_DEADLINE};
    match number {
        EOI => Reason::MsrApicEoi,
        ICR | SELF_IPI => Reason::MsrApicIcr,
        TSC_DEADLINE | INITIAL_COUNT | CURRENT_COUNT | DIVIDE => Reason::MsrApicTimer,
        clock::WALL_CLOCK_NEW | clock::SYSTEM_TIME_NEW => Reason::MsrOther,
        _ if LocalApic::owns(number) => Reason::MsrApicOther,
        _ => Reason::MsrOther,
    }
}
