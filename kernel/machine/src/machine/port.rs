//! Handles port accesses: IN and OUT, and INS and OUTS with one element per exit.
//!
//! Follows SDM vol. 1 ch. 19 and vol. 2 "IN", "INS", "OUT", "OUTS".

use iced_x86::Mnemonic;

use super::{devices::Answer, host::Host, outcome::Outcome, refusals::Refusal, state::Machine};
use crate::{
    decode::{Gpr, Undecodable, decode, mask},
    mmio::StringOperand,
    power::Request,
    vcpu::{PortAccess, Vcpu},
    walk::Access,
};

impl Machine {
    pub(super) fn port(&self, access: &PortAccess, vcpu: &mut impl Vcpu, host: &impl Host) -> Outcome {
        if !matches!(access.size, 1 | 2 | 4) {
            return Undecodable::Invalid.into();
        }
        if access.string {
            return self.string_port(access, vcpu, host).unwrap_or_else(Outcome::from);
        }
        let accumulator = Gpr { number: 0, size: access.size, high: false };
        let request = if access.write {
            self.write_port(access, accumulator.read(vcpu) as u32, host)
        } else {
            let value = self.read_port(access, host);
            accumulator.write(vcpu, value);
            None
        };
        vcpu.skip_to(access.next_rip);
        request.into()
    }

    /// Handles one element of INS or OUTS. With REP, the guest runs the instruction again until its count is used up.
    fn string_port(&self, access: &PortAccess, vcpu: &mut impl Vcpu, host: &impl Host) -> Result<Outcome, Undecodable> {
        let i = decode(vcpu, &self.memory)?;
        let outs = match i.mnemonic() {
            Mnemonic::Outsb | Mnemonic::Outsw | Mnemonic::Outsd => true,
            Mnemonic::Insb | Mnemonic::Insw | Mnemonic::Insd => false,
            _ => return Err(Undecodable::Changed),
        };
        if outs != access.write {
            return Err(Undecodable::Changed);
        }
        let next = crate::decode::next_rip(vcpu, i.len() as u8);
        let operand = if outs { StringOperand::source(&i) } else { StringOperand::destination(&i) };
        let operand = operand.ok_or(Undecodable::Invalid)?;
        if operand.finished(vcpu) {
            vcpu.skip_to(next);
            return Ok(Outcome::Done);
        }
        let way = if outs { Access::Read } else { Access::Write };
        let at = operand.locate(vcpu, &self.memory, access.size, way)?;
        let mut bytes = [0; 8];
        let slice = bytes.get_mut(..usize::from(access.size)).unwrap_or_default();
        let request = if outs {
            if self.memory.read(at, slice).is_err() {
                self.refusals.count(Refusal::Memory);
                slice.fill(0xff);
            }
            self.write_port(access, u64::from_le_bytes(bytes) as u32, host)
        } else {
            for (to, from) in slice.iter_mut().zip(self.read_port(access, host).to_le_bytes()) {
                *to = from;
            }
            if self.memory.write(at, slice).is_err() {
                self.refusals.count(Refusal::Memory);
            }
            None
        };
        operand.advance(vcpu, access.size);
        if operand.count_down(vcpu) {
            vcpu.skip_to(next)
        } else {
            vcpu.iterated()
        }
        Ok(request.into())
    }

    fn read_port(&self, access: &PortAccess, host: &impl Host) -> u64 {
        // The timer has no state, so it needs no lock.
        if let Some(count) = self.pm_timer.read(access.port, access.size, host.tsc()) {
            return u64::from(count) & mask(access.size);
        }
        if let Some(byte) = self.cmos.read(access.port, access.size, || host.wall_clock()) {
            return u64::from(byte);
        }
        let answer = self.devices.lock().read_port(access.port, access.size, |message| {
            self.send(message, |s| host.signal(s));
        });
        self.count_answer(answer, Refusal::Port);
        let value = if let Answer::Found(value) = answer { value } else { u64::MAX };
        value & mask(access.size)
    }

    fn write_port(&self, access: &PortAccess, value: u32, host: &impl Host) -> Option<Request> {
        if self.cmos.write(access.port, access.size, value as u8) {
            return None;
        }
        let (answer, request) = self.devices.lock().write_port(
            access.port,
            access.size,
            value,
            |byte| host.console(byte),
            |message| {
                self.send(message, |s| host.signal(s));
            },
        );
        self.count_answer(answer, Refusal::Port);
        request
    }
}
