//! The machine's disks: how the file names one, and which disk of this machine a name means. A disk is a namespace of an
//! NVMe controller, or a virtio disk, if this machine is itself virtual.
//!
//! The hypervisor finds the controllers; this decides.

use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

use crate::PciDevice;

/// A disk of the machine as the file names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskName {
    /// Its controller.
    pub controller: ControllerName,
    /// Identifier of its namespace, 1 or more. `None`: the only one.
    pub namespace: Option<u32>,
}

/// A controller as the file names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControllerName {
    /// The only one of the machine.
    Only,
    /// By its PCI address: bus, device, function.
    At(u8, u8, u8),
    /// By its serial number.
    Serial(String),
    /// Any one. The namespace has this unique identifier, EUI-64 or NGUID, as 16 or 32 lower-case hexadecimal digits.
    Unique(String),
    /// The virtio disk with this number: 0 is `vda`, 25 is `vdz`.
    Virtio(u8),
}

/// What a controller is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ControllerKind {
    /// An NVMe controller.
    #[default]
    Nvme,
    /// A virtio block device, which has one disk. The number is its place in the order of PCI addresses.
    Virtio(u8),
}

/// A controller of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundController {
    /// What it is.
    pub kind: ControllerKind,
    /// PCI address: bus, device, function.
    pub at: (u8, u8, u8),
    /// Its serial number, or why it cannot be used. The serial number of a virtio disk is not asked, and empty.
    pub serial: Result<String, String>,
    /// Its active namespaces.
    pub namespaces: Vec<FoundNamespace>,
}

/// A namespace of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundNamespace {
    /// Its identifier.
    pub id: u32,
    /// Why it cannot be used.
    pub unusable: Option<String>,
    /// Its number of blocks.
    pub blocks: u64,
    /// Its unique identifiers, EUI-64 and NGUID, as lower-case hexadecimal digits.
    pub unique: Vec<String>,
    /// Other controllers may have the same namespace (NMIC bit 0).
    pub shared: bool,
    /// Its partition table, or why it has none that can be used. `None`: nobody looked.
    pub table: Option<Result<gpt::Table, gpt::Refusal>>,
}

/// Indices of a controller and of a namespace there, and the namespace.
type Found<'a> = (usize, usize, &'a FoundNamespace);

