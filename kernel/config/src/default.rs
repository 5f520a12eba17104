//! The configuration of a machine whose boot medium has no `sidecore.toml`.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use crate::mac::derived_mac;
use crate::{
    Completion, Config, DEFAULT_MTU, Guest, GuestDevice, Identity, Net, NotifyBar, Offloads, Places, Requests, Restart,
    Rules, Share, SplitLock, Topology,
};

/// Memory of a guest of the default configuration in bytes.
const MEMORY: u64 = 256 << 20;

/// Returns the default configuration. It has one engine. If the boot modules `vmlinuz` and `initrd` are there, it has
/// two guests, `guest1` and `guest2`, or only one on a machine of two physical cores. Each has one vCPU, 256 MiB and one network
/// device. Otherwise it has no guest.
///
/// Also returns a sentence for the console that says which of these it is.
#[must_use]
pub fn default_config(topology: &Topology, modules: &[&str]) -> (Config, String) {
    let count = match ["vmlinuz", "initrd"].iter().find(|name| !modules.contains(name)) {
        Some(missing) => {
            let said = format!("no sidecore.toml and no boot module `{missing}`: no guest is started");
            return (Config::default(), said);
        }
        None => topology.groups().len().saturating_sub(1).min(2),
    };
    let guests: Vec<Guest> = (1..=count).map(|number: usize| guest(format!("guest{number}"))).collect();
    let said = format!("no sidecore.toml: the default, {count} guest(s) from the boot modules vmlinuz and initrd");
    (Config { guests, ..Config::default() }, said)
}

fn guest(name: String) -> Guest {
    let (mac, identity, rules) = (derived_mac(&name, 0), Identity::default(), Rules::default());
    let offloads = Offloads::default();
    let net = Net { mac, uplink: None, mtu: DEFAULT_MTU, queues: 1, offloads, packed: false, identity, rules };
    let devices = [GuestDevice::Net(net)].into();
    Guest {
        name,
        vcpus: 1,
        memory: MEMORY,
        spare: false,
        kernel: "vmlinuz".into(),
        firmware: false,
        initrd: Some("initrd".into()),
        cmdline: "console=ttyS0 quiet".into(),
        completion: Completion::Auto,
        requests: Requests::Poll,
        split_lock: SplitLock::Slow,
        notify_bar: NotifyBar::Io,
        weight: 1,
        share: Share::default(),
        restart: Restart::Never,
        autostart: true,
        cores: None,
        devices,
        places: Places::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;

    #[test]
    fn the_default_fits_every_machine() {
        for (cores, guests) in [(1, 0), (2, 1), (3, 2), (4, 2), (64, 2)] {
            let (mut config, said) = default_config(&Topology::one_thread_each(cores), &["vmlinuz", "initrd"]);
            assert_eq!(config.guests.len(), guests, "{said}");
            let (_, mistakes) = plan(&mut config, &Topology::one_thread_each(cores));
            assert_eq!(mistakes, []);
        }
    }

    #[test]
    fn without_a_kernel_there_is_no_guest_and_the_sentence_says_why() {
        let (config, said) = default_config(&Topology::one_thread_each(8), &["initrd"]);
        assert!(config.guests.is_empty());
        assert!(said.contains("`vmlinuz`"), "{said}");
    }

    #[test]
    fn the_default_is_what_a_file_with_the_same_words_gives() {
        let text = "
[[guest]]
name = 'guest1'
memory = '256M'
kernel = 'vmlinuz'
initrd = 'initrd'
cmdline = 'console=ttyS0 quiet'
[[guest.net]]
";
        let mut parsed = crate::parse("", text);
        assert_eq!(parsed.mistakes, []);
        parsed.config.guests[0].places = Places::default();
        assert_eq!(parsed.config, default_config(&Topology::one_thread_each(2), &["vmlinuz", "initrd"]).0);
    }
}
