//! The virtual CPU on VT-x: implements [`machine::vcpu::Vcpu`] with a VMCS.

#![allow(unsafe_code, reason = "owns a VMCS and runs what it describes")]

use crate::{
    Offer,
    capability::{Capabilities, ControlWords},
    control_registers::Rules,
    controls::{Missing, PinBased, Primary, Secondary},
    debug, entry,
    events::{self, Injection, Superseded},
    exit::{self, Cause, ControlRegisterAccess},
    failure,
    fields::*,
    host,
    instructions::{CurrentVmcs, Failed, Scope, invept, invvpid, vmclear},
    msr,
    posted::{self, VirtualApic},
    reset::{self, Addresses},
    segments,
    split_lock::{SplitLock, TEST_CTRL, Write},
};
use core::{fmt, marker::PhantomData, sync::atomic::AtomicBool};
use machine::{
    posted::HandOver,
    quirk::Quirks,
    split_lock::is_alignment_check,
    vcpu::{Event, Exit, Gprs, Intercepts, Interrupted, Interrupts, Segment, SegmentName, StartState, Vcpu as Trait},
};
use speculation::{Physical, Switch};
use x86_64::registers::model_specific::Msr;

/// Interruptibility state (SDM vol. 3C table 25-3): blocking by STI.
const BLOCKING_BY_STI: u32 = 1 << 0;
/// Interruptibility state: blocking by MOV SS.
const BLOCKING_BY_MOV_SS: u32 = 1 << 1;
/// Interruptibility state: blocking by NMI.
const BLOCKING_BY_NMI: u32 = 1 << 3;
/// Interruptibility state: the interrupt shadow.
const SHADOW: u32 = BLOCKING_BY_STI | BLOCKING_BY_MOV_SS;
const RFLAGS_IF: u64 = 1 << 9;
const RFLAGS_RF: u64 = 1 << 16;
/// Vector of #NP.
const NOT_PRESENT: u8 = 11;
/// Vector of #AC.
const ALIGNMENT_CHECK: u8 = 17;

/// The parts of a vCPU. Each address is the host-physical address of a 4 KiB frame that is mapped there.
#[derive(Clone, Copy, Debug)]
pub struct Parts<'a> {
    /// A frame for the VMCS. Only this vCPU uses it.
    pub vmcs: u64,
    /// A frame that holds an [`crate::Bitmap`]. All vCPUs may share one.
    pub msr_bitmap: u64,
    /// Root of the EPT, four levels.
    pub ept_root: u64,
    /// Tag of its translations. It is not 0, and no other vCPU on this core has it.
    pub vpid: u16,
    /// Another core sets it before it sends the NMI, to make the guest exit. It is read at each entry and never written
    /// here. The caller clears it when it handles [`Exit::NotEntered`] or [`Exit::Nmi`], before it looks for work.
    pub kick: &'static AtomicBool,
    /// This CPU's capabilities.
    pub capabilities: &'a Capabilities,
    /// The features that the guest's CPUID offers.
    pub offer: Offer,
    /// Who has the local APIC. The MSR bitmap must fit.
    pub interrupts: Interrupts,
    /// For [`Interrupts::Virtualized`].
    pub virtual_apic: Option<VirtualApic>,
    /// Split and bus locks are to be noticed, as far as the CPU can do that.
    pub split_locks: bool,
    /// The CPU's quirks that need a workaround.
    pub quirks: Quirks,
    /// What is done about speculation at each entry and exit.
    pub switch: Switch,
}

/// Why a vCPU can't be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The CPU lacks a required control.
    Missing(Missing),
    /// The CPU refuses the VMCS.
    Vmcs(Failed),
    /// The CPU is to virtualize the local APIC, but no virtual local APIC was given.
    NoVirtualApic,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(m) => m.fmt(f),
            Self::Vmcs(e) => write!(f, "The VMCS can't be loaded: {e}."),
            Self::NoVirtualApic => f.write_str("The vCPU was given no virtual-APIC page."),
        }
    }
}