impl DiskName {
    /// Reads what stands behind `disk`: `vda` to `vdz`, or `nvme0`, or `nvme:` and a PCI address or a serial number, or
    /// `eui:` and a unique identifier of 16 or 32 hexadecimal digits, the last three with or without `/` and a namespace
    /// identifier. Returns `None` if it is none of these.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(&[letter @ b'a'..=b'z']) = text.strip_prefix("vd").map(str::as_bytes) {
            return Some(Self { controller: ControllerName::Virtio(letter.wrapping_sub(b'a')), namespace: None });
        }
        let (controller, namespace) = match text.rsplit_once('/') {
            Some((controller, id)) => (controller, Some(id.parse().ok().filter(|id| *id != 0)?)),
            None => (text, None),
        };
        let controller = match controller.strip_prefix("nvme:") {
            Some(name) => match PciDevice::parse(name) {
                Some(PciDevice::At(bus, device, function)) => ControllerName::At(bus, device, function),
                _ if name.trim().is_empty() => return None,
                _ => ControllerName::Serial(name.trim().into()),
            },
            None if controller == "nvme0" => ControllerName::Only,
            None => {
                let digits = controller.strip_prefix("eui:")?;
                let is_hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
                if !matches!(digits.len(), 16 | 32) || !is_hexadecimal {
                    return None;
                }
                ControllerName::Unique(digits.to_ascii_lowercase())
            }
        };
        Some(Self { controller, namespace })
    }

    /// Finds the namespace. Returns the indices of its controller and of itself there.
    ///
    /// # Errors
    /// The name means nothing, or more than one, or what cannot be used. The text says what there is.
    pub fn find(&self, found: &[FoundController]) -> Result<(usize, usize), String> {
        self.locate(found).map(|(controller, number, _)| (controller, number))
    }

    /// Finds the namespace. Returns the indices of its controller and of itself there, and itself.
    ///
    /// # Errors
    /// The name means nothing, or more than one, or what cannot be used. The text says what there is.
    pub(crate) fn locate<'a>(&self, found: &'a [FoundController]) -> Result<Found<'a>, String> {
        if let ControllerName::Unique(identifier) = &self.controller {
            return self.find_unique(identifier, found);
        }
        if let ControllerName::Virtio(number) = self.controller {
            return find_virtio(number, found);
        }
        let is_nvme = |controller: &&FoundController| controller.kind == ControllerKind::Nvme;
        let is_named = |controller: &FoundController| match &self.controller {
            _ if !is_nvme(&controller) => false,
            ControllerName::Only => true,
            ControllerName::At(bus, device, function) => controller.at == (*bus, *device, *function),
            ControllerName::Serial(serial) => controller.serial.as_ref() == Ok(serial),
            ControllerName::Unique(_) | ControllerName::Virtio(_) => false,
        };
        let all: Vec<(usize, &FoundController)> = (0..).zip(found).filter(|(_, c)| is_named(c)).collect();
        let (index, controller) = match all[..] {
            [found] => found,
            [] if !found.iter().any(|controller| is_nvme(&controller)) => {
                return Err("this machine has no NVMe controller".into());
            }
            [] => return Err(format!("no NVMe controller is that one; there are: {}", lines(found))),
            _ => return Err(format!("{} NVMe controllers are meant; expected one of: {}", all.len(), lines(found))),
        };
        if let Err(why) = &controller.serial {
            return Err(format!("the controller at {} cannot be used: {why}", address(controller)));
        }
        let ids = || controller.namespaces.iter().map(|n| n.id.to_string()).collect::<Vec<_>>().join(", ");
        let (number, namespace) = match (self.namespace, &controller.namespaces[..]) {
            (_, []) => return Err("the controller has no namespace".into()),
            (None, [only]) => (0, only),
            (None, _) => {
                return Err(format!("the controller has namespaces {}; expected one of them behind a `/`", ids()));
            }
            (Some(id), all) => all
                .iter()
                .enumerate()
                .find(|(_, namespace)| namespace.id == id)
                .ok_or_else(|| format!("the controller has no namespace {id}; it has {}", ids()))?,
        };
        usable(namespace).map(|()| (index, number, namespace))
    }

    /// Finds the namespace with this unique identifier.
    fn find_unique<'a>(&self, identifier: &str, found: &'a [FoundController]) -> Result<Found<'a>, String> {
        let has =
            |n: &FoundNamespace| n.unique.iter().any(|u| u == identifier) && self.namespace.is_none_or(|id| id == n.id);
        let of = |(index, c): (usize, &'a FoundController)| {
            (0..).zip(&c.namespaces).map(move |(number, n)| ((index, number, n), c))
        };
        let named: Vec<_> = (0..).zip(found).flat_map(of).filter(|((.., n), _)| has(n)).collect();
        match named[..] {
            [(place, _)] => usable(place.2).map(|()| place),
            [] => Err(format!("no namespace has this identifier; there are: {}", lines(found))),
            _ => {
                let line =
                    |&((.., n), c): &((usize, usize, &FoundNamespace), &FoundController)| disk_line(found, c, n.id);
                let all = named.iter().map(line).collect::<Vec<_>>().join(", ");
                Err(format!("{} namespaces have this identifier; expected one of: {all}", named.len()))
            }
        }
    }
}

impl fmt::Display for DiskName {
    /// As [`DiskName::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.controller {
            ControllerName::Only => f.write_str("nvme0")?,
            &ControllerName::At(bus, device, function) => write!(f, "nvme:{}", PciDevice::At(bus, device, function))?,
            // With a blank before it a serial number is not taken for an address.
            ControllerName::Serial(serial) if PciDevice::parse(serial).is_some() => write!(f, "nvme: {serial}")?,
            ControllerName::Serial(serial) => write!(f, "nvme:{serial}")?,
            ControllerName::Unique(identifier) => write!(f, "eui:{identifier}")?,
            ControllerName::Virtio(number) => write!(f, "vd{}", char::from(b'a'.saturating_add(number % 26)))?,
        }
        self.namespace.map_or(Ok(()), |id| write!(f, "/{id}"))
    }
}

/// Finds a virtio disk.
fn find_virtio(number: u8, found: &[FoundController]) -> Result<Found<'_>, String> {
    let disk = found.iter().enumerate().find(|(_, controller)| controller.kind == ControllerKind::Virtio(number));
    let Some((index, controller)) = disk else {
        return Err(match &lines(found)[..] {
            "" => "this machine has no such virtio disk, and no other disk".into(),
            lines => format!("this machine has no such virtio disk; there are: {lines}"),
        });
    };
    match &controller.serial {
        Err(why) => Err(format!("the virtio disk at {} cannot be used: {why}", address(controller))),
        Ok(_) => match controller.namespaces.first() {
            None => Err("it has no blocks".into()),
            Some(only) => Ok((index, 0, only)),
        },
    }
}

