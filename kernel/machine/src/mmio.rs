//! Emulates one instruction that accessed a device's registers. It knows loads, stores, the read-modify-write
//! instructions (file `alu.rs`), and the string moves of `memcpy_fromio` and `memset_io`. LOCK makes no difference: other
//! vCPUs may access the device between the read and the write.
//!
//! Follows SDM vol. 2 for the instructions and vol. 1 3.4.3.1 for the flags. An instruction reads and writes a device
//! at most once each. Any other instruction is #UD for the guest.

use iced_x86::{Instruction, MemorySize, Mnemonic, OpKind, Register};
use memory::GuestMemory;

mod alu;

use alu::Alu;

use crate::{
    decode::{Gpr, Undecodable, bitness, decode, mask, next_rip},
    vcpu::{SegmentName, Vcpu},
    walk::{Access, translate},
};

/// The devices that the instruction reads and writes.
pub trait Bus {
    /// Reads 1, 2, 4 or 8 bytes. The caller ignores higher bits of the result.
    fn read(&mut self, gpa: u64, size: u8) -> u64;
    /// Writes 1, 2, 4 or 8 bytes.
    fn write(&mut self, gpa: u64, size: u8, value: u64);
}

const DF: u64 = 1 << 10;

/// Emulates the instruction at CS:RIP, and steps over it. The instruction exited because of an access to guest-physical
/// address `gpa`.
///
/// # Errors
/// The instruction cannot be read, no longer accesses that address, or is not known here. Then nothing has changed.
pub fn emulate(vcpu: &mut impl Vcpu, memory: &GuestMemory, gpa: u64, bus: &mut impl Bus) -> Result<(), Undecodable> {
    let instruction = decode(vcpu, memory)?;
    match instruction.mnemonic() {
        Mnemonic::Movsb | Mnemonic::Movsw | Mnemonic::Movsd | Mnemonic::Movsq
            if is_string_operand(instruction.op0_kind()) =>
        {
            string(vcpu, memory, gpa, bus, &instruction, true)
        }
        Mnemonic::Stosb | Mnemonic::Stosw | Mnemonic::Stosd | Mnemonic::Stosq => {
            string(vcpu, memory, gpa, bus, &instruction, false)
        }
        _ => plain(vcpu, memory, gpa, bus, &instruction),
    }
}

/// Emulates an instruction with a ModRM or moffs memory operand.
fn plain(
    vcpu: &mut impl Vcpu,
    memory: &GuestMemory,
    gpa: u64,
    bus: &mut impl Bus,
    i: &Instruction,
) -> Result<(), Undecodable> {
    let operation = Operation::of(i).ok_or(Undecodable::Invalid)?;
    let size = memory_bytes(i.memory_size()).ok_or(Undecodable::Invalid)?;
    let access = if operation.writes_memory(i) { Access::Write } else { Access::Read };
    let linear = effective_address(vcpu, i).wrapping_add(operation.bit_string_offset(vcpu, i, size));
    let at = locate(vcpu, memory, linear, size, access)?;
    if at & !0xfff != gpa & !0xfff {
        return Err(Undecodable::Changed);
    }
    let to_memory = i.op0_kind() == OpKind::Memory;
    let old_flags = vcpu.rflags();
    let next = next_rip(vcpu, i.len() as u8);
    match operation {
        Operation::Move if to_memory => {
            let value = operand(vcpu, i, 1).ok_or(Undecodable::Invalid)?;
            bus.write(at, size, value & mask(size));
        }
        Operation::Move | Operation::ZeroExtend | Operation::SignExtend => {
            let target = Gpr::new(i.op0_register()).ok_or(Undecodable::Invalid)?;
            let value = bus.read(at, size) & mask(size);
            let value = if operation == Operation::SignExtend { sign_extend(value, size) } else { value };
            target.write(vcpu, value);
        }
        Operation::ExchangeAdd => {
            let register = Gpr::new(i.op1_register()).ok_or(Undecodable::Invalid)?;
            let (old, other) = (bus.read(at, size) & mask(size), register.read(vcpu));
            let (sum, flags) = Alu::Add.compute(old, other, size, old_flags);
            bus.write(at, size, sum);
            register.write(vcpu, old);
            vcpu.set_rflags(flags);
        }
        Operation::CompareExchange => {
            let new = Gpr::new(i.op1_register()).ok_or(Undecodable::Invalid)?.read(vcpu);
            let accumulator = Gpr { number: 0, size, high: false };
            let old = bus.read(at, size) & mask(size);
            let (difference, flags) = Alu::Sub.compute(accumulator.read(vcpu), old, size, old_flags);
            // The CPU writes in either case: what it read, if the values differ.
            bus.write(at, size, if difference == 0 { new } else { old });
            if difference != 0 {
                accumulator.write(vcpu, old);
            }
            vcpu.set_rflags(flags);
        }
        Operation::Exchange => {
            let register = if to_memory { i.op1_register() } else { i.op0_register() };
            let register = Gpr::new(register).ok_or(Undecodable::Invalid)?;
            let new = register.read(vcpu);
            let old = bus.read(at, size);
            bus.write(at, size, new);
            register.write(vcpu, old);
        }
        Operation::Arithmetic { alu, store } => {
            // This comes before the access to the device, so that a refused instruction does not touch the device.
            let target = if to_memory { None } else { Some(Gpr::new(i.op0_register()).ok_or(Undecodable::Invalid)?) };
            let other = match (i.op_count(), target) {
                (1, _) => 1,
                (_, None) => operand(vcpu, i, 1).ok_or(Undecodable::Invalid)?,
                (_, Some(register)) => register.read(vcpu),
            };
            let from_memory = bus.read(at, size) & mask(size);
            let (left, right) = if to_memory { (from_memory, other) } else { (other, from_memory) };
            let (result, flags) = alu.compute(left, right & mask(size), size, old_flags);
            match target {
                _ if !store => {}
                None => bus.write(at, size, result),
                Some(register) => register.write(vcpu, result),
            }
            vcpu.set_rflags(flags);
        }
    }
    vcpu.skip_to(next);
    Ok(())
}

