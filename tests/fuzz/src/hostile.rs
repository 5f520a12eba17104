//! A driver that does anything to its rings, its interrupts, its configuration and its device. It knows the rules of the
//! rings, and often keeps them, so that what is behind them is reached.

use memory::GuestMemory;
use virtio::config::{Features, QueueConfig};
use virtio::shared::Shared;
use virtio::testing::{BUFFERS, DriverQueue, MEMORY, RING_AREA, TABLES, set_up_interrupts};

use crate::input::Input;

/// Descriptors of its queues: few, so that it hits them.
const FEW: u16 = 8;
/// Buffers that its descriptors name, and bytes between two of them.
const BUFFER_COUNT: u64 = 64;
const BUFFER_STRIDE: u64 = 0x400;
/// Turns until a reset is done, at most.
const MOST_TURNS: usize = 4;

/// Offers a descriptor of a queue by the rules of its ring, or nearly.
pub fn offer(memory: &GuestMemory, driver: &DriverQueue, packed: bool, number: u16) {
    let queue = driver.config;
    if packed {
        let (at, offered) = driver.to_offer(number % queue.size);
        let flags = memory.read_u16(at + 14).unwrap_or(0) & 0x7f7f;
        // Beyond the queue: in the other round.
        let bits = if number < queue.size { offered } else { offered ^ 0x8080 };
        let _ = memory.write_u16(at + 14, flags | bits);
    } else {
        let index = memory.read_u16(queue.avail + 2).unwrap_or(0);
        let _ = memory.write_u16(queue.avail + 4 + 2 * u64::from(index % queue.size), number);
        let _ = memory.write_u16(queue.avail + 2, index.wrapping_add(1));
    }
}

/// The guest with that driver.
pub struct Hostile {
    /// Its memory. It may do with it what it likes.
    pub memory: GuestMemory,
    /// Its device.
    pub shared: &'static Shared,
    queues: Vec<DriverQueue>,
    features: Features,
}

impl Hostile {
    /// A guest whose driver accepts these features. Its device is idle.
    pub fn new(shared: &'static Shared, features: Features) -> Self {
        Self::within(memory::guest::testing::memory(0, MEMORY), shared, features)
    }

    /// The same, in [`MEMORY`] bytes from address 0 on.
    pub const fn within(memory: GuestMemory, shared: &'static Shared, features: Features) -> Self {
        Self { memory, shared, queues: Vec::new(), features }
    }

    /// Sets up all queues and interrupts, and sets DRIVER_OK. All of its memory is zero then.
    pub fn start(&mut self) {
        self.memory.zero(0, MEMORY as u64).expect("all of its memory");
        let count = self.shared.device().queues;
        set_up_interrupts(&self.shared.msix, (0..=count).map(|entry| 0x40 + entry as u8));
        self.queues = (0..count).map(|index| DriverQueue::new(&self.memory, index, FEW, self.features)).collect();
        for (index, queue) in (0..).zip(&self.queues) {
            assert!(self.shared.configure_queue(index, &queue.config), "the device is idle");
        }
        assert!(self.shared.activate(self.features.bits()), "the features are offered");
    }

    /// Resets the device, which is always done, and starts it again.
    pub fn restart(&mut self, turn: &mut dyn FnMut()) {
        self.shared.request_reset();
        for _ in 0..MOST_TURNS {
            turn();
        }
        assert!(self.shared.reset_done(), "a reset is always done");
        self.start();
        turn();
    }

    /// A queue of the driver, for requests by the rules after a [`Hostile::restart`].
    pub fn queue(&mut self, index: usize) -> &mut DriverQueue {
        &mut self.queues[index]
    }

    fn packed(&self) -> bool {
        self.features.contains(Features::RING_PACKED)
    }

    fn any_queue(&self, input: &mut Input<'_>) -> (u16, QueueConfig) {
        let index = usize::from(input.byte()) % self.queues.len();
        (index as u16, self.queues[index].config)
    }

    /// The address of one of its buffers.
    pub fn buffer(number: u64) -> u64 {
        BUFFERS + BUFFER_STRIDE * (number % BUFFER_COUNT)
    }

    /// Offers a descriptor by the rules of its ring, or nearly.
    pub fn offer(&self, index: u16, number: u16) {
        offer(&self.memory, &self.queues[usize::from(index)], self.packed(), number);
    }

