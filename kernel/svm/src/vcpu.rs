//! A virtual CPU on SVM: [`Vcpu`] in terms of the VMCB, and the entry loop (APM vol. 2 15.5, 15.6, 15.20, 15.21).

#![allow(unsafe_code, reason = "calls the world switch")]

use crate::asid::Asids;
use crate::event::Superseded;
use crate::exit;
use crate::exit_code::ExitCode;
use crate::fields::{EventInfo, Intercepts1, InterruptShadow};
use crate::nmi::{Nmi, Plan};
use crate::permission::PermissionMaps;
use crate::probe::Capabilities;
use crate::state::{self, Roots};
use crate::vmcb::{SavedSegment, Vmcb};
use crate::{core_state, event, world};
use core::sync::atomic::AtomicBool;
use machine::control_registers::MCE;
use machine::vcpu::{Event, Exit, Gprs, Intercepts, Interrupted, Interrupts, Segment, SegmentName, StartState, Vcpu};
use speculation::{Physical, Switch};

const RFLAGS_TF: u64 = 1 << 8;
const RFLAGS_IF: u64 = 1 << 9;
const RFLAGS_RF: u64 = 1 << 16;
const DR6_BS: u64 = 1 << 14;
const DR7_GD: u64 = 1 << 13;
const DEBUG: u8 = 1;
const TSC_AUX: u32 = 0xc000_0103;
const SPEC_CTRL: u32 = 0x48;
const PRED_CMD: u32 = 0x49;

/// The pages of one vCPU: 8 KiB, physically contiguous, 4 KiB aligned.
#[repr(C, align(4096))]
pub struct VcpuPages {
    guest: Vmcb,
    /// The host's registers that VMLOAD restores.
    host: Vmcb,
}

impl VcpuPages {
    /// Empty pages for [`SvmVcpu::new`].
    pub const ZERO: Self = Self { guest: Vmcb::ZERO, host: Vmcb::ZERO };
}

const _: () = assert!(size_of::<VcpuPages>() == 0x2000);

/// A virtual CPU. It stays on one core.
pub struct SvmVcpu {
    pages: &'static mut VcpuPages,
    gprs: Gprs,
    kick: &'static AtomicBool,
    capabilities: Capabilities,
    roots: Roots,
    asids: Asids,
    interrupts: Interrupts,
    /// Bus locks are to exit.
    bus_locks: bool,
    switch: Switch,
    nmi: Nmi,
    /// Bits of CR0 that the guest sees set and the processor has clear.
    shown: u64,
    /// The guest's CR4.MCE. The processor always has it set.
    mce: u64,
    /// An interrupt that an exception replaced during its delivery.
    held: Option<u8>,
    /// The layers above want an exit when the guest can take an interrupt.
    window: bool,
    /// `reset` was called. It has filled the VMCB and saved the host's registers.
    started: bool,
}

/// How a vCPU runs.
#[derive(Clone, Debug)]
pub struct How {
    /// Who has the core's local APIC.
    pub interrupts: Interrupts,
    /// Bus locks exit, if the processor can do that.
    pub bus_locks: bool,
    /// What is done about speculation at each entry and exit.
    pub switch: Switch,
}

impl SvmVcpu {
    /// Makes a vCPU. It must be [`reset`](Vcpu::reset) before it runs.
    ///
    /// `nested_root` is the physical address of the nested tables' root. `kick` is read right before each entry and
    /// never written here. While it is set, [`run`](Vcpu::run) returns [`Exit::NotEntered`].
    ///
    /// # Safety
    /// [`crate::enable`] ran on the core that will use the vCPU, with these `capabilities`. The switch of `how` was made for
    /// this CPU. No other core uses the vCPU. `pages` and `maps` are mapped at their physical address, and `maps` are filled. As long as the vCPU runs,
    /// the nested tables map only this guest's memory. [`run`](Vcpu::run) is called with interrupts off.
    pub unsafe fn new(
        pages: &'static mut VcpuPages,
        maps: &'static PermissionMaps,
        nested_root: u64,
        kick: &'static AtomicBool,
        capabilities: Capabilities,
        how: How,
    ) -> Self {
        let How { interrupts, bus_locks, switch } = how;
        Self {
            pages,
            gprs: Gprs::default(),
            kick,
            capabilities,
            roots: Roots { io_map: maps.io_address(), msr_map: maps.msr_address(), nested: nested_root },
            asids: Asids::new(capabilities.asids, capabilities.features.flush_by_asid()),
            interrupts,
            bus_locks,
            switch,
            nmi: Nmi::default(),
            shown: 0,
            mce: 0,
            held: None,
            window: false,
            started: false,
        }
    }

