//! Delivers interrupts, signals and input to the guest's vCPUs. Any core may call it.

use virtio::msix::Interrupt;

use super::{host::Signal, state::Machine};
use crate::{
    eli::Eli,
    lapic::{self, Delivery, Destination, Message},
    mailbox,
    vcpu::Interrupts,
};

/// The first vector that is not an exception's.
pub(super) const FIRST_INTERRUPT: u8 = 0x20;

impl Machine {
    /// Delivers a device's interrupt to the vCPUs that it names. Calls `signal` for each vCPU whose core needs a
    /// signal. Returns false if the interrupt names no vCPU of this guest. Takes no lock. Any core may call it.
    pub fn deliver(&self, interrupt: Interrupt, signal: impl FnMut(Signal)) -> bool {
        let Interrupt { destination, logical, lowest_priority, vector } = interrupt;
        let delivery = if lowest_priority {
            Delivery::LowestPriority { vector, level: false }
        } else {
            Delivery::Fixed { vector, level: false }
        };
        let Ok(destination) = u8::try_from(destination) else { return false };
        self.send(Message { destination: Destination::of_message(destination, logical), delivery }, signal)
    }

    /// Sends an interrupt message to the vCPUs that it names. Returns false if it names none.
    pub(super) fn send(&self, message: Message, mut signal: impl FnMut(Signal)) -> bool {
        let count = self.vcpus() as u32;
        match message.delivery {
            Delivery::Fixed { vector, .. } | Delivery::LowestPriority { vector, .. }
                if self.interrupts == Interrupts::Owned =>
            {
                // Hardware would deliver an interrupt with the vector of an exception. The host refuses it, because it
                // could not tell it from an exception of its own.
                if vector < FIRST_INTERRUPT {
                    return false;
                }
                let mut any = false;
                for id in message.targets(count).filter(|&id| id < count) {
                    any = true;
                    // If this is a vector of the host's, the vCPU's core first gives the vector up. Then it sends the
                    // interrupt itself.
                    let claimed = self.eli.as_ref().is_some_and(|eli| eli.uses(vector));
                    match self.mailbox(id as usize).filter(|_| claimed) {
                        Some(mailbox) if mailbox.post(vector) => signal(Signal::Kick(id as usize)),
                        Some(_) => {}
                        None => signal(Signal::Interrupt(id as usize, vector)),
                    }
                }
                any
            }
            Delivery::Fixed { vector, level: false } | Delivery::LowestPriority { vector, level: false }
                if self.interrupts == Interrupts::Virtualized && vector >= lapic::FIRST_VECTOR =>
            {
                self.post_virtual(message, vector, signal)
            }
            _ => mailbox::send(message, |id| self.mailbox(id as usize), count, |id| signal(self.kick(id as usize))),
        }
    }

    /// Presses the power button. Any core may call it. `signal` is as for [`Machine::deliver`].
    pub fn press_power_button(&self, mut signal: impl FnMut(Signal)) {
        self.devices.lock().press_power_button(|message| {
            self.send(message, &mut signal);
        });
    }

    /// Types into the serial console. Takes bytes from `next` until there is none, or until the console is full. Any
    /// core may call it. `signal` is as for [`Machine::deliver`].
    pub fn type_in(&self, next: impl FnMut() -> Option<u8>, mut signal: impl FnMut(Signal)) {
        self.devices.lock().type_in(next, |message| {
            self.send(message, &mut signal);
        });
    }

    /// Returns the signal that makes a vCPU's core look at its mailbox. It is a call if the host has a vector there,
    /// and otherwise a kick by NMI.
    fn kick(&self, vcpu: usize) -> Signal {
        match self.eli.as_ref().and_then(Eli::vectors) {
            Some(vectors) => Signal::Call(vcpu, vectors.kick),
            None => Signal::Kick(vcpu),
        }
    }
}
