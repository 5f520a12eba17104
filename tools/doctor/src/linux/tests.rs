//! Copies of Linux's files, and folders of them that are empty or not there.

use super::*;
use std::os::unix::fs::symlink;

/// A root with these files.
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

/// What says that /sys is mounted.
const SYS: (&str, &[u8]) = ("sys/kernel/uevent_seqnum", b"1\n");
/// What says that /proc is mounted, and that this program's user is root in effect, and another one really.
const ROOT: (&str, &[u8]) = ("proc/self/status", b"Name:\tsidecore-doctor\nUid:\t1000\t0\t0\t0\nGid:\t0\t0\t0\t0\n");
const NO_SYS: &str = "/sys is not mounted: mount -t sysfs sysfs /sys";
const ELSEWHERE: &str =
    "in a container, run this outside of it; else run this on another Linux, as Debian's live system";

fn unknown<T>(why: &str) -> Result<T, Unreadable> {
    Err(Unreadable(why.to_owned()))
}

/// A root with these files and empty folders.
fn root_with(files: &[(&str, &[u8])], folders: &[&str]) -> (tempfile::TempDir, Linux) {
    let (folder, linux) = root(files);
    for path in folders {
        fs::create_dir_all(folder.path().join(path)).expect("a folder");
    }
    (folder, linux)
}

#[test]
fn nothing_is_said_to_be_missing_if_its_folder_is_not_there() {
    let all = |linux: &Linux| {
        [
            linux.firmware().map(drop),
            linux.nesting().map(drop),
            linux.watchdogs().map(drop),
            linux.idle_driver().map(drop),
            linux.acpi("DMAR").map(drop),
            linux.memory().map(drop),
            linux.functions().map(drop),
        ]
    };
    const FOLDERS: [&str; 7] = [
        "sys/firmware",
        "sys/module",
        "sys/class",
        "sys/devices/system/cpu",
        "sys/firmware/acpi/tables",
        "sys/firmware/memmap",
        "sys/bus/pci",
    ];
    // A rescue system without /sys has an empty folder, or cgroups in it.
    for made in [&[][..], &["sys"], &["sys/fs/cgroup", "sys/firmware", "sys/class", "sys/module"]] {
        let (_folder, linux) = root_with(&[], made);
        assert_eq!(all(&linux), [(); 7].map(|()| unknown(NO_SYS)), "{made:?}");
    }
    // With /sys the uppermost folder that is not there is named.
    let (_folder, linux) = root(&[SYS]);
    let uppermost =
        ["firmware", "module", "class", "devices", "firmware", "firmware", "bus"].map(|name| format!("/sys/{name}"));
    assert_eq!(all(&linux), uppermost.map(|place| unknown(&format!("{place} is not there: {ELSEWHERE}"))));
    // Docker puts an empty folder over what a container shall not see. Without PCI devices there are none.
    let (_folder, linux) = root_with(&[SYS], &FOLDERS);
    for (folder, said) in FOLDERS.iter().zip(all(&linux)) {
        match *folder {
            // This one has other folders in it.
            "sys/firmware" => assert_eq!(said, Ok(())),
            "sys/bus/pci" => assert_eq!(said, unknown(&format!("/sys/bus/pci is empty: {ELSEWHERE}"))),
            _ => assert_eq!(said, unknown(&format!("/{folder} is empty: {ELSEWHERE}"))),
        }
    }
    // Where the folders have something else, there is none.
    let (_folder, linux) = root(&[
        SYS,
        ("sys/firmware/acpi/tables/APIC", b""),
        ("sys/module/msr/refcnt", b""),
        ("sys/class/net/lo/mtu", b""),
        ("sys/devices/system/cpu/online", b""),
    ]);
    assert_eq!(linux.firmware(), Ok(Firmware::Bios));
    assert_eq!(linux.nesting(), Ok(Nesting::NotLoaded));
    assert_eq!(linux.watchdogs(), Ok(vec![]));
    assert_eq!(linux.idle_driver(), Ok(None));
    assert_eq!(linux.acpi("DMAR"), Ok(None));
}