    fn vmcb(&self) -> &Vmcb {
        &self.pages.guest
    }

    fn vmcb_mut(&mut self) -> &mut Vmcb {
        &mut self.pages.guest
    }

    /// Gives the next entry the interrupt that was held back, if the guest can take it. Asks for an interrupt window if
    /// it or the layers above want one.
    fn take_held(&mut self) {
        if let Some(vector) = self.held
            && self.can_take_interrupt()
        {
            self.held = None;
            self.vmcb_mut().control.event_injection = event::injection(Event::Interrupt(vector));
        }
        state::interrupt_window(&mut self.pages.guest, self.window || self.held.is_some());
    }

    fn can_take_interrupt(&self) -> bool {
        let guest = self.vmcb();
        guest.save.rflags & RFLAGS_IF != 0 && !guest.control.interrupt_shadow.shadow() && !self.event_waiting()
    }

    /// Ends an emulated instruction, or an iteration of one: the interrupt shadow and RF are over, or RF is set. With TF
    /// set, the processor would have trapped.
    fn completed(&mut self, resume_flag: bool) {
        let waiting = self.event_waiting();
        let guest = self.vmcb_mut();
        guest.save.rflags &= !RFLAGS_RF;
        if resume_flag {
            guest.save.rflags |= RFLAGS_RF;
        }
        guest.control.interrupt_shadow = InterruptShadow::new();
        if guest.save.rflags & RFLAGS_TF != 0 && !waiting {
            // An injected #DB does not change these. A real one does.
            guest.save.dr6 |= DR6_BS;
            guest.save.dr7 &= !DR7_GD;
            self.inject(Event::Exception(DEBUG, None));
        }
    }

    /// Enters the guest once and handles its exit. Returns `None` if the exit does not concern the layers above.
    fn enter(&mut self) -> Option<Exit> {
        self.take_held();
        let plan = self.nmi.plan(self.event_waiting());
        let Self { pages, gprs, kick, switch, .. } = self;
        let VcpuPages { guest, host } = &mut **pages;
        if plan == Plan::Inject {
            guest.control.event_injection = event::injection(Event::Nmi);
            self.nmi.injected();
        }
        if event::pushes_rf(guest.control.event_injection) {
            guest.save.rflags |= RFLAGS_RF;
        }
        let traced_by_guest = guest.save.rflags & RFLAGS_TF != 0;
        if plan == Plan::Step {
            guest.save.rflags |= RFLAGS_TF;
        }
        guest.control.intercepts_1.set(Intercepts1::IRET, self.nmi.intercept_iret());
        (guest.control.guest_asid, guest.control.tlb_control) = self.asids.for_entry();
        (guest.save.rax, guest.save.rsp) = (gprs.rax, gprs.rsp);
        let rip = guest.save.rip;
        // SAFETY: SVM is enabled and interrupts are off (contract of `new`). `reset` has filled the VMCB and saved the
        // host, as `run` checks. The VMCB's intercepts, maps and nested root are never weakened. The references that
        // become pointers for the call are not used while it runs.
        let entered = unsafe {
            let kick = core::ptr::from_ref(*kick);
            if switch.any() {
                world::enter_guarded(guest, gprs, host, kick, switch)
            } else {
                world::enter(guest, gprs, host, kick, switch)
            }
        };
        let step = plan == Plan::Step && guest.save.rip == rip;
        if step && !traced_by_guest {
            guest.save.rflags &= !RFLAGS_TF; // still before the IRET: the flag is not the guest's
        }
        if !entered {
            return Some(Exit::NotEntered);
        }
        self.asids.entered();
        (gprs.rax, gprs.rsp) = (guest.save.rax, guest.save.rsp);
        let code = guest.control.exit_code;
        self.nmi.left(guest.save.rip, code == ExitCode::IRET);

        let exit = exit::decode(&guest.control);
        guest.control.event_injection = match exit {
            Exit::Exception { .. } => {
                match Superseded::by_exception(guest.control.exit_int_info) {
                    Superseded::Nothing => {}
                    Superseded::Interrupt(vector) => self.held = Some(vector),
                    Superseded::Nmi => self.nmi.superseded(),
                }
                EventInfo::new()
            }
            // The exit reports the interrupted event, and the layers above decide about it.
            Exit::NotPresent { .. } => EventInfo::new(),
            _ => event::taken_up(guest.control.exit_int_info),
        };

        if code == ExitCode::IRET || code == ExitCode::VINTR && !self.window {
            return None;
        }
        if code == ExitCode::EXCP_DB && plan == Plan::Step && !step && !traced_by_guest {
            guest.save.dr6 &= !DR6_BS;
            return None;
        }
        Some(exit)
    }
}