/// A virtual CPU. It stays on the core that made it (it is not `Send`). A core has only one at a time.
pub struct Vcpu {
    vmcs: CurrentVmcs,
    physical: u64,
    gprs: Gprs,
    /// RSP in the VMCS. If `gprs.rsp` differs, it is written back.
    rsp: u64,
    launched: bool,
    words: ControlWords,
    addresses: Addresses,
    rules: Rules,
    offer: Offer,
    kick: &'static AtomicBool,
    switch: Switch,
    /// The event that the next entry delivers.
    pending: Option<Injection>,
    /// An NMI that the guest can't take yet.
    nmi: bool,
    /// An interrupt that an exception replaced during its delivery.
    interrupt: Option<u8>,
    /// The layers above want an exit when the guest can take an interrupt.
    window: bool,
    /// Primary controls in the VMCS.
    primary: u32,
    /// Its local APIC, if the CPU virtualizes it.
    virtual_apic: Option<VirtualApic>,
    /// The preemption timer counts at the TSC's rate, shifted right by this. `None`: there is no timer.
    preemption_shift: Option<u8>,
    /// Host TSC at which the guest is to exit. Only if the timer stands in for the guest's.
    deadline: Option<u64>,
    /// How this CPU notices split and bus locks.
    split_lock: SplitLock,
    /// Whether they are to be noticed.
    split_locks: bool,
    /// Host TSC at which they are noticed again.
    noticed_at: Option<u64>,
    /// The secondary controls of the bus-lock exits, in the VMCS besides `words`.
    bus_locks: Secondary,
    /// Pin-based controls in the VMCS.
    pin_based: u32,
    /// The additional intercepts in the VMCS.
    intercepts: Intercepts,
    /// Exits handled without the layers above (CR0, CR4, windows).
    inside: u64,
    core: PhantomData<*const ()>,
}

impl Vcpu {
    /// Makes a vCPU on the core that will run it. It must be [`reset`](Trait::reset) before it runs.
    ///
    /// # Errors
    /// The CPU lacks a required control, or refuses the VMCS.
    ///
    /// # Safety
    /// This core is in VMX operation ([`crate::enable`]) and stays in it. Interrupts are off. The core's descriptor
    /// tables, CR3 and GS base don't change. The frames in `parts` are as described there, until the vCPU is dropped.
    /// The EPT at `ept_root` maps only the guest's memory. No other vCPU exists on this core.
    pub unsafe fn new(parts: &Parts<'_>) -> Result<Self, Error> {
        let Parts { capabilities, offer, interrupts, quirks, .. } = *parts;
        let words = capabilities.control_words(offer.secondary, interrupts, quirks).map_err(Error::Missing)?;
        let virtualized = interrupts == Interrupts::Virtualized;
        let virtual_apic = parts.virtual_apic.filter(|_| virtualized);
        if virtualized && virtual_apic.is_none() {
            return Err(Error::NoVirtualApic);
        }
        let region = core::ptr::with_exposed_provenance_mut::<u32>(parts.vmcs as usize);
        // SAFETY: by the caller's promise the frame is ours. Its first word is the revision identifier (25.2).
        let vmcs = unsafe {
            region.write_volatile(capabilities.basic.revision());
            CurrentVmcs::load(parts.vmcs).map_err(Error::Vmcs)?
        };
        Ok(Self {
            vmcs,
            physical: parts.vmcs,
            gprs: Gprs::default(),
            rsp: 0,
            launched: false,
            words,
            addresses: Addresses {
                msr_bitmap: parts.msr_bitmap,
                ept_pointer: reset::ept_pointer(parts.ept_root),
                vpid: parts.vpid,
            },
            rules: Rules::new(capabilities.cr0, capabilities.cr4, offer.cr4),
            offer,
            kick: parts.kick,
            switch: parts.switch,
            pending: None,
            nmi: false,
            interrupt: None,
            window: false,
            primary: words.primary,
            virtual_apic,
            preemption_shift: capabilities.preemption_timer().then(|| capabilities.misc.preemption_timer_shift()),
            deadline: None,
            split_lock: capabilities.split_lock,
            split_locks: parts.split_locks,
            noticed_at: None,
            bus_locks: Secondary::empty(),
            pin_based: words.pin_based,
            intercepts: Intercepts::default(),
            inside: 0,
            core: PhantomData,
        })
    }

    /// Drops this core's cached translations of the guest's memory. The EPT may have changed since they were made.
    fn flush_translations(&mut self) {
        // SAFETY: by `new`, the core is in VMX operation.
        let (ept, vpid) = unsafe {
            (
                invept(Scope::SingleContext, self.addresses.ept_pointer).or_else(|_| invept(Scope::AllContexts, 0)),
                invvpid(Scope::SingleContext, self.addresses.vpid).or_else(|_| invvpid(Scope::AllContexts, 0)),
            )
        };
        for e in [ept, vpid].into_iter().filter_map(Result::err) {
            log::error!("INVEPT or INVVPID failed, the guest may see stale translations: {e}");
        }
    }