/// Emulates MOVS and STOS, one element per exit. With REP, the guest runs the instruction again until its count is used
/// up.
fn string(
    vcpu: &mut impl Vcpu,
    memory: &GuestMemory,
    gpa: u64,
    bus: &mut impl Bus,
    i: &Instruction,
    moves: bool,
) -> Result<(), Undecodable> {
    let size = memory_bytes(i.memory_size()).ok_or(Undecodable::Invalid)?;
    let destination = StringOperand::destination(i).ok_or(Undecodable::Invalid)?;
    let next = next_rip(vcpu, i.len() as u8);
    if destination.finished(vcpu) {
        vcpu.skip_to(next);
        return Ok(());
    }
    let to = destination.locate(vcpu, memory, size, Access::Write)?;
    let touches = |at: u64| at & !0xfff == gpa & !0xfff;
    let source = if moves { Some(StringOperand::source(i).ok_or(Undecodable::Invalid)?) } else { None };
    let value = if let Some(source) = source {
        let from = source.locate(vcpu, memory, size, Access::Read)?;
        if !touches(from) && !touches(to) {
            return Err(Undecodable::Changed);
        }
        let mut bytes = [0; 8];
        match memory.read(from, bytes.get_mut(..usize::from(size)).unwrap_or_default()) {
            Ok(()) => u64::from_le_bytes(bytes),
            Err(_) => bus.read(from, size),
        }
    } else if touches(to) {
        Gpr { number: 0, size, high: false }.read(vcpu)
    } else {
        return Err(Undecodable::Changed);
    };
    let value = value & mask(size);
    if memory.write(to, value.to_le_bytes().get(..usize::from(size)).unwrap_or_default()).is_err() {
        bus.write(to, size, value);
    }
    destination.advance(vcpu, size);
    if let Some(source) = source {
        source.advance(vcpu, size);
    }
    if destination.count_down(vcpu) {
        vcpu.skip_to(next)
    } else {
        vcpu.iterated()
    }
    Ok(())
}

/// An operand of a string instruction, at (E)SI or (E)DI.
#[derive(Clone, Copy, Debug)]
pub struct StringOperand {
    segment: Register,
    index: Gpr,
    count: Option<Gpr>,
}

impl StringOperand {
    /// Returns the operand at ES:DI, or `None` if the instruction has no such operand.
    #[must_use]
    pub fn destination(i: &Instruction) -> Option<Self> {
        let width = match i.op0_kind() {
            OpKind::MemoryESDI => 2,
            OpKind::MemoryESEDI => 4,
            OpKind::MemoryESRDI => 8,
            _ => return None,
        };
        Some(Self::new(i, Register::ES, 7, width))
    }

