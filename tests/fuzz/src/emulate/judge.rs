//! The judge: yaxpeax-x86 decodes, and what is here carries out.

use machine::vcpu::SegmentName;
use memory::GuestMemory;
use yaxpeax_arch::LengthedInstruction as _;

const CF: u64 = 1 << 0;
const PF: u64 = 1 << 2;
const AF: u64 = 1 << 4;
const ZF: u64 = 1 << 6;
const SF: u64 = 1 << 7;
const OF: u64 = 1 << 11;
const DF: u64 = 1 << 10;
/// The status flags.
pub const STATUS: u64 = CF | PF | AF | ZF | SF | OF;

/// An access to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read { gpa: u64, size: u8 },
    Write { gpa: u64, size: u8, value: u64 },
}

/// The registers of a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    pub gprs: [u64; 16],
    pub rip: u64,
    pub rflags: u64,
}

/// What an instruction does.
pub struct Outcome {
    pub cpu: Cpu,
    /// Flags that the manual defines after it.
    pub defined: u64,
    pub accesses: Vec<Access>,
    /// What it stores in memory, and where.
    pub stored: Option<(u64, Vec<u8>)>,
    /// An address in the page that it accesses.
    pub page: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Mov,
    Movzx,
    Movsx,
    Xchg,
    Xadd,
    Cmpxchg,
    Add,
    Adc,
    Sub,
    Sbb,
    Neg,
    Inc,
    Dec,
    And,
    Or,
    Xor,
    Not,
    Cmp,
    Test,
    Bt,
    Bts,
    Btr,
    Btc,
    Movs,
    Stos,
}

/// A general-purpose register: number, bytes, whether it is AH, CH, DH or BH.
#[derive(Clone, Copy, Debug)]
struct Reg {
    number: u8,
    size: u8,
    high: bool,
}

#[derive(Clone, Copy, Debug)]
enum Operand {
    Reg(Reg),
    Immediate(u64),
    /// `next`: the displacement counts from the next instruction.
    Memory {
        base: Option<Reg>,
        index: Option<(Reg, u8)>,
        displacement: u64,
        size: u8,
        next: bool,
    },
    Other,
}

struct Decoded {
    op: Op,
    len: u8,
    operands: [Operand; 2],
    count: u8,
    bytes: u8,
}