/// Checks that a namespace can be used.
fn usable(namespace: &FoundNamespace) -> Result<(), String> {
    match &namespace.unusable {
        Some(why) => Err(format!("namespace {} cannot be used: {why}", namespace.id)),
        None => Ok(()),
    }
}

fn address(controller: &FoundController) -> PciDevice {
    let (bus, device, function) = controller.at;
    PciDevice::At(bus, device, function)
}

/// Returns the line of the file that means a disk. A virtio disk has its number as a letter. A namespace has its
/// controller's serial number if no other controller has it, else its PCI address, and the identifier if there are several
/// namespaces.
#[must_use]
pub fn disk_line(found: &[FoundController], controller: &FoundController, id: u32) -> String {
    if let ControllerKind::Virtio(number) = controller.kind {
        return format!("disk = \"vd{}\"", char::from(b'a'.saturating_add(number % 26)));
    }
    let usable = |serial: &&String| {
        let others = found.iter().filter(|other| other.serial.as_ref() == Ok(serial)).count();
        others == 1 && !serial.contains(['/', '"', '\\']) && PciDevice::parse(serial).is_none()
    };
    let name = match controller.serial.as_ref().ok().filter(usable) {
        Some(serial) => serial.clone(),
        None => address(controller).to_string(),
    };
    let id = if controller.namespaces.len() > 1 { format!("/{id}") } else { String::new() };
    format!("disk = \"nvme:{name}{id}\"")
}

