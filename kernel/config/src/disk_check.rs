//! Checks the guests' disks against the disks of the machine.
//!
//! A name that means nothing, or more than one namespace, leaves its guest out. So do two devices that would write to the
//! same namespace.

use alloc::format;
use alloc::vec::Vec;

use crate::check::leave_out;
use crate::{Config, Disk, FoundController, Mistake, Place};

/// Leaves out guests whose NVMe disks are not among `found`, and guests that would write to the same namespace. Several
/// guests may have a namespace that all but one of them only read.
pub fn check_nvme(config: &mut Config, found: &[FoundController]) -> Vec<Mistake> {
    let mut mistakes = leave_out(config, |guest| {
        guest.blocks().find_map(|block| {
            let Disk::Nvme(name) = &block.disk else { return None };
            Some((block.place.clone(), name.find(found).err()?))
        })
    });
    let mut writers = Vec::new();
    for guest in &config.guests {
        for block in guest.blocks().filter(|block| !block.read_only) {
            if let Disk::Nvme(name) = &block.disk
                && let Ok(namespace) = name.find(found)
            {
                writers.push((guest.name.clone(), block.place.clone(), namespace));
            }
        }
    }
    mistakes.extend(leave_out(config, |guest| {
        let of_guest = writers.iter().filter(|(name, ..)| *name == guest.name);
        of_guest.into_iter().find_map(|(_, place, namespace)| {
            let is_other = |(_, other, at): &&(_, Place, _)| at == namespace && other != place;
            let (name, other, _) = writers.iter().find(is_other)?;
            let message = format!(
                "guest `{name}` writes to the same namespace, in line {}; expected one writer, or `readonly = true`",
                other.line
            );
            Some((place.clone(), message))
        })
    }));
    mistakes
}

#[cfg(test)]
mod tests {
    use alloc::string::String;

    use super::*;
    use crate::{FoundNamespace, parse};

    fn disk(at: u8, serial: &str, ids: &[u32]) -> FoundController {
        let namespaces = ids.iter().map(|&id| FoundNamespace { id, unusable: None }).collect();
        FoundController { at: (at, 0, 0), serial: Ok(serial.into()), namespaces }
    }

    fn config(disks: &[&str]) -> Config {
        let mut text = String::new();
        for (n, lines) in disks.iter().enumerate() {
            text += &format!("[[guest]]\nname = 'g{n}'\nmemory = '64M'\nkernel = 'k'\n[[guest.block]]\n{lines}\n");
        }
        let parsed = parse("f", text);
        assert_eq!(parsed.mistakes, []);
        parsed.config
    }

    #[test]
    fn guests_that_would_write_the_same_blocks_are_left_out_both() {
        let found = [disk(1, "S1", &[1, 2])];
        let mut config = config(&[
            "disk = 'nvme:S1/1'",
            "disk = 'nvme:01:00.0/1'",
            "disk = 'nvme0/1'\nreadonly = true",
            "disk = 'nvme:S1/2'",
            "disk = 'nvme:S1/3'",
        ]);
        let mistakes = check_nvme(&mut config, &found);
        let lines: Vec<_> = mistakes.iter().map(|m| (m.line, m.guest.as_deref())).collect();
        assert_eq!(lines, [(31, Some("g4")), (6, Some("g0")), (12, Some("g1"))]);
        assert!(mistakes[1].message.contains("guest `g1` writes to the same namespace, in line 12"), "{}", mistakes[1]);
        assert!(mistakes[2].message.contains("guest `g0` writes to the same namespace, in line 6"), "{}", mistakes[2]);
        assert_eq!(config.guests.iter().map(|g| g.name.as_str()).collect::<Vec<_>>(), ["g2", "g3"]);
    }
}
