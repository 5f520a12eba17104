//! Reads what Linux shows of a machine, as root or not.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use findings::cores::Kind;

/// Where Linux mounts what it shows of itself: an entry that is there as soon as it is mounted, and how to mount it.
const MOUNTS: [(&str, &str, &str); 3] = [
    ("dev", "null", "mount -t devtmpfs devtmpfs /dev"),
    ("proc", "version", "mount -t proc proc /proc"),
    ("sys", "kernel", "mount -t sysfs sysfs /sys"),
];
/// The EFI variables. The folder comes with /sys, and is empty until they are mounted there.
const EFI_VARIABLES: &str = "sys/firmware/efi/efivars";
/// The EFI variable that says whether Secure Boot is on (UEFI 3.3). Linux puts four bytes of attributes before the value.
const SECURE_BOOT: &str = "sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c";

/// Why something could not be read, and what helps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unreadable(pub String);

/// Who started Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Firmware {
    /// A BIOS, or UEFI's compatibility module.
    Bios,
    /// UEFI, and whether Secure Boot is on; `None` if the firmware does not say.
    Uefi {
        /// Secure Boot is on.
        secure_boot: Option<bool>,
    },
}

/// Whether virtual machines of this Linux's KVM can have guests of their own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Nesting {
    /// Neither `kvm_amd` nor `kvm_intel` is loaded.
    NotLoaded,
    /// This module is loaded without `nested=1`.
    Off(&'static str),
    /// This module is loaded and nests. The error: `/dev/kvm` cannot be opened.
    On(&'static str, Result<(), Unreadable>),
}

/// A PCI function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// The segment. Linux numbers from [`Function::MADE_UP`] on those that are no PCI segments, as the one behind Intel's VMD.
    pub segment: u32,
    /// Bus, device and function, as `01:00.0`.
    pub at: String,
    /// Vendor identifier.
    pub vendor: u16,
    /// Device identifier.
    pub device: u16,
    /// Class, subclass, programming interface.
    pub class: u32,
    /// The driver that has it in Linux.
    pub driver: Option<String>,
    /// How many virtual functions it offers (SR-IOV).
    pub offers: u32,
    /// It is a virtual function, which is there only because Linux has switched it on.
    pub is_virtual: bool,
}

impl Function {
    /// The first of the segments that only Linux has.
    pub const MADE_UP: u32 = 0x1_0000;

    /// Whether it is a bridge.
    #[must_use]
    pub fn is_bridge(&self) -> bool {
        self.class >> 16 == 6
    }
}

/// A core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Linux's number of it, which is sidecore's too: both take the boot core first, then the others as ACPI's MADT lists them.
    pub number: u32,
    /// What CPUID says of it and not of all.
    pub kind: Kind,
    /// The revision of its microcode. `None`: Linux does not say.
    pub microcode: Option<u32>,
}

/// A watchdog that Linux drives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Watchdog {
    /// Its driver's name for it.
    pub identity: String,
    /// It runs. `None`: Linux does not say.
    pub runs: Option<bool>,
    /// Seconds until it resets the machine, if nobody feeds it.
    pub seconds: Option<u32>,
}

/// The kernel's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    lines: Vec<String>,
    /// Its beginning is still there.
    is_whole: bool,
}

impl Log {
    /// The first line in which all of this is. `None`: there is none.
    ///
    /// # Errors
    /// None is left, and there may have been one.
    pub fn find(&self, parts: &[&str]) -> Result<Option<&str>, Unreadable> {
        match self.lines.iter().find(|line| parts.iter().all(|part| line.contains(part))) {
            Some(line) => Ok(Some(line)),
            None if self.is_whole => Ok(None),
            None => Err(Unreadable(
                "the beginning of the kernel's log is overwritten; `journalctl -k -b` may have it".to_owned(),
            )),
        }
    }
}

/// A machine on which Linux runs.
#[derive(Clone, Debug)]
pub struct Linux {
    root: PathBuf,
}