    /// Writes a descriptor.
    fn describe(&self, input: &mut Input<'_>) {
        let memory = &self.memory;
        let table = if input.byte().is_multiple_of(4) { TABLES } else { self.any_queue(input).1.desc };
        let at = table + 16 * (u64::from(input.byte()) % 10);
        let gpa = match input.byte() % 16 {
            0 => TABLES,
            1 => input.wide(),
            2 => MEMORY as u64 - input.within(0, 64),
            3 => input.within(0, RING_AREA * 2),
            _ => Self::buffer(input.byte().into()) + u64::from(input.byte() % 4) * 16,
        };
        let len = match input.byte() % 16 {
            0 => input.wide() as u32,
            1 | 2 => 16 * (input.within(0, 20) as u32),
            3..7 => 512 << (input.byte() % 5),
            7 | 8 => 1,
            9..12 => 16,
            _ => input.within(0, 2000) as u32,
        };
        let (flags, next) = (input.byte(), input.byte());
        let flags = u16::from(if flags < 200 { flags % 4 } else { flags % 16 });
        let _ = memory.write_u64(at, gpa);
        let _ = memory.write_u32(at + 8, len);
        if self.packed() {
            let bits = [0, 0x80, 0x8000, 0x8080][usize::from(next % 4)];
            let _ = memory.write_u16(at + 12, u16::from(next / 4));
            let _ = memory.write_u16(at + 14, flags | bits);
        } else {
            let _ = memory.write_u16(at + 12, flags);
            let _ = memory.write_u16(at + 14, u16::from(next % 10));
        }
    }

    /// Does one thing. `turn` lets the engine make a turn.
    pub fn step(&mut self, input: &mut Input<'_>, turn: &mut dyn FnMut()) {
        let shared = self.shared;
        match input.byte() % 16 {
            0..5 => self.describe(input),
            5..9 => {
                // By the rules of the available ring, whatever the head is.
                let (index, _) = self.any_queue(input);
                let head = u16::from(input.byte());
                self.offer(index, if head < 240 { head % FEW } else { head << 8 });
                if input.flag() {
                    shared.kick(index);
                }
            }
            9 => {
                let (_, queue) = self.any_queue(input);
                let (avail_end, used_end) = (4 + 2 * u64::from(queue.size), 4 + 8 * u64::from(queue.size));
                let fields = [0, 2, avail_end].map(|at| queue.avail + at);
                let fields = [fields, [0, 2, used_end].map(|at| queue.used + at)].concat();
                let at = fields[usize::from(input.byte()) % fields.len()];
                let _ = self.memory.write_u16(at, input.wide() as u16);
            }
            10 => {
                let _ = self.memory.write_u64(input.within(0, RING_AREA * 2), input.wide());
            }
            11 if input.flag() => shared.msix.write(input.within(0, 40) * 4, 4, input.wide()),
            11 => shared.write_config(input.within(0, 80), [1, 2, 4, 8][usize::from(input.byte() % 4)], input.wide()),
            12 if input.flag() => shared.kick(u16::from(input.byte())),
            12 => {
                // One queue is reset; perhaps it is set up again, in whatever way, before that is done or after.
                let index = u16::from(input.byte() % 8);
                shared.reset_queue(index);
                if input.flag() {
                    turn();
                }
                let (_, mut queue) = self.any_queue(input);
                if input.byte().is_multiple_of(4) {
                    (queue.size, queue.desc) = (input.wide() as u16, input.wide());
                }
                if input.flag() {
                    shared.configure_queue(index, &queue);
                }
            }
            13 => {
                // Another layout of its queues, or other features.
                shared.request_reset();
                for _ in 0..MOST_TURNS {
                    turn();
                }
                assert!(shared.reset_done(), "a reset is always done");
                let (index, mut queue) = self.any_queue(input);
                if input.flag() {
                    (queue.size, queue.desc) = (input.wide() as u16, input.wide());
                }
                shared.configure_queue(index, &queue);
                let features = self.features.bits();
                shared.activate(match input.byte() % 3 {
                    0 => input.wide(),
                    1 => features & !(1 << (input.byte() % 64)),
                    _ => features,
                });
            }
            14 => {
                let bytes: Vec<u8> = (0..input.byte() % 32).map(|_| input.byte()).collect();
                let _ = self.memory.write(Self::buffer(input.byte().into()), &bytes);
            }
            _ => self.restart(turn),
        }
    }
}
