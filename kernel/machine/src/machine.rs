//! One guest's machine: what its vCPUs share, and what happens between an exit and the next entry.
//!
//! ```text
//!   attach ──▶ before_entry ──▶ Run ──▶ Mailbox::entering_guest ──▶ Vcpu::run ──▶ Mailbox::left_guest ──▶ handle ─┐
//!                   ▲    └────▶ Wait ─▶ Mailbox::halting, sleep ──────────────▶ Mailbox::left_guest ──┐          │
//!                   └─────────────────────────────────────────────────────────────────────────────────┴──────────┘
//! ```
//!
//! Each vCPU's core runs that loop with its own [`Context`]; the loop itself is the kernel's, because masking kicks and
//! sleeping are. Interrupts reach a vCPU through its mailbox alone, so [`Machine::deliver`], which the engine calls, takes
//! no lock. The lock here guards the devices with registers (console, IOAPIC, PCI) against the guest's own vCPUs.

extern crate alloc;

use alloc::{boxed::Box, string::String, vec::Vec};
use core::fmt;

use engine::{msix::Interrupt, shared::Shared};
use memory::{BadAddress, GuestMemory, swap::Shadow};
use spin::Mutex;

use crate::{
    alarm::Alarm,
    clock::Clock,
    cpuid::{Cpuid, Options, Regs},
    eli::Eli,
    lapic::{self, Delivery, Destination, LocalApic, Message},
    linux::{self, Linux, Placement},
    mailbox::{Mailbox, StopReason, send},
    pci::TooManyFunctions,
    posted::{ApicPage, OnPage},
    quirk::Quirks,
    reason::Histogram,
    reset_vector, tables,
    vcpu::{Interrupts, StartState, Vcpu},
};

mod context;
mod devices;
mod entry;
mod exits;
mod port;
mod refusals;
mod shadow;
mod virtualized;

use context::Activity;
pub use context::Context;
use devices::Devices;
pub use entry::Entry;
pub use exits::Next;
pub use refusals::Refusal;
use refusals::Refusals;

/// More vCPUs than this a guest cannot have: IDs from 255 on need interrupt remapping, which this machine lacks.
pub const MAX_VCPUS: usize = 255;

/// The first vector that is not an exception's.
const FIRST_INTERRUPT: u8 = 0x20;

/// What the kernel does for a vCPU's core.
pub trait Host {
    /// The time-stamp counter now.
    fn tsc(&self) -> u64;
    /// Time of day in nanoseconds since 1970, UTC.
    fn wall_clock(&self) -> u64;
    /// Signals the core of a vCPU of this guest, its own included.
    fn signal(&self, signal: Signal);
    /// For a guest that owns its cores' local APICs: writes a register of this core's. The value has been checked.
    fn write_apic(&self, msr: u32, value: u64);
    /// Likewise: puts this core's local APIC into its state after INIT, software-enabled, with nothing pending.
    fn reset_apic(&self);
    /// For a guest with a shadow IDT: takes the most urgent interrupt that waits in this core's local APIC, without ending
    /// it. None: there is none that it would deliver.
    fn take_interrupt(&self) -> Option<u8>;
    /// Likewise: ends the most urgent interrupt in service.
    fn end_of_interrupt(&self);
    /// A byte from the guest's serial console.
    fn console(&self, byte: u8);
}

/// What one core has to be told about a vCPU on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// By NMI: look into the mailbox.
    Kick(usize),
    /// To the core of a vCPU with a shadow IDT: look into the mailbox, by this vector of the host's.
    Call(usize, u8),
    /// To the core of a vCPU that owns its local APIC: this vector, as a fixed interrupt. 0x20 or above.
    Interrupt(usize, u8),
    /// To the core of a vCPU whose local APIC the CPU virtualizes: the notification vector.
    Notify(usize),
}

/// What the guests of this host have in common.
#[derive(Clone, Copy)]
pub struct Platform {
    /// Executes CPUID with EAX (leaf) and ECX (sub-leaf) on the host.
    pub cpuid: fn(u32, u32) -> Regs,
    /// Frequency of the TSC in kHz.
    pub tsc_khz: u64,
    /// The TSC now: the guest's clock begins here.
    pub tsc: u64,
    /// Frequency of the cores' local APIC timers in Hz, before division.
    pub apic_hz: u64,
    /// The host can back the guest's timer in TSC-deadline mode.
    pub tsc_deadline: bool,
    /// The back-end lets RDTSCP and RDPID run in the guest.
    pub rdtscp: bool,
    /// The back-end lets INVPCID run in the guest.
    pub invpcid: bool,
    /// What has to be worked around.
    pub quirks: Quirks,
}

impl Platform {
    /// Frequency in Hz of a guest's local APIC timer, before division.
    fn timer_hz(&self, interrupts: Interrupts) -> u64 {
        match interrupts {
            Interrupts::Emulated | Interrupts::Virtualized => crate::cpuid::timer_hz(self.tsc_khz),
            Interrupts::Owned => self.apic_hz,
        }
    }
}

