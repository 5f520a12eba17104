//! Serves the model to QEMU as a PCI device by vfio-user (QEMU: `vfio-user-pci`), its wire being a pair of UNIX datagram
//! sockets: another server's, or QEMU's own `-netdev dgram`.
//!
//! `x520-server SOCKET WIRE PEER [MAC]`: SOCKET is where QEMU connects, WIRE is bound here, frames go to PEER. What the
//! guest's driver does wrong is written to standard error.

#![allow(unsafe_code, reason = "a guest's memory is mapped")]

mod config_space;
mod device;
mod memory;

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_INFO_EVENTFD, VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_BAR4_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX,
    VFIO_PCI_MSIX_IRQ_INDEX, VFIO_PCI_NUM_IRQS, VFIO_PCI_NUM_REGIONS, VFIO_REGION_INFO_FLAG_READ,
    VFIO_REGION_INFO_FLAG_WRITE, vfio_region_info,
};
use vfio_user::{IrqInfo, Server, ServerRegion};

use crate::device::{Device, Shared};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (socket, wire, peer, mac) = match args.as_slice() {
        [socket, wire, peer] => (socket, wire, peer, None),
        [socket, wire, peer, mac] => (socket, wire, peer, Some(mac.as_str())),
        _ => {
            eprintln!("usage: x520-server SOCKET WIRE PEER [MAC]");
            return ExitCode::FAILURE;
        }
    };
    match serve(Path::new(socket), Path::new(wire), PathBuf::from(peer), mac) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("x520-server: {why}");
            ExitCode::FAILURE
        }
    }
}

fn serve(socket: &Path, wire: &Path, peer: PathBuf, mac: Option<&str>) -> Result<(), String> {
    let mut config = x520_model::Config::default();
    if let Some(mac) = mac {
        let bytes: Vec<u8> = mac.split(':').filter_map(|b| u8::from_str_radix(b, 16).ok()).collect();
        config.mac = bytes.try_into().map_err(|_| format!("{mac} is no MAC address: six hexadecimal bytes"))?;
    }
    let _ = std::fs::remove_file(wire);
    let wire = UnixDatagram::bind(wire).map_err(|e| format!("{}: {e}", wire.display()))?;
    wire.set_read_timeout(Some(Duration::from_millis(1))).map_err(|e| e.to_string())?;
    // A wire that is full loses frames: two servers must not wait for each other.
    let sender = UnixDatagram::unbound().map_err(|e| e.to_string())?;
    sender.set_nonblocking(true).map_err(|e| e.to_string())?;
    let device = Arc::new(Mutex::new(Device::new(config, sender, peer)));
    let receiver = Arc::clone(&device);
    // Frames and time come while the guest is silent, too.
    std::thread::spawn(move || {
        let mut frame = [0; 16_384];
        loop {
            let len = wire.recv(&mut frame).ok();
            let mut device = receiver.lock().unwrap_or_else(PoisonError::into_inner);
            device.turn(len.and_then(|n| frame.get(..n)));
        }
    });
    let server = Server::new(socket, true, irqs(), regions()).map_err(|e| e.to_string())?;
    server.run(&mut Shared(device)).map_err(|e| e.to_string())
}

fn regions() -> Vec<ServerRegion> {
    let size = |index| match index {
        VFIO_PCI_BAR0_REGION_INDEX => 0x2_0000,
        VFIO_PCI_BAR4_REGION_INDEX => 0x4000,
        VFIO_PCI_CONFIG_REGION_INDEX => 0x1000,
        _ => 0,
    };
    (0..VFIO_PCI_NUM_REGIONS)
        .map(|index| ServerRegion {
            region_info: vfio_region_info {
                argsz: size_of::<vfio_region_info>() as u32,
                flags: VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE,
                index,
                size: size(index),
                ..Default::default()
            },
            sparse_areas: Vec::new(),
            mmap_fd: None,
        })
        .collect()
}

fn irqs() -> Vec<IrqInfo> {
    (0..VFIO_PCI_NUM_IRQS)
        .map(|index| IrqInfo {
            index,
            flags: VFIO_IRQ_INFO_EVENTFD,
            count: if index == VFIO_PCI_MSIX_IRQ_INDEX { config_space::VECTORS } else { 0 },
        })
        .collect()
}