macro_rules! decoder {
    ($name:ident, $mode:ident, $disp:ident, [$($absolute:ident: $width:expr),*], [$($wide:ident),*], $reg:expr) => {
        fn $name(bytes: &[u8]) -> Option<Decoded> {
            use yaxpeax_x86::$mode::{InstDecoder, Opcode, Operand as Theirs};
            let i = InstDecoder::default().decode_slice(bytes).ok()?;
            let op = match i.opcode() {
                Opcode::MOV => Op::Mov,
                Opcode::MOVZX => Op::Movzx,
                Opcode::MOVSX | Opcode::MOVSXD => Op::Movsx,
                Opcode::XCHG => Op::Xchg,
                Opcode::XADD => Op::Xadd,
                Opcode::CMPXCHG => Op::Cmpxchg,
                Opcode::ADD => Op::Add,
                Opcode::ADC => Op::Adc,
                Opcode::SUB => Op::Sub,
                Opcode::SBB => Op::Sbb,
                Opcode::NEG => Op::Neg,
                Opcode::INC => Op::Inc,
                Opcode::DEC => Op::Dec,
                Opcode::AND => Op::And,
                Opcode::OR => Op::Or,
                Opcode::XOR => Op::Xor,
                Opcode::NOT => Op::Not,
                Opcode::CMP => Op::Cmp,
                Opcode::TEST => Op::Test,
                Opcode::BT => Op::Bt,
                Opcode::BTS => Op::Bts,
                Opcode::BTR => Op::Btr,
                Opcode::BTC => Op::Btc,
                Opcode::MOVS => Op::Movs,
                Opcode::STOS => Op::Stos,
                _ => return None,
            };
            let reg = $reg;
            let memory = |base: Option<_>, index: Option<(_, u8)>, disp: i32| {
                let base = base.map(|r| reg(r));
                let index = index.map(|(r, scale)| (reg(r), scale));
                let (Some(base), Some(index)) = (base.map_or(Some(None), |b| b.map(Some)), index.map_or(Some(None), |(r, s)| r.map(|r| Some((r, s))))) else {
                    return Operand::Other;
                };
                let first = base.or(index.map(|(r, _): ((Reg, bool), u8)| r));
                let size = first.map_or(8, |(r, _)| r.size);
                let next = base.is_some_and(|(_, next)| next);
                let base = base.filter(|(_, next)| !next).map(|(r, _)| r);
                let index = index.map(|((r, _), scale)| (r, scale));
                Operand::Memory { base, index, displacement: i64::from(disp) as u64, size, next }
            };
            let operand = |number: u8| match i.operand(number) {
                Theirs::Register { reg: r } => match reg(r) {
                    Some((r, false)) => Operand::Reg(r),
                    _ => Operand::Other,
                },
                Theirs::ImmediateI8 { imm } => Operand::Immediate(i64::from(imm) as u64),
                Theirs::ImmediateU8 { imm } => Operand::Immediate(imm.into()),
                Theirs::ImmediateI16 { imm } => Operand::Immediate(i64::from(imm) as u64),
                Theirs::ImmediateU16 { imm } => Operand::Immediate(imm.into()),
                Theirs::ImmediateI32 { imm } => Operand::Immediate(i64::from(imm) as u64),
                Theirs::ImmediateU32 { imm } => Operand::Immediate(imm.into()),
                $(Theirs::$wide { imm } => Operand::Immediate(imm as u64),)*
                $(Theirs::$absolute { addr } => Operand::Memory {
                    base: None, index: None, displacement: addr.into(), size: $width, next: false,
                },)*
                Theirs::MemDeref { base } => memory(Some(base), None, 0),
                Theirs::$disp { base, disp } => memory(Some(base), None, disp),
                Theirs::MemIndexScale { index, scale } => memory(None, Some((index, scale)), 0),
                Theirs::MemIndexScaleDisp { index, scale, disp } => memory(None, Some((index, scale)), disp),
                Theirs::MemBaseIndexScale { base, index, scale } => memory(Some(base), Some((index, scale)), 0),
                Theirs::MemBaseIndexScaleDisp { base, index, scale, disp } => memory(Some(base), Some((index, scale)), disp),
                _ => Operand::Other,
            };
            let count = i.operand_count();
            let operands = [operand(0), if count > 1 { operand(1) } else { Operand::Other }];
            let len = yaxpeax_arch::AddressDiff::to_const(&i.len());
            let bytes = i.mem_size().and_then(|size| size.bytes_size()).unwrap_or(0);
            Some(Decoded { op, len: len as u8, operands, count, bytes })
        }
    };
}

decoder!(decode_64, long_mode, Disp, [AbsoluteU32: 4, AbsoluteU64: 8], [ImmediateI64, ImmediateU64], |r: yaxpeax_x86::long_mode::RegSpec| {
    use yaxpeax_x86::long_mode::register_class as class;
    let (number, size) = (r.num(), r.width());
    match r.class() {
        class::Q | class::D | class::W | class::RB => Some((Reg { number, size, high: false }, false)),
        class::B => Some((Reg { number: number & 3, size, high: number > 3 }, false)),
        class::RIP => Some((Reg { number: 0, size: 8, high: false }, true)),
        class::EIP => Some((Reg { number: 0, size: 4, high: false }, true)),
        _ => None,
    }
});

decoder!(decode_32, protected_mode, Disp, [AbsoluteU16: 2, AbsoluteU32: 4], [], |r: yaxpeax_x86::protected_mode::RegSpec| {
    use yaxpeax_x86::protected_mode::register_class as class;
    let (number, size) = (r.num(), r.width());
    match r.class() {
        class::D | class::W => Some((Reg { number, size, high: false }, false)),
        class::B => Some((Reg { number: number & 3, size, high: number > 3 }, false)),
        _ => None,
    }
});

fn mask(size: u8) -> u64 {
    u64::MAX >> (64 - 8 * u32::from(size))
}

fn signed(value: u64, size: u8) -> i128 {
    let bits = 8 * u32::from(size);
    i128::from(value & mask(size)) - if value >> (bits - 1) & 1 != 0 { 1 << bits } else { 0 }
}

impl Cpu {
    fn get(&self, r: Reg) -> u64 {
        self.gprs[usize::from(r.number)] >> if r.high { 8 } else { 0 } & mask(r.size)
    }

    fn set(&mut self, r: Reg, value: u64) {
        let old = &mut self.gprs[usize::from(r.number)];
        let shift = if r.high { 8 } else { 0 };
        let kept = if r.size == 4 { 0 } else { *old & !(mask(r.size) << shift) };
        *old = kept | (value & mask(r.size)) << shift;
    }

    fn flag(&mut self, flag: u64, set: bool) {
        self.rflags = if set { self.rflags | flag } else { self.rflags & !flag };
    }