    /// Returns the operand at DS:SI, or in the segment of a prefix. Returns `None` if the instruction has no such
    /// operand.
    #[must_use]
    pub fn source(i: &Instruction) -> Option<Self> {
        let width = match i.op1_kind() {
            OpKind::MemorySegSI => 2,
            OpKind::MemorySegESI => 4,
            OpKind::MemorySegRSI => 8,
            _ => return None,
        };
        Some(Self::new(i, i.memory_segment(), 6, width))
    }

    fn new(i: &Instruction, segment: Register, number: u8, width: u8) -> Self {
        let repeated = i.has_rep_prefix() || i.has_repne_prefix();
        let register = |number| Gpr { number, size: width, high: false };
        Self { segment, index: register(number), count: repeated.then(|| register(1)) }
    }

    /// Whether the instruction is repeated and its count is used up.
    #[must_use]
    pub fn finished(&self, vcpu: &impl Vcpu) -> bool {
        self.count.is_some_and(|count| count.read(vcpu) == 0)
    }

    /// Returns its guest-physical address.
    ///
    /// # Errors
    /// It is not mapped for this access, or lies in two pages.
    pub fn locate(&self, vcpu: &impl Vcpu, memory: &GuestMemory, size: u8, access: Access) -> Result<u64, Undecodable> {
        locate(vcpu, memory, in_segment(vcpu, self.segment, self.index.read(vcpu)), size, access)
    }

    /// Moves to the next element, in the direction that RFLAGS gives.
    pub fn advance(&self, vcpu: &mut impl Vcpu, size: u8) {
        let step = if vcpu.rflags() & DF != 0 { u64::from(size).wrapping_neg() } else { u64::from(size) };
        let moved = self.index.read(vcpu).wrapping_add(step);
        self.index.write(vcpu, moved);
    }

    /// Counts an element. Returns true if it was the last.
    pub fn count_down(&self, vcpu: &mut impl Vcpu) -> bool {
        let Some(count) = self.count else { return true };
        let left = count.read(vcpu).wrapping_sub(1);
        count.write(vcpu, left);
        count.read(vcpu) == 0
    }
}

/// Returns the guest-physical address of a memory operand within one page.
fn locate(vcpu: &impl Vcpu, memory: &GuestMemory, linear: u64, size: u8, access: Access) -> Result<u64, Undecodable> {
    if linear & 0xfff > 0x1000_u64.saturating_sub(u64::from(size)) {
        return Err(Undecodable::Invalid); // no driver reads a register across two pages
    }
    translate(vcpu, memory, linear, access).map_err(Undecodable::Fault)
}

/// Returns the guest-physical address of an instruction's memory operand of `size` bytes.
///
/// # Errors
/// It is not mapped for this access, or lies in two pages.
pub(crate) fn memory_operand(
    vcpu: &impl Vcpu,
    memory: &GuestMemory,
    i: &Instruction,
    size: u8,
    access: Access,
) -> Result<u64, Undecodable> {
    locate(vcpu, memory, effective_address(vcpu, i), size, access)
}

/// Linear address of the memory operand.
fn effective_address(vcpu: &impl Vcpu, i: &Instruction) -> u64 {
    let register = |r: Register| Gpr::new(r).map_or(0, |r| r.read(vcpu));
    let base = i.memory_base();
    let index = register(i.memory_index()).wrapping_mul(u64::from(i.memory_index_scale()));
    let width = [base, i.memory_index()].into_iter().find_map(Gpr::new).map(|r| r.size);
    let offset = match base {
        // The decoder has already added the address of the next instruction.
        Register::RIP => i.memory_displacement64(),
        Register::EIP => i.memory_displacement64() & 0xffff_ffff,
        _ => {
            let sum = register(base).wrapping_add(index).wrapping_add(i.memory_displacement64());
            sum & mask(width.unwrap_or(i.memory_displ_size().clamp(2, 8) as u8))
        }
    };
    in_segment(vcpu, i.memory_segment(), offset)
}

/// Linear address of an offset in a segment.
fn in_segment(vcpu: &impl Vcpu, segment: Register, offset: u64) -> u64 {
    let long = bitness(vcpu) == 64;
    let name = match segment {
        Register::FS => SegmentName::Fs,
        Register::GS => SegmentName::Gs,
        _ if long => return offset,
        Register::ES => SegmentName::Es,
        Register::CS => SegmentName::Cs,
        Register::SS => SegmentName::Ss,
        _ => SegmentName::Ds,
    };
    let linear = vcpu.segment(name).base.wrapping_add(offset);
    if long { linear } else { linear & 0xffff_ffff }
}

