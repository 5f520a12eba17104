//! A UEFI application for a scenario: firmware that sits at 2 MiB. It is the stick's boot loader. It takes all free memory
//! from 2 to 16 MiB as memory of the type "reserved", writes on the console how much it took, and starts GRUB, which is the
//! file beside it (UEFI 2.10, 7.2 and 7.4). GRUB sees that memory as the firmware's own.

#![no_main]
#![no_std]

extern crate alloc;

use alloc::format;
use alloc::vec::Vec;
use core::fmt::Write as _;
use uefi::boot::{self, AllocateType, LoadImageSource, MemoryType, PAGE_SIZE};
use uefi::mem::memory_map::MemoryMap as _;
use uefi::prelude::*;
use uefi::proto::BootPolicy;
use uefi::proto::device_path::{DevicePath, build};
use uefi::proto::loaded_image::LoadedImage;

/// First address that is taken, and the address behind the last.
const START: u64 = 2 << 20;
const END: u64 = 16 << 20;

#[entry]
fn main() -> Status {
    // Whoever starts the application sees the status of what failed.
    take().and_then(|()| start_grub()).map_or_else(|error| error.status(), |()| Status::SUCCESS)
}

/// Takes what is free between the two addresses, and says on the console how much that is.
fn take() -> uefi::Result {
    let page = PAGE_SIZE as u64;
    let map = boot::memory_map(MemoryType::LOADER_DATA)?;
    let mut taken = 0;
    for entry in map.entries().filter(|entry| entry.ty == MemoryType::CONVENTIONAL) {
        let start = entry.phys_start.max(START);
        let end = entry.phys_start.saturating_add(entry.page_count.saturating_mul(page)).min(END);
        if start < end {
            let count = ((end - start) / page) as usize;
            boot::allocate_pages(AllocateType::Address(start), MemoryType::RESERVED, count)?;
            taken += end - start;
        }
    }
    let line = format!("firmware keeps {} KiB from 2 to 16 MiB\r\n", taken >> 10);
    uefi::system::with_stdout(|out| out.write_str(&line)).map_err(|_| Status::DEVICE_ERROR.into())
}

/// Starts `GRUBX64.EFI` in the folder for boot loaders on the device that this application is from.
fn start_grub() -> uefi::Result {
    let own = boot::open_protocol_exclusive::<LoadedImage>(boot::image_handle())?;
    let device = own.device().ok_or(Status::NOT_FOUND)?;
    let path = boot::open_protocol_exclusive::<DevicePath>(device)?;
    let mut bytes = Vec::new();
    let mut builder = build::DevicePathBuilder::with_vec(&mut bytes);
    for node in path.node_iter() {
        builder = builder.push(&node).map_err(|_| Status::OUT_OF_RESOURCES)?;
    }
    let file = build::media::FilePath { path_name: cstr16!("\\EFI\\BOOT\\GRUBX64.EFI") };
    let grub =
        builder.push(&file).and_then(build::DevicePathBuilder::finalize).map_err(|_| Status::OUT_OF_RESOURCES)?;
    let source = LoadImageSource::FromDevicePath { device_path: grub, boot_policy: BootPolicy::ExactMatch };
    let image = boot::load_image(boot::image_handle(), source)?;
    boot::start_image(image)
}