    fn result_flags(&mut self, result: u64, size: u8) {
        self.flag(ZF, result & mask(size) == 0);
        self.flag(SF, signed(result, size) < 0);
        self.flag(PF, (0..8).filter(|bit| result >> bit & 1 != 0).count() % 2 == 0);
    }

    fn add(&mut self, a: u64, b: u64, size: u8, carry: bool) -> u64 {
        let c = u64::from(carry);
        let wide = u128::from(a & mask(size)) + u128::from(b & mask(size)) + u128::from(c);
        let result = wide as u64 & mask(size);
        self.flag(CF, wide > u128::from(mask(size)));
        self.flag(AF, (a & 15) + (b & 15) + c > 15);
        self.flag(OF, signed(a, size) + signed(b, size) + i128::from(c) != signed(result, size));
        self.result_flags(result, size);
        result
    }

    fn sub(&mut self, a: u64, b: u64, size: u8, borrow: bool) -> u64 {
        let c = u64::from(borrow);
        let wide = i128::from(a & mask(size)) - i128::from(b & mask(size)) - i128::from(c);
        let result = wide as u64 & mask(size);
        self.flag(CF, wide < 0);
        self.flag(AF, (a & 15) < (b & 15) + c);
        self.flag(OF, signed(a, size) - signed(b, size) - i128::from(c) != signed(result, size));
        self.result_flags(result, size);
        result
    }

    fn logic(&mut self, result: u64, size: u8) -> u64 {
        self.flag(CF | OF, false);
        self.result_flags(result, size);
        result & mask(size)
    }
}

/// The prefixes before an instruction: segment and repetition.
fn prefixes(bits: u32, code: &[u8]) -> (Option<SegmentName>, bool) {
    let (mut segment, mut repeated) = (None, false);
    for byte in code {
        match byte {
            0x64 => segment = Some(SegmentName::Fs),
            0x65 => segment = Some(SegmentName::Gs),
            // They mean nothing in long mode.
            0x26 if bits != 64 => segment = Some(SegmentName::Es),
            0x2e if bits != 64 => segment = Some(SegmentName::Cs),
            0x36 if bits != 64 => segment = Some(SegmentName::Ss),
            0x3e if bits != 64 => segment = Some(SegmentName::Ds),
            0x26 | 0x2e | 0x36 | 0x3e | 0x66 | 0x67 | 0xf0 => {}
            0xf2 | 0xf3 => repeated = true,
            _ => break,
        }
    }
    (segment, repeated)
}

fn is_rex(byte: u8) -> bool {
    byte & 0xf0 == 0x40
}

fn is_prefix(byte: u8) -> bool {
    matches!(byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3)
}

/// The code without prefixes that have no effect, and their number: REX prefixes that another prefix follows (SDM vol. 2 2.2.1), and
/// those that come again. The decoder refuses some of the first, and of the second so many that the opcode is the 15th byte, which is
/// the last one that an instruction may have.
fn without_ignored(bits: u32, code: &[u8]) -> (Vec<u8>, u64) {
    let prefixes = code.iter().take_while(|byte| is_prefix(**byte) || bits == 64 && is_rex(**byte)).count();
    let last = prefixes.saturating_sub(1);
    let ignored = |at: usize| bits == 64 && is_rex(code[at]) || code[at + 1..prefixes].contains(&code[at]);
    let mut kept: Vec<u8> = (0..last).filter(|at| !ignored(*at)).map(|at| code[at]).collect();
    kept.extend(&code[last..]);
    let ignored = code.len() - kept.len();
    (kept, ignored as u64)
}

/// Decodes 16-bit code as 32-bit code: the two differ in what 66 and 67 mean.
fn decode_16(code: &[u8]) -> Option<Decoded> {
    let prefixes = code.iter().take_while(|byte| is_prefix(**byte)).count();
    let mut turned: Vec<u8> = Vec::new();
    for byte in &code[..prefixes] {
        if !matches!(byte, 0x66 | 0x67) && !turned.contains(byte) {
            turned.push(*byte);
        }
    }
    turned.extend([0x66, 0x67].iter().filter(|byte| !code[..prefixes].contains(byte)));
    let more = turned.len();
    turned.extend(&code[prefixes..]);
    let i = decode_32(&turned)?;
    Some(Decoded { len: (usize::from(i.len) + prefixes - more) as u8, ..i })
}

