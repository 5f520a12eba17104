//! The model, its PCI face, its interrupts and its wire.

use std::fs::File;
use std::io::{Error, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vfio_bindings::bindings::vfio::{
    VFIO_IRQ_SET_ACTION_MASK, VFIO_IRQ_SET_ACTION_TRIGGER, VFIO_IRQ_SET_ACTION_UNMASK, VFIO_IRQ_SET_DATA_EVENTFD,
    VFIO_IRQ_SET_DATA_NONE, VFIO_PCI_BAR0_REGION_INDEX, VFIO_PCI_CONFIG_REGION_INDEX, VFIO_PCI_INTX_IRQ_INDEX,
    VFIO_PCI_MSIX_IRQ_INDEX,
};
use vfio_user::{DmaMapFlags, DmaUnmapFlags, ServerBackend};
use x520_model::registers::Reg;
use x520_model::sfp::Module;
use x520_model::{Faults, Model, Offers, pcap};

use crate::config_space::{BACKPLANE, CAGE, ConfigSpace, VECTORS};
use crate::memory::{GuestMemory, Touched};

/// Bytes of the shortest frame on a wire, without FCS.
const SHORTEST: usize = 60;

pub struct Device {
    model: Model,
    config: x520_model::Config,
    space: ConfigSpace,
    memory: GuestMemory,
    vectors: Vec<Option<File>>,
    pin: Pin,
    /// The frame that goes next, and who waits for it.
    next: Option<Vec<u8>>,
    wake: Arc<Condvar>,
    capture: Option<pcap::Writer<File>>,
    cable: bool,
    /// Whether it mastered the bus when that was last told.
    master: bool,
    begin: Instant,
    /// The model's clock, since `begin`.
    microseconds: u64,
}

/// The interrupt pin, which is masked when it has been told, until whoever heard of it unmasks it.
#[derive(Default)]
struct Pin {
    event: Option<File>,
    masked: bool,
}

/// The configuration space of a card.
fn space(config: &x520_model::Config) -> ConfigSpace {
    ConfigSpace::new(if config.backplane.is_some() { BACKPLANE } else { CAGE })
}

impl Device {
    pub fn new(config: x520_model::Config, wake: Arc<Condvar>, capture: Option<pcap::Writer<File>>) -> Self {
        let memory = GuestMemory::default();
        Self {
            model: start(config, &memory, true),
            config,
            space: space(&config),
            memory,
            vectors: (0..VECTORS).map(|_| None).collect(),
            pin: Pin::default(),
            next: None,
            wake,
            capture,
            cable: true,
            master: false,
            begin: Instant::now(),
            microseconds: 0,
        }
    }

    fn tick(&mut self) {
        let now = self.begin.elapsed().as_micros() as u64;
        if now > self.microseconds {
            self.model.advance(now - self.microseconds);
            self.microseconds = now;
        }
    }

    /// As after power-on, with what is in the cage now.
    fn restart(&mut self) {
        self.model = start(self.config, &self.memory, self.cable);
    }

    /// Puts a module into the cage, or takes it out.
    pub fn set_module(&mut self, module: Option<Module>) {
        self.config.module = module;
        self.model.set_module(module);
        self.turn(None);
    }

    /// Puts the cable in or pulls it out.
    pub fn set_cable(&mut self, present: bool) {
        self.cable = present;
        self.model.set_cable(present);
        self.turn(None);
    }

    /// LEDCTL, as a driver reads it.
    pub fn lights(&mut self) -> u32 {
        self.model.read(Reg::Ledctl.offset(0))
    }

    /// How often the device has reached memory that is watched.
    pub fn touched(&self) -> Touched {
        self.memory.touched()
    }

    /// Does what a command with a parameter asks for. False: there is none like that.
    pub fn obeys(&mut self, command: &str) -> bool {
        if let Some(how) = command.strip_prefix("fail ") {
            let Some(faults) = faults(how) else { return false };
            self.model.faults = faults;
            self.turn(None);
            return true;
        }
        if let Some(name) = command.strip_prefix("module ") {
            let module = Module::named(name);
            let known = module.is_some() || name == "none";
            if known {
                self.set_module(module);
            }
            return known;
        }
        if let Some(rate) = command.strip_prefix("partner ") {
            let rate = rate.parse().ok().filter(|rate| [1_000, 10_000].contains(rate));
            rate.inspect(|&rate| {
                self.model.set_partner(rate);
                self.turn(None);
            });
            return rate.is_some();
        }
        if let Some(offers) = command.strip_prefix("offers ") {
            let offers = Offers::named(offers);
            offers.inspect(|&offers| {
                self.model.set_offers(offers);
                self.turn(None);
            });
            return offers.is_some();
        }
        let Some((address, bytes)) = command.strip_prefix("watch ").and_then(|rest| rest.split_once(' ')) else {
            return false;
        };
        let (Ok(address), Ok(bytes)) = (address.parse(), bytes.parse()) else { return false };
        self.memory.watch(address, bytes);
        true
    }

    pub fn link_is_up(&self) -> bool {
        self.model.link_is_up()
    }

    /// Whether no frame may come from the wire now.
    pub fn asks_for_silence(&self) -> bool {
        self.model.asks_for_silence()
    }

    /// How long until an interrupt that waits for the end of its interval.
    pub fn throttled(&self) -> Option<Duration> {
        self.model.throttled().map(Duration::from_micros)
    }

    /// Lets time pass, a frame come in, and the device work; tells the guest and the wire of it.
    pub fn turn(&mut self, frame: Option<&[u8]>) {
        self.tick();
        if let Some(frame) = frame
            && self.model.link_is_up()
        {
            let mut padded = frame.to_vec();
            padded.resize(frame.len().max(SHORTEST), 0);
            self.record(&padded);
            self.model.deliver(&padded);
        }
        // Otherwise its transactions do not leave it.
        if self.space.masters_the_bus() {
            self.model.run();
        }
        if self.next.is_none() {
            self.next = self.model.take_sent();
            self.wake.notify_one();
        }
        let messages = self.model.take_messages();
        for (n, vector) in self.vectors.iter_mut().enumerate() {
            if messages >> n & 1 == 1
                && let Some(event) = vector
            {
                signal(event);
            }
        }
        let asserted = self.model.pin();
        if self.space.set_pin(asserted)
            && !self.pin.masked
            && let Some(event) = &mut self.pin.event
        {
            self.pin.masked = true;
            signal(event);
        }
        for diagnostic in self.model.take_diagnostics() {
            eprintln!("x520-server: {diagnostic:x?}");
        }
    }

    /// Takes what goes to the wire next.
    pub fn take_sent(&mut self) -> Option<Vec<u8>> {
        let frame = self.next.take()?;
        self.record(&frame);
        // There is room for more now.
        self.turn(None);
        Some(frame)
    }

    fn record(&mut self, frame: &[u8]) {
        if let Some(capture) = &mut self.capture
            && let Err(e) = capture.write(self.microseconds, frame)
        {
            eprintln!("x520-server: the capture ends here: {e}");
            self.capture = None;
        }
    }

    /// Says when it begins or ends to master the bus.
    fn tell_master(&mut self) {
        let master = self.space.masters_the_bus();
        if master != self.master {
            self.master = master;
            println!("bus-master {}", if master { "on" } else { "off" });
        }
    }

    fn set_vectors(&mut self, flags: u32, start: u32, count: u32, fds: Vec<File>) {
        if flags & VFIO_IRQ_SET_DATA_NONE != 0 && count == 0 {
            self.vectors.fill_with(|| None);
        } else if flags & VFIO_IRQ_SET_DATA_EVENTFD != 0 {
            // Without descriptors the vectors are let go of.
            let mut fds = fds.into_iter();
            for vector in self.vectors.iter_mut().skip(start as usize).take(count as usize) {
                *vector = fds.next();
            }
        }
    }

    fn set_pin(&mut self, flags: u32, count: u32, fds: Vec<File>) {
        if flags & VFIO_IRQ_SET_ACTION_MASK != 0 {
            self.pin.masked = true;
        } else if flags & VFIO_IRQ_SET_ACTION_UNMASK != 0 {
            // If there still is an interrupt it is told again.
            self.pin.masked = false;
            self.turn(None);
        } else if flags & VFIO_IRQ_SET_ACTION_TRIGGER != 0 {
            let event = fds.into_iter().next();
            if flags & VFIO_IRQ_SET_DATA_EVENTFD != 0 || count == 0 {
                self.pin = Pin { event, masked: false };
            }
        }
    }
}

/// Faults by their names.
fn faults(name: &str) -> Option<Faults> {
    let none = Faults::default();
    Some(match name {
        "gone" => Faults { gone: true, ..none },
        "receive-stalled" => Faults { receive_stalled: true, ..none },
        "transmit-stalled" => Faults { transmit_stalled: true, ..none },
        "module-silent" => Faults { module_silent: true, ..none },
        "module-bad" => Faults { module_bad_byte: 7, ..none },
        "module-slow" => Faults { module_slow: 200, ..none },
        "nothing" => none,
        _ => return None,
    })
}

fn signal(mut event: &File) {
    if let Err(e) = event.write_all(&1u64.to_ne_bytes()) {
        eprintln!("x520-server: an interrupt could not be told: {e}");
    }
}

fn start(config: x520_model::Config, memory: &GuestMemory, cable: bool) -> Model {
    let mut model = Model::new(config, Box::new(memory.clone()));
    model.set_cable(cable);
    model
}

/// The device, also after a thread has panicked with it.
pub fn lock(device: &Mutex<Device>) -> MutexGuard<'_, Device> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device, shared by the guest's side and the wire's.
pub struct Shared(pub Arc<Mutex<Device>>);

impl Shared {
    fn device(&self) -> MutexGuard<'_, Device> {
        lock(&self.0)
    }
}

impl ServerBackend for Shared {
    fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), Error> {
        let mut device = self.device();
        data.fill(0);
        match region {
            VFIO_PCI_CONFIG_REGION_INDEX => device.space.read(offset, data),
            // Nobody answers in D3hot.
            VFIO_PCI_BAR0_REGION_INDEX if device.space.sleeps() => data.fill(0xff),
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
            VFIO_PCI_CONFIG_REGION_INDEX => {
                if device.space.write(offset, data) {
                    device.restart();
                }
                device.tell_master();
            }
            VFIO_PCI_BAR0_REGION_INDEX if device.space.sleeps() => {}
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
        device.restart();
        device.space = space(&device.config);
        device.tell_master();
        Ok(())
    }

    fn set_irqs(&mut self, index: u32, flags: u32, start: u32, count: u32, fds: Vec<File>) -> Result<(), Error> {
        match index {
            VFIO_PCI_MSIX_IRQ_INDEX => self.device().set_vectors(flags, start, count, fds),
            VFIO_PCI_INTX_IRQ_INDEX => self.device().set_pin(flags, count, fds),
            _ => {}
        }
        Ok(())
    }
}