    fn interruptibility(&self) -> u32 {
        self.vmcs.read(GUEST_INTERRUPTIBILITY)
    }

    /// Updates the VMCS for the next entry: RSP, the event to deliver, the windows that exit.
    fn prepare(&mut self) {
        if self.gprs.rsp != self.rsp {
            self.rsp = self.gprs.rsp;
            self.vmcs.write(GUEST_RSP, self.rsp);
        }
        if self.nmi || self.interrupt.is_some() {
            self.take_held();
        }
        let mut primary = self.words.primary;
        // If an NMI waits for the end of STI's shadow, the interrupt window is used. NMI-window exiting may exit within
        // the shadow (25.6.2), and the guest would never leave it.
        let behind_sti = self.nmi && self.interruptibility() & BLOCKING_BY_STI != 0;
        if self.window || self.interrupt.is_some() || behind_sti {
            primary |= Primary::INTERRUPT_WINDOW_EXITING.bits();
        }
        if self.nmi && !behind_sti {
            primary |= Primary::NMI_WINDOW_EXITING.bits();
        }
        if primary != self.primary {
            self.primary = primary;
            self.vmcs.write(PRIMARY_CONTROLS, primary);
        }
        if self.noticed_at.is_some() {
            self.notice_split_locks_again();
        }
        if let Some(shift) = self.preemption_shift {
            self.prepare_timer(shift);
        }
        if let Some(i) = self.pending {
            self.vmcs.write(ENTRY_INTERRUPTION_INFORMATION, i.information.into_bits());
            if i.information.has_error() {
                self.vmcs.write(ENTRY_EXCEPTION_ERROR_CODE, i.error);
            }
            if i.has_length() {
                self.vmcs.write(ENTRY_INSTRUCTION_LENGTH, i.length);
            }
            if i.pushes_rf() {
                let rflags = self.rflags();
                self.vmcs.write(GUEST_RFLAGS, rflags | RFLAGS_RF);
            }
        }
    }

    /// Switches the detection of split and bus locks on or off (split_lock.rs).
    fn switch_split_locks(&mut self, on: bool) {
        let mut register = Msr::new(TEST_CTRL);
        // SAFETY: where `alignment_check` is set, the register exists. Reading it has no effect.
        let before = if self.split_lock.alignment_check { unsafe { register.read() } } else { 0 };
        for write in self.split_lock.writes(on, before).into_iter().flatten() {
            match write {
                // SAFETY: the register exists, and only its bit for split locks changes. No host code on this core makes a
                // split lock, because Rust's atomics are aligned.
                Write::TestCtrl(value) => unsafe { register.write(value) },
                Write::Secondary(bits) => {
                    self.bus_locks = bits;
                    self.write_secondary();
                }
            }
        }
    }

    /// Has split and bus locks noticed again if the time has come.
    fn notice_split_locks_again(&mut self) {
        // SAFETY: RDTSC is not restricted in ring 0.
        let now = unsafe { core::arch::x86_64::_rdtsc() };
        if self.noticed_at.is_some_and(|at| now >= at) {
            self.noticed_at = None;
            self.switch_split_locks(true);
        }
    }

    fn write_secondary(&mut self) {
        let tables = if self.intercepts.idt { Secondary::DESCRIPTOR_TABLE_EXITING } else { Secondary::empty() };
        self.vmcs.write(SECONDARY_CONTROLS, self.words.secondary | (tables | self.bus_locks).bits());
    }

    /// Sets the preemption timer to end at the deadline, or when split locks are to be noticed again. Without either it does
    /// not run, and no exit comes from it.
    fn prepare_timer(&mut self, shift: u8) {
        let timer = PinBased::PREEMPTION_TIMER.bits();
        let mut pin_based = self.pin_based & !timer;
        if let Some(deadline) = posted::earliest(self.deadline, self.noticed_at) {
            pin_based |= timer;
            // SAFETY: RDTSC is not restricted in ring 0.
            let now = unsafe { core::arch::x86_64::_rdtsc() };
            self.vmcs.write(GUEST_PREEMPTION_TIMER_VALUE, posted::preemption_ticks(deadline, now, shift));
        }
        if pin_based != self.pin_based {
            self.pin_based = pin_based;
            self.vmcs.write(PIN_BASED_CONTROLS, pin_based);
        }
    }