#[test]
fn an_empty_file_of_proc_says_nothing() {
    let files: [(&str, &[u8]); 3] =
        [("proc/version", b"Linux"), ("proc/cpuinfo", b""), ("proc/tty/driver/serial", b"")];
    let (_folder, linux) = root(&files);
    assert_eq!(linux.cpus(), unknown(&format!("/proc/cpuinfo is empty: {ELSEWHERE}")));
    assert_eq!(linux.has_uart(0x3f8), unknown(&format!("/proc/tty/driver/serial is empty: {ELSEWHERE}")));
    let (_folder, linux) = root(&[]);
    assert_eq!(linux.cpus(), unknown("/proc is not mounted: mount -t proc proc /proc"));
    assert_eq!(linux.has_uart(0x3f8), unknown("/proc is not mounted: mount -t proc proc /proc"));
}

#[test]
fn root_without_its_rights_is_not_told_to_be_root() {
    let of = |status: &[u8]| {
        let (_folder, linux) = root(&[("proc/self/status", status)]);
        linux.explain("dev/kmsg", &ErrorKind::PermissionDenied.into()).0
    };
    assert_eq!(of(ROOT.1), "this root may not read /dev/kmsg: run it outside of a container");
    let other = "only root may read /dev/kmsg: run this as root";
    assert_eq!(of(b"Uid:\t0\t1000\t0\t0\n"), other);
    assert_eq!(of(b""), other);
}

#[test]
fn a_register_is_read_at_its_number_and_no_module_is_told() {
    let mut bytes = vec![0; 0x3a + 8];
    bytes[0x3a..].copy_from_slice(&5u64.to_le_bytes());
    let (_folder, linux) = root(&[("dev/cpu/0/msr", &bytes)]);
    assert_eq!(linux.msr(0x3a), Ok(5));
    assert!(linux.msr(0x480).is_err_and(|why| why.0.contains("MSR 0x480")));
    let (_folder, linux) = root(&[("dev/null", b"")]);
    assert_eq!(linux.msr(0x3a), unknown("there is no /dev/cpu/0/msr: run `modprobe msr` as root, and this as root"));
    let (_folder, linux) = root(&[("dev/null", b""), ROOT]);
    assert_eq!(
        linux.msr(0x3a),
        unknown("there is no /dev/cpu/0/msr: run `modprobe msr`; in a container, run this outside of it")
    );
    let (_folder, linux) = root(&[]);
    assert_eq!(linux.msr(0x3a), unknown("/dev is not mounted: mount -t devtmpfs devtmpfs /dev"));
}

#[test]
fn memory_is_the_ranges_of_ram() {
    let range = |n: u8, start: &'static str, end: &'static str, kind: &'static str| {
        [("start", start), ("end", end), ("type", kind)]
            .map(|(name, text)| (format!("sys/firmware/memmap/{n}/{name}"), format!("{text}\n").into_bytes()))
    };
    let all = [
        range(0, "0x0", "0x9fbff", "System RAM"),
        range(1, "0x9fc00", "0x9ffff", "Reserved"),
        range(2, "0x100000", "0x3fffffff", "System RAM"),
    ]
    .concat();
    let files: Vec<_> = all.iter().map(|(path, text)| (path.as_str(), text.as_slice())).collect();
    let (_folder, linux) = root(&files);
    assert_eq!(linux.memory(), Ok(0x9fc00 + 0x3ff0_0000));
    let (_folder, linux) =
        root(&[("sys/firmware/memmap/0/type", b"System RAM"), ("sys/firmware/memmap/0/start", b"x")]);
    assert!(linux.memory().is_err_and(|why| why.0.contains("`x`")), "no number is nothing to count with");
    let (_folder, linux) = root(&[]);
    assert!(linux.memory().is_err());
}

#[test]
fn a_table_that_is_not_there_differs_from_no_tables() {
    let (_folder, linux) = root(&[("sys/firmware/acpi/tables/APIC", b"APIC")]);
    assert_eq!(linux.acpi("APIC"), Ok(Some(b"APIC".to_vec())));
    assert_eq!(linux.acpi("MCFG"), Ok(None));
    let (_folder, linux) = root(&[]);
    assert!(linux.acpi("MCFG").is_err());
}

