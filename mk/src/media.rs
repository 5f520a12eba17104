//! Media that boot a server: a USB stick, a CD, a folder for booting by network, and one program for UEFI. All but the last boot by BIOS
//! and by UEFI.
//!
//! Every medium has the same files: `sidecore`, `sidecore.toml`, the other boot modules below `modules/`, and GRUB's menu
//! `boot/grub/grub.cfg`. The same input gives the same bytes: identifiers come from a hash of all files, and times from
//! `SOURCE_DATE_EPOCH`.

mod cd;
mod content;
mod mistakes;
mod network;
mod program;
mod stick;

pub use cd::{Cd, cd};
pub use content::{CONFIG_OF_MEDIUM, Content, folder};
pub use mistakes::mistakes;
pub use network::{CONFIG_BY_MACHINE, LOADERS, network};
pub use program::program;
pub use stick::{Stick, judge, stick};

/// The folder of GRUB's menu on every medium.
const PREFIX: &str = "/boot/grub";
/// GRUB's modules on every medium: what the menus need (`linux`: that of a disc with plain Linux), and a few commands for a person at
/// the prompt.
const MODULES: &[&str] = &[
    "cat",
    "configfile",
    "echo",
    "halt",
    "linux",
    "ls",
    "minicmd",
    "multiboot2",
    "normal",
    "probe",
    "reboot",
    "serial",
    "terminal",
    "test",
];

/// [`MODULES`] and these.
fn modules(more: &[&'static str]) -> Vec<&'static str> {
    [MODULES, more].concat()
}