impl Vcpu for SvmVcpu {
    fn reset(&mut self, state: &StartState) {
        state::fill(&mut self.pages.guest, self.roots, self.interrupts, state);
        state::notice_bus_locks(&mut self.pages.guest, &self.capabilities, self.bus_locks);
        self.gprs = state.gprs;
        self.nmi = Nmi::default();
        (self.held, self.window, self.shown) = (None, false, 0);
        self.mce = state.cr4 & MCE;
        self.asids.flush();
        // SAFETY: SVM is enabled on this core, and the FPU belongs to the guest (contract of `new`).
        unsafe {
            world::save_host(&raw mut self.pages.host);
            core_state::reset(&self.capabilities);
            self.switch.set_guest_spec_ctrl(0, &mut Physical::new());
        }
        self.started = true;
    }

    fn run(&mut self) -> Exit {
        if !self.started {
            return Exit::Unexpected { reason: u64::MAX, detail: 0 };
        }
        loop {
            if let Some(exit) = self.enter() {
                return exit;
            }
        }
    }

    fn gprs(&self) -> &Gprs {
        &self.gprs
    }

    fn gprs_mut(&mut self) -> &mut Gprs {
        &mut self.gprs
    }

    fn rip(&self) -> u64 {
        self.vmcb().save.rip
    }

    fn set_rip(&mut self, rip: u64) {
        self.vmcb_mut().save.rip = rip;
    }

    fn rflags(&self) -> u64 {
        self.vmcb().save.rflags
    }

    fn set_rflags(&mut self, rflags: u64) {
        self.vmcb_mut().save.rflags = rflags;
    }

    fn cr0(&self) -> u64 {
        self.vmcb().save.cr0 | self.shown
    }

    fn cr3(&self) -> u64 {
        self.vmcb().save.cr3
    }

    fn cr4(&self) -> u64 {
        state::seen_cr4(self.vmcb(), self.mce)
    }

    fn set_cr0(&mut self, value: u64) {
        self.shown = state::shown_in_cr0(value);
        if state::set_cr0(&mut self.pages.guest, value) {
            self.asids.flush();
        }
    }

    fn set_cr4(&mut self, value: u64) {
        self.mce = value & MCE;
        if state::set_cr4(&mut self.pages.guest, value) {
            self.asids.flush();
        }
    }

    fn cr2(&self) -> u64 {
        self.vmcb().save.cr2
    }

    fn set_cr2(&mut self, address: u64) {
        self.vmcb_mut().save.cr2 = address;
    }

    fn efer(&self) -> u64 {
        state::efer(self.vmcb())
    }

