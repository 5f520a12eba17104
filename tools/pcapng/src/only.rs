//! The one port whose frames a reader is to get. The rings of the machine are shared by all ports that are captured, so what comes may
//! have frames of ports that others have asked for.

use crate::names::Names;

/// What stands before the number of a guest's network device in its name, and before the name of an uplink. The hypervisor writes
/// the names (`kernel/src/trace/header.rs`).
const NET: &str = "net";
const UPLINK: &str = "uplink ";

/// A port, as the command `capture` names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Only {
    /// A guest, or an uplink. A guest goes first if both have this name.
    pub name: String,
    /// The number of the guest's network device.
    pub net: usize,
    /// It is no uplink, whatever uplinks are called.
    pub is_guest: bool,
}

impl Only {
    /// Whether it is the port with a slot of the engine on a core. A port whose names have not come is another one.
    #[must_use]
    pub fn is(&self, names: &Names, core: u32, slot: u16) -> bool {
        let Some(device) = names.port(core, slot) else { return false };
        match device.guest {
            Some(guest) => {
                let net = device.name.strip_prefix(NET).and_then(|number| number.parse().ok());
                names.guests.get(&guest) == Some(&self.name) && net == Some(self.net)
            }
            None => {
                let is_uplink = device.name.strip_prefix(UPLINK) == Some(&self.name);
                is_uplink && !self.is_guest && !names.guests.values().any(|guest| *guest == self.name)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use trace::frames::FIRST_UPLINK;

    use super::*;
    use crate::names::Device;

    /// A machine with the guest `a`, which has two ports, the guest `b`, and the uplinks `b` and `wire`.
    fn names() -> Names {
        let device = |guest, name: &str| Device { guest, name: name.into() };
        Names {
            guests: [(0, "a".into()), (1, "b".into())].into(),
            engines: [(1, 0)].into(),
            devices: [
                ((0, 2), device(Some(0), "net0")),
                ((0, 3), device(Some(0), "net1")),
                ((0, 4), device(Some(1), "net0")),
                ((0, 5), device(Some(1), "block0")),
                ((0, 6), device(Some(9), "net0")),
                ((0, FIRST_UPLINK.into()), device(None, "uplink b")),
                ((0, u32::from(FIRST_UPLINK) + 1), device(None, "uplink wire")),
            ]
            .into(),
            ..Names::default()
        }
    }

    fn slots(name: &str, net: usize, is_guest: bool) -> Vec<u16> {
        let (only, names) = (Only { name: name.into(), net, is_guest }, names());
        (0..0x200).filter(|slot| only.is(&names, 1, *slot)).collect()
    }

    #[test]
    fn a_port_is_that_of_its_guest_and_number_or_an_uplink() {
        assert_eq!([slots("a", 0, false), slots("a", 1, false), slots("b", 0, false)], [[2], [3], [4]]);
        assert_eq!(slots("wire", 0, false), [FIRST_UPLINK + 1]);
        for (name, net) in [("a", 2), ("net0", 0), ("", 0), ("guest-9", 0), ("uplink wire", 0)] {
            assert_eq!(slots(name, net, false), [], "{name}");
        }
        assert_eq!(slots("wire", 0, true), [], "who is bound to a guest of an uplink's name");
    }

    #[test]
    fn a_port_without_names_is_another_one() {
        let only = Only { name: "a".into(), net: 0, is_guest: false };
        assert!(!only.is(&Names::default(), 1, 2));
        assert!(!only.is(&names(), 7, 2), "a core that is no engine's");
    }
}
