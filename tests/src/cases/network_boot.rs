//! Servers that boot by network, from a machine with Debian's dnsmasq and an HTTP server: two Linux guests ping each other after
//! each boot. Two of the servers have configurations of their own in the folder, and one of these a previous one too. Each configuration
//! has other guests, which says whose it was.

use anyhow::Result;

use crate::boot::{Boot, Check, Shared};
use crate::boot_server::{BootServer, Conf, Loaders, Served};
use crate::cases::media;
use crate::guests::{Guest, config_text, server};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario};
use crate::setup::{Content, Medium, Module, Network, Setup};

/// MiB of UEFI's RAM disk with the CD's image, and more.
const RAM_DISK_MIB: u32 = 128;

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    type Run = fn(&mut Context<'_>, &mut BootServer) -> Result<()>;
    let check = |name, about, run: Run| Check::new(Scenario::new(name, about, QEMU).taking_turns(), run);
    vec![Box::new(Shared {
        name: "boot-server",
        about: "plain Linux with Debian's dnsmasq and an HTTP server, from which other machines boot by network",
        start: |context, _| context.boot_server("boot-server", &served()),
        end: |_| Ok(()),
        checks: vec![
            check(
                "pxe-bios",
                "the network, by BIOS, with the configuration of its MAC address: two Linux guests ping",
                |context, server| boots(context, server, &Way::new("pxe-bios", Medium::NetworkBios, &BY_MAC)),
            ),
            check(
                "pxe-uefi",
                "the network, by UEFI, with the configuration of its UUID, which cannot be read, and then that machine's own previous.toml: two \
                 Linux guests ping",
                |context, server| boots(context, server, &Way::new("pxe-uefi", Medium::NetworkUefi, &BY_UUID)),
            ),
            check(
                "pxe-proxy",
                "the network beside another DHCP server, by BIOS and by UEFI, two servers with configurations of their own: the \
                 guests of each ping",
                |context, server| {
                    let way = |name, medium, machine| Way { conf: Conf::Proxy, ..Way::new(name, medium, machine) };
                    boots(context, server, &way("pxe-proxy-bios", Medium::NetworkBios, &BY_MAC))?;
                    boots(context, server, &way("pxe-proxy-uefi", Medium::NetworkUefi, &BY_UUID))
                },
            ),
            check(
                "http-iso",
                "the network, by UEFI's HTTP boot of the CD's image into its RAM disk: two Linux guests ping",
                |context, server| boots(context, server, &Way::new("http-iso", Medium::NetworkHttp, &STRANGER)),
            ),
            check(
                "http-uefi",
                "the network, by UEFI's HTTP boot of one program with everything in it: two Linux guests ping",
                |context, server| {
                    let way = Way { conf: Conf::Program, ..Way::new("http-uefi", Medium::Program, &STRANGER) };
                    boots(context, server, &way)
                },
            ),
        ],
    })]
}

/// A server that boots by network.
struct Machine {
    mac: &'static str,
    uuid: &'static str,
    /// What its configuration in the folder is called by. `None`: it has none of its own.
    own: Option<&'static str>,
    /// Its own configuration cannot be read, and it has a `previous.toml` of its own.
    previous: bool,
    /// The numbers of the two guests in its configuration.
    guests: [usize; 2],
}

const BY_MAC: Machine = Machine {
    mac: "52:54:00:b0:07:01",
    uuid: "77c1b9a0-0d6e-4a35-9f0e-c0ffee5ade02",
    own: Some("52:54:00:b0:07:01"),
    previous: false,
    guests: [1, 2],
};
const BY_UUID: Machine = Machine {
    mac: "52:54:00:b0:07:02",
    uuid: "0b7e5c1a-93d4-4f6e-8a21-c0ffee5ade01",
    own: Some("0b7e5c1a-93d4-4f6e-8a21-c0ffee5ade01"),
    previous: true,
    guests: [3, 4],
};
const STRANGER: Machine = Machine {
    mac: "52:54:00:b0:07:03",
    uuid: "3d0f2f0a-5b1c-4c59-8f4e-c0ffee5ade03",
    own: None,
    previous: false,
    guests: [5, 6],
};

