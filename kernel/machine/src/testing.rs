//! For tests: a virtio device, and a virtual CPU that runs nothing. The test sets the CPU's registers. The CPU records
//! the calls of its methods.

use std::boxed::Box;
use std::collections::{BTreeMap, VecDeque};
use std::vec::Vec;

use memory::GuestMemory;
use virtio::shared::Shared;

use crate::posted::HandOver;
use crate::vcpu::{
    Event, Exit, Gprs, Intercepts, Interrupted, Segment, SegmentAttributes, SegmentName, StartState, Vcpu,
};

/// Makes a virtio device of any kind, before a driver has touched it.
pub fn device() -> &'static Shared {
    Box::leak(Box::new(Shared::new(virtio::testing::device())))
}

/// A virtual CPU for tests: its registers, and a record of calls.
#[derive(Clone, Debug, Default)]
pub struct FakeVcpu {
    pub gprs: Gprs,
    pub rip: u64,
    pub rflags: u64,
    pub cr0: u64,
    pub cr2: u64,
    pub cr3: u64,
    pub cr4: u64,
    pub efer: u64,
    pub xcr0: u64,
    pub cpl: u8,
    pub segments: [Segment; 8],
    pub idt: (u64, u16),
    pub msrs: BTreeMap<u32, u64>,
    pub length: Option<u8>,
    pub bytes: Option<([u8; 15], u8)>,
    pub exits: VecDeque<Exit>,
    pub shadow: bool,
    pub event: Option<Event>,
    pub window: bool,
    pub cr8: u64,
    pub resets: Vec<StartState>,
    pub handed_over: Vec<HandOver>,
    pub intercepts: Intercepts,
    pub flushes: u32,
    pub tsc_offset: u64,
    pub pkru: u32,
    pub free_until: Option<u64>,
}

const RFLAGS_TF: u64 = 1 << 8;
const RFLAGS_RF: u64 = 1 << 16;

impl FakeVcpu {
    fn trap(&mut self) {
        if self.rflags & RFLAGS_TF != 0 {
            self.inject(Event::Exception(1, None));
        }
    }

    /// Makes a CPU with the segments of long mode, but with CR0.PG clear. So a linear address below 4 GiB is the
    /// physical one.
    pub fn long_mode() -> Self {
        let mut this = Self { efer: 0x500, cr0: 0x11, rflags: 0x202, ..Self::default() };
        this.segments[SegmentName::Cs as usize].attributes =
            SegmentAttributes::new().with_long(true).with_present(true);
        this.msrs.insert(0xc000_0080, 0x500);
        this.msrs.insert(0x277, 0x0007_0406_0007_0406);
        this
    }

    /// Puts `code` into memory at 0x1000 and RIP there.
    pub fn at_code(mut self, memory: &GuestMemory, code: &[u8]) -> Self {
        memory.write(0x1000, code).unwrap();
        self.rip = 0x1000;
        self
    }
}

impl Vcpu for FakeVcpu {
    fn reset(&mut self, state: &StartState) {
        self.resets.push(*state);
        self.gprs = state.gprs;
        self.rip = state.rip;
        self.rflags = state.rflags;
        self.cr0 = state.cr0;
        self.cr3 = state.cr3;
        self.cr4 = state.cr4;
        self.efer = state.efer;
        self.segments[SegmentName::Cs as usize] = state.cs;
        self.event = None;
        self.shadow = false;
        self.tsc_offset = 0;
        self.idt = state.idt;
        self.intercepts = Intercepts::default();
    }

    fn run(&mut self) -> Exit {
        self.event = None;
        self.exits.pop_front().unwrap_or(Exit::Halt)
    }

    fn gprs(&self) -> &Gprs {
        &self.gprs
    }

    fn gprs_mut(&mut self) -> &mut Gprs {
        &mut self.gprs
    }

    fn rip(&self) -> u64 {
        self.rip
    }

    fn set_rip(&mut self, rip: u64) {
        self.rip = rip;
    }

    fn rflags(&self) -> u64 {
        self.rflags
    }

    fn set_rflags(&mut self, rflags: u64) {
        self.rflags = rflags;
    }

    fn cr0(&self) -> u64 {
        self.cr0
    }

    fn cr3(&self) -> u64 {
        self.cr3
    }

    fn cr4(&self) -> u64 {
        self.cr4
    }

    fn set_cr0(&mut self, value: u64) {
        self.cr0 = value;
    }

    fn set_cr4(&mut self, value: u64) {
        self.cr4 = value;
    }

    fn cr2(&self) -> u64 {
        self.cr2
    }

    fn set_cr2(&mut self, address: u64) {
        self.cr2 = address;
    }

    fn efer(&self) -> u64 {
        self.efer
    }

    fn segment(&self, name: SegmentName) -> Segment {
        self.segments[name as usize]
    }

    fn cpl(&self) -> u8 {
        self.cpl
    }

    fn idt(&self) -> (u64, u16) {
        self.idt
    }

    fn intercept(&mut self, what: Intercepts) {
        self.intercepts = what;
    }

    fn flush_nested(&mut self) {
        self.flushes += 1;
    }

    fn msr(&self, number: u32) -> Option<u64> {
        self.msrs.get(&number).copied()
    }

    fn set_msr(&mut self, number: u32, value: u64) -> bool {
        match self.msrs.get_mut(&number) {
            Some(old) if value != u64::MAX => {
                *old = value;
                true
            }
            _ => false,
        }
    }

    fn set_xcr0(&mut self, value: u64) {
        self.xcr0 = value;
    }

    fn set_tsc_offset(&mut self, offset: u64) {
        self.tsc_offset = offset;
    }

    fn pkru(&self) -> u32 {
        self.pkru
    }

    fn instruction_length(&self) -> Option<u8> {
        self.length
    }

    fn instruction_bytes(&self) -> Option<([u8; 15], u8)> {
        self.bytes
    }

    fn skip_to(&mut self, next: u64) {
        self.rip = next;
        self.rflags &= !RFLAGS_RF;
        self.shadow = false;
        self.trap();
    }

    fn iterated(&mut self) {
        self.rflags |= RFLAGS_RF;
        self.shadow = false;
        self.trap();
    }

    fn interruptible(&self) -> bool {
        self.rflags & 0x200 != 0 && !self.shadow && self.event.is_none()
    }

    fn event_waiting(&self) -> bool {
        self.event.is_some()
    }

    fn waiting(&self) -> Option<Interrupted> {
        self.event.map(|event| match event {
            Event::Interrupt(vector) => Interrupted::External(vector),
            Event::Nmi => Interrupted::Nmi,
            Event::Exception(vector, _) => Interrupted::Exception(vector),
        })
    }

    fn inject(&mut self, event: Event) {
        assert!(self.event.is_none(), "an event waits already");
        if matches!(event, Event::Interrupt(_)) {
            assert!(self.interruptible(), "not interruptible");
        }
        self.event = Some(event);
    }

    fn free_split_locks(&mut self, until: u64) {
        self.free_until = Some(until);
    }

    fn handed_over(&mut self, change: &HandOver) {
        self.handed_over.push(*change);
    }

    fn want_interrupt_window(&mut self, wanted: bool) {
        self.window = wanted;
    }

    fn set_cr8(&mut self, value: u64) {
        self.cr8 = value;
    }
}