impl Linux {
    /// The machine whose Linux has its files beneath `root`: `/`, unless it is a copy of them.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The path of one of its files, given without the leading slash.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// Why a file or a folder could not be read, and what helps.
    pub(crate) fn explain(&self, path: &str, error: &io::Error) -> Unreadable {
        match error.kind() {
            ErrorKind::PermissionDenied if self.is_root() => {
                Unreadable(format!("this root may not read /{path}: run it outside of a container"))
            }
            ErrorKind::PermissionDenied => Unreadable(format!("only root may read /{path}: run this as root")),
            ErrorKind::NotFound => self.not_there(path),
            _ => Unreadable(format!("/{path}: {error}")),
        }
    }

    /// The same of a file or a folder that is not there or empty.
    fn not_there(&self, path: &str) -> Unreadable {
        if let Some(why) = self.not_mounted(path) {
            return why;
        }
        // The uppermost folder of its path that has nothing in it says the most.
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        let lacks = ends.filter_map(|end| path.get(..end)).find_map(|folder| Some((folder, self.lacks(folder)?)));
        let (place, state) = lacks.unwrap_or((path, "is not there"));
        let help = if place == EFI_VARIABLES {
            format!("mount -t efivarfs efivarfs /{EFI_VARIABLES}")
        } else {
            "in a container, run this outside of it; else run this on another Linux, as Debian's live system".to_owned()
        };
        Unreadable(format!("/{place} {state}: {help}"))
    }

    /// How to mount what this path is in, unless that is mounted.
    fn not_mounted(&self, path: &str) -> Option<Unreadable> {
        let (top, _) = path.split_once('/')?;
        let (_, entry, mount) = MOUNTS.iter().find(|mount| mount.0 == top)?;
        let is_mounted = self.path(top).join(entry).exists();
        (!is_mounted).then(|| Unreadable(format!("/{top} is not mounted: {mount}")))
    }