    /// Has the next entry deliver the NMI or interrupt that was held back, if the guest can take it now.
    fn take_held(&mut self) {
        // An entry that delivers an event drops the debug trap that waits (27.7.3). The trap comes first, and #DB exits.
        if self.pending.is_some() || debug::trap_waits(&self.vmcs) {
            return;
        }
        let blocking = self.interruptibility() & (SHADOW | BLOCKING_BY_NMI);
        if self.nmi && blocking == 0 {
            self.nmi = false;
            self.pending = Some(Injection::new(Event::Nmi));
        } else if let Some(vector) = self.interrupt
            && blocking & SHADOW == 0
            && self.rflags() & RFLAGS_IF != 0
        {
            self.interrupt = None;
            self.pending = Some(Injection::new(Event::Interrupt(vector)));
        }
    }

    /// After an exit, decides what the next entry delivers. If the IDT-vectoring information says that the exit
    /// interrupted a delivery, the event is delivered again. Otherwise the last event was delivered.
    fn take_interrupted(&mut self) {
        let vectoring = self.vmcs.read(IDT_VECTORING_INFORMATION);
        if vectoring >> 31 == 0 {
            self.pending = None;
            return;
        }
        let (error, length) = (self.vmcs.read(IDT_VECTORING_ERROR_CODE), self.vmcs.read(EXIT_INSTRUCTION_LENGTH));
        self.pending = Injection::interrupted(vectoring, error, length);
        if self.pending.is_some_and(|i| i.kind() == events::kind::NMI) {
            // The interrupted delivery has blocked NMIs. An entry that delivers an NMI needs them unblocked (27.2.1.3).
            let state = self.interruptibility();
            self.vmcs.write(GUEST_INTERRUPTIBILITY, state & !BLOCKING_BY_NMI);
        }
    }

    /// Blocks NMIs again after an IRET unblocked them and then faulted. They stay blocked until the IRET is executed
    /// again (28.2.3).
    fn block_nmis_again(&mut self) {
        if self.pending.is_none() {
            let state = self.interruptibility();
            self.vmcs.write(GUEST_INTERRUPTIBILITY, state | BLOCKING_BY_NMI);
        }
    }

    fn exception(&mut self, information: u32, error: u32) -> Exit {
        let information = events::Information::from_bits(information);
        if information.nmi_unblocking_due_to_iret() {
            self.block_nmis_again();
        }
        let vector = information.vector();
        if vector == ALIGNMENT_CHECK
            && self.split_lock.alignment_check
            && !is_alignment_check(self.cpl(), self.cr0(), self.rflags())
        {
            // An event whose delivery it interrupted stays in `pending`, and is delivered again.
            return Exit::SplitLock;
        }
        let interrupted = self.pending.take();
        if vector == NOT_PRESENT {
            // The exit reports the interrupted event. The layers above decide about it, so it is not kept here.
            return Exit::NotPresent { error, interrupted: interrupted.map(|i| i.described()) };
        }
        match Superseded::by_exception(interrupted) {
            Superseded::Nothing => {}
            Superseded::Interrupt(vector) => self.interrupt = Some(vector),
            Superseded::Nmi => self.nmi = true,
        }
        if vector == debug::VECTOR {
            debug::prepare_to_reflect(&mut self.vmcs, information.kind());
        }
        Exit::Exception { vector, error: information.has_error().then_some(error) }
    }

    /// Handles a MOV that changes bits of CR0 or CR4 that the guest doesn't own. Either the guest gets #GP, or the
    /// shadow takes the value and the instruction runs again (control_registers.rs). Returns false for any other
    /// access.
    fn control_register(&mut self, access: ControlRegisterAccess) -> bool {
        if access.kind() != ControlRegisterAccess::MOV_TO {
            // CLTS and LMSW change only TS, MP, EM and PE, which the guest owns.
            return false;
        }
        let new = self.gprs.get(access.register());
        let shadow = match access.number() {
            0 => {
                let mode = crate::control_registers::Mode {
                    efer: self.efer(),
                    cr3: self.cr3(),
                    cr4: self.cr4(),
                    cs_long: self.segment(SegmentName::Cs).attributes.long()
                        && self.efer() & crate::control_registers::LMA != 0,
                };
                self.rules.mov_to_cr0(self.cr0(), new, &mode).map(|shadow| (CR0_READ_SHADOW, shadow))
            }
            4 => self.rules.mov_to_cr4(new).map(|shadow| (CR4_READ_SHADOW, shadow)),
            _ => return false,
        };
        match shadow {
            Ok((field, value)) => self.vmcs.write(field, value),
            Err(_) => self.pending = Some(Injection::new(Event::GENERAL_PROTECTION)),
        }
        true
    }

