//! A folder for a TFTP server, from which machines boot by network: `sidecore.0` for BIOS (PXE), `sidecore.efi` for UEFI.
//!
//! GRUB takes a machine's own configuration if there is one: `machines/UUID.toml` by the UUID that SMBIOS gives the machine,
//! else `machines/MAC.toml` by the address of the NIC that it booted from. Otherwise it takes `sidecore.toml`. Beside such a file
//! may be `machines/UUID.previous.toml` or `machines/MAC.previous.toml`, to take if that one does not come to run.

use std::fs::{self, Permissions};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::{Content, PREFIX, modules};
use crate::grub::{self, Format};

/// GRUB's commands that load the configuration and start the hypervisor. A file that is not there is no error: the next one is tried.
/// A machine with a configuration of its own has a `previous.toml` of its own too, or none: that of the others has their guests.
/// At the end of a menu entry that has said "File not found" GRUB waits ten seconds for a key, but not after `boot`.
pub const CONFIG_BY_MACHINE: &str = "\
smbios --type 1 --get-uuid 8 --set uuid
    echo \"UUID $uuid, MAC address $net_default_mac: looking for a configuration of this machine's own.\"
    if module2 /machines/$uuid.toml sidecore.toml; then
        echo \"machines/$uuid.toml, and machines/$uuid.previous.toml if there is one\"
        module2 /machines/$uuid.previous.toml previous.toml
    elif module2 /machines/$net_default_mac.toml sidecore.toml; then
        echo \"machines/$net_default_mac.toml, and machines/$net_default_mac.previous.toml if there is one\"
        module2 /machines/$net_default_mac.previous.toml previous.toml
    else
        echo \"There is none: sidecore.toml\"
        module2 /sidecore.toml sidecore.toml
        PREVIOUS
    fi
    boot";

/// The names of GRUB's images: for BIOS, and for UEFI.
pub const LOADERS: [&str; 2] = ["sidecore.0", "sidecore.efi"];

/// What the commands need, and how GRUB reads files by network.
const HERE: [&str; 3] = ["net", "smbios", "tftp"];
/// The modules of an image for BIOS.
const BIOS: [&str; 2] = ["biosdisk", "pxe"];
/// The modules of an image for UEFI.
const UEFI: [&str; 3] = ["efinet", "efi_gop", "fat"];
/// GRUB would ask for a menu by eleven names that depend on the machine, before `grub.cfg`.
const FIRST: &str = "set feature_net_search_cfg=n\n";

/// Makes the folder `place`. Files that are there and have the same names are replaced, others stay.
///
/// - `server`: the TFTP server. `None`: GRUB asks the one that the DHCP server's answer names. GRUB for BIOS knows no other, so where the
///   DHCP server names none, or a wrong one, and another server adds what PXE needs (proxy DHCP), it has to be here.
/// - `work`: a folder for what is needed meanwhile.
pub fn network(content: &Content, server: Option<Ipv4Addr>, work: &Path, place: &Path) -> Result<()> {
    let prefix = server.map_or_else(|| PREFIX.to_owned(), |server| format!("(tftp,{server}){PREFIX}"));
    let create = |folder: &Path| {
        fs::create_dir_all(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
        readable(folder, 0o755)
    };
    create(&place.join("machines"))?;
    let drivers: [(Format, &[&str]); 2] = [(Format::BiosNetwork, &BIOS), (Format::Efi, &UEFI)];
    for (name, (format, driver)) in LOADERS.into_iter().zip(drivers) {
        let image = work.join(name);
        let with = modules(&[&HERE[..], driver].concat());
        grub::Image { first: Some(FIRST), ..grub::Image::new(format, &prefix, &with) }.make(&image)?;
        copy(&image, &place.join(name))?;
    }
    for file in &content.files {
        let to = place.join(&file.path);
        create(to.parent().unwrap_or(place))?;
        copy(&file.source, &to)?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
    readable(to, 0o644)
}

/// Lets everybody read it: a TFTP server is another user, and a kernel in /boot may be root's alone.
fn readable(path: &Path, mode: u32) -> Result<()> {
    let set = fs::set_permissions(path, Permissions::from_mode(mode));
    set.with_context(|| format!("cannot let everybody read {}", path.display()))
}