/// Corrects widths that the decoder has wrong in 64-bit code. MOVSXD without REX.W does not widen (SDM vol. 2 "MOVSX/MOVSXD"): it is
/// r32, r/m32, and with 66 it is r16, r/m16. The BT family with an immediate has 64 bits with REX.W,
/// whatever 66 says, and only then.
fn correct_widths(code: &[u8], i: &mut Decoded) {
    let Some(at) = code.iter().position(|byte| !is_prefix(*byte) && !is_rex(*byte)) else { return };
    let wide = at > 0 && matches!(code[at - 1], 0x48..0x50);
    let narrow = if code[..at].contains(&0x66) { 2 } else { 4 };
    if code[at] == 0x63 && !wide {
        i.bytes = narrow;
        if let Operand::Reg(r) = &mut i.operands[0] {
            r.size = narrow;
        }
    } else if code[at..].starts_with(&[0x0f, 0xba]) {
        i.bytes = if wide { 8 } else { narrow };
    }
}

/// Carries out an instruction of a guest without paging, with code of `bits` bits. Devices answer each read with `answer`. Returns
/// `None` if it is none of those that access a device's registers.
pub fn carry_out(
    bits: u32,
    code: &[u8],
    before: &Cpu,
    segments: [u64; 8],
    memory: &GuestMemory,
    answer: u64,
) -> Option<Outcome> {
    let (mut code, ignored) = without_ignored(bits, code);
    // 82 is 80 by another name outside of 64-bit code (SDM vol. 2 table A-2). The decoder does not know it.
    if let Some(opcode) = code.iter_mut().find(|byte| !is_prefix(**byte))
        && bits != 64
        && *opcode == 0x82
    {
        *opcode = 0x80;
    }
    let code = &code[..];
    let mut i = match bits {
        64 => decode_64(code)?,
        32 => decode_32(code)?,
        _ => decode_16(code)?,
    };
    if bits == 64 {
        correct_widths(code, &mut i);
    }
    let next = before.rip + u64::from(i.len) + ignored;
    let (segment, repeated) = prefixes(bits, code);
    let linear = |segment: SegmentName, offset: u64| {
        let base = segments[segment as usize];
        let flat = bits == 64 && !matches!(segment, SegmentName::Fs | SegmentName::Gs);
        (if flat { offset } else { base.wrapping_add(offset) }) & 0xffff_ffff
    };
    if matches!(i.op, Op::Movs | Op::Stos) {
        return string(&i, before, next, repeated, segment.unwrap_or(SegmentName::Ds), linear, memory, answer);
    }
    let at = i.operands.iter().position(|operand| matches!(operand, Operand::Memory { .. }))?;
    let Operand::Memory { base, index, displacement, size: width, next: from_next } = i.operands[at] else {
        return None;
    };
    let size = i.bytes;
    if !matches!(size, 1 | 2 | 4 | 8) {
        return None;
    }
    let mut offset = displacement;
    offset = offset.wrapping_add(base.map_or(0, |r| before.get(r)));
    offset = offset.wrapping_add(index.map_or(0, |(r, scale)| before.get(r).wrapping_mul(scale.into())));
    offset = offset.wrapping_add(if from_next { next } else { 0 }) & mask(width);
    // SDM vol. 1 table 3-5.
    let stack = base.is_some_and(|r| r.number == 5 || r.number == 4 && r.size == 4);
    let name = segment.unwrap_or(if stack { SegmentName::Ss } else { SegmentName::Ds });
    let other = i.operands[1 - at];
    let value = match other {
        Operand::Reg(r) => before.get(r),
        Operand::Immediate(value) => value,
        Operand::Other if i.count == 1 => 0,
        _ => return None,
    };
    if matches!(i.op, Op::Bt | Op::Bts | Op::Btr | Op::Btc)
        && let Operand::Reg(r) = other
    {
        let bit = signed(value, r.size);
        offset = offset.wrapping_add((bit.div_euclid(8 * i128::from(size)) * i128::from(size)) as u64);
    }
    let gpa = linear(name, offset);
    let mut cpu = *before;
    cpu.rip = if bits == 64 { next } else { next & 0xffff_ffff };
    let read = answer & mask(size);
    let carry = before.rflags & CF != 0;
    let mut accesses = vec![Access::Read { gpa, size }];
    let mut defined = STATUS;
    let mut to_memory = None;
    // The operands in the order of the instruction.
    let (left, right) = if at == 0 { (read, value) } else { (value, read) };
    let result = match i.op {
        Op::Mov if at == 0 => {
            accesses.clear();
            Some(value)
        }
        Op::Mov | Op::Movzx => Some(read),
        Op::Movsx => Some(signed(read, size) as u64),
        Op::Xchg => {
            to_memory = Some(value);
            let Operand::Reg(r) = other else { return None };
            cpu.set(r, read);
            None
        }
        Op::Xadd => {
            to_memory = Some(cpu.add(read, value, size, false));
            let Operand::Reg(r) = other else { return None };
            cpu.set(r, read);
            None
        }
        Op::Cmpxchg => {
            let accumulator = Reg { number: 0, size, high: false };
            let equal = cpu.sub(cpu.get(accumulator), read, size, false) == 0;
            to_memory = Some(if equal { value } else { read });
            if !equal {
                cpu.set(accumulator, read);
            }
            None
        }
        Op::Add => Some(cpu.add(left, right, size, false)),
        Op::Adc => Some(cpu.add(left, right, size, carry)),
        Op::Sub => Some(cpu.sub(left, right, size, false)),
        Op::Sbb => Some(cpu.sub(left, right, size, carry)),
        Op::Cmp => {
            cpu.sub(left, right, size, false);
            None
        }
        Op::Neg => Some(cpu.sub(0, read, size, false)),
        Op::Not => Some(!read),
        Op::Inc | Op::Dec => {
            let result = if i.op == Op::Inc { cpu.add(read, 1, size, false) } else { cpu.sub(read, 1, size, false) };
            cpu.flag(CF, carry);
            Some(result)
        }
        Op::And | Op::Or | Op::Xor | Op::Test => {
            defined &= !AF;
            let result = match i.op {
                Op::Or => left | right,
                Op::Xor => left ^ right,
                _ => left & right,
            };
            let result = cpu.logic(result, size);
            (i.op != Op::Test).then_some(result)
        }
        Op::Bt | Op::Bts | Op::Btr | Op::Btc => {
            defined = CF | ZF;
            let bit = 1 << (value as u32 % (8 * u32::from(size)));
            cpu.flag(CF, read & bit != 0);
            match i.op {
                Op::Bts => Some(read | bit),
                Op::Btr => Some(read & !bit),
                Op::Btc => Some(read ^ bit),
                _ => None,
            }
        }
        Op::Movs | Op::Stos => return None,
    };
    if let Some(result) = result {
        match i.operands[0] {
            Operand::Reg(r) => cpu.set(r, result),
            _ => to_memory = Some(result),
        }
    }
    accesses.extend(to_memory.map(|value| Access::Write { gpa, size, value: value & mask(size) }));
    Some(Outcome { cpu, defined, accesses, stored: None, page: gpa })
}

