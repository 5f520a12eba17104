//! Finds which of the two back-ends this machine has, and sets up each core for it. Only this file names both.

#![allow(unsafe_code, reason = "switches virtualization on and hands the back-ends their pages")]

use crate::{
    arch::{cpuid, host_vectors, time},
    cores::Core,
    emulator,
    heap::For,
    mem, options, report,
};
use alloc::{boxed::Box, format, string::String};
use config::Completion;
use core::{ptr, sync::atomic::Ordering};
use findings::Virtualization;
use machine::{
    cpuid::{Current, Regs, Vendor},
    machine::{Machine, Platform},
    msr,
    quirk::Quirks,
    vcpu::{Interrupts, Vcpu},
};
use memory::{
    frames::OutOfMemory,
    maps::Range,
    tables::{Format, FrameSource, Tables},
};
use speculation::{Physical, Plan, Processor, Switch, Vulnerabilities};
use spin::Once;
use x86_64::{
    instructions::segmentation::{SS, Segment as _},
    registers::model_specific::Msr,
};

/// The back-end in use, with the CPU's capabilities and the maps that all vCPUs share.
enum Backend {
    Svm { capabilities: svm::Capabilities, maps: ByInterrupts<&'static svm::PermissionMaps> },
    Vmx { capabilities: vmx::Capabilities, msr_bitmaps: ByInterrupts<u64> },
}

/// One value for each way in which a guest's interrupts are handled.
struct ByInterrupts<T> {
    emulated: T,
    owned: T,
    virtualized: T,
}

impl<T: Copy> ByInterrupts<T> {
    fn get(&self, interrupts: Interrupts) -> T {
        match interrupts {
            Interrupts::Emulated => self.emulated,
            Interrupts::Owned => self.owned,
            Interrupts::Virtualized => self.virtualized,
        }
    }
}

static BACKEND: Once<Backend> = Once::new();

/// This CPU as speculation goes, and what is done about it. All cores are alike.
static SPECULATION: Once<(Processor, Plan)> = Once::new();

/// Whether guests can run.
pub fn available() -> bool {
    BACKEND.is_completed()
}

/// Finds the back-end, and reports what it has and what it lacks.
pub fn detect() -> Option<control::Virtualization> {
    let found = match Virtualization::find(cpuid::words, read_msr) {
        Ok(found) => found,
        Err(missing) => {
            report::add_all([missing]);
            return None;
        }
    };
    report::add_all(found.describe());
    if !found.is_sufficient() {
        return None;
    }
    let which = match found {
        Virtualization::Svm(capabilities) => use_svm(capabilities),
        Virtualization::Vmx(capabilities) => use_vmx(capabilities)?,
    };
    report::add_all([found.completion()]);
    let (processor, plan) = speculation();
    report::add_all(findings::processor::speculation(processor, plan));
    Some(which)
}

fn speculation() -> &'static (Processor, Plan) {
    SPECULATION.call_once(|| {
        let processor = Processor::new(cpuid::words, read_msr);
        (processor, Plan::new(&processor))
    })
}

fn use_svm(capabilities: svm::Capabilities) -> control::Virtualization {
    // All guests' cores use them.
    let _everybody = For::everybody();
    let maps = |interrupts| {
        let maps = Box::leak(Box::new(svm::PermissionMaps::INTERCEPT_ALL));
        maps.fill(interrupts, speculation().1.passed_through());
        &*maps
    };
    let emulated = maps(Interrupts::Emulated);
    // SVM has no virtual APIC. `refusal` makes sure that no guest asks for one.
    let maps = ByInterrupts { emulated, owned: maps(Interrupts::Owned), virtualized: emulated };
    BACKEND.call_once(|| Backend::Svm { capabilities, maps });
    control::Virtualization::Svm
}

fn use_vmx(capabilities: vmx::Capabilities) -> Option<control::Virtualization> {
    match msr_bitmaps() {
        Ok(msr_bitmaps) => BACKEND.call_once(|| Backend::Vmx { capabilities, msr_bitmaps }),
        Err(e) => {
            report::missing(format!("pages for VT-x's MSR bitmaps: {e}"));
            return None;
        }
    };
    for (name, does) in quirks().described() {
        report::fallback(format!("workaround `{name}`, for Bochs: {does}"));
    }
    Some(control::Virtualization::Vmx)
}