    /// Ends an emulated instruction, or an iteration of one that goes on: the interrupt shadow is over.
    fn completed(&mut self, iteration: bool) {
        let state = self.interruptibility();
        if state & SHADOW != 0 {
            self.vmcs.write(GUEST_INTERRUPTIBILITY, state & !SHADOW);
        }
        debug::completed(&mut self.vmcs, iteration);
    }

    fn unexpected(&self, reason: u32) -> Exit {
        Exit::Unexpected { reason: u64::from(reason), detail: self.vmcs.read(EXIT_QUALIFICATION) }
    }
}

impl Drop for Vcpu {
    fn drop(&mut self) {
        // The core's next guest may be one whose split locks are not noticed.
        self.switch_split_locks(false);
        // SAFETY: the VMCS is active only on this core. After VMCLEAR it is plain memory again.
        if let Err(e) = unsafe { vmclear(self.physical) } {
            log::error!("VMCLEAR of the VMCS at {:#x}: {e}", self.physical);
        }
    }
}

impl Trait for Vcpu {
    fn reset(&mut self, state: &StartState) {
        // SAFETY: as in `new`. Its promises still hold.
        match unsafe { CurrentVmcs::load(self.physical) } {
            Ok(vmcs) => self.vmcs = vmcs,
            Err(e) => log::error!("the VMCS at {:#x} can't be loaded: {e}", self.physical),
        }
        self.launched = false;
        self.gprs = state.gprs;
        self.rsp = state.gprs.rsp;
        (self.pending, self.nmi, self.interrupt, self.window) = (None, false, None, false);
        (self.primary, self.pin_based) = (self.words.primary, self.words.pin_based);
        (self.deadline, self.noticed_at) = (None, None);
        (self.intercepts, self.bus_locks) = (Intercepts::default(), Secondary::empty());
        reset::write_controls(&mut self.vmcs, &self.words, &self.addresses, &self.rules, reset::is_long(state));
        if let Some(virtual_apic) = &self.virtual_apic {
            virtual_apic.write(&mut self.vmcs);
        }
        reset::write_guest(&mut self.vmcs, state, &self.rules);
        // SAFETY: the promises of `new` hold for this core. The registers that are cleared belong to the guest.
        unsafe {
            host::write(&mut self.vmcs, &self.switch);
            reset::clear_registers();
            self.switch.set_guest_spec_ctrl(0, &mut Physical::new());
        }
        self.switch_split_locks(self.split_locks);
        self.flush_translations();
    }

    fn run(&mut self) -> Exit {
        loop {
            self.prepare();
            // SAFETY: `new` and `reset` have made the VMCS current and its host state complete. `launched` is set
            // below, after the first entry.
            match unsafe { entry::enter(&mut self.gprs, self.launched, self.kick, &mut self.switch) } {
                entry::Outcome::Exited => {}
                entry::Outcome::Aborted => return Exit::NotEntered,
                entry::Outcome::Failed => return failure::instruction(&self.vmcs),
            }
            self.rsp = self.vmcs.read(GUEST_RSP);
            self.gprs.rsp = self.rsp;
            let reason = self.vmcs.read(EXIT_REASON);
            let cause = exit::decode(reason, &self.vmcs);
            match cause {
                Cause::EntryFailed => {
                    failure::guest_state(&self.vmcs, reason);
                    return self.unexpected(reason);
                }
                // The guest has not run. Its event stays for the next entry.
                Cause::EntryMachineCheck => return Exit::MACHINE_CHECK,
                _ => {}
            }
            self.launched = true;
            self.take_interrupted();
            match cause {
                Cause::Above(exit) => return exit,
                Cause::AboveDuringIret(exit) => {
                    self.block_nmis_again();
                    return exit;
                }
                Cause::Nmi => {
                    entry::unblock_nmis();
                    return Exit::Nmi;
                }
                Cause::Exception(information, error) => return self.exception(information, error),
                Cause::InterruptWindow if self.window => return Exit::InterruptWindow,
                // `prepare` delivers what waited for the window.
                Cause::InterruptWindow | Cause::NmiWindow => {}
                Cause::ControlRegister(access) => {
                    if !self.control_register(access) {
                        return self.unexpected(reason);
                    }
                }
                Cause::EntryFailed | Cause::EntryMachineCheck => return self.unexpected(reason),
            }
            self.inside = self.inside.saturating_add(1);
        }
    }

