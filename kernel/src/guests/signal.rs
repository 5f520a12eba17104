//! Sends signals to the cores of a guest's vCPUs.

use crate::{
    arch::{apic, host_vectors},
    cores::Core,
    trace,
};
use ::trace::Classes;
use machine::machine::Signal;

/// Sends `signal` to the core of the vCPU that it names. `cores` are the cores of the guest's vCPUs, in their order.
pub fn send(cores: &[&'static Core], signal: Signal) {
    if trace::on(Classes::INTERRUPTS) {
        let (Signal::Kick(vcpu) | Signal::Call(vcpu, _) | Signal::Interrupt(vcpu, _) | Signal::Notify(vcpu)) = signal;
        if let Some(core) = cores.get(vcpu) {
            trace::signal(core.index, signal);
        }
    }
    match signal {
        Signal::Kick(vcpu) => {
            if let Some(core) = cores.get(vcpu) {
                core.kick();
            }
        }
        Signal::Call(vcpu, vector) => {
            if let Some(core) = cores.get(vcpu) {
                core.call(vector);
            }
        }
        Signal::Interrupt(vcpu, vector) => {
            if let Some(core) = cores.get(vcpu) {
                apic::send_fixed(core.apic_id, vector);
            }
        }
        Signal::Notify(vcpu) => {
            if let Some(core) = cores.get(vcpu) {
                apic::send_fixed(core.apic_id, host_vectors::NOTIFICATION);
            }
        }
    }
}