/// What a machine is made of.
pub struct Settings<'a> {
    /// The guest's name, for the log.
    pub name: String,
    /// Its memory, all zero, the first of it at 0.
    pub memory: GuestMemory,
    /// Number of vCPUs, 1 to [`MAX_VCPUS`].
    pub vcpus: usize,
    /// A bzImage.
    pub kernel: &'a [u8],
    /// Initial ramdisk.
    pub initrd: Option<&'a [u8]>,
    /// Command line.
    pub cmdline: &'a str,
    /// Its network devices, as after [`Shared::restart`], in the order of their PCI device numbers (from 1).
    pub nics: Vec<&'static Shared>,
    /// Who has the cores' local APICs.
    pub interrupts: Interrupts,
    /// With [`Interrupts::Virtualized`]: another core calls [`Machine::ring`] all the time.
    pub watched: bool,
    /// For a guest that owns them and is to have a shadow IDT: its nested tables. They are as after [`Shadow::remove`]
    /// once the machine is made, and whenever no page is shadowed.
    pub shadow: Option<&'static Mutex<Shadow>>,
    /// The host.
    pub platform: Platform,
}

/// Why a machine could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Error {
    /// The number of vCPUs is 0 or above [`MAX_VCPUS`].
    Vcpus(usize),
    /// Too many network devices.
    Devices(TooManyFunctions),
    /// No memory for the ACPI tables or the reset vector.
    Tables(BadAddress),
    /// The kernel cannot be loaded.
    Linux(linux::Error),
}

impl core::error::Error for Error {}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vcpus(n) => write!(f, "{n} vCPUs; expected 1 to {MAX_VCPUS}"),
            Self::Devices(e) => e.fmt(f),
            Self::Tables(e) => write!(f, "no room for the ACPI tables and the reset vector: {e}"),
            Self::Linux(e) => e.fmt(f),
        }
    }
}

/// Why a guest has stopped, as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It switched itself off.
    PowerOff,
    /// It asked for a reset.
    Reset,
    /// Triple fault: what resets a real machine.
    TripleFault,
    /// The operator, or a time limit after the power button.
    Killed,
    /// It cannot go on, and why.
    Failed(String),
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::PowerOff => f.write_str("power off"),
            Self::Reset => f.write_str("reset"),
            Self::TripleFault => f.write_str("triple fault"),
            Self::Killed => f.write_str("killed"),
            Self::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

impl Stop {
    fn request(&self) -> StopReason {
        match self {
            Self::PowerOff => StopReason::PowerOff,
            Self::Reset => StopReason::Reset,
            Self::Killed => StopReason::Killed,
            Self::TripleFault | Self::Failed(_) => StopReason::Failed,
        }
    }
}

/// The machine of one guest, for one life: a restart makes a new one.
pub struct Machine {
    name: String,
    memory: GuestMemory,
    cpuid: Cpuid,
    clock: Clock,
    platform: Platform,
    interrupts: Interrupts,
    eli: Option<Eli>,
    start: StartState,
    placement: Placement,
    mailboxes: Box<[OnPage<Mailbox>]>,
    /// Virtual-APIC pages of the vCPUs; none where the CPU does not virtualize.
    pages: Box<[ApicPage]>,
    /// Their timers, where another core watches them.
    alarms: Box<[Alarm]>,
    devices: Mutex<Devices>,
    refusals: Refusals,
    stopped: Mutex<Option<Stop>>,
}