fn msr_bitmaps() -> Result<ByInterrupts<u64>, OutOfMemory> {
    let place = |bitmap: vmx::Bitmap| {
        let page = mem::pages(4096)?;
        // SAFETY: a fresh page, as large and as aligned as the bitmap.
        unsafe { ptr::with_exposed_provenance_mut::<vmx::Bitmap>(page as usize).write(bitmap) };
        Ok(page)
    };
    let of = |interrupts| {
        let speculation = speculation().1.passed_through().map(|msr| (msr, true));
        vmx::Bitmap::new(msr::passed_through(Vendor::Intel, interrupts).chain(speculation))
    };
    Ok(ByInterrupts {
        emulated: place(of(Interrupts::Emulated))?,
        owned: place(of(Interrupts::Owned))?,
        virtualized: place(of(Interrupts::Virtualized).with_virtual_apic())?,
    })
}

/// Returns why this machine cannot complete a guest's I/O that way, or `None` if it can.
pub fn refusal(completion: Completion) -> Option<String> {
    let found = match BACKEND.get()? {
        Backend::Svm { capabilities, .. } => Virtualization::Svm(*capabilities),
        Backend::Vmx { capabilities, .. } => Virtualization::Vmx(*capabilities),
    };
    found.refusal(completion)
}

/// Makes empty nested tables in the back-end's format.
///
/// # Errors
/// No memory.
pub fn nested_tables(frames: &mut impl FrameSource) -> Result<Tables, OutOfMemory> {
    let (format, gigabyte) = match BACKEND.get() {
        Some(Backend::Vmx { capabilities, .. }) => (Format::Ept, capabilities.ept_vpid.pages_1g()),
        _ => (Format::Npt, mem::has_gigabyte_pages()),
    };
    let small_executable = needs_splits();
    let mut tables = Tables::new(format, gigabyte && !small_executable, frames)?;
    if small_executable {
        tables.set_small_executable();
    }
    Ok(tables)
}

/// Whether guests have no executable pages larger than 4 KiB: see [`memory::split`].
pub fn needs_splits() -> bool {
    let affected = speculation().0.affected();
    matches!(BACKEND.get(), Some(Backend::Vmx { .. })) && affected.contains(Vulnerabilities::ITLB_MULTIHIT)
}

/// Returns what all guests of this machine have in common.
pub fn guest_platform() -> Platform {
    let rates = time::rates();
    let (rdtscp, invpcid) = match BACKEND.get() {
        Some(Backend::Svm { capabilities, .. }) => (capabilities.rdtscp, true),
        Some(Backend::Vmx { capabilities, .. }) => (capabilities.rdtscp(), capabilities.invpcid()),
        None => (false, false),
    };
    Platform {
        quirks: quirks(),
        cpuid,
        tsc_khz: rates.tsc / 1000,
        tsc: time::tsc(),
        apic_hz: rates.apic,
        tsc_deadline: rates.deadline,
        rdtscp,
        invpcid,
        arch_capabilities: speculation().0.arch_capabilities_of_guests(),
    }
}

/// Returns the workarounds that this machine needs: those on the command line, or those for Bochs on Bochs. It is
/// recognised as an emulator with VT-x whose CPUID does not show a hypervisor.
fn quirks() -> Quirks {
    options::quirks().unwrap_or(if is_bochs() { Quirks::BOCHS } else { Quirks::default() })
}

/// Whether this is Bochs.
pub fn is_bochs() -> bool {
    let hypervisor = raw_cpuid::CpuId::new().get_feature_info().is_some_and(|f| f.has_hypervisor());
    let vmx = matches!(BACKEND.get(), Some(Backend::Vmx { .. }));
    vmx && !hypervisor && emulator::under_emulator()
}

fn cpuid(leaf: u32, subleaf: u32) -> Regs {
    let [eax, ebx, ecx, edx] = cpuid::words(leaf, subleaf);
    Regs { eax, ebx, ecx, edx }
}

/// Reads an MSR for what is found out about the processor.
fn read_msr(number: u32) -> u64 {
    // SAFETY: the crates that ask name only MSRs of which CPUID or another MSR says that they exist, and whose reading has no
    // effect.
    unsafe { Msr::new(number).read() }
}

/// The back-end's pages for a vCPU and for its core, which runs no other guest's. They are kept for as long as sidecore runs.
#[derive(Clone, Copy, Debug)]
pub struct Pages {
    /// The vCPU's.
    vcpu: u64,
    /// The core's: the host's state on SVM, the VMXON region on VT-x.
    core: u64,
    /// Behind the last of them.
    end: u64,
}

