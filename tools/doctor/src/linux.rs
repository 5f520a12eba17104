//! Reads what Linux shows of a machine, as root or not.

mod missing;

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use findings::cores::Kind;

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
mod tests;