/// The lines of all namespaces.
fn lines(found: &[FoundController]) -> String {
    let of = |c: &FoundController| c.namespaces.iter().map(|n| disk_line(found, c, n.id)).collect::<Vec<_>>();
    found.iter().flat_map(of).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(at: u8, serial: &str, ids: &[u32]) -> FoundController {
        let namespaces = ids.iter().map(|&id| FoundNamespace { id, ..FoundNamespace::default() }).collect();
        FoundController { kind: ControllerKind::Nvme, at: (at, 0, 0), serial: Ok(serial.into()), namespaces }
    }

    fn find(text: &str, found: &[FoundController]) -> Result<(usize, usize), String> {
        DiskName::parse(text).expect("a name").find(found)
    }

    #[test]
    fn a_name_means_one_namespace_or_says_what_there_is() {
        let found = [disk(1, "S1", &[1]), disk(2, "S2", &[1, 7]), disk(3, "twin", &[1]), disk(4, "twin", &[1])];
        assert_eq!(find("nvme:S1", &found), Ok((0, 0)));
        assert_eq!(find("nvme:S1/1", &found), Ok((0, 0)));
        assert_eq!(find("nvme:02:00.0/7", &found), Ok((1, 1)));
        assert_eq!(find("nvme:0000:03:00.0", &found), Ok((2, 0)));
        assert_eq!(find("nvme0", &found[..1]), Ok((0, 0)));
        for (name, why) in [
            ("nvme0", "4 NVMe controllers are meant; expected one of: disk = \"nvme:S1\", disk = \"nvme:S2/1\""),
            ("nvme:twin", "2 NVMe controllers are meant"),
            ("nvme:S2", "has namespaces 1, 7; expected one of them behind a `/`"),
            ("nvme:S2/2", "has no namespace 2; it has 1, 7"),
            ("nvme:S3", "no NVMe controller is that one; there are: disk = \"nvme:S1\""),
            ("nvme:05:00.0", "no NVMe controller is that one"),
        ] {
            let said = find(name, &found).expect_err(name);
            assert!(said.contains(why), "{name}: {said}");
        }
        assert_eq!(find("nvme0", &[]), Err("this machine has no NVMe controller".into()));
        let mut broken = found.clone();
        broken[0].serial = Err("it does not answer".into());
        broken[2].namespaces[0].unusable = Some("metadata".into());
        assert!(find("nvme:01:00.0", &broken).is_err_and(|e| e.contains("at 01:00.0 cannot be used: it does not")));
        assert!(find("nvme:03:00.0", &broken).is_err_and(|e| e.contains("namespace 1 cannot be used: metadata")));
    }

    #[test]
    fn a_unique_identifier_means_one_namespace() {
        let mut found = [disk(1, "S1", &[1]), disk(2, "S2", &[1, 7])];
        found[0].namespaces[0].unique = vec!["001b448b44000001".into()];
        found[1].namespaces[1].unique = vec!["001b448b44000002".into(), "0123456789abcdef0123456789abcdef".into()];
        assert_eq!(find("eui:001b448b44000001", &found), Ok((0, 0)));
        assert_eq!(find("eui:001B448B44000002", &found), Ok((1, 1)));
        assert_eq!(find("eui:0123456789abcdef0123456789ABCDEF/7", &found), Ok((1, 1)));
        assert!(find("eui:001b448b44000002/1", &found).is_err_and(|e| e.contains("no namespace has this identifier")));
        assert!(find("eui:0000000000000000", &found).is_err_and(|e| e.contains("there are: disk = \"nvme:S1\"")));
        found[1].namespaces[0].unique = found[0].namespaces[0].unique.clone();
        let said = find("eui:001b448b44000001", &found).expect_err("two have it");
        assert!(
            said.contains(
                "2 namespaces have this identifier; expected one of: disk = \"nvme:S1\", disk = \"nvme:S2/1\""
            ),
            "{said}"
        );
        found[1].namespaces[1].unusable = Some("metadata".into());
        assert!(
            find("eui:001b448b44000002", &found).is_err_and(|e| e.contains("namespace 7 cannot be used: metadata"))
        );
    }

    #[test]
    fn a_virtio_disk_has_a_letter() {
        let virtio = |at: u8, number| FoundController {
            kind: ControllerKind::Virtio(number),
            serial: Ok(String::new()),
            ..disk(at, "", &[1])
        };
        let mut found = [virtio(1, 0), disk(2, "S1", &[1]), virtio(3, 1)];
        assert_eq!(find("vda", &found), Ok((0, 0)));
        assert_eq!(find("vdb", &found), Ok((2, 0)));
        assert_eq!(find("nvme0", &found), Ok((1, 0)), "a virtio disk is no NVMe disk");
        assert_eq!(disk_line(&found, &found[2], 1), "disk = \"vdb\"");
        let said = find("vdc", &found).expect_err("two");
        assert!(
            said.contains("no such virtio disk; there are: disk = \"vda\", disk = \"nvme:S1\", disk = \"vdb\""),
            "{said}"
        );
        assert!(find("vda", &[]).is_err_and(|e| e.contains("and no other disk")));
        assert_eq!(find("nvme0", &found[..1]), Err("this machine has no NVMe controller".into()));
        found[0].serial = Err("its blocks have 1024 bytes".into());
        assert!(find("vda", &found).is_err_and(|e| e.contains("at 01:00.0 cannot be used: its blocks have 1024")));
    }

    #[test]
    fn a_name_is_shown_as_it_is_read() {
        for text in
            ["vda", "vdz", "nvme0", "nvme0/7", "nvme:1f:1f.7/2", "nvme:S/1/3", "nvme:S 1", "eui:001b448b44000001"]
        {
            assert_eq!(DiskName::parse(text).unwrap().to_string(), text);
        }
        for text in ["nvme: 01:00.0", "nvme: first/2", "nvme:0000:01:00.0", "nvme:  x ", "eui:001B448B44000001/9"] {
            let name = DiskName::parse(text).unwrap();
            assert_eq!(DiskName::parse(&name.to_string()), Some(name));
        }
    }

    #[test]
    fn what_is_no_name_is_none() {
        let long = "eui:001b448b4400000100000000000000000";
        for text in [
            "nvme", "nvme1", "nvme:", "nvme: ", "nvme:S/0", "nvme:S/x", "nvme0/", "NVME0", "vd", "vd0", "vdaa",
            "vda/1", "eui:00", "eui:", long,
        ] {
            assert_eq!(DiskName::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_line_to_paste_means_its_namespace() {
        let odd = [disk(5, "a/1", &[1]), disk(6, "x\"y", &[1, 2]), disk(7, "07:00.0", &[3]), disk(8, "07:00.0", &[3])];
        let all = [&odd[..], &[disk(1, "S1", &[1]), disk(2, "S2", &[1, 7])]].concat();
        for (index, controller) in all.iter().enumerate() {
            for (n, namespace) in controller.namespaces.iter().enumerate() {
                let line = disk_line(&all, controller, namespace.id);
                let text = line.strip_prefix("disk = \"").and_then(|l| l.strip_suffix('"')).expect("a line");
                assert_eq!(find(text, &all), Ok((index, n)), "{line}");
            }
        }
    }
}
