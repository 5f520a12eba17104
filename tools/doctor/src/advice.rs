//! What to change in the firmware's setup, as far as Linux shows it: VMD, SR-IOV, the IOMMU, C1E, watchdogs. The table of settings is in
//! `boot/README.md`. sidecore says nothing of these, or only what became of them.

use boot::acpi;
use control::ReportKind;
use speed::{Features, Processor, Vendor};

use findings::machine::NVME;

use crate::linux::{Function, Linux, Log, Unreadable};

/// A sentence.
pub type Advice = (ReportKind, String);

/// Intel's vendor identifier.
const INTEL: u16 = 0x8086;
/// The device identifiers of Intel's Volume Management Device: those that Linux's driver `vmd` takes.
const VMD: &[u16] = &[0x201d, 0x28c0, 0x467f, 0x4c3d, 0xa77f, 0x7d0b, 0xad0b, 0x9a0b, 0xb60b, 0xb06f, 0xb07f];
/// MSR_POWER_CTL, and its bit "C1E Enable" (SDM vol. 4, from Nehalem on).
const POWER_CTL: u32 = 0x1fc;
const C1E: u64 = 1 << 1;

/// NVMe disks that VMD hides.
#[must_use]
pub fn vmd(functions: &[Function]) -> Vec<Advice> {
    let behind = functions.iter().filter(|f| f.segment >= Function::MADE_UP && f.class == NVME).count();
    let behind = match behind {
        0 => String::new(),
        count => format!("; Linux finds {count} NVMe controllers behind VMD"),
    };
    let is_vmd = |f: &&Function| f.segment == 0 && f.vendor == INTEL && VMD.contains(&f.device);
    let line = |f: &Function| {
        format!(
            "VMD at {} ({:04x}:{:04x}) hides disks, and sidecore has no driver for it{behind}: switch VMD off in the firmware's \
             setup if guests are to have these disks",
            f.at, f.vendor, f.device
        )
    };
    functions.iter().filter(is_vmd).map(|f| (ReportKind::Warning, line(f))).collect()
}

/// Virtual functions, of which sidecore uses none.
#[must_use]
pub fn virtual_functions(functions: &[Function]) -> Option<Advice> {
    let count = functions.iter().filter(|f| f.segment == 0 && f.offers != 0).count();
    (count != 0).then(|| {
        let text = format!(
            "SR-IOV: {count} PCI devices offer virtual functions, and sidecore uses none; SR-IOV may be off in the firmware's setup"
        );
        (ReportKind::Found, text)
    })
}

/// The IOMMU, and what the firmware may leave on of it.
///
/// # Errors
/// ACPI's tables cannot be read.
pub fn iommu(linux: &Linux) -> Result<Vec<Advice>, Unreadable> {
    /// The flag of a DMAR by which the firmware says that its DMA protection is on (VT-d 4.1, 8.1: DMA_CTRL_PLATFORM_OPT_IN_FLAG).
    const DMAR_OPT_IN: u8 = 1 << 2;
    /// The same of an IVRS: a bit of IVinfo (48882 revision 3.08, 5.2.1).
    const IVRS_OPT_IN: u8 = 1 << 1;
    let (dmar, ivrs) = (linux.acpi("DMAR")?, linux.acpi("IVRS")?);
    let units = units(dmar.as_deref(), ivrs.as_deref());
    let flag = |table: &Option<Vec<u8>>, at: usize, flag: u8| {
        table.as_ref().and_then(|table| table.get(at)).is_some_and(|flags| flags & flag != 0)
    };
    let mut said = Vec::from([(
        ReportKind::Found,
        match units {
            0 => "ACPI lists no IOMMU: there is none, or VT-d or the AMD IOMMU is off in the firmware's setup; sidecore uses none".into(),
            1 => "ACPI lists 1 IOMMU: sidecore uses none, and switches off what the firmware has left on of it".into(),
            count => format!("ACPI lists {count} IOMMUs: sidecore uses none, and switches off what the firmware has left on of them"),
        },
    )]);
    if flag(&dmar, 37, DMAR_OPT_IN) || flag(&ivrs, 36, IVRS_OPT_IN) {
        let text = "the firmware says that its DMA protection is on, so that it may leave IOMMUs on: if sidecore's report warns that \
                    one stays on, switch \"DMA protection\" off in the firmware's setup";
        said.push((ReportKind::Fallback, text.into()));
    }
    Ok(said)
}