impl Machine {
    /// Makes a machine and loads its memory.
    ///
    /// # Errors
    /// Its parts do not fit: see [`Error`].
    pub fn new(settings: Settings<'_>) -> Result<Self, Error> {
        let Settings { name, memory, vcpus, kernel, initrd, cmdline, nics, interrupts, watched, shadow, platform } =
            settings;
        if !(1..=MAX_VCPUS).contains(&vcpus) {
            return Err(Error::Vcpus(vcpus));
        }
        let count = vcpus as u32;
        let virtualized = interrupts == Interrupts::Virtualized;
        let cpuid = Cpuid::new(
            platform.cpuid,
            &Options {
                vcpus: count,
                tsc_khz: platform.tsc_khz,
                timer_hz: platform.timer_hz(interrupts),
                tsc_deadline: platform.tsc_deadline,
                rdtscp: platform.rdtscp,
                invpcid: platform.invpcid,
            },
        );
        tables::write(&memory, count).map_err(Error::Tables)?;
        reset_vector::write(&memory).map_err(Error::Tables)?;
        let linux = Linux { kernel, initrd, command_line: cmdline };
        let (start, placement) = linux::load(&memory, &linux, tables::RSDP).map_err(Error::Linux)?;
        Ok(Self {
            name,
            cpuid,
            clock: Clock::new(platform.tsc_khz, platform.tsc),
            eli: shadow.map(|shadow| Eli::new(shadow, vcpus, platform.tsc_khz)),
            platform,
            interrupts,
            start,
            placement,
            mailboxes: (0..vcpus).map(|_| OnPage(Mailbox::new())).collect(),
            pages: (0..if virtualized { vcpus } else { 0 }).map(|_| ApicPage::new()).collect(),
            alarms: (0..if virtualized && watched { vcpus } else { 0 }).map(|_| Alarm::new()).collect(),
            refusals: Refusals::new(&nics),
            devices: Mutex::new(Devices::new(&nics).map_err(Error::Devices)?),
            memory,
            stopped: Mutex::new(None),
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

    /// Who has the local APICs of the vCPUs' cores.
    #[must_use]
    pub fn interrupts(&self) -> Interrupts {
        self.interrupts
    }

    /// Where kernel and ramdisk lie.
    #[must_use]
    pub fn placement(&self) -> Placement {
        self.placement
    }

    /// The mailbox of a vCPU; None beyond the last.
    #[must_use]
    pub fn mailbox(&self, vcpu: usize) -> Option<&Mailbox> {
        self.mailboxes.get(vcpu).map(|on_page| &on_page.0)
    }

    /// Takes vCPU `index` into the machine: sets its registers (the first starts Linux, the others wait for a start-up
    /// IPI) and gives what belongs to it. None beyond the last. `exits` counts its exits.
    pub fn attach(
        &self,
        index: usize,
        vcpu: &mut impl Vcpu,
        exits: &'static Histogram,
        host: &impl Host,
    ) -> Option<Context> {
        let id = u32::try_from(index).ok().filter(|_| index < self.vcpus())?;
        let first = index == 0;
        let apic = LocalApic::new(crate::lapic::Settings {
            id,
            bootstrap: first,
            timer_hz: self.platform.timer_hz(self.interrupts),
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

    /// Delivers a device's interrupt to the vCPUs it names; `signal` is called for each whose core has to be told.
    /// False: it names none of this guest's. From any core, without a lock.
    pub fn deliver(&self, interrupt: Interrupt, signal: impl FnMut(Signal)) -> bool {
        let Interrupt { destination, logical, lowest_priority, vector } = interrupt;
        let delivery = if lowest_priority {
            Delivery::LowestPriority { vector, level: false }
        } else {
            Delivery::Fixed { vector, level: false }
        };
        let Ok(destination) = u8::try_from(destination) else { return false };
        self.send(Message { destination: Destination::of_message(destination, logical), delivery }, signal)
    }

    fn send(&self, message: Message, mut signal: impl FnMut(Signal)) -> bool {
        let count = self.vcpus() as u32;
        match message.delivery {
            Delivery::Fixed { vector, .. } | Delivery::LowestPriority { vector, .. }
                if self.interrupts == Interrupts::Owned =>
            {
                // The vectors below are the processor's exceptions. Hardware would deliver them all the same, but the
                // host could not tell such an interrupt from an exception of its own.
                if vector < FIRST_INTERRUPT {
                    return false;
                }
                let mut any = false;
                for id in message.targets(count).filter(|&id| id < count) {
                    any = true;
                    // A vector of the host's becomes the guest's first; its own core sees to that and sends it then.
                    let claimed = self.eli.as_ref().is_some_and(|eli| eli.uses(vector));
                    match self.mailbox(id as usize).filter(|_| claimed) {
                        Some(mailbox) if mailbox.post(vector) => signal(Signal::Kick(id as usize)),
                        Some(_) => {}
                        None => signal(Signal::Interrupt(id as usize, vector)),
                    }
                }
                any
            }
            Delivery::Fixed { vector, level: false } | Delivery::LowestPriority { vector, level: false }
                if self.interrupts == Interrupts::Virtualized && vector >= lapic::FIRST_VECTOR =>
            {
                self.post_virtual(message, vector, signal)
            }
            _ => send(message, |id| self.mailbox(id as usize), count, |id| signal(self.kick(id as usize))),
        }
    }

    /// Presses the power button. From any core; `signal` as for [`Machine::deliver`].
    pub fn press_power_button(&self, mut signal: impl FnMut(Signal)) {
        self.devices.lock().press_power_button(|message| {
            self.send(message, &mut signal);
        });
    }

    /// Types into the serial console: takes bytes from `next` until there is none or the guest has to read first. From
    /// any core; `signal` as for [`Machine::deliver`].
    pub fn type_in(&self, next: impl FnMut() -> Option<u8>, mut signal: impl FnMut(Signal)) {
        self.devices.lock().type_in(next, |message| {
            self.send(message, &mut signal);
        });
    }

    /// Asks every vCPU to stop. Of several reasons the first counts. From any core; `signal` as for
    /// [`Machine::deliver`].
    pub fn request_stop(&self, stop: Stop, mut signal: impl FnMut(Signal)) {
        let request = stop.request();
        self.stopped.lock().get_or_insert(stop);
        for (index, OnPage(mailbox)) in self.mailboxes.iter().enumerate() {
            if mailbox.request_stop(request) {
                signal(Signal::Kick(index));
            }
        }
    }

    /// Why the guest stopped or is stopping; None: it has no reason to.
    #[must_use]
    pub fn stopped(&self) -> Option<Stop> {
        self.stopped.lock().clone()
    }

    /// What the guest tried and was refused, by kind.
    pub fn refusals(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let by_functions = self.devices.lock().refused_messages();
        self.refusals.report(by_functions)
    }
}

#[cfg(test)]
mod tests;
