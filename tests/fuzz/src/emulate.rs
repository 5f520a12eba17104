//! Instructions that access a device's registers. The judge decodes each with another decoder (yaxpeax-x86) and carries it out
//! with arithmetic of its own (SDM vol. 2, vol. 1 3.4.3.1). Whatever the machine emulates has to be the same: accesses, registers,
//! defined flags and the address of the next instruction. What the machine refuses has changed nothing.

mod judge;

use std::cell::RefCell;

use machine::decode::Undecodable;
use machine::mmio::{self, Bus};
use machine::testing::FakeVcpu;
use machine::vcpu::{Gprs, SegmentName};
use memory::GuestMemory;
use memory::guest::testing::memory;

use crate::input::Input;
use crate::planted::planted;
use judge::{Access, Cpu, STATUS};

/// Memory of the guest in bytes, from address 0.
const MEMORY: u64 = 0x1_0000;
/// Longest instruction.
const LONGEST: usize = 15;
/// First bytes that are likely to be an instruction which the machine knows.
const OPCODES: [&[u8]; 40] = [
    &[0x88],
    &[0x89],
    &[0x8a],
    &[0x8b],
    &[0xa0],
    &[0xa1],
    &[0xa2],
    &[0xa3],
    &[0xc6, 0x05],
    &[0xc7, 0x05],
    &[0x0f, 0xb6],
    &[0x0f, 0xb7],
    &[0x0f, 0xbe],
    &[0x0f, 0xbf],
    &[0x63],
    &[0x86],
    &[0x87],
    &[0x0f, 0xc0],
    &[0x0f, 0xc1],
    &[0x0f, 0xb0],
    &[0x0f, 0xb1],
    &[0x00],
    &[0x01],
    &[0x13],
    &[0x29],
    &[0x1b],
    &[0xf6],
    &[0xf7],
    &[0xfe],
    &[0xff],
    &[0x80],
    &[0x81],
    &[0x83],
    &[0x0f, 0xa3],
    &[0x0f, 0xab],
    &[0x0f, 0xba],
    &[0xa4],
    &[0xa5],
    &[0xaa],
    &[0xab],
];

/// The devices: they note each access, and answer with one value.
#[derive(Default)]
struct Devices {
    log: Vec<Access>,
    answer: u64,
}

impl Bus for Devices {
    fn read(&mut self, gpa: u64, size: u8) -> u64 {
        self.log.push(Access::Read { gpa, size });
        self.answer
    }

    fn write(&mut self, gpa: u64, size: u8, value: u64) {
        let value = if planted() { value ^ 1 } else { value };
        self.log.push(Access::Write { gpa, size, value });
    }
}

thread_local! {
    static GUEST: RefCell<GuestMemory> = RefCell::new(memory(0, MEMORY as usize));
}

/// Runs one input.
///
/// # Panics
/// An instruction was emulated wrongly.
pub fn run(bytes: &[u8]) {
    GUEST.with_borrow(|guest| one(guest, &mut Input::new(bytes)));
}

fn instruction(input: &mut Input<'_>, long: bool) -> [u8; LONGEST] {
    let mut code = Vec::new();
    for _ in 0..input.byte() % 3 {
        code.push([0x66, 0x67, 0xf3, 0xf2, 0x2e, 0x36, 0x3e, 0x26, 0x64, 0x65, 0xf0][usize::from(input.byte() % 11)]);
    }
    if long && input.flag() {
        code.push(0x40 + input.byte() % 16);
    }
    if input.byte() < 224 {
        code.extend(OPCODES[usize::from(input.byte()) % OPCODES.len()]);
    }
    std::array::from_fn(|i| code.get(i).copied().unwrap_or_else(|| input.byte()))
}

fn one(guest: &GuestMemory, input: &mut Input<'_>) {
    let bits = [64, 64, 32, 16][usize::from(input.byte() % 4)];
    let mut vcpu = FakeVcpu::long_mode();
    let code = instruction(input, bits == 64);
    let attributes = &mut vcpu.segments[SegmentName::Cs as usize].attributes;
    attributes.set_long(bits == 64);
    attributes.set_default_32(bits == 32);
    for segment in &mut vcpu.segments {
        segment.base = input.wide() >> input.within(16, 64);
    }
    let base = if bits == 64 { 0 } else { input.within(0, 0x1000) };
    vcpu.segments[SegmentName::Cs as usize].base = base;
    vcpu.rip = input.within(0x1000, 0x2000);
    for number in 0..16 {
        vcpu.gprs.set(number, input.wide() >> input.within(0, 64));
    }
    vcpu.rflags = 2
        | u64::from(input.byte()) & STATUS
        | if input.flag() { 1 << 10 } else { 0 }
        | if input.flag() { 1 << 11 } else { 0 };
    guest.zero(0, MEMORY).expect("it is memory");
    guest.write(base + vcpu.rip, &code).expect("it is memory");
    guest.write(0x8000, &input.wide().to_le_bytes()).expect("it is memory");
    let answer = input.wide();

    let segments = vcpu.segments.map(|segment| segment.base);
    let before = Cpu { gprs: all(&vcpu.gprs), rip: vcpu.rip, rflags: vcpu.rflags };
    let expected = judge::carry_out(bits, &code, &before, segments, guest, answer);
    // The page of the access, or any other.
    let right = input.byte() < 240;
    let gpa = match &expected {
        Some(outcome) if right => outcome.page,
        _ => input.wide(),
    };
    let mut after_memory = vec![0; MEMORY as usize];
    guest.read(0, &mut after_memory).expect("it is memory");
    let mut devices = Devices { log: Vec::new(), answer };
    let result = mmio::emulate(&mut vcpu, guest, gpa, &mut devices);
    let after = Cpu { gprs: all(&vcpu.gprs), rip: vcpu.rip, rflags: vcpu.rflags };
    match result {
        Ok(()) => {
            let expected = expected.unwrap_or_else(|| panic!("{bits} bits: {code:02x?} is not known to the judge"));
            if let Some((at, stored)) = &expected.stored {
                after_memory[*at as usize..*at as usize + stored.len()].copy_from_slice(stored);
            }
            assert_eq!(devices.log, expected.accesses, "{bits} bits: {code:02x?}");
            assert_eq!(after.gprs, expected.cpu.gprs, "{bits} bits: {code:02x?}");
            assert_eq!(after.rip, expected.cpu.rip, "{bits} bits: {code:02x?}");
            let differ = (after.rflags ^ expected.cpu.rflags) & expected.defined;
            assert_eq!(differ, 0, "{bits} bits: {code:02x?}: flags {:#x}, {:#x}", after.rflags, expected.cpu.rflags);
        }
        Err(error) => {
            assert_eq!((after, devices.log), (before, Vec::new()), "{bits} bits: {code:02x?}: {error:?}");
            // Paging is off.
            assert!(!matches!(error, Undecodable::Fault(_)));
            assert!(!right || error != Undecodable::Changed || expected.is_none(), "{bits} bits: {code:02x?}");
        }
    }
    let mut found = vec![0; MEMORY as usize];
    guest.read(0, &mut found).expect("it is memory");
    assert!(found == after_memory, "{bits} bits: {code:02x?} stored something else");
}

fn all(gprs: &Gprs) -> [u64; 16] {
    std::array::from_fn(|number| gprs.get(number as u8))
}

crate::planted::tests!(what_is_emulated_is_what_another_decoder_says, 4096, 200..300);
