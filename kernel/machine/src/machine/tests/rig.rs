//! A machine with one device, its vCPUs, which run nothing, and a host that remembers.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
};

use memory::swap::Shadow;
use spin::Mutex;
use virtio::shared::Shared;

use crate::{
    machine::testing::settings,
    machine::{Context, Entry, Host, Machine, Next, Platform, Settings, Signal},
    observe,
    quirk::Quirks,
    reason::{Histogram, Reason},
    split_lock::SplitLocks,
    testing::{FakeVcpu, device},
    vcpu::{Event, Exit, Interrupts, PortAccess, Vcpu as _},
};

pub const MIB: usize = 1 << 20;

#[derive(Default)]
pub struct FakeHost {
    pub tsc: Cell<u64>,
    pub kicks: RefCell<Vec<usize>>,
    pub notified: RefCell<Vec<usize>>,
    pub interrupts: RefCell<Vec<(usize, u8)>>,
    pub apic_writes: RefCell<Vec<(u32, u64)>>,
    pub apic_resets: Cell<u32>,
    pub waiting: RefCell<VecDeque<u8>>,
    pub ended: Cell<u32>,
    pub calls: RefCell<Vec<(usize, u8)>>,
    pub console: RefCell<Vec<u8>>,
    /// Whether it watches exits.
    pub watches: Cell<bool>,
    pub exits: RefCell<Vec<observe::Exit>>,
    pub injections: RefCell<Vec<(usize, Event)>>,
}

impl Host for FakeHost {
    fn tsc(&self) -> u64 {
        self.tsc.set(self.tsc.get() + 10);
        self.tsc.get()
    }

    fn wall_clock(&self) -> u64 {
        1_700_000_000_000_000_000
    }

    fn signal(&self, signal: Signal) {
        match signal {
            Signal::Kick(vcpu) => self.kicks.borrow_mut().push(vcpu),
            Signal::Interrupt(vcpu, vector) => self.interrupts.borrow_mut().push((vcpu, vector)),
            Signal::Notify(vcpu) => self.notified.borrow_mut().push(vcpu),
            Signal::Call(vcpu, vector) => self.calls.borrow_mut().push((vcpu, vector)),
        }
    }

    fn write_apic(&self, msr: u32, value: u64) {
        self.apic_writes.borrow_mut().push((msr, value));
    }

    fn reset_apic(&self) {
        self.apic_resets.set(self.apic_resets.get() + 1);
    }

    fn take_interrupt(&self) -> Option<u8> {
        self.waiting.borrow_mut().pop_front()
    }

    fn end_of_interrupt(&self) {
        self.ended.set(self.ended.get() + 1);
    }

    fn console(&self, byte: u8) {
        self.console.borrow_mut().push(byte);
    }
}

impl observe::Observer for FakeHost {
    fn watches_exits(&self) -> bool {
        self.watches.get()
    }

    fn exit(&self, exit: &observe::Exit) {
        self.exits.borrow_mut().push(*exit);
    }

    fn injection(&self, vcpu: usize, event: Event) {
        self.injections.borrow_mut().push((vcpu, event));
    }
}

/// A machine with one network device and its vCPUs, all attached.
pub struct Rig {
    pub machine: Machine,
    pub host: FakeHost,
    pub vcpus: Vec<(FakeVcpu, Context)>,
    pub nic: &'static Shared,
}

pub fn rig(vcpus: usize) -> Rig {
    rig_with(vcpus, Interrupts::Emulated)
}

pub fn rig_with(vcpus: usize, interrupts: Interrupts) -> Rig {
    rig_quirky(vcpus, interrupts, Quirks::default())
}

pub fn rig_quirky(vcpus: usize, interrupts: Interrupts, quirks: Quirks) -> Rig {
    rig_of(vcpus, interrupts, quirks, None)
}

pub fn rig_with_split_locks(split_locks: SplitLocks) -> Rig {
    let mut rig = rig(1);
    rig.machine.split_locks = split_locks;
    rig
}