/// Returns a register or immediate operand. An immediate is sign-extended if the instruction does so.
fn operand(vcpu: &impl Vcpu, i: &Instruction, number: u32) -> Option<u64> {
    match i.try_op_kind(number).ok()? {
        OpKind::Register => Gpr::new(i.try_op_register(number).ok()?).map(|r| r.read(vcpu)),
        OpKind::Memory => None,
        _ => i.try_immediate(number).ok(),
    }
}

fn is_string_operand(kind: OpKind) -> bool {
    matches!(kind, OpKind::MemoryESDI | OpKind::MemoryESEDI | OpKind::MemoryESRDI)
}

fn memory_bytes(size: MemorySize) -> Option<u8> {
    Some(match size {
        MemorySize::UInt8 | MemorySize::Int8 => 1,
        MemorySize::UInt16 | MemorySize::Int16 => 2,
        MemorySize::UInt32 | MemorySize::Int32 => 4,
        MemorySize::UInt64 | MemorySize::Int64 => 8,
        _ => return None,
    })
}

fn sign_extend(value: u64, size: u8) -> u64 {
    let unused = 64_u32.saturating_sub(u32::from(size) << 3);
    ((value << unused) as i64 >> unused) as u64
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Move,
    ZeroExtend,
    SignExtend,
    Exchange,
    ExchangeAdd,
    CompareExchange,
    Arithmetic { alu: Alu, store: bool },
}

impl Operation {
    fn of(i: &Instruction) -> Option<Self> {
        let memory = [i.op0_kind(), i.op1_kind()].contains(&OpKind::Memory);
        if !memory || i.op_count() > 2 {
            return None;
        }
        let arithmetic = |alu, store| Some(Self::Arithmetic { alu, store });
        match i.mnemonic() {
            Mnemonic::Mov => Some(Self::Move),
            Mnemonic::Movzx => Some(Self::ZeroExtend),
            Mnemonic::Movsx | Mnemonic::Movsxd => Some(Self::SignExtend),
            Mnemonic::Xchg => Some(Self::Exchange),
            Mnemonic::Xadd => Some(Self::ExchangeAdd),
            Mnemonic::Cmpxchg => Some(Self::CompareExchange),
            Mnemonic::Add => arithmetic(Alu::Add, true),
            Mnemonic::Adc => arithmetic(Alu::AddCarry, true),
            Mnemonic::Sub => arithmetic(Alu::Sub, true),
            Mnemonic::Sbb => arithmetic(Alu::SubBorrow, true),
            Mnemonic::Neg => arithmetic(Alu::Negate, true),
            Mnemonic::Inc => arithmetic(Alu::Increment, true),
            Mnemonic::Dec => arithmetic(Alu::Decrement, true),
            Mnemonic::And => arithmetic(Alu::And, true),
            Mnemonic::Or => arithmetic(Alu::Or, true),
            Mnemonic::Xor => arithmetic(Alu::Xor, true),
            Mnemonic::Not => arithmetic(Alu::Not, true),
            Mnemonic::Cmp => arithmetic(Alu::Sub, false),
            Mnemonic::Test => arithmetic(Alu::And, false),
            Mnemonic::Bt => arithmetic(Alu::Bit, false),
            Mnemonic::Bts => arithmetic(Alu::BitSet, true),
            Mnemonic::Btr => arithmetic(Alu::BitReset, true),
            Mnemonic::Btc => arithmetic(Alu::BitComplement, true),
            _ => None,
        }
    }

    /// Returns what must be added to the operand's address. BT, BTS, BTR and BTC with a register as the bit number
    /// access the element of a bit string that holds the bit (SDM vol. 2A "BT"). The number is signed.
    fn bit_string_offset(self, vcpu: &impl Vcpu, i: &Instruction, size: u8) -> u64 {
        let bits = matches!(self, Self::Arithmetic { alu, .. } if alu.is_of_bits());
        let register = Gpr::new(i.op1_register()).filter(|_| bits && i.op1_kind() == OpKind::Register);
        register.map_or(0, |register| {
            let number = sign_extend(register.read(vcpu), register.size) as i64;
            number.div_euclid(i64::from(size) << 3).wrapping_mul(i64::from(size)) as u64
        })
    }

    fn writes_memory(self, i: &Instruction) -> bool {
        let to_memory = i.op0_kind() == OpKind::Memory;
        match self {
            Self::Move => to_memory,
            Self::ZeroExtend | Self::SignExtend => false,
            Self::Exchange | Self::ExchangeAdd | Self::CompareExchange => true,
            Self::Arithmetic { store, .. } => store && to_memory,
        }
    }
}

#[cfg(test)]
mod tests;
