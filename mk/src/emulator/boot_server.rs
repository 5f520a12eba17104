//! The machine that others boot from by network: plain Linux in QEMU, and a socket that is its end of the wire. One other machine at
//! a time connects to it.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use scenarios::boot_server::{BootServer, MACHINE, Served};
use scenarios::initramfs;
use scenarios::platform::Platform;
use scenarios::setup::Network;

use super::process::SocketPath;
use super::vhost::{self, Plain};
use crate::{fetch, image, paths};

/// Builds what the machine serves in `folder`, and starts it with its logs there.
pub fn start(platform: Platform, folder: &Path, served: &Served) -> Result<BootServer> {
    fetch::ensure_boot_server()?;
    let work = folder.join("served");
    fs::create_dir(&work)?;
    let files = image::served(served, &work)?;
    let files: Vec<_> = files.iter().map(|file| (file.path.as_str(), file.source.as_path())).collect();
    let mut initrd = fs::read(&image::parts()?.small_initrd)?;
    // The kernel unpacks one archive after the other. Each begins at a multiple of four bytes.
    initrd.resize(initrd.len().next_multiple_of(4), 0);
    initrd.extend(initramfs::boot_server(&paths::boot_server(), &files)?);
    let place = folder.join("initrd");
    fs::write(&place, initrd)?;
    let socket = SocketPath::new("boot");
    let devices = [
        format!("-netdev stream,id=wire,server=on,addr.type=unix,addr.path={}", socket.0.display()),
        "-device virtio-net-pci,netdev=wire,mac=52:54:00:b0:07:fe,disable-legacy=on,romfile=".to_owned(),
    ];
    let path = socket.0.clone();
    let plain = Plain { setup: &MACHINE, devices: &devices, initrd: &place, sockets: vec![socket] };
    Ok(BootServer { linux: vhost::guest(plain, folder, platform)?, socket: path })
}

/// Connects a machine to the network that it boots from.
pub fn connect(command: &mut Command, network: &Network) {
    let Network { socket, mac, uuid, other_dhcp } = network;
    let wire = format!("stream,id=wire,server=off,addr.type=unix,addr.path={}", socket.display());
    command.args(["-netdev", &wire]);
    let netdev = if *other_dhcp {
        // Nothing but DHCP is answered.
        let dhcp = "user,id=dhcp,restrict=on,net=192.168.1.0/24,host=192.168.1.1,dhcpstart=192.168.1.100";
        command.args(["-netdev", dhcp]);
        for end in ["wire", "dhcp"] {
            command.args(["-netdev", &format!("hubport,id=hub-{end},hubid=9,netdev={end}")]);
        }
        command.args(["-netdev", "hubport,id=boot,hubid=9"]);
        "boot"
    } else {
        "wire"
    };
    let nic = format!("virtio-net-pci,netdev={netdev},mac={mac},bootindex=0");
    command.args(["-device", &nic, "-uuid", uuid]);
}
