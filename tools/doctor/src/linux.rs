//! Reads what Linux shows of a machine, as root or not.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

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
    /// Bus, device and function, as `01:00.0`. Segment 0.
    pub at: String,
    /// Vendor identifier.
    pub vendor: u16,
    /// Device identifier.
    pub device: u16,
    /// Class, subclass, programming interface.
    pub class: u32,
    /// The driver that has it in Linux.
    pub driver: Option<String>,
}

impl Function {
    /// Whether it is a bridge.
    #[must_use]
    pub fn is_bridge(&self) -> bool {
        self.class >> 16 == 6
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

    fn explain(&self, path: &str, error: &io::Error) -> Unreadable {
        Unreadable(match error.kind() {
            ErrorKind::PermissionDenied => format!("only root may read /{path}: run this as root"),
            _ => format!("/{path}: {error}"),
        })
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
        const PATH: &str = "dev/cpu/0/msr";
        let file = File::open(self.path(PATH)).map_err(|error| match error.kind() {
            ErrorKind::NotFound => {
                Unreadable(format!("there is no /{PATH}: run `modprobe msr` as root, and this as root"))
            }
            _ => self.explain(PATH, &error),
        })?;
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, number.into())
            .map_err(|error| Unreadable(format!("Linux cannot read MSR {number:#x}: {error}")))?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Bytes of usable memory in the firmware's map.
    ///
    /// # Errors
    /// Nobody but root may read the map, or it is not there.
    pub fn memory(&self) -> Result<u64, Unreadable> {
        const PATH: &str = "sys/firmware/memmap";
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
        // Without the folder nothing is known. In the folder, what is not there is not in the machine.
        fs::read_dir(self.path(PATH)).map_err(|e| self.explain(PATH, &e))?;
        // Of several tables with one signature Linux numbers all but the first.
        let path = format!("{PATH}/{signature}");
        match fs::read(self.path(&path)) {
            Ok(table) => Ok(Some(table)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.explain(&path, &error)),
        }
    }

    /// The PCI functions of segment 0, by address.
    ///
    /// # Errors
    /// Linux has no PCI, or a function has no identifier.
    pub fn functions(&self) -> Result<Vec<Function>, Unreadable> {
        const PATH: &str = "sys/bus/pci/devices";
        let mut functions = Vec::new();
        for entry in fs::read_dir(self.path(PATH)).map_err(|e| self.explain(PATH, &e))? {
            let name = entry.map_err(|e| self.explain(PATH, &e))?.file_name().to_string_lossy().into_owned();
            let Some(at) = name.strip_prefix("0000:") else { continue };
            let number = |what: &str| self.hexadecimal(&format!("{PATH}/{name}/{what}"));
            let driver = fs::read_link(self.path(&format!("{PATH}/{name}/driver"))).ok();
            functions.push(Function {
                at: at.to_owned(),
                vendor: number("vendor")? as u16,
                device: number("device")? as u16,
                class: number("class")? as u32,
                driver: driver.and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned())),
            });
        }
        functions.sort_by(|a, b| a.at.cmp(&b.at));
        Ok(functions)
    }

    /// Whether there is a UART at this I/O port.
    ///
    /// # Errors
    /// Nobody but root may ask, or Linux has no driver for UARTs.
    pub fn has_uart(&self, port: u16) -> Result<bool, Unreadable> {
        let text = self.text("proc/tty/driver/serial")?;
        let wanted = format!("port:{port:08X}");
        Ok(text.lines().any(|line| line.contains(&wanted) && !line.contains("uart:unknown")))
    }

    /// Who started Linux.
    ///
    /// # Errors
    /// Secure Boot's variable is there and cannot be read.
    pub fn firmware(&self) -> Result<Firmware, Unreadable> {
        if !self.path("sys/firmware/efi").is_dir() {
            return Ok(Firmware::Bios);
        }
        match fs::read(self.path(SECURE_BOOT)) {
            Ok(bytes) => Ok(Firmware::Uefi { secure_boot: bytes.get(4).map(|&value| value != 0) }),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(Firmware::Uefi { secure_boot: None }),
            Err(error) => Err(self.explain(SECURE_BOOT, &error)),
        }
    }

    /// Whether KVM nests here.
    ///
    /// # Errors
    /// A module's parameter cannot be read.
    pub fn nesting(&self) -> Result<Nesting, Unreadable> {
        const KVM: &str = "dev/kvm";
        for module in ["kvm_amd", "kvm_intel"] {
            let path = format!("sys/module/{module}/parameters/nested");
            if !self.path(&path).exists() {
                continue;
            }
            if !matches!(self.text(&path)?.as_str(), "Y" | "1") {
                return Ok(Nesting::Off(module));
            }
            let opened = File::options().read(true).write(true).open(self.path(KVM));
            return Ok(Nesting::On(module, opened.map(drop).map_err(|e| self.explain(KVM, &e))));
        }
        Ok(Nesting::NotLoaded)
    }

    /// The line of the kernel's log that says that Linux has loaded microcode. `None`: no line says so.
    ///
    /// # Errors
    /// Nobody but root may read the log.
    pub fn microcode_loaded(&self) -> Result<Option<String>, Unreadable> {
        const PATH: &str = "dev/kmsg";
        let mut log = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_NONBLOCK)
            .open(self.path(PATH))
            .map_err(|e| self.explain(PATH, &e))?;
        // One record for each read (Linux, Documentation/ABI/testing/dev-kmsg).
        let mut record = vec![0; 8192];
        loop {
            let bytes = match log.read(&mut record) {
                Ok(0) => return Ok(None),
                Ok(count) => record.get(..count).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                // Records that were overwritten meanwhile.
                Err(error) if error.kind() == ErrorKind::BrokenPipe => continue,
                Err(error) => return Err(self.explain(PATH, &error)),
            };
            let line = String::from_utf8_lossy(bytes);
            if let Some(said) = line.lines().find(|line| line.contains("microcode") && line.contains("pdated early")) {
                return Ok(Some(said.split_once(';').map_or(said, |(_, text)| text).to_owned()));
            }
        }
    }
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

    #[test]
    fn a_register_is_read_at_its_number_and_no_module_is_told() {
        let mut bytes = vec![0; 0x3a + 8];
        bytes[0x3a..].copy_from_slice(&5u64.to_le_bytes());
        let (_folder, linux) = root(&[("dev/cpu/0/msr", &bytes)]);
        assert_eq!(linux.msr(0x3a), Ok(5));
        assert!(linux.msr(0x480).is_err_and(|why| why.0.contains("MSR 0x480")));
        let (_folder, linux) = root(&[]);
        assert!(linux.msr(0x3a).is_err_and(|why| why.0.contains("modprobe msr")));
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
            .collect();
        let files: Vec<_> = all.iter().map(|(path, text)| (path.as_str(), text.as_bytes())).collect();
        let (folder, linux) = root(&files);
        symlink("../../../bus/pci/drivers/ixgbe", folder.path().join("sys/bus/pci/devices/0000:01:00.0/driver"))
            .expect("a link");
        let functions = linux.functions().expect("functions");
        let nic = Function {
            at: "01:00.0".into(),
            vendor: 0x8086,
            device: 0x10fb,
            class: 0x02_0000,
            driver: Some("ixgbe".into()),
        };
        assert_eq!(functions.len(), 2, "segment 1 is not sidecore's");
        assert!(functions[0].is_bridge());
        assert_eq!(functions[1], nic);
    }

    #[test]
    fn a_port_without_a_uart_is_none() {
        let text = b"serinfo:1.0 driver revision:\n0: uart:16550A port:000003F8 irq:4 tx:1 rx:0\n1: uart:unknown port:000002F8 irq:3\n";
        let (_folder, linux) = root(&[("proc/tty/driver/serial", text)]);
        assert_eq!((linux.has_uart(0x3f8), linux.has_uart(0x2f8)), (Ok(true), Ok(false)));
    }

    #[test]
    fn secure_boot_is_the_byte_behind_the_attributes() {
        let of = |files: &[(&str, &[u8])]| root(files).1.firmware();
        let (_folder, linux) = root(&[(SECURE_BOOT, &[6, 0, 0, 0, 1])]);
        assert_eq!(linux.firmware(), Ok(Firmware::Uefi { secure_boot: Some(true) }));
        let (_folder, linux) = root(&[(SECURE_BOOT, &[6, 0, 0, 0, 0])]);
        assert_eq!(linux.firmware(), Ok(Firmware::Uefi { secure_boot: Some(false) }));
        let (_folder, linux) = root(&[("sys/firmware/efi/systab", b"")]);
        assert_eq!(linux.firmware(), Ok(Firmware::Uefi { secure_boot: None }));
        assert_eq!(of(&[]), Ok(Firmware::Bios));
    }

    #[test]
    fn kvm_nests_if_its_module_says_so_and_its_device_opens() {
        let of = |files: &[(&str, &[u8])]| {
            let (_folder, linux) = root(files);
            linux.nesting()
        };
        assert_eq!(of(&[]), Ok(Nesting::NotLoaded));
        assert_eq!(of(&[("sys/module/kvm_amd/parameters/nested", b"0\n")]), Ok(Nesting::Off("kvm_amd")));
        let nests: (&str, &[u8]) = ("sys/module/kvm_intel/parameters/nested", b"Y\n");
        assert_eq!(of(&[nests, ("dev/kvm", b"")]), Ok(Nesting::On("kvm_intel", Ok(()))));
        assert!(matches!(of(&[nests]), Ok(Nesting::On("kvm_intel", Err(why))) if why.0.contains("/dev/kvm")));
    }

    #[test]
    fn microcode_is_found_in_the_kernel_s_log() {
        let log = b"6,1,0,-;microcode: Current revision: 0x2b\n6,2,0,-;microcode: Updated early from: 0x11\n";
        let (_folder, linux) = root(&[("dev/kmsg", log)]);
        assert_eq!(linux.microcode_loaded(), Ok(Some("microcode: Updated early from: 0x11".into())));
        let (_folder, linux) = root(&[("dev/kmsg", b"6,1,0,-;Linux version\n")]);
        assert_eq!(linux.microcode_loaded(), Ok(None));
    }
}
