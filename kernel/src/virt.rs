//! Finds which of the two back-ends this machine has, and sets up each core for it. Only this file names both.

#![allow(unsafe_code, reason = "switches virtualization on and hands the back-ends their pages")]

use crate::{
    arch::{host_vectors, time},
    cores::Core,
    emulator, mem, options, report,
};
use alloc::{boxed::Box, format, string::String, vec::Vec};
use config::Completion;
use control::Virtualization;
use core::{arch::x86_64::__cpuid_count, ptr, sync::atomic::Ordering};
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
use speculation::{Physical, Plan, Processor, Status, Switch, Vulnerabilities};
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
pub fn detect() -> Option<Virtualization> {
    let found = match (svm::probe(), vmx::probe()) {
        (Ok(capabilities), _) => use_svm(capabilities),
        (Err(_), Some(capabilities)) => use_vmx(capabilities)?,
        (Err(svm::Missing::Svm), None) => {
            report::missing(
                "this CPU offers neither VT-x nor SVM, so no guest can run; on a server switch \"Virtualization \
                 Technology\" or \"SVM\" on in the firmware's setup, in a virtual machine give the CPU nested \
                 virtualization",
            );
            return None;
        }
        (Err(missing), None) => {
            report::missing(format!("{missing}"));
            return None;
        }
    };
    report::decision(config::best_completion(refusal).1);
    report_speculation();
    Some(found)
}

fn speculation() -> &'static (Processor, Plan) {
    SPECULATION.call_once(|| {
        let leaf = |leaf, subleaf| {
            let Regs { eax, ebx, ecx, edx } = cpuid(leaf, subleaf);
            [eax, ebx, ecx, edx]
        };
        // SAFETY: `new` reads only an MSR of which CPUID says that it exists. Reading it has no effect.
        let processor = Processor::new(leaf, |number| unsafe { Msr::new(number).read() });
        (processor, Plan::new(&processor))
    })
}

/// Reports what this CPU is vulnerable to and what is done about it, with Linux's names.
fn report_speculation() {
    let (processor, plan) = speculation();
    let mut unaffected = Vec::new();
    for (which, name) in Vulnerabilities::NAMED {
        match plan.status(processor, which) {
            Status::NotAffected => unaffected.push(name),
            Status::Mitigated(how) => report::found(format!("{name}: {how}")),
            Status::Vulnerable(why) => report::warning(format!("{name}: vulnerable: {why}")),
        }
    }
    report::found(format!("not affected: {}", unaffected.join(", ")));
}

fn use_svm(capabilities: svm::Capabilities) -> Virtualization {
    report::found(format!("SVM with nested paging and {} ASIDs", capabilities.asids));
    for o in capabilities.optional() {
        if o.present {
            report::found(format!("SVM: {}", o.name));
        } else {
            report::fallback(format!("SVM without {}: {}", o.name, o.fallback));
        }
    }
    report::found("SVM: interrupts by `eli` (#NP and IDTR intercepts)");
    let maps = |interrupts| {
        let maps = Box::leak(Box::new(svm::PermissionMaps::INTERCEPT_ALL));
        maps.fill(interrupts, speculation().1.passed_through());
        &*maps
    };
    let emulated = maps(Interrupts::Emulated);
    // SVM has no virtual APIC. `refusal` makes sure that no guest asks for one.
    let maps = ByInterrupts { emulated, owned: maps(Interrupts::Owned), virtualized: emulated };
    BACKEND.call_once(|| Backend::Svm { capabilities, maps });
    Virtualization::Svm
}

fn use_vmx(capabilities: vmx::Capabilities) -> Option<Virtualization> {
    for f in capabilities.findings() {
        match (f.found, f.required) {
            (true, _) => report::found(format!("{f}")),
            (false, true) => report::missing(format!("{f}")),
            (false, false) => report::fallback(format!("{f}")),
        }
    }
    if !capabilities.sufficient() {
        return None;
    }
    match capabilities.shadow_idt() {
        Ok(()) => report::found("VT-x: interrupts by `eli` (#NP and descriptor-table exits)"),
        Err(e) => report::fallback(format!("VT-x: no interrupts by `eli`: {e}")),
    }
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
    Some(Virtualization::Vmx)
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

/// Whether interrupts can be posted to guests here.
///
/// # Errors
/// Why not, as a sentence.
fn posted_interrupts() -> Result<(), String> {
    match BACKEND.get() {
        Some(Backend::Vmx { capabilities, .. }) => capabilities.posted_interrupts().map_err(|e| format!("{e}")),
        _ => Err("posted interrupts are VT-x's, which this machine does not have".into()),
    }
}

/// Returns why this machine cannot complete a guest's I/O that way, or `None` if it can.
pub fn refusal(completion: Completion) -> Option<String> {
    match completion {
        Completion::Posted => posted_interrupts().err(),
        Completion::Eli => match BACKEND.get() {
            Some(Backend::Vmx { capabilities, .. }) => capabilities.shadow_idt().err().map(|e| format!("{e}")),
            // Every SVM has the intercepts. Every machine has an x2APIC, because sidecore requires it.
            _ => None,
        },
        Completion::Auto | Completion::Inject | Completion::Direct => None,
    }
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
    let r = __cpuid_count(leaf, subleaf);
    Regs { eax: r.eax, ebx: r.ebx, ecx: r.ecx, edx: r.edx }
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