    /// What is wrong with a folder or a file that has nothing in it. (/proc and /sys give no sizes of files.)
    fn lacks(&self, path: &str) -> Option<&'static str> {
        let path = self.path(path);
        let is_empty = if path.is_dir() {
            fs::read_dir(path).map(|mut entries| entries.next().is_none())
        } else {
            File::open(path).and_then(|mut file| Ok(file.read(&mut [0])? == 0))
        };
        match is_empty {
            Ok(is_empty) => is_empty.then_some("is empty"),
            Err(error) => (error.kind() == ErrorKind::NotFound).then_some("is not there"),
        }
    }

    /// Whether this program's effective user is 0. In a container such a user may have few of root's rights.
    fn is_root(&self) -> bool {
        let status = fs::read_to_string(self.path("proc/self/status")).unwrap_or_default();
        // The real user comes first.
        let effective = |line: &str| line.strip_prefix("Uid:")?.split_whitespace().nth(1).map(|user| user == "0");
        status.lines().find_map(effective).unwrap_or(false)
    }

    /// What is not in this folder is not in the machine: the folder is there, and has something in it.
    ///
    /// # Errors
    /// The folder is not there, is empty or cannot be read, so that nobody knows.
    pub fn lists(&self, folder: &str) -> Result<(), Unreadable> {
        let mut entries = fs::read_dir(self.path(folder)).map_err(|e| self.explain(folder, &e))?;
        entries.next().map(drop).ok_or_else(|| self.not_there(folder))
    }

    /// What was read at a path. `None`: there is none, as this folder, which would have it, has others.
    fn if_there<T>(&self, folder: &str, path: &str, read: io::Result<T>) -> Result<Option<T>, Unreadable> {
        match read {
            Ok(read) => Ok(Some(read)),
            Err(error) if error.kind() == ErrorKind::NotFound => self.lists(folder).map(|()| None),
            Err(error) => Err(self.explain(path, &error)),
        }
    }

    fn text(&self, path: &str) -> Result<String, Unreadable> {
        fs::read_to_string(self.path(path)).map_err(|e| self.explain(path, &e)).map(|text| text.trim().to_owned())
    }

    fn hexadecimal(&self, path: &str) -> Result<u64, Unreadable> {
        let text = self.text(path)?;
        let digits = text.strip_prefix("0x").unwrap_or(&text);
        u64::from_str_radix(digits, 16).map_err(|_| Unreadable(format!("/{path} has `{text}`, which is no number")))
    }

    /// Reads a model-specific register of core 0.
    ///
    /// # Errors
    /// Nobody but root may, Linux's module `msr` is not loaded, or the register is not there.
    pub fn msr(&self, number: u32) -> Result<u64, Unreadable> {
        self.msr_if_there(number)?
            .ok_or_else(|| Unreadable(format!("Linux cannot read MSR {number:#x}: it is not there")))
    }

    /// Reads a model-specific register of core 0. `None`: this model does not have it.
    ///
    /// # Errors
    /// Nobody but root may, or Linux's module `msr` is not loaded.
    pub fn msr_if_there(&self, number: u32) -> Result<Option<u64>, Unreadable> {
        const PATH: &str = "dev/cpu/0/msr";
        let file = File::open(self.path(PATH)).map_err(|error| match error.kind() {
            ErrorKind::NotFound => self.not_mounted(PATH).unwrap_or_else(|| {
                let help = if self.is_root() {
                    "run `modprobe msr`; in a container, run this outside of it"
                } else {
                    "run `modprobe msr` as root, and this as root"
                };
                Unreadable(format!("there is no /{PATH}: {help}"))
            }),
            _ => self.explain(PATH, &error),
        })?;
        let mut bytes = [0; 8];
        match file.read_exact_at(&mut bytes, number.into()) {
            Ok(()) => Ok(Some(u64::from_le_bytes(bytes))),
            // RDMSR has faulted.
            Err(error) if error.raw_os_error() == Some(libc::EIO) => Ok(None),
            Err(error) => Err(Unreadable(format!("Linux cannot read MSR {number:#x}: {error}"))),
        }
    }

    /// Bytes of usable memory in the firmware's map.
    ///
    /// # Errors
    /// Nobody but root may read the map, or it is not there.
    pub fn memory(&self) -> Result<u64, Unreadable> {
        const PATH: &str = "sys/firmware/memmap";
        self.lists(PATH)?;
        let entries = fs::read_dir(self.path(PATH)).map_err(|e| self.explain(PATH, &e))?;
        let mut bytes = 0u64;
        for entry in entries {
            let name = entry.map_err(|e| self.explain(PATH, &e))?.file_name();
            let range = format!("{PATH}/{}", name.to_string_lossy());
            if self.text(&format!("{range}/type"))? == "System RAM" {
                let (start, last) =
                    (self.hexadecimal(&format!("{range}/start"))?, self.hexadecimal(&format!("{range}/end"))?);
                bytes = bytes.saturating_add(last.saturating_sub(start).saturating_add(1));
            }
        }
        Ok(bytes)
    }

    /// An ACPI table, by its signature. `None`: there is none.
    ///
    /// # Errors
    /// Nobody but root may read it, or Linux has no ACPI.
    pub fn acpi(&self, signature: &str) -> Result<Option<Vec<u8>>, Unreadable> {
        const PATH: &str = "sys/firmware/acpi/tables";
        // Of several tables with one signature Linux numbers all but the first.
        let path = format!("{PATH}/{signature}");
        self.if_there(PATH, &path, fs::read(self.path(&path)))
    }

    /// The PCI functions, by segment and address.
    ///
    /// # Errors
    /// Linux has no PCI, or a function has no identifier.
    pub fn functions(&self) -> Result<Vec<Function>, Unreadable> {
        const PATH: &str = "sys/bus/pci/devices";
        let mut functions = Vec::new();
        for entry in fs::read_dir(self.path(PATH)).map_err(|e| self.explain(PATH, &e))? {
            let name = entry.map_err(|e| self.explain(PATH, &e))?.file_name().to_string_lossy().into_owned();
            let Some((segment, at)) = name.split_once(':') else { continue };
            let segment = u32::from_str_radix(segment, 16)
                .map_err(|_| Unreadable(format!("/{PATH} has `{name}`, which is no address")))?;
            let number = |what: &str| self.hexadecimal(&format!("{PATH}/{name}/{what}"));
            let driver = fs::read_link(self.path(&format!("{PATH}/{name}/driver"))).ok();
            let offers = self.text(&format!("{PATH}/{name}/sriov_totalvfs")).ok().and_then(|text| text.parse().ok());
            functions.push(Function {
                segment,
                at: at.to_owned(),
                vendor: number("vendor")? as u16,
                device: number("device")? as u16,
                class: number("class")? as u32,
                driver: driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned())),
                offers: offers.unwrap_or(0),
                is_virtual: self.path(&format!("{PATH}/{name}/physfn")).exists(),
            });
        }
        functions.sort_by(|a, b| (a.segment, &a.at).cmp(&(b.segment, &b.at)));
        Ok(functions)
    }

    /// Whether there is a UART at this I/O port.
    ///
    /// # Errors
    /// Nobody but root may ask, or Linux has no driver for UARTs.
    pub fn has_uart(&self, port: u16) -> Result<bool, Unreadable> {
        const PATH: &str = "proc/tty/driver/serial";
        let text = self.text(PATH)?;
        if text.is_empty() {
            return Err(self.not_there(PATH));
        }
        let wanted = format!("port:{port:08X}");
        Ok(text.lines().any(|line| line.contains(&wanted) && !line.contains("uart:unknown")))
    }

    /// Who started Linux.
    ///
    /// # Errors
    /// /sys is not mounted, the EFI variables are not, or Secure Boot's cannot be read.
    pub fn firmware(&self) -> Result<Firmware, Unreadable> {
        const EFI: &str = "sys/firmware/efi";
        if self.if_there("sys/firmware", EFI, fs::metadata(self.path(EFI)))?.is_none() {
            return Ok(Firmware::Bios);
        }
        let variable = self.if_there(EFI_VARIABLES, SECURE_BOOT, fs::read(self.path(SECURE_BOOT)))?;
        let value = variable.map(|bytes| {
            let value = bytes.get(4).map(|&value| value != 0);
            value.ok_or_else(|| {
                let size = bytes.len();
                Unreadable(format!(
                    "/{SECURE_BOOT} has {size} bytes instead of 5: look for Secure Boot in the firmware's setup"
                ))
            })
        });
        Ok(Firmware::Uefi { secure_boot: value.transpose()? })
    }

    /// Whether KVM nests here.
    ///
    /// # Errors
    /// A module's parameter cannot be read, or Linux's modules are not listed.
    pub fn nesting(&self) -> Result<Nesting, Unreadable> {
        const KVM: &str = "dev/kvm";
        for module in ["kvm_amd", "kvm_intel"] {
            let path = format!("sys/module/{module}/parameters/nested");
            let Some(nested) = self.if_there("sys/module", &path, fs::read_to_string(self.path(&path)))? else {
                continue;
            };
            if !matches!(nested.trim(), "Y" | "1") {
                return Ok(Nesting::Off(module));
            }
            let opened = File::options().read(true).write(true).open(self.path(KVM));
            return Ok(Nesting::On(module, opened.map(drop).map_err(|e| self.explain(KVM, &e))));
        }
        Ok(Nesting::NotLoaded)
    }

    /// The cores that Linux runs on, by number.
    ///
    /// # Errors
    /// Their list is empty, or a line of it has not the form that it has on x86.
    pub fn cpus(&self) -> Result<Vec<Cpu>, Unreadable> {
        const PATH: &str = "proc/cpuinfo";
        let text = self.text(PATH)?;
        let types = [("cpu_core", 0x40), ("cpu_atom", 0x20)].map(|(name, hybrid)| {
            (self.text(&format!("sys/devices/{name}/cpus")).map_or_else(|_| Vec::new(), |list| ranges(&list)), hybrid)
        });
        let mut cpus = Vec::new();
        for block in text.split("\n\n") {
            let fields: BTreeMap<&str, &str> = block
                .lines()
                .filter_map(|line| line.split_once(':').map(|(name, value)| (name.trim(), value.trim())))
                .collect();
            if fields.is_empty() {
                continue;
            }
            let number = |name: &str| {
                let value = fields.get(name).and_then(|value| value.parse::<u32>().ok());
                value.ok_or_else(|| Unreadable(format!("/{PATH} has a processor without a number for `{name}`")))
            };
            let core = number("processor")?;
            let is_in =
                |(list, _): &&(Vec<(u32, u32)>, u8)| list.iter().any(|&(first, last)| (first..=last).contains(&core));
            let microcode = fields.get("microcode").and_then(|text| text.strip_prefix("0x"));
            cpus.push(Cpu {
                number: core,
                kind: Kind {
                    hybrid: types.iter().find(is_in).map_or(0, |&(_, hybrid)| hybrid),
                    signature: signature(number("cpu family")?, number("model")?, number("stepping")?),
                },
                microcode: microcode.and_then(|digits| u32::from_str_radix(digits, 16).ok()),
            });
        }
        // A container may hide the list by an empty file.
        if cpus.is_empty() { Err(self.not_there(PATH)) } else { Ok(cpus) }
    }

    /// The watchdogs that Linux has drivers for and has found.
    ///
    /// # Errors
    /// The list of them cannot be read.
    pub fn watchdogs(&self) -> Result<Vec<Watchdog>, Unreadable> {
        const PATH: &str = "sys/class/watchdog";
        let entries = self.if_there("sys/class", PATH, fs::read_dir(self.path(PATH)))?;
        let mut names: Vec<String> =
            entries.into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect();
        names.sort();
        let of = |name: String| {
            let read = |what: &str| self.text(&format!("{PATH}/{name}/{what}")).ok();
            Watchdog {
                identity: read("identity").unwrap_or_else(|| name.clone()),
                runs: read("state").map(|state| state == "active"),
                seconds: read("timeout").and_then(|text| text.parse().ok()),
            }
        };
        Ok(names.into_iter().map(of).collect())
    }

    /// The driver by which Linux's idle cores sleep. `None`: there is none.
    ///
    /// # Errors
    /// Linux's folder of the processors is not there.
    pub fn idle_driver(&self) -> Result<Option<String>, Unreadable> {
        const CPU: &str = "sys/devices/system/cpu";
        let path = format!("{CPU}/cpuidle/current_driver");
        let driver = self.if_there(CPU, &path, fs::read_to_string(self.path(&path)))?;
        Ok(driver.map(|name| name.trim().to_owned()).filter(|name| name != "none"))
    }

    /// The kernel's log.
    ///
    /// # Errors
    /// Nobody but root may read it.
    pub fn log(&self) -> Result<Log, Unreadable> {
        const PATH: &str = "dev/kmsg";
        let mut log = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(self.path(PATH))
            .map_err(|e| self.explain(PATH, &e))?;
        // One record for each read: level, number, time and flags with commas between them, a semicolon, the text; then lines that
        // begin with a space (Linux, Documentation/ABI/testing/dev-kmsg). The first record after the start has the number 0.
        let mut record = vec![0; 8192];
        let mut all = Log::default();
        loop {
            let bytes = match log.read(&mut record) {
                Ok(0) => return Ok(all),
                Ok(count) => record.get(..count).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(all),
                // Records that were overwritten meanwhile.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => continue,
                Err(error) => return Err(self.explain(PATH, &error)),
            };
            for (head, text) in String::from_utf8_lossy(bytes).lines().filter_map(|line| line.split_once(';')) {
                all.is_whole |= head.split(',').nth(1) == Some("0");
                all.lines.push(text.to_owned());
            }
        }
    }
}

