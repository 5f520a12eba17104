//! The state of one guest's machine, and how it is made.

extern crate alloc;

use alloc::{boxed::Box, string::String};
use core::sync::atomic::AtomicU8;

use memory::GuestMemory;
use spin::Mutex;
use virtio::shared::Shared;

use super::{
    context::{Activity, Context},
    devices::{Devices, Functions},
    fair::Fair,
    host::{Host, Signal},
    refusals::Refusals,
    settings::{Error, MAX_VCPUS, Platform, Settings},
    stop::Stop,
};
use crate::{
    alarm::Alarm,
    clock::Clock,
    cmos::Cmos,
    control_registers::offered_cr4,
    cpuid::{Cpuid, Current, Options},
    elf,
    eli::Eli,
    kernel_addresses::KernelAddresses,
    lapic::{self, LocalApic},
    linux::{self, Linux},
    mailbox::Mailbox,
    pci::{Bus, TooManyFunctions},
    placement::Placement,
    pm_timer::PmTimer,
    posted::{ApicPage, OnPage},
    pvh::{self, Pvh},
    reason::Histogram,
    reset_vector,
    split_lock::SplitLocks,
    splitter::Splitter,
    tables,
    vcpu::{Interrupts, StartState, Vcpu},
    virtio_pci::{NotifyBar, VirtioPci},
};

/// The machine of one guest, for one life. A restart makes a new one.
pub struct Machine {
    pub(super) name: String,
    pub(super) memory: GuestMemory,
    pub(super) cpuid: Cpuid,
    /// The bits of CR4 that it may set, except MCE.
    pub(super) cr4_offered: u64,
    pub(super) clock: Clock,
    pub(super) platform: Platform,
    pub(super) interrupts: Interrupts,
    pub(super) split_locks: SplitLocks,
    pub(super) eli: Option<Eli>,
    pub(super) splitter: Option<&'static Splitter>,
    pub(super) start: StartState,
    pub(super) placement: Placement,
    /// Frequency in Hz of the vCPUs' local APIC timers, before division.
    pub(super) timer_hz: u64,
    pub(super) pm_timer: PmTimer,
    pub(super) cmos: Cmos,
    pub(super) mailboxes: Box<[OnPage<Mailbox>]>,
    /// Virtual-APIC pages of the vCPUs. Empty if the CPU does not virtualize the guest's APICs.
    pub(super) pages: Box<[ApicPage]>,
    /// The timers of the vCPUs that another core watches.
    pub(super) alarms: Box<[Alarm]>,
    /// Shared with the control core, which presses the power button, types, and reads counts. The lock is fair, so that core
    /// waits for one access of each vCPU at most, whatever the guest does.
    pub(super) devices: Fair<Devices>,
    pub(super) refusals: Refusals,
    pub(super) stopped: Mutex<Option<Stop>>,
    /// The vector whose EOI is to exit for the trace, or 0. Each vCPU's core takes it over at its next entry. Only if the CPU
    /// virtualizes the guest's APICs.
    pub(super) watched_eoi: AtomicU8,
}

impl Machine {
    /// Makes a machine and loads its memory.
    ///
    /// # Errors
    /// Its parts do not fit: see [`Error`].
    pub fn new(settings: Settings<'_>) -> Result<Self, Error> {
        let Settings {
            name,
            memory,
            vcpus,
            kernel,
            firmware,
            notify,
            initrd,
            cmdline,
            devices,
            interrupts,
            split_locks,
            watched,
            shadow,
            splitter,
            platform,
        } = settings;
        if !(1..=MAX_VCPUS).contains(&vcpus) {
            return Err(Error::Vcpus(vcpus));
        }
        let count = vcpus as u32;
        let virtualized = interrupts == Interrupts::Virtualized;
        let timer_hz = platform.timer_hz(interrupts, firmware);
        let cpuid = Cpuid::new(
            platform.cpuid,
            &Options {
                vcpus: count,
                tsc_khz: platform.tsc_khz,
                timer_hz,
                tsc_deadline: platform.tsc_deadline,
                tsc_adjust: interrupts != Interrupts::Owned,
                rdtscp: platform.rdtscp,
                invpcid: platform.invpcid,
            },
        );
        reset_vector::write(&memory).map_err(Error::Tables)?;
        let (start, placement) = if elf::is_elf(kernel) {
            tables::write(&memory, count, pvh::TABLES..pvh::TABLES_END).map_err(Error::Tables)?;
            pvh::load(&memory, &Pvh { file: kernel, initrd, command_line: cmdline }).map_err(Error::Pvh)?
        } else if firmware {
            return Err(Error::Firmware);
        } else {
            tables::write(&memory, count, tables::PLACE).map_err(Error::Tables)?;
            let linux = Linux { kernel, initrd, command_line: cmdline };
            linux::load(&memory, &linux, tables::PLACE.start).map_err(Error::Linux)?
        };
        Ok(Self {
            name,
            cr4_offered: offered_cr4(|leaf, subleaf| {
                cpuid.answer(leaf, subleaf, &Current { apic_id: 0, cr4: 0, xcr0: 1 })
            }),
            cpuid,
            clock: Clock::new(platform.tsc_khz, platform.tsc, vcpus),
            splitter,
            eli: shadow.map(|shadow| Eli::new(shadow, vcpus, platform.tsc_khz)),
            platform,
            interrupts,
            split_locks,
            start,
            placement,
            timer_hz,
            pm_timer: PmTimer::new(platform.tsc_khz),
            cmos: Cmos::new(),
            mailboxes: (0..vcpus).map(|_| OnPage(Mailbox::new())).collect(),
            pages: (0..if virtualized { vcpus } else { 0 }).map(|_| ApicPage::new()).collect(),
            alarms: (0..if virtualized && watched { vcpus } else { 0 }).map(|_| Alarm::new()).collect(),
            refusals: Refusals::new(&devices),
            devices: Fair::new(Devices::new(bus(&devices, notify).map_err(Error::Devices)?)),
            memory,
            stopped: Mutex::new(None),
            watched_eoi: AtomicU8::new(0),
        })
    }