#[test]
fn functions_have_their_driver_and_come_by_address() {
    let function = |at: &str, ids: [&'static str; 3]| {
        let folder = format!("sys/bus/pci/devices/{at}");
        ["vendor", "device", "class"]
            .into_iter()
            .zip(ids)
            .map(move |(name, id)| (format!("{folder}/{name}"), id.to_owned()))
    };
    let all: Vec<_> = function("0000:01:00.0", ["0x8086", "0x10fb", "0x020000"])
        .chain(function("0000:00:00.0", ["0x8086", "0x29c0", "0x060000"]))
        .chain(function("0001:00:00.0", ["0x8086", "0x10fb", "0x020000"]))
        .chain(function("10000:e1:00.0", ["0x8086", "0x0a54", "0x010802"]))
        .chain(function("0000:01:10.0", ["0x8086", "0x10ed", "0x020000"]))
        .chain([
            ("sys/bus/pci/devices/0000:01:00.0/sriov_totalvfs".to_owned(), "63\n".to_owned()),
            ("sys/bus/pci/devices/0000:01:10.0/physfn/vendor".to_owned(), "0x8086".to_owned()),
        ])
        .collect();
    let files: Vec<_> = all.iter().map(|(path, text)| (path.as_str(), text.as_bytes())).collect();
    let (folder, linux) = root(&files);
    symlink("../../../bus/pci/drivers/ixgbe", folder.path().join("sys/bus/pci/devices/0000:01:00.0/driver"))
        .expect("a link");
    let functions = linux.functions().expect("functions");
    let nic = Function {
        segment: 0,
        at: "01:00.0".into(),
        vendor: 0x8086,
        device: 0x10fb,
        class: 0x02_0000,
        driver: Some("ixgbe".into()),
        offers: 63,
        is_virtual: false,
    };
    assert!(functions[0].is_bridge());
    assert_eq!(functions[1], nic);
    assert!(functions[2].is_virtual);
    assert_eq!(functions[3..].iter().map(|f| f.segment).collect::<Vec<_>>(), [1, Function::MADE_UP]);
}

#[test]
fn a_port_without_a_uart_is_none() {
    let text = b"serinfo:1.0 driver revision:\n0: uart:16550A port:000003F8 irq:4 tx:1 rx:0\n1: uart:unknown port:000002F8 irq:3\n";
    let (_folder, linux) = root(&[("proc/tty/driver/serial", text)]);
    assert_eq!((linux.has_uart(0x3f8), linux.has_uart(0x2f8)), (Ok(true), Ok(false)));
}

#[test]
fn secure_boot_is_the_byte_behind_the_attributes() {
    let of = |files: &[(&str, &[u8])], folders: &[&str]| {
        let (_folder, linux) = root_with(files, folders);
        linux.firmware()
    };
    let (_folder, linux) = root(&[(SECURE_BOOT, &[6, 0, 0, 0, 1])]);
    assert_eq!(linux.firmware(), Ok(Firmware::Uefi { secure_boot: Some(true) }));
    let (_folder, linux) = root(&[(SECURE_BOOT, &[6, 0, 0, 0, 0])]);
    assert_eq!(linux.firmware(), Ok(Firmware::Uefi { secure_boot: Some(false) }));
    assert!(of(&[(SECURE_BOOT, &[6, 0, 0, 0])], &[]).is_err_and(|why| why.0.contains("has 4 bytes")));
    // Rescue systems do not mount the variables.
    let systab: (&str, &[u8]) = ("sys/firmware/efi/systab", b"");
    let mount = "mount -t efivarfs efivarfs /sys/firmware/efi/efivars";
    assert_eq!(
        of(&[SYS, systab], &["sys/firmware/efi/efivars"]),
        unknown(&format!("/sys/firmware/efi/efivars is empty: {mount}"))
    );
    assert_eq!(of(&[SYS, systab], &[]), unknown(&format!("/sys/firmware/efi/efivars is not there: {mount}")));
    let other: (&str, &[u8]) =
        ("sys/firmware/efi/efivars/BootOrder-8be4df61-93ca-11d2-aa0d-00e098032b8c", &[7, 0, 0, 0, 1, 0]);
    assert_eq!(of(&[SYS, systab, other], &[]), Ok(Firmware::Uefi { secure_boot: None }));
    assert_eq!(of(&[("sys/firmware/acpi/tables/APIC", b"")], &[]), Ok(Firmware::Bios));
}

