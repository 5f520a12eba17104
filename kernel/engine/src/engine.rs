//! The loop of an I/O core: attends to what drivers and the control core ask for, visits the queues that hold work,
//! and completes.

use crate::backend::{Backend, Devices, MAX_PORTS};
use crate::control::{Attachment, Command, Control, Reply};
use crate::device::Device;
use crate::schedule::Schedule;
use crate::shared::{Deliver, MAX_QUEUES, Phase};

/// An engine: the devices of its ports, the back-end that serves them, and what decides their order.
pub struct Engine<B, S, D> {
    control: &'static Control,
    backend: B,
    schedule: S,
    deliver: D,
    devices: Devices,
    /// The last generation that a device of each port had: tokens stay apart even if the port changes hands.
    generations: [u32; MAX_PORTS],
    /// A port that is to be detached as soon as the back-end lets go of it.
    detaching: Option<usize>,
}

impl<B: Backend, S: Schedule, D: Deliver> Engine<B, S, D> {
    /// With no devices.
    pub const fn new(control: &'static Control, backend: B, schedule: S, deliver: D) -> Self {
        Self {
            control,
            backend,
            schedule,
            deliver,
            devices: Devices::new(),
            generations: [0; MAX_PORTS],
            detaching: None,
        }
    }

    /// The seat it shares with the control core.
    pub const fn control(&self) -> &'static Control {
        self.control
    }

    /// Its back-end.
    pub const fn backend(&self) -> &B {
        &self.backend
    }

    /// Its back-end, to configure it.
    pub const fn backend_mut(&mut self) -> &mut B {
        &mut self.backend
    }

    /// One turn at time `now` (ticks of any steady clock): how many requests were moved.
    pub fn turn(&mut self, now: u64) -> u32 {
        self.obey();
        let running = self.attend();
        self.finish_detaching();
        let mut moved = self.backend.poll(&mut self.devices, now);
        while let Some(visit) = self.schedule.next(running) {
            let mut served = 0;
            for queue in 0..MAX_QUEUES as u16 {
                if self.backend.polls(queue) {
                    served += self.backend.serve(&mut self.devices, visit.port, queue, visit.limit, now);
                }
            }
            self.schedule.done(&visit, served);
            moved += served;
        }
        // One used index and one interrupt for each queue a turn, however many frames it took or gave.
        for port in self.devices.ports() {
            if let Some(device) = self.devices.get_mut(port) {
                device.end_turn(&self.deliver);
            }
        }
        moved
    }

    /// Takes up what the control core asks for.
    fn obey(&mut self) {
        let Some(command) = self.control.take() else { return };
        match command {
            Command::Attach(attachment) => self.control.answer(self.attach(attachment)),
            Command::Detach { port } if port >= MAX_PORTS => self.control.answer(Reply::NoSuchPort),
            Command::Detach { port } if self.devices.get(port).is_none() => self.control.answer(Reply::Vacant),
            Command::Detach { port } => self.detaching = Some(port),
        }
    }

    fn attach(&mut self, attachment: Attachment) -> Reply {
        let Attachment { port, number, shared, memory, state } = attachment;
        let Some(&generation) = self.generations.get(port) else { return Reply::NoSuchPort };
        if self.devices.get(port).is_some() {
            return Reply::Occupied;
        }
        let mut device = Device::new(number, shared, memory, generation);
        if let Some(state) = &state
            && let Err(error) = device.restore(state)
        {
            return Reply::BadState(error);
        }
        self.devices.attach(port, device);
        self.backend.attached(port, shared.device());
        Reply::Attached
    }

    /// Lets go of the port that is to be detached, as soon as the back-end has.
    fn finish_detaching(&mut self) {
        let Some(port) = self.detaching else { return };
        if !self.backend.cancel(&mut self.devices, port) {
            return;
        }
        self.detaching = None;
        self.backend.detached(port);
        let state = self.devices.detach(port).and_then(|mut device| {
            device.end_turn(&self.deliver);
            if let Some(generation) = self.generations.get_mut(port) {
                *generation = device.generation();
            }
            device.save()
        });
        self.control.answer(Reply::Detached(state));
    }

    /// Activates and resets devices as their drivers ask; which ports are to be visited, a bit each.
    fn attend(&mut self) -> u32 {
        let mut running = 0;
        for port in self.devices.ports() {
            let Some(device) = self.devices.get_mut(port) else { continue };
            match device.shared().phase() {
                Phase::Idle | Phase::Running => {}
                Phase::Activating => device.activate(),
                Phase::Resetting => {
                    // The driver gets its reset only when nothing can touch its buffers any more.
                    device.stop();
                    if self.backend.cancel(&mut self.devices, port)
                        && let Some(device) = self.devices.get_mut(port)
                    {
                        device.reset();
                    }
                    continue;
                }
            }
            if device.running() && self.detaching != Some(port) {
                running |= 1 << port;
            }
        }
        running
    }
}

/// Turns the engine until its control core asks it to stop. `clock` is the one that the switch's ages and the engine's
/// cycles are counted by, such as the TSC.
pub fn run<B: Backend, S: Schedule, D: Deliver>(engine: &mut Engine<B, S, D>, clock: impl Fn() -> u64) {
    let control = engine.control();
    let counters = &control.counters;
    let mut now = clock();
    while !control.stopping() {
        let moved = engine.turn(now);
        if moved == 0 {
            // A hint, not a sleep: it leaves the core's other thread, or an emulator's other core, some time.
            core::hint::spin_loop();
        }
        let then = clock();
        let spent = then.wrapping_sub(now);
        if moved == 0 {
            counters.idle_turns.add(1);
            counters.idle_cycles.add(spent);
        } else {
            counters.busy_turns.add(1);
            counters.busy_cycles.add(spent);
            counters.requests.add(u64::from(moved));
        }
        now = then;
    }
}
