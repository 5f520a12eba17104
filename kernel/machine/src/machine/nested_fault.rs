//! Handles accesses to guest-physical addresses that the nested tables do not map: the devices' registers, and
//! addresses with nothing behind them.

use super::{devices::Answer, host::Host, outcome::Outcome, refusals::Refusal, state::Machine, stop::Stop};
use crate::{
    mmio,
    reason::Reason,
    vcpu::{Event, Vcpu},
};

impl Machine {
    pub(super) fn nested_fault(&self, gpa: u64, fetch: bool, vcpu: &mut impl Vcpu, host: &impl Host) -> Outcome {
        if fetch && self.is_split(gpa) {
            return match self.splitter.map(|splitter| splitter.make_executable(gpa)) {
                Some(Err(why)) => {
                    Outcome::Stop(Stop::failed(format_args!("no code in its own memory at {gpa:#x}: {why:?}")))
                }
                _ => Outcome::Done,
            };
        }
        if self.memory.translate(gpa, 1).is_ok() {
            return Outcome::Stop(Stop::failed(format_args!("no access to its own memory at {gpa:#x}")));
        }
        if fetch {
            // Nothing answers here, so the code reads as all ones. That is not an instruction.
            self.refusals.count(Refusal::Memory);
            return Outcome::Raise(Event::INVALID_OPCODE);
        }
        if vcpu.event_waiting() {
            // The delivery of an event made this access: the stack or a descriptor table is not memory.
            self.refusals.count(Refusal::Memory);
            return Outcome::TripleFault(vcpu.waiting());
        }
        let mut bus = DeviceBus { machine: self, host };
        match mmio::emulate(vcpu, &self.memory, gpa, &mut bus) {
            Ok(()) => Outcome::Done,
            Err(e) => {
                if self.devices.lock().memory_reason(gpa) == Reason::NestedFault {
                    self.refusals.count(Refusal::Memory);
                }
                e.into()
            }
        }
    }

    /// Whether a fetch there makes the page executable.
    pub(super) fn is_split(&self, gpa: u64) -> bool {
        self.splitter.is_some() && self.memory.translate(gpa, 1).is_ok()
    }

    /// Counts an access that no device answered. Returns true if it was one.
    pub(super) fn count_answer(&self, answer: Answer, nobody: Refusal) -> bool {
        match answer {
            Answer::Found(_) => return false,
            Answer::NoFunction => self.refusals.count(Refusal::PciConfig),
            Answer::Nobody => self.refusals.count(nobody),
        }
        true
    }
}

/// The devices as an emulated instruction sees them.
struct DeviceBus<'a, H> {
    machine: &'a Machine,
    host: &'a H,
}

impl<H: Host> mmio::Bus for DeviceBus<'_, H> {
    fn read(&mut self, gpa: u64, size: u8) -> u64 {
        let answer = self.machine.devices.lock().read_memory(gpa, size);
        match answer {
            Answer::Found(value) => value,
            _ => {
                self.machine.count_answer(answer, Refusal::Memory);
                u64::MAX
            }
        }
    }

    fn write(&mut self, gpa: u64, size: u8, value: u64) {
        let (machine, host) = (self.machine, self.host);
        let answer = machine.devices.lock().write_memory(gpa, size, value, |message| {
            machine.send(message, |s| host.signal(s));
        });
        machine.count_answer(answer, Refusal::Memory);
    }
}