pub fn rig_of(vcpus: usize, interrupts: Interrupts, quirks: Quirks, shadow: Option<&'static Mutex<Shadow>>) -> Rig {
    let host = FakeHost::default();
    let nic = device();
    let usual = settings();
    let machine = Machine::new(Settings {
        vcpus,
        devices: vec![nic],
        interrupts,
        watched: true,
        shadow,
        platform: Platform { quirks, ..usual.platform },
        ..usual
    })
    .unwrap_or_else(|e| panic!("{e}"));
    let attached = (0..vcpus)
        .map(|i| {
            let mut v = FakeVcpu::long_mode();
            let context = machine.attach(i, &mut v, Box::leak(Box::new(Histogram::new())), &host).unwrap();
            if i == 0 {
                // As Linux runs, but without page tables of its own: linear is physical.
                (v.cr0, v.rflags) = (0x11, 0x202);
            }
            (v, context)
        })
        .collect();
    Rig { machine, host, vcpus: attached, nic }
}

impl Rig {
    pub fn enter(&mut self, i: usize) -> Entry {
        let (v, c) = &mut self.vcpus[i];
        self.machine.before_entry(v, c, &self.host)
    }

    /// The guest on vCPU 0 ran `code` and left because of `exit`.
    pub fn exit(&mut self, code: &[u8], exit: Exit) -> Next {
        let (v, c) = &mut self.vcpus[0];
        v.event = None;
        self.machine.memory.write(0x1000, code).unwrap();
        v.rip = 0x1000;
        self.machine.handle(exit, v, c, &self.host)
    }

    pub fn vcpu(&mut self) -> &mut FakeVcpu {
        &mut self.vcpus[0].0
    }

    pub fn read_msr(&mut self, number: u32) -> Option<u64> {
        self.vcpu().gprs.rcx = number.into();
        self.exit(&[0x0f, 0x32], Exit::ReadMsr);
        let v = self.vcpu();
        v.event.is_none().then(|| v.gprs.edx_eax())
    }

    pub fn write_msr(&mut self, number: u32, value: u64) -> bool {
        self.vcpu().gprs.set_edx_eax(value);
        self.vcpu().gprs.rcx = number.into();
        self.exit(&[0x0f, 0x30], Exit::WriteMsr);
        self.vcpu().event.is_none()
    }

    /// The guest writes an MSR on vCPU 0.
    pub fn wrmsr(&mut self, number: u32, value: u64) {
        let gprs = self.vcpu().gprs_mut();
        gprs.rcx = u64::from(number);
        gprs.set_edx_eax(value);
        assert_eq!(self.exit(&[0x0f, 0x30], Exit::WriteMsr), Next::Continue);
    }

    pub fn out(&mut self, port: u16, size: u8, value: u64) -> Next {
        self.vcpu().gprs.rax = value;
        self.exit(&[0xef], Exit::Port(access(port, size, true)))
    }

    pub fn input(&mut self, port: u16, size: u8) -> u64 {
        self.vcpu().gprs.rax = 0;
        self.exit(&[0xed], Exit::Port(access(port, size, false)));
        self.vcpu().gprs.rax
    }

    /// mov eax, [rbx]
    pub fn load(&mut self, gpa: u64) -> u64 {
        self.vcpu().gprs.rbx = gpa;
        self.exit(&[0x8b, 0x03], Exit::NestedFault { gpa, write: false, fetch: false });
        self.vcpu().gprs.rax
    }

    /// mov [rbx], eax
    pub fn store(&mut self, gpa: u64, value: u64) {
        (self.vcpu().gprs.rbx, self.vcpu().gprs.rax) = (gpa, value);
        self.exit(&[0x89, 0x03], Exit::NestedFault { gpa, write: true, fetch: false });
    }

    pub fn refused(&self, kind: &str) -> u64 {
        self.machine.refusals().find(|(name, _)| *name == kind).unwrap().1
    }

    pub fn counted(&self, reason: Reason) -> u64 {
        self.vcpus[0].1.exits().get(reason).0
    }
}

pub fn access(port: u16, size: u8, write: bool) -> PortAccess {
    PortAccess { port, size, write, string: false, repeat: false, next_rip: 0x1001 }
}