    /// The guest's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Number of vCPUs.
    #[must_use]
    pub fn vcpus(&self) -> usize {
        self.mailboxes.len()
    }

    /// The guest's CPUID, for a back-end that follows it.
    #[must_use]
    pub fn cpuid(&self) -> &Cpuid {
        &self.cpuid
    }

    /// Reads where the guest's kernel is, in the vCPU's present state. `vcpu` is one of this machine.
    #[must_use]
    pub fn kernel_addresses(&self, vcpu: &impl Vcpu) -> KernelAddresses {
        KernelAddresses::read(vcpu, &self.memory)
    }

    /// Who controls the local APICs of the vCPUs' cores.
    #[must_use]
    pub fn interrupts(&self) -> Interrupts {
        self.interrupts
    }

    /// What is done about its split and bus locks.
    #[must_use]
    pub fn split_locks(&self) -> SplitLocks {
        self.split_locks
    }

    /// The addresses of kernel and ramdisk.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// Returns the mailbox of a vCPU, or `None` if there is no such vCPU.
    #[must_use]
    pub fn mailbox(&self, vcpu: usize) -> Option<&Mailbox> {
        self.mailboxes.get(vcpu).map(|on_page| &on_page.0)
    }

    /// Adds vCPU `index` to the machine. Sets its registers: the first vCPU starts Linux, the others wait for a
    /// start-up IPI. Returns the vCPU's context, or `None` if there is no such vCPU. `exits` counts its exits.
    pub fn attach(
        &self,
        index: usize,
        vcpu: &mut impl Vcpu,
        exits: &'static Histogram,
        host: &impl Host,
    ) -> Option<Context> {
        let id = u32::try_from(index).ok().filter(|_| index < self.vcpus())?;
        let first = index == 0;
        let apic = LocalApic::new(lapic::Settings {
            id,
            bootstrap: first,
            timer_hz: self.timer_hz,
            tsc_hz: self.platform.tsc_khz.saturating_mul(1000),
            tsc_deadline: self.platform.tsc_deadline,
        });
        if first {
            vcpu.reset(&self.start);
        } else {
            vcpu.reset(&StartState::startup_ipi(0, self.cpuid.signature()));
        }
        vcpu.set_xcr0(1);
        let activity = if first { Activity::Running } else { Activity::WaitForStartup };
        let mut context = Context::new(index, apic, activity, exits, self.platform.tsc_khz);
        self.reset_apic(&mut context, host);
        Some(context)
    }

    /// Asks every vCPU to stop. If there are several reasons, the first counts. Any core may call it. `signal` is as
    /// for [`Machine::deliver`].
    pub fn request_stop(&self, stop: Stop, mut signal: impl FnMut(Signal)) {
        let request = stop.request();
        self.stopped.lock().get_or_insert(stop);
        for (index, OnPage(mailbox)) in self.mailboxes.iter().enumerate() {
            if mailbox.request_stop(request) {
                signal(Signal::Kick(index));
            }
        }
    }

    /// Returns why the guest stopped or is stopping, or `None` if it is not.
    #[must_use]
    pub fn stopped(&self) -> Option<Stop> {
        self.stopped.lock().clone()
    }

    /// Returns the counts of what the guest tried and was refused, by kind.
    pub fn refusals(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let by_functions = self.devices.lock().refused_messages();
        self.refusals.report(by_functions)
    }
}

/// Makes the guest's bus with its functions.
fn bus(devices: &[&'static Shared], notify: NotifyBar) -> Result<Functions, TooManyFunctions> {
    let mut bus = Bus::new();
    for &shared in devices {
        bus.add(|device| VirtioPci::with_notify(shared, device, notify))?;
    }
    Ok(bus)
}