impl Pages {
    /// Takes them.
    ///
    /// # Errors
    /// No memory.
    pub fn take() -> Result<Self, OutOfMemory> {
        let bytes = match BACKEND.get() {
            Some(Backend::Svm { .. }) => (size_of::<svm::VcpuPages>() as u64).next_multiple_of(4096),
            _ => 4096,
        };
        let vcpu = mem::pages(bytes.saturating_add(4096))?;
        let core = vcpu.saturating_add(bytes);
        Ok(Self { vcpu, core, end: core.saturating_add(4096) })
    }

    /// Their physical addresses.
    pub fn range(&self) -> Range {
        (self.vcpu, self.end)
    }
}

/// Code that runs with a vCPU of either back-end.
pub trait WithVcpu {
    /// Runs it.
    fn with<V: Vcpu>(self, vcpu: &mut V);
}

/// Makes vCPU `index` of a machine on this core and runs `what` with it. The core runs no other vCPU until this
/// returns.
///
/// # Errors
/// The core cannot run guests; the text says why.
pub fn with_vcpu(
    core: &'static Core,
    pages: Pages,
    nested_root: u64,
    machine: &Machine,
    index: usize,
    what: impl WithVcpu,
) -> Result<(), String> {
    let interrupts = machine.interrupts();
    let split_locks = machine.split_locks().noticed();
    let plan = &speculation().1;
    let switch = Switch::new(plan, SS::get_reg().0);
    // SAFETY: this is CPL 0, and all cores are alike.
    plan.begin(&mut unsafe { Physical::new() });
    match BACKEND.get() {
        Some(Backend::Svm { capabilities, maps }) => {
            if !core.virtualizes.load(Ordering::Relaxed) {
                // SAFETY: `detect` has probed for SVM, and all cores are alike. This core owns the page from now on.
                unsafe { svm::enable(capabilities, pages.core) };
                core.virtualizes.store(true, Ordering::Relaxed);
            }
            let p = ptr::with_exposed_provenance_mut::<svm::VcpuPages>(pages.vcpu as usize);
            // SAFETY: the pages are this vCPU's. The vCPU that used them in the guest's former life is gone: its job
            // has ended. `enable` ran on this core. The nested tables map only the guest's memory.
            let mut vcpu = unsafe {
                p.write(svm::VcpuPages::ZERO);
                let maps = maps.get(interrupts);
                let how = svm::How { interrupts, bus_locks: split_locks, switch };
                svm::SvmVcpu::new(&mut *p, maps, nested_root, &core.kick, *capabilities, how)
            };
            what.with(&mut vcpu);
            Ok(())
        }
        Some(Backend::Vmx { capabilities, msr_bitmaps }) => {
            if !core.virtualizes.load(Ordering::Relaxed) {
                // SAFETY: the flag makes this run once per core. This core owns the page from now on.
                unsafe { vmx::enable(pages.core, capabilities) }.map_err(|e| format!("core {}: {e}", core.index))?;
                core.virtualizes.store(true, Ordering::Relaxed);
            }
            let current = Current { apic_id: 0, cr4: 0, xcr0: 1 };
            let parts = vmx::Parts {
                vmcs: pages.vcpu,
                msr_bitmap: msr_bitmaps.get(interrupts),
                ept_root: nested_root,
                // Any tag but 0 will do, because a core has only one vCPU and a vCPU's life begins with a flush.
                vpid: 1,
                kick: &core.kick,
                capabilities,
                offer: vmx::Offer::from_cpuid(|leaf, subleaf| machine.cpuid().answer(leaf, subleaf, &current)),
                interrupts,
                // The pages are on the heap, which is mapped at its physical address. The machine owns them and
                // outlives the vCPU.
                virtual_apic: machine
                    .virtual_apic_addresses(index)
                    .map(|addresses| vmx::VirtualApic { addresses, notification: host_vectors::NOTIFICATION }),
                split_locks,
                quirks: quirks(),
                switch,
            };
            // SAFETY: the core stays in VMX operation. Its tables do not change any more, and interrupts are off. The
            // frames are this vCPU's, and a core runs one job at a time.
            let mut vcpu = unsafe { vmx::Vcpu::new(&parts) }.map_err(|e| format!("core {}: {e}", core.index))?;
            what.with(&mut vcpu);
            Ok(())
        }
        None => Err("this machine has neither SVM nor VT-x".into()),
    }
}