/// One element of MOVS or STOS.
#[allow(clippy::too_many_arguments, reason = "what the instruction depends on")]
fn string(
    i: &Decoded,
    before: &Cpu,
    next: u64,
    repeated: bool,
    source: SegmentName,
    linear: impl Fn(SegmentName, u64) -> u64,
    memory: &GuestMemory,
    answer: u64,
) -> Option<Outcome> {
    let Operand::Memory { base: Some(Reg { size: width, .. }), .. } = i.operands[0] else { return None };
    let size = i.bytes;
    let register = |number| Reg { number, size: width, high: false };
    let (si, di, count) = (register(6), register(7), register(1));
    let mut cpu = *before;
    let (from, to) = (linear(source, before.get(si)), linear(SegmentName::Es, before.get(di)));
    let mut outcome = Outcome { cpu, defined: STATUS, accesses: Vec::new(), stored: None, page: to };
    if repeated && before.get(count) == 0 {
        outcome.cpu.rip = next;
        return Some(outcome);
    }
    let value = if i.op == Op::Stos {
        before.gprs[0] & mask(size)
    } else {
        let mut bytes = [0; 8];
        if memory.read(from, &mut bytes[..size.into()]).is_err() {
            outcome.accesses.push(Access::Read { gpa: from, size });
            bytes = answer.to_le_bytes();
        }
        u64::from_le_bytes(bytes) & mask(size)
    };
    if memory.translate(to, size.into()).is_ok() {
        outcome.stored = Some((to, value.to_le_bytes()[..size.into()].to_vec()));
    } else {
        outcome.accesses.push(Access::Write { gpa: to, size, value });
    }
    let step =
        |old: u64| if before.rflags & DF != 0 { old.wrapping_sub(size.into()) } else { old.wrapping_add(size.into()) };
    cpu.set(di, step(before.get(di)));
    if i.op == Op::Movs {
        cpu.set(si, step(before.get(si)));
    }
    if repeated {
        cpu.set(count, before.get(count).wrapping_sub(1));
    }
    if !repeated || cpu.get(count) == 0 {
        cpu.rip = next;
    }
    outcome.cpu = cpu;
    Some(outcome)
}