impl Machine {
    /// The two guests of its configuration.
    fn guests(&self) -> [Guest; 2] {
        let [one, other] = self.guests;
        [(one, other), (other, one)].map(|(number, peer)| Guest::new(number).peer(peer).then("obey"))
    }

    /// The names of its own files in the folder, without `.toml`, and their texts.
    fn files(&self) -> Vec<(String, String)> {
        let (Some(own), text) = (self.own, config_text(&self.guests())) else { return Vec::new() };
        if self.previous {
            vec![(own.to_owned(), "[[guest\n".to_owned()), (format!("{own}.previous"), text)]
        } else {
            vec![(own.to_owned(), text)]
        }
    }

    /// A server for them.
    fn setup(&self, name: &str) -> Setup {
        server(name, &self.guests())
    }
}

/// What the machine serves: the configurations of all three. `previous.toml` of the folder is for machines without a configuration of
/// their own.
fn served() -> Served {
    let machines = [BY_MAC, BY_UUID].iter().flat_map(Machine::files).collect();
    let mut setup = STRANGER.setup("boot-server");
    setup.modules.push(Module::new("previous.toml", Content::Text(config_text(&STRANGER.guests()))));
    Served { setup, machines }
}

/// A way to boot by network.
struct Way<'a> {
    name: &'static str,
    medium: Medium,
    machine: &'a Machine,
    conf: Conf,
}

impl<'a> Way<'a> {
    /// dnsmasq is the DHCP server.
    fn new(name: &'static str, medium: Medium, machine: &'a Machine) -> Self {
        Self { name, medium, machine, conf: Conf::Dhcp }
    }
}

/// Boots the server, and checks what dnsmasq and the HTTP server have sent.
fn boots(context: &mut Context<'_>, server: &mut BootServer, way: &Way<'_>) -> Result<()> {
    let (medium, machine) = (way.medium, way.machine);
    let (proxy, http) = (way.conf == Conf::Proxy, medium.is_http());
    server.serve(way.conf, if proxy { Loaders::ServerNamed } else { Loaders::ServerByDhcp })?;
    let mut setup = machine.setup(way.name);
    setup.medium = medium;
    let (socket, mac, uuid) = (server.socket.clone(), machine.mac, machine.uuid);
    setup.network = Some(Network { socket, mac, uuid, other_dhcp: proxy });
    let from = match medium {
        Medium::NetworkBios => None,
        _ if http => Some("/Uri("),
        _ => Some("/MAC("),
    };
    if from.is_some() {
        setup.memory_mib += media::FIRMWARE_MIB;
    }
    if http {
        setup.memory_mib += RAM_DISK_MIB;
    }
    let guests = machine.guests();
    let [one, other] = guests.each_ref().map(Guest::name);
    media::boots(context, &setup, [one, other], from)?;

    let sent = server.sent()?;
    let figures = &mut context.figures;
    let by = way.name;
    let gave = format!("{by}: addresses that dnsmasq gave");
    if proxy {
        figures.exactly(&gave, sent.addresses, 0)?
    } else {
        figures.at_least(&gave, sent.addresses, 1)?
    }
    let (ours, others, word) = if http { (&sent.http, &sent.tftp, "HTTP") } else { (&sent.tftp, &sent.http, "TFTP") };
    figures.exactly(&format!("{by}: files that came by another protocol than {word}"), others.len(), 0)?;
    let mut configs: Vec<String> =
        machine.files().into_iter().map(|(name, _)| format!("/machines/{name}.toml")).collect();
    if configs.is_empty() {
        configs.extend(["/sidecore.toml".to_owned(), "/modules/previous.toml".to_owned()]);
    }
    let loader = if medium == Medium::NetworkBios { "/sidecore.0" } else { "/sidecore.efi" };
    let mut files = vec![if medium == Medium::Program { "/sidecore-http.efi" } else { "/sidecore.iso" }];
    if !http {
        files = vec![loader, "/boot/grub/grub.cfg", "/sidecore", "/modules/vmlinuz", "/modules/initrd-small"];
        files.extend(configs.iter().map(String::as_str));
    }
    let missing = files.iter().filter(|path| !ours.iter().any(|sent| sent == *path)).count();
    figures.exactly(&format!("{by}: files that came by {word}"), ours.len(), files.len())?;
    figures.exactly(&format!("{by}: files of the boot that are not among them"), missing, 0)
}
