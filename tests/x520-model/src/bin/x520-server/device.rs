//! The model, its PCI face, its interrupts and its wire.

use std::fs::File;
use std::io::{Error, Write};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_DATA_EVENTFD, VFIO_IRQ_SET_DATA_NONE, VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX,
    VFIO_PCI_MSIX_IRQ_INDEX,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, ServerBackend};
use x520_model::Model;

use crate::config_space::{ConfigSpace, VECTORS};
use crate::memory::GuestMemory;

/// Bytes of the shortest frame on a wire, without FCS.
const SHORTEST: usize = 60;

pub struct Device {
    model: Model,
    config: x520_model::Config,
    space: ConfigSpace,
    memory: GuestMemory,
    vectors: Vec<Option<File>>,
    wire: UnixDatagram,
    peer: PathBuf,
    /// When the model's clock was last moved.
    at: Instant,
}

impl Device {
    pub fn new(config: x520_model::Config, wire: UnixDatagram, peer: PathBuf) -> Self {
        let memory = GuestMemory::default();
        let model = start(config, &memory);
        let vectors = (0..VECTORS).map(|_| None).collect();
        Self { model, config, space: ConfigSpace::new(), memory, vectors, wire, peer, at: Instant::now() }
    }

    fn tick(&mut self) {
        let passed = self.at.elapsed().as_micros() as u64;
        if passed > 0 {
            self.at += std::time::Duration::from_micros(passed);
            self.model.advance(passed);
        }
    }

    /// Lets time pass, a frame come in, and the device work; tells the guest and the wire of it.
    pub fn turn(&mut self, frame: Option<&[u8]>) {
        self.tick();
        if let Some(frame) = frame {
            let mut padded = frame.to_vec();
            padded.resize(frame.len().max(SHORTEST), 0);
            self.model.deliver(&padded);
        }
        self.model.run();
        while let Some(frame) = self.model.take_sent() {
            // As on any wire: nobody there, nobody hears; and too much is too much.
            let _ = self.wire.send_to(&frame, &self.peer);
        }
        let messages = self.model.take_messages();
        for (n, vector) in self.vectors.iter_mut().enumerate() {
            if messages >> n & 1 == 1
                && let Some(event) = vector
                && let Err(e) = event.write_all(&1u64.to_ne_bytes())
            {
                eprintln!("x520-server: vector {n}: {e}");
            }
        }
        for diagnostic in self.model.take_diagnostics() {
            eprintln!("x520-server: {diagnostic:x?}");
        }
    }
}

fn start(config: x520_model::Config, memory: &GuestMemory) -> Model {
    let mut model = Model::new(config, Box::new(memory.clone()));
    model.set_cable(true);
    model
}

/// The device, shared by the guest's side and the wire's.
pub struct Shared(pub Arc<Mutex<Device>>);

impl Shared {
    fn device(&self) -> MutexGuard<'_, Device> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ServerBackend for Shared {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Error> {
        let mut device = self.device();
        data.fill(0);
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => device.space.read(offset, data),
            VFIO_PCI_BAR0_REGION_INDEX => {
                device.tick();
                for (i, word) in data.chunks_mut(4).enumerate() {
                    let value = device.model.read(offset as u32 + 4 * i as u32).to_le_bytes();
                    word.copy_from_slice(&value[..word.len()]);
                }
                device.turn(None);
            }
            _ => {}
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), Error> {
        let mut device = self.device();
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => device.space.write(offset, data),
            VFIO_PCI_BAR0_REGION_INDEX => {
                device.tick();
                for (i, word) in data.as_chunks::<4>().0.iter().enumerate() {
                    device.model.write(offset as u32 + 4 * i as u32, u32::from_le_bytes(*word));
                }
                device.turn(None);
            }
            _ => {}
        }
        Ok(())
    }

    fn dma_map(
        &mut self,
        flags: DmaMapFlags,
        offset: u64,
        address: u64,
        size: u64,
        fd: Option<File>,
    ) -> Result<(), Error> {
        // Memory that is not shared cannot be reached; nothing that a driver uses lies there.
        let Some(file) = fd else { return Ok(()) };
        let writable = flags.contains(DmaMapFlags::WRITE);
        self.device().memory.map(address, size, &file, offset, writable)
    }

    fn dma_unmap(&mut self, _flags: DmaUnmapFlags, address: u64, size: u64) -> Result<(), Error> {
        self.device().memory.unmap(address, size);
        Ok(())
    }

    fn reset(&mut self) -> Result<(), Error> {
        let mut device = self.device();
        device.model = start(device.config, &device.memory);
        device.space = ConfigSpace::new();
        Ok(())
    }

    fn set_irqs(&mut self, index: u32, flags: u32, start: u32, count: u32, fds: Vec<File>) -> Result<(), Error> {
        if index != VFIO_PCI_MSIX_IRQ_INDEX {
            return Ok(());
        }
        let mut device = self.device();
        if flags & VFIO_IRQ_SET_DATA_NONE != 0 && count == 0 {
            device.vectors.fill_with(|| None);
        } else if flags & VFIO_IRQ_SET_DATA_EVENTFD != 0 {
            // Without descriptors the vectors are let go of.
            let mut fds = fds.into_iter();
            for vector in device.vectors.iter_mut().skip(start as usize).take(count as usize) {
                *vector = fds.next();
            }
        }
        Ok(())
    }
}
