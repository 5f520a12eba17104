//! Checks the guests' disks against the disks of the machine.
//!
//! A name that means nothing, or more than one namespace or partition, leaves its guest out. So do two devices that have
//! blocks in common, unless both only read.

use alloc::format;
use alloc::vec::Vec;

use gpt::Guid;

use crate::check::leave_out;
use crate::{Config, Extent, FoundController, Mistake};

/// Leaves out guests whose disks or partitions are not among `found`, and guests with blocks that another device has
/// too. Blocks that no device writes may be shared: a guest that reads does not expect its disk to change. The devices of one
/// guest may share blocks that one of them writes. `booted` is as for [`Extent::of`].
pub fn check_disks(config: &mut Config, found: &[FoundController], booted: Option<Guid>) -> Vec<Mistake> {
    let mut mistakes =
        leave_out(config, |guest| guest.blocks().find_map(|block| Extent::of(block, found, booted).err()));
    let mut devices = Vec::new();
    for guest in &config.guests {
        for block in guest.blocks() {
            if let Ok(Some(extent)) = Extent::of(block, found, booted) {
                let place = block.partition.as_ref().map_or(&block.place, |partition| &partition.place).clone();
                devices.push((guest.name.clone(), place, extent, block.read_only));
            }
        }
    }
    mistakes.extend(leave_out(config, |guest| {
        let of_guest = devices.iter().filter(|(name, ..)| *name == guest.name);
        of_guest.into_iter().find_map(|(_, place, extent, read_only)| {
            let (name, other, ..) = devices.iter().find(|(owner, other, at, only)| {
                let may_share = if *owner == guest.name { *read_only || *only } else { *read_only && *only };
                other != place && at.overlaps(extent, found) && !may_share
            })?;
            let message = format!(
                "guest `{name}` has some of these blocks too, in line {}; expected other blocks, or `readonly = true` in \
                 both",
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

    fn guid(n: u8) -> Guid {
        Guid::from_bytes([n; 16])
    }

    fn partition(number: u32, label: &str, first: u64, blocks: u64) -> gpt::Partition {
        gpt::Partition { number, label: label.into(), guid: guid(number as u8), first, blocks }
    }

    fn disk(at: u8, serial: &str, ids: &[u32]) -> FoundController {
        let partitions =
            alloc::vec![partition(1, "one", 10, 20), partition(2, "two", 30, 20), partition(3, "two", 50, 50)];
        let table = gpt::Table { disk: guid(9), partitions, damage: None };
        let namespace =
            |&id| FoundNamespace { id, blocks: 1000, table: Some(Ok(table.clone())), ..FoundNamespace::default() };
        FoundController {
            kind: crate::ControllerKind::Nvme,
            at: (at, 0, 0),
            serial: Ok(serial.into()),
            namespaces: ids.iter().map(namespace).collect(),
        }
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

    /// Checks a file. Returns the lines of the mistakes with their texts, and the guests that are left.
    fn checked(disks: &[&str], found: &[FoundController], booted: Option<Guid>) -> (Vec<(u32, String)>, Vec<String>) {
        let mut config = config(disks);
        let mistakes = check_disks(&mut config, found, booted);
        (
            mistakes.into_iter().map(|m| (m.line, m.message)).collect(),
            config.guests.into_iter().map(|g| g.name).collect(),
        )
    }

    #[test]
    fn guests_that_would_write_the_same_blocks_are_left_out_both() {
        let disks = ["disk = 'nvme:S1/1'", "disk = 'nvme:01:00.0/1'", "disk = 'nvme:S1/2'", "disk = 'nvme:S1/3'"];
        let (mistakes, left) = checked(&disks, &[disk(1, "S1", &[1, 2])], None);
        assert_eq!(mistakes.iter().map(|m| m.0).collect::<Vec<_>>(), [24, 6, 12]);
        assert!(mistakes[1].1.contains("guest `g1` has some of these blocks too, in line 12"), "{mistakes:?}");
        assert!(mistakes[2].1.contains("guest `g0` has some of these blocks too, in line 6"), "{mistakes:?}");
        assert_eq!(left, ["g2"]);
    }

    #[test]
    fn blocks_are_shared_only_if_nobody_writes_them() {
        let found = [disk(1, "S1", &[1])];
        let readers = ["disk = 'nvme0'\nreadonly = true", "disk = 'nvme0'\npartition = 'one'\nreadonly = true"];
        assert_eq!(checked(&readers, &found, None), (Vec::new(), alloc::vec!["g0".into(), "g1".into()]));
        let (mistakes, left) = checked(&[readers[0], "disk = 'nvme0'"], &found, None);
        assert_eq!(mistakes.iter().map(|m| m.0).collect::<Vec<_>>(), [6, 13]);
        assert!(left.is_empty());
    }

    #[test]
    fn partitions_are_apart_from_each_other_and_within_the_whole() {
        let found = [disk(1, "S1", &[1])];
        let second = format!("disk = 'nvme0'\npartition = '{}'", guid(2));
        let one = "disk = 'nvme0'\npartition = 'one'";
        assert_eq!(checked(&[one, &second], &found, None).1, ["g0", "g1"]);
        let (mistakes, left) = checked(&[one, "disk = 'nvme0'", &second], &found, None);
        assert_eq!(mistakes.iter().map(|m| m.0).collect::<Vec<_>>(), [7, 13, 20]);
        assert!(left.is_empty());
        let (mistakes, _) = checked(&[&second, one, &second], &found, None);
        assert_eq!(mistakes.iter().map(|m| m.0).collect::<Vec<_>>(), [7, 21]);
    }

    #[test]
    fn two_devices_of_a_guest_do_not_write_the_same_blocks_either() {
        let two = "disk = 'nvme0'\npartition = 'one'\n[[guest.block]]\nserial = 'x'\ndisk = 'nvme0'";
        assert_eq!(checked(&[two], &[disk(1, "S1", &[1])], None).1, [""; 0]);
        let reader = format!("{two}\nreadonly = true");
        assert_eq!(checked(&[&reader], &[disk(1, "S1", &[1])], None).1, ["g0"], "it knows what it writes");
    }

    #[test]
    fn a_partition_that_is_not_there_or_ambiguous_leaves_its_guest_out() {
        let mut found = [disk(1, "S1", &[1])];
        let disks = ["disk = 'nvme0'\npartition = 'two'", "disk = 'nvme0'\npartition = 'four'"];
        let (mistakes, left) = checked(&disks, &found, None);
        assert!(left.is_empty());
        assert_eq!(mistakes.iter().map(|m| m.0).collect::<Vec<_>>(), [7, 14]);
        assert!(mistakes[0].1.contains("2 partitions are meant; expected one of 2 (\"two\""), "{mistakes:?}");
        assert!(mistakes[1].1.contains("has no such partition; it has 1 (\"one\""), "{mistakes:?}");
        found[0].namespaces[0].table = Some(Err(gpt::Refusal::NoTable));
        let (mistakes, left) = checked(&["disk = 'nvme0'\npartition = 'one'", "disk = 'nvme0'"], &found, None);
        assert_eq!(left, ["g1"], "all of a disk needs no table");
        assert!(mistakes[0].1.contains("no partition is taken from this disk: it has no GUID"), "{mistakes:?}");
    }

    #[test]
    fn the_disk_that_sidecore_was_booted_from_is_given_in_partitions_only() {
        let found = [disk(1, "S1", &[1])];
        let disks = ["disk = 'nvme0'", "disk = 'nvme0'\npartition = 'one'"];
        let (mistakes, left) = checked(&disks, &found, Some(guid(3)));
        assert_eq!(left, ["g1"]);
        assert!(mistakes[0].1.contains("sidecore was booted from this disk"), "{mistakes:?}");
        assert_eq!(checked(&disks[..1], &found, Some(guid(7))).1, ["g0"], "another disk's partition");
    }

    #[test]
    fn a_namespace_that_two_controllers_show_is_one() {
        let mut found = [disk(1, "S1", &[1]), disk(2, "S2", &[1])];
        for controller in &mut found {
            controller.namespaces[0].unique = alloc::vec!["001b448b44000001".into()];
        }
        let disks = ["disk = 'nvme:S1'", "disk = 'nvme:S2'"];
        assert_eq!(checked(&disks, &found, None).1, ["g0", "g1"], "the same identifier, not shared");
        found.iter_mut().for_each(|controller| controller.namespaces[0].shared = true);
        assert_eq!(checked(&disks, &found, None).1, [""; 0]);
    }
}