/// The ranges of a list of cores: "0-7,12". What is no number is left out.
fn ranges(list: &str) -> Vec<(u32, u32)> {
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    list.split(',').filter_map(range).collect()
}

/// The signature in EAX of CPUID's leaf 1 (SDM vol. 2A) that has this family, model and stepping, which are with their extended parts.
fn signature(family: u32, model: u32, stepping: u32) -> u32 {
    let (extended, base) = if family > 0xf { (family - 0xf, 0xf) } else { (0, family) };
    extended << 20 | (model >> 4 & 0xf) << 16 | base << 8 | (model & 0xf) << 4 | stepping & 0xf
}

#[cfg(test)]
mod tests {
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
    const ROOT: (&str, &[u8]) =
        ("proc/self/status", b"Name:\tsidecore-doctor\nUid:\t1000\t0\t0\t0\nGid:\t0\t0\t0\t0\n");
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
        let uppermost = ["firmware", "module", "class", "devices", "firmware", "firmware", "bus"]
            .map(|name| format!("/sys/{name}"));
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
        assert_eq!(
            linux.msr(0x3a),
            unknown("there is no /dev/cpu/0/msr: run `modprobe msr` as root, and this as root")
        );
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
            format!(
                "processor\t: {number}\ncpu family\t: 6\nmodel\t\t: 154\nmodel name\t: X\nstepping\t: 3\n{microcode}\n"
            )
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
}
