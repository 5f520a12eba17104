//! The machine that others boot from by network: plain Linux in QEMU, and a socket that is its end of the wire. One other machine at
//! a time connects to it.

use std::fs;
use std::path::Path;

use anyhow::Result;
use scenarios::boot_server::{BootServer, MACHINE, Served};
use scenarios::initramfs;
use scenarios::platform::Platform;

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