/// How many IOMMUs these tables list.
fn units(dmar: Option<&[u8]>, ivrs: Option<&[u8]>) -> usize {
    dmar.map_or(0, |table| acpi::dmar(table).len()) + ivrs.map_or(0, |table| acpi::ivrs(table).len())
}

/// An IOMMU that was on when Linux came. Where ACPI lists none, Linux knows of none, and the log does not matter.
///
/// # Errors
/// The log cannot be read, or the line of it that would say so may be overwritten.
pub fn iommu_was_on(linux: &Linux, log: &Result<Log, Unreadable>) -> Result<Option<Advice>, Unreadable> {
    // If the tables cannot be read, the log may still say it.
    if let (Ok(dmar), Ok(ivrs)) = (linux.acpi("DMAR"), linux.acpi("IVRS"))
        && units(dmar.as_deref(), ivrs.as_deref()) == 0
    {
        return Ok(None);
    }
    let line = log.as_ref().map_err(Clone::clone)?.find(&["ranslation was enabled for"])?;
    Ok(line.map(|line| {
        let text = format!(
            "an IOMMU was on when this Linux started ({line}): the firmware has left it on, unless another Linux has started this one \
             by kexec; sidecore switches it off; if its report warns that it stays on, switch \"DMA protection\" off in the firmware's setup"
        );
        (ReportKind::Fallback, text)
    }))
}

/// C1E, which lets an idle core wake later. `None`: there is none, or nobody knows where it would be seen.
///
/// # Errors
/// MSRs cannot be read, or Linux does not say which driver its idle cores have.
pub fn c1e(linux: &Linux, processor: &Processor) -> Result<Option<Advice>, Unreadable> {
    if processor.vendor != Vendor::Intel || processor.family != 6 || processor.has(Features::VIRTUAL) {
        return Ok(None);
    }
    let Some(power) = linux.msr_if_there(POWER_CTL)? else { return Ok(None) };
    // Linux's own driver for Intel switches it on or off by model.
    if linux.idle_driver()?.as_deref() == Some("intel_idle") {
        let text = "C1E: Linux's intel_idle has set it, so that nobody sees what the firmware has; look in its setup and switch C1E \
                    off, or start Linux with `intel_idle.max_cstate=0` to see it here";
        return Ok(Some((ReportKind::Fallback, text.into())));
    }
    Ok(Some(if power & C1E == 0 {
        (ReportKind::Found, "C1E is off".into())
    } else {
        (
            ReportKind::Fallback,
            "C1E is on, so that idle cores wake later: switch C1E off in the firmware's setup".into(),
        )
    }))
}