    fn gprs(&self) -> &Gprs {
        &self.gprs
    }
    fn gprs_mut(&mut self) -> &mut Gprs {
        &mut self.gprs
    }
    fn rip(&self) -> u64 {
        self.vmcs.read(GUEST_RIP)
    }
    fn set_rip(&mut self, rip: u64) {
        self.vmcs.write(GUEST_RIP, rip);
    }
    fn rflags(&self) -> u64 {
        self.vmcs.read(GUEST_RFLAGS)
    }
    fn set_rflags(&mut self, rflags: u64) {
        self.vmcs.write(GUEST_RFLAGS, rflags);
    }
    fn cr0(&self) -> u64 {
        self.rules.seen_cr0(self.vmcs.read(GUEST_CR0), self.vmcs.read(CR0_READ_SHADOW))
    }
    fn cr3(&self) -> u64 {
        self.vmcs.read(GUEST_CR3)
    }
    fn cr4(&self) -> u64 {
        self.rules.seen_cr4(self.vmcs.read(GUEST_CR4), self.vmcs.read(CR4_READ_SHADOW))
    }
    fn cr2(&self) -> u64 {
        // CR2 belongs to the guest as long as it has this core.
        x86_64::registers::control::Cr2::read_raw()
    }
    fn set_cr2(&mut self, address: u64) {
        // SAFETY: CR2 belongs to the guest as long as it has this core. The host does not survive a page fault anyway.
        unsafe { core::arch::asm!("mov cr2, {}", in(reg) address, options(nostack, nomem, preserves_flags)) };
    }
    fn efer(&self) -> u64 {
        self.vmcs.read(GUEST_IA32_EFER)
    }
    fn segment(&self, name: SegmentName) -> Segment {
        segments::read(&self.vmcs, name)
    }
    fn cpl(&self) -> u8 {
        segments::dpl(self.vmcs.read(GUEST_SS_ACCESS_RIGHTS))
    }
    fn idt(&self) -> (u64, u16) {
        (self.vmcs.read(GUEST_IDTR_BASE), self.vmcs.read(GUEST_IDTR_LIMIT) as u16)
    }

    fn intercept(&mut self, what: Intercepts) {
        if what == self.intercepts {
            return;
        }
        self.intercepts = what;
        let with = |word: u32, bit: u32, on: bool| if on { word | bit } else { word };
        // If the preemption timer runs, `prepare_timer` sets its bit again.
        self.pin_based = with(self.words.pin_based, PinBased::EXTERNAL_INTERRUPT_EXITING.bits(), what.interrupts);
        self.vmcs.write(PIN_BASED_CONTROLS, self.pin_based);
        self.write_secondary();
        self.vmcs.write(EXCEPTION_BITMAP, with(reset::EXCEPTIONS, 1 << NOT_PRESENT, what.not_present));
    }

    fn flush_nested(&mut self) {
        self.flush_translations();
    }

    fn msr(&self, number: u32) -> Option<u64> {
        Some(match number {
            msr::EFER => self.efer(),
            msr::SPEC_CTRL => return self.switch.guest_spec_ctrl(),
            msr::PAT => self.vmcs.read(GUEST_IA32_PAT),
            msr::SYSENTER_CS => u64::from(self.vmcs.read(GUEST_SYSENTER_CS)),
            msr::SYSENTER_ESP => self.vmcs.read(GUEST_SYSENTER_ESP),
            msr::SYSENTER_EIP => self.vmcs.read(GUEST_SYSENTER_EIP),
            msr::FS_BASE => self.vmcs.read(GUEST_FS_BASE),
            msr::GS_BASE => self.vmcs.read(GUEST_GS_BASE),
            // SAFETY: each CPU with long mode has it, and reading it has no effect. It is the guest's as long as the core runs
            // this vCPU (`msr::Kept::Register`).
            msr::LSTAR => unsafe { Msr::new(msr::LSTAR).read() },
            _ => return None,
        })
    }