#[test]
fn kvm_nests_if_its_module_says_so_and_its_device_opens() {
    let of = |files: &[(&str, &[u8])]| {
        let (_folder, linux) = root(files);
        linux.nesting()
    };
    assert_eq!(of(&[("sys/module/msr/refcnt", b"0\n")]), Ok(Nesting::NotLoaded));
    assert_eq!(of(&[("sys/module/kvm_amd/parameters/nested", b"0\n")]), Ok(Nesting::Off("kvm_amd")));
    let nests: (&str, &[u8]) = ("sys/module/kvm_intel/parameters/nested", b"Y\n");
    assert_eq!(of(&[nests, ("dev/kvm", b"")]), Ok(Nesting::On("kvm_intel", Ok(()))));
    assert!(
        matches!(of(&[nests, ("dev/null", b"")]), Ok(Nesting::On("kvm_intel", Err(why))) if why.0.contains("/dev/kvm"))
    );
}

#[test]
fn a_line_of_the_log_that_may_be_overwritten_is_unknown() {
    const WANTED: &[&str] = &["microcode", "pdated early"];
    let line = b"6,1,0,-;microcode: Current revision: 0x2b\n6,2,0,-;microcode: Updated early from: 0x11\n";
    let (_folder, linux) = root(&[("dev/kmsg", line)]);
    let log = linux.log().expect("a log");
    assert_eq!(log.find(WANTED), Ok(Some("microcode: Updated early from: 0x11")));
    let (_folder, linux) = root(&[("dev/kmsg", b"6,0,0,-;Linux version\n6,1,0,-;Command line: \n")]);
    assert_eq!(linux.log().expect("a log").find(WANTED), Ok(None));
    for begun_later in [&b"6,1,0,-;Command line: \n"[..], b""] {
        let (_folder, linux) = root(&[("dev/kmsg", begun_later)]);
        assert!(linux.log().expect("a log").find(WANTED).is_err_and(|why| why.0.contains("journalctl")));
    }
    let (_folder, linux) = root(&[("dev/null", b"")]);
    assert_eq!(linux.log(), unknown(&format!("/dev/kmsg is not there: {ELSEWHERE}")));
}

#[test]
fn cores_have_the_signature_that_cpuid_has() {
    // The families, models and steppings of an EPYC 7763, a Core i7-1260P and a Xeon X5660, and their signatures.
    for (family, model, stepping, expected) in
        [(0x19, 1, 1, 0x00a0_0f11), (6, 154, 3, 0x0009_06a3), (6, 44, 2, 0x0002_06c2)]
    {
        assert_eq!(signature(family, model, stepping), expected, "{family} {model} {stepping}");
    }
    let block = |number: u32, microcode: &str| {
        format!("processor\t: {number}\ncpu family\t: 6\nmodel\t\t: 154\nmodel name\t: X\nstepping\t: 3\n{microcode}\n")
    };
    let text = [block(0, "microcode\t: 0x430\n"), block(8, "")].join("\n");
    let (_folder, linux) = root(&[
        ("proc/cpuinfo", text.as_bytes()),
        ("sys/devices/cpu_core/cpus", b"0-7\n"),
        ("sys/devices/cpu_atom/cpus", b"8,10-15\n"),
    ]);
    let kind = |hybrid| Kind { hybrid, signature: 0x0009_06a3 };
    let cores = [(0, kind(0x40), Some(0x430)), (8, kind(0x20), None)];
    let expected = cores.map(|(number, kind, microcode)| Cpu { number, kind, microcode });
    assert_eq!(linux.cpus().as_deref(), Ok(&expected[..]));
    let (_folder, linux) = root(&[("proc/cpuinfo", b"processor : 0\nhart : 1\n")]);
    assert!(linux.cpus().is_err_and(|why| why.0.contains("cpu family")));
}

#[test]
fn watchdogs_are_those_that_linux_drives() {
    let (_folder, linux) = root(&[
        ("sys/class/watchdog/watchdog0/identity", b"iTCO_wdt\n"),
        ("sys/class/watchdog/watchdog0/state", b"active\n"),
        ("sys/class/watchdog/watchdog0/timeout", b"30\n"),
        ("sys/class/watchdog/watchdog1/dev", b"248:1\n"),
    ]);
    let first = Watchdog { identity: "iTCO_wdt".into(), runs: Some(true), seconds: Some(30) };
    let second = Watchdog { identity: "watchdog1".into(), runs: None, seconds: None };
    assert_eq!(linux.watchdogs(), Ok(vec![first, second]));
}