/// Watchdogs that run.
///
/// # Errors
/// Linux's list of them cannot be read.
pub fn watchdogs(linux: &Linux) -> Result<Vec<Advice>, Unreadable> {
    let all = linux.watchdogs()?;
    if all.is_empty() {
        let text = "Linux drives no watchdog, so that nobody sees here whether the firmware or a management controller has started one: \
                    if sidecore is reset after minutes, switch the watchdog off in the firmware's setup";
        return Ok([(ReportKind::Fallback, text.into())].into());
    }
    let line = |dog: crate::linux::Watchdog| {
        let name = dog.identity;
        match (dog.runs, dog.seconds) {
            (Some(false), _) => (ReportKind::Found, format!("watchdog `{name}` does not run")),
            (None, _) => (ReportKind::Fallback, format!("watchdog `{name}`: Linux does not say whether it runs")),
            (Some(true), seconds) => {
                let seconds = seconds.map_or_else(String::new, |seconds| format!(", {seconds} s"));
                let text = format!(
                    "watchdog `{name}` runs{seconds}: Linux, the firmware or a management controller has started it; if sidecore's \
                     report does not say that it has stopped one, switch the watchdog off in the firmware's setup"
                );
                (ReportKind::Fallback, text)
            }
        }
    };
    Ok(all.into_iter().map(line).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn root(files: &[(&str, &[u8])]) -> (tempfile::TempDir, Linux) {
        let folder = tempfile::tempdir().expect("a folder");
        for (path, content) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, content).expect("a file");
        }
        let linux = Linux::new(folder.path());
        (folder, linux)
    }

    fn function(segment: u32, device: u16, class: u32, offers: u32) -> Function {
        let at = "00:0e.0".into();
        Function { segment, at, vendor: INTEL, device, class, driver: None, offers, is_virtual: false }
    }

    #[test]
    fn vmd_is_a_warning_with_the_disks_that_it_hides() {
        let nvme = function(Function::MADE_UP, 0x0a54, NVME, 0);
        let said = vmd(&[function(0, 0x9a0b, 0x01_0400, 0), nvme.clone(), nvme]);
        assert_eq!((said.len(), said[0].0), (1, ReportKind::Warning));
        assert!(said[0].1.starts_with("VMD at 00:0e.0 (8086:9a0b) hides disks"), "{}", said[0].1);
        assert!(said[0].1.contains("2 NVMe controllers behind VMD"), "{}", said[0].1);
        assert!(!vmd(&[function(0, 0x201d, 0x01_0400, 0)])[0].1.contains("Linux finds"));
        assert_eq!(vmd(&[function(0, 0x2822, 0x01_0400, 0), function(0, 0x0a54, NVME, 0)]), []);
        let sorted: std::collections::BTreeSet<_> = VMD.iter().collect();
        assert_eq!(sorted.len(), VMD.len(), "each once");
    }

    #[test]
    fn virtual_functions_are_counted_by_who_offers_them() {
        let said = virtual_functions(&[function(0, 0x10fb, 0x02_0000, 63), function(0, 0x10fb, 0x02_0000, 63)]);
        assert!(said.is_some_and(|(_, text)| text.starts_with("SR-IOV: 2 PCI devices")));
        assert_eq!(virtual_functions(&[function(0, 0x10fb, 0x02_0000, 0)]), None);
    }

    /// A table with a structure of this head and length, whose registers are at this address.
    fn table(flags: (usize, u8), head: [u8; 2], len: u16, registers: u64) -> Vec<u8> {
        let mut table = vec![0; 48 + usize::from(len)];
        table[flags.0] = flags.1;
        table[48..50].copy_from_slice(&head);
        table[50..52].copy_from_slice(&len.to_le_bytes());
        table[56..64].copy_from_slice(&registers.to_le_bytes());
        table
    }

    #[test]
    fn the_firmware_s_dma_protection_is_told() {
        let of = |files: &[(&str, &[u8])]| {
            let (_folder, linux) = root(files);
            iommu(&linux).expect("tables")
        };
        const DMAR: &str = "sys/firmware/acpi/tables/DMAR";
        const IVRS: &str = "sys/firmware/acpi/tables/IVRS";
        let said = of(&[("sys/firmware/acpi/tables/APIC", b"")]);
        assert!(said.len() == 1 && said[0].1.starts_with("ACPI lists no IOMMU"), "{said:?}");
        let said = of(&[(DMAR, &table((37, 3), [0, 0], 16, 0xfed9_0000))]);
        assert!(said.len() == 1 && said[0].1.starts_with("ACPI lists 1 IOMMU: "), "{said:?}");
        let said = of(&[
            (DMAR, &table((37, 3), [0, 0], 16, 0xfed9_0000)),
            (IVRS, &table((36, 0), [0x10, 0], 24, 0xfed8_0000)),
        ]);
        assert!(said.len() == 1 && said[0].1.starts_with("ACPI lists 2 IOMMUs: "), "{said:?}");
        for file in
            [(DMAR, table((37, 4), [0, 0], 16, 0xfed9_0000)), (IVRS, table((36, 2), [0x10, 0], 24, 0xfed8_0000))]
        {
            let said = of(&[(file.0, &file.1)]);
            assert!(said.len() == 2 && said[1].1.contains("DMA protection is on"), "{said:?}");
        }
        let (_folder, linux) = root(&[]);
        assert!(iommu(&linux).is_err(), "without Linux's ACPI nothing is known");
    }

    #[test]
    fn an_iommu_that_linux_found_on_is_told_with_its_line() {
        let dmar = table((37, 0), [0, 0], 16, 0xfed9_0000);
        let of = |log: &[u8], acpi: &[(&str, &[u8])]| {
            let (_folder, linux) = root(&[&[("dev/kmsg", log)], acpi].concat());
            iommu_was_on(&linux, &linux.log())
        };
        let listed: [(&str, &[u8]); 1] = [("sys/firmware/acpi/tables/DMAR", &dmar)];
        let line = b"4,700,0,-;DMAR: Translation was enabled for dmar0 but we are not in kdump mode\n";
        for acpi in [&listed[..], &[]] {
            assert!(of(line, acpi).is_ok_and(|said| said.is_some_and(|(_, text)| text.contains("enabled for dmar0"))));
            assert_eq!(of(b"6,0,0,-;Linux version\n", acpi), Ok(None));
            assert!(of(b"6,9,0,-;Linux\n", acpi).is_err());
        }
        // Where ACPI lists none, none can have been on.
        let none: [(&str, &[u8]); 1] = [("sys/firmware/acpi/tables/APIC", b"")];
        assert_eq!(of(b"6,9,0,-;Linux\n", &none), Ok(None));
        let (_folder, linux) = root(&none);
        assert_eq!(iommu_was_on(&linux, &linux.log()), Ok(None), "without a log too");
        let (_folder, linux) = root(&listed);
        assert!(iommu_was_on(&linux, &linux.log()).is_err());
    }

    #[test]
    fn c1e_is_told_where_linux_has_not_set_it() {
        const MSRS: &str = "dev/cpu/0/msr";
        let msrs = |power: u64| {
            let mut bytes = vec![0; POWER_CTL as usize + 8];
            bytes[POWER_CTL as usize..].copy_from_slice(&power.to_le_bytes());
            bytes
        };
        let processor = |features| Processor { vendor: Vendor::Intel, family: 6, model: 0x6a, features };
        let (on, off) = (msrs(C1E), msrs(!C1E));
        let cpu: (&str, &[u8]) = ("sys/devices/system/cpu/online", b"0\n");
        let of = |files: &[(&str, &[u8])], features| {
            let (_folder, linux) = root(&[files, &[cpu]].concat());
            c1e(&linux, &processor(features))
        };
        let plain = Features::empty();
        assert!(
            of(&[(MSRS, &on)], plain).is_ok_and(|said| said.is_some_and(|(_, text)| text.starts_with("C1E is on")))
        );
        assert_eq!(of(&[(MSRS, &off)], plain), Ok(Some((ReportKind::Found, "C1E is off".into()))));
        let driver = ("sys/devices/system/cpu/cpuidle/current_driver", &b"intel_idle\n"[..]);
        assert!(
            of(&[(MSRS, &on), driver], plain)
                .is_ok_and(|said| said.is_some_and(|(_, text)| text.contains("intel_idle has set it")))
        );
        assert!(of(&[], plain).is_err(), "unknown, not off");
        let (_folder, linux) = root(&[(MSRS, &off)]);
        assert!(
            c1e(&linux, &processor(plain)).is_err_and(|why| why.0.contains("/sys is not mounted")),
            "intel_idle may have set it"
        );
        assert_eq!(of(&[], Features::VIRTUAL), Ok(None));
    }

    #[test]
    fn watchdogs_that_run_are_told_and_none_is_not_well() {
        let of = |files: &[(&str, &[u8])]| {
            let (_folder, linux) = root(files);
            watchdogs(&linux).expect("a list")
        };
        assert!(of(&[("sys/class/net/lo/mtu", b"")])[0].1.starts_with("Linux drives no watchdog"));
        let state = |state: &'static [u8]| [("sys/class/watchdog/watchdog0/state", state)];
        assert_eq!(of(&state(b"inactive\n")), [(ReportKind::Found, "watchdog `watchdog0` does not run".into())]);
        let said = of(&[state(b"active\n")[0], ("sys/class/watchdog/watchdog0/timeout", b"30\n")]);
        assert!(said[0].1.starts_with("watchdog `watchdog0` runs, 30 s: "), "{said:?}");
        assert!(of(&[("sys/class/watchdog/watchdog0/dev", b"")])[0].1.contains("does not say"));
    }
}