    fn set_msr(&mut self, number: u32, value: u64) -> bool {
        let field = match number {
            // SAFETY: this is CPL 0, and the switch was made for this CPU (contract of `new`).
            msr::SPEC_CTRL => return self.switch.set_guest_spec_ctrl(value, &mut unsafe { Physical::new() }),
            // SAFETY: as above.
            msr::PRED_CMD => return self.switch.guest_ibpb(&mut unsafe { Physical::new() }),
            msr::EFER => {
                let paging = self.cr0() & crate::control_registers::PG != 0;
                let new = msr::new_efer(self.efer(), value, self.offer.efer, paging);
                if let Some(new) = new {
                    self.vmcs.write(GUEST_IA32_EFER, new);
                }
                return new.is_some();
            }
            msr::PAT if msr::pat_allowed(value) => {
                self.vmcs.write(GUEST_IA32_PAT, value);
                return true;
            }
            msr::SYSENTER_CS => {
                self.vmcs.write(GUEST_SYSENTER_CS, value as u32);
                return true;
            }
            msr::SYSENTER_ESP => GUEST_SYSENTER_ESP,
            msr::SYSENTER_EIP => GUEST_SYSENTER_EIP,
            msr::FS_BASE => GUEST_FS_BASE,
            msr::GS_BASE => GUEST_GS_BASE,
            _ => return false,
        };
        if !msr::canonical(value) {
            return false;
        }
        self.vmcs.write(field, value);
        true
    }

    fn set_xcr0(&mut self, value: u64) {
        if value & 1 == 0 || value & !reset::supported_xcr0() != 0 {
            log::error!("XCR0 = {value:#x} was asked for, which this CPU doesn't have");
            return;
        }
        // SAFETY: the value was checked against the guest's CPUID, and has no component that the CPU lacks. The host
        // uses XSAVE only in `reset`, which sets XCR0 itself.
        unsafe { x86_64::registers::xcontrol::XCr0::write_raw(value) };
    }

    fn set_tsc_offset(&mut self, offset: u64) {
        self.vmcs.write(TSC_OFFSET, offset);
    }

    fn pkru(&self) -> u32 {
        reset::read_pkru()
    }

    fn instruction_length(&self) -> Option<u8> {
        Some(self.vmcs.read(EXIT_INSTRUCTION_LENGTH) as u8)
    }

    fn skip_to(&mut self, next: u64) {
        let next = segments::wrap_rip(next, self.vmcs.read(GUEST_CS_ACCESS_RIGHTS));
        self.vmcs.write(GUEST_RIP, next);
        self.completed(false);
    }

    fn iterated(&mut self) {
        self.completed(true);
    }

    fn trap_waits(&self) -> bool {
        self.event_waiting() || debug::trap_waits(&self.vmcs)
    }

    fn interruptible(&self) -> bool {
        self.pending.is_none()
            && self.interrupt.is_none()
            && self.rflags() & RFLAGS_IF != 0
            && self.interruptibility() & SHADOW == 0
            && !debug::trap_waits(&self.vmcs)
    }

    fn event_waiting(&self) -> bool {
        self.pending.is_some()
    }

    fn waiting(&self) -> Option<Interrupted> {
        self.pending.as_ref().map(Injection::described)
    }

    fn inject(&mut self, event: Event) {
        match event {
            // At entry, `prepare` decides whether the guest can take it.
            Event::Nmi => self.nmi = true,
            other => self.pending = Some(Injection::new(other)),
        }
    }

    fn want_interrupt_window(&mut self, wanted: bool) {
        self.window = wanted;
    }
    fn exit_at(&mut self, deadline: Option<u64>) -> bool {
        let stands_in = self.virtual_apic.is_some() && self.preemption_shift.is_some();
        self.deadline = deadline.filter(|_| stands_in);
        stands_in
    }
    fn free_split_locks(&mut self, until: u64) {
        self.noticed_at = Some(until).filter(|&at| at != u64::MAX);
        self.switch_split_locks(false);
    }
    fn handed_over(&mut self, change: &HandOver) {
        posted::handed_over(&mut self.vmcs, change);
    }
    fn exits_inside(&self) -> u64 {
        self.inside
    }
}