    fn segment(&self, name: SegmentName) -> Segment {
        let save = &self.vmcb().save;
        let saved: SavedSegment = match name {
            SegmentName::Es => save.es,
            SegmentName::Cs => save.cs,
            SegmentName::Ss => save.ss,
            SegmentName::Ds => save.ds,
            SegmentName::Fs => save.fs,
            SegmentName::Gs => save.gs,
            SegmentName::Ldtr => save.ldtr,
            SegmentName::Tr => save.tr,
        };
        saved.into()
    }

    fn cpl(&self) -> u8 {
        self.vmcb().save.cpl
    }

    fn idt(&self) -> (u64, u16) {
        let idtr = &self.vmcb().save.idtr;
        (idtr.base, idtr.limit as u16)
    }

    fn intercept(&mut self, what: Intercepts) {
        state::intercept(&mut self.pages.guest, what);
    }

    fn flush_nested(&mut self) {
        self.asids.flush();
    }

    fn msr(&self, number: u32) -> Option<u64> {
        match number {
            TSC_AUX => core_state::read_tsc_aux(&self.capabilities),
            SPEC_CTRL => self.switch.guest_spec_ctrl(),
            _ => state::msr(self.vmcb(), number),
        }
    }

    fn set_msr(&mut self, number: u32, value: u64) -> bool {
        match number {
            TSC_AUX => u32::try_from(value).is_ok_and(|aux| core_state::write_tsc_aux(&self.capabilities, aux)),
            // SAFETY: this is CPL 0, and the switch was made for this CPU (contract of `new`).
            SPEC_CTRL => self.switch.set_guest_spec_ctrl(value, &mut unsafe { Physical::new() }),
            // SAFETY: as above.
            PRED_CMD => self.switch.guest_ibpb(&mut unsafe { Physical::new() }),
            _ => state::set_msr(&mut self.pages.guest, &self.capabilities, number, value) == Some(true),
        }
    }

    fn set_xcr0(&mut self, value: u64) {
        core_state::set_xcr0(&self.capabilities, value);
    }

    fn set_tsc_offset(&mut self, offset: u64) {
        self.vmcb_mut().control.tsc_offset = offset;
    }

    fn pkru(&self) -> u32 {
        core_state::read_pkru()
    }

    fn instruction_length(&self) -> Option<u8> {
        if !self.capabilities.features.next_rip_save() {
            return None;
        }
        // If the exit was not caused by an instruction, `next_rip` is 0 and the length is out of range.
        let length = self.vmcb().control.next_rip.wrapping_sub(self.rip());
        u8::try_from(length).ok().filter(|length| (1..=15).contains(length))
    }

    fn instruction_bytes(&self) -> Option<([u8; 15], u8)> {
        let control = &self.vmcb().control;
        let length = control.instruction_length & 15;
        (self.capabilities.features.decode_assists() && control.exit_code == ExitCode::NPF && length != 0)
            .then_some((control.instruction_bytes, length))
    }

    fn skip_to(&mut self, next: u64) {
        self.vmcb_mut().save.rip = next;
        self.completed(false);
    }

    fn iterated(&mut self) {
        self.completed(true);
    }

    fn interruptible(&self) -> bool {
        self.held.is_none() && self.can_take_interrupt()
    }

    fn event_waiting(&self) -> bool {
        self.vmcb().control.event_injection.valid()
    }

    fn waiting(&self) -> Option<Interrupted> {
        event::interrupted(self.vmcb().control.event_injection)
    }

    fn inject(&mut self, event: Event) {
        match event {
            Event::Nmi => self.nmi.post(),
            _ => self.vmcb_mut().control.event_injection = event::injection(event),
        }
    }

    fn free_split_locks(&mut self, _: u64) {
        state::free_bus_locks(&mut self.pages.guest);
    }

    fn want_interrupt_window(&mut self, wanted: bool) {
        self.window = wanted;
    }

    /// Sets V_TPR. QEMU's translator intercepts writes of CR8 but not reads, so V_TPR answers the reads (APM vol. 2
    /// 15.21.1).
    fn set_cr8(&mut self, value: u64) {
        let control = &mut self.vmcb_mut().control.interrupt_control;
        control.set_v_tpr(if control.v_intr_masking() { value as u8 & 0xf } else { 0 });
    }
}
