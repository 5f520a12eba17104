//! Races of two vCPUs, each until a line is typed. The second vCPU disturbs what the first one does. They report what the first
//! one saw. `least`: once both have done so much, they say `enough`, and go on.
//!
//! - `race-decode`: the first executes an instruction on a device's register, while the second rewrites the instruction and the
//!   page tables. So the hypervisor may read another instruction than the one that exited, and find another page behind the address.
//! - `race-reset`: the first starts devices and makes requests, while the second notifies and resets the same devices.
//! - `race-startup`: the first resets and starts the second, while that moves and rewrites its IDT and takes interrupts.

#![allow(unsafe_code, reason = "executes instructions that another vCPU writes")]

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering::SeqCst};

use bare::attempt::{self, RECOVER};
use bare::memory::{self, ARENA, FREE_GIBIBYTE, read64, write64};
use bare::virtio_pci::{Parts, common};
use bare::{cpu, smp, trap};

use crate::abuse;
use crate::apic;
use crate::device::TX;
use crate::flood::until_line;
use crate::raw::{self, BUFFERS, Buffer, Raw};
use crate::report::say;
use crate::time;

/// What the first vCPU tells the second.
static SHARED: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
/// How often the second vCPU has started.
static STARTS: AtomicU64 = AtomicU64::new(0);
/// What the second vCPU has done.
static DONE: AtomicU64 = AtomicU64::new(0);

/// A sequence of numbers (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % end
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// Starts the second vCPU, and waits until it has started once more.
fn start() -> Result<(), &'static str> {
    let before = STARTS.load(SeqCst);
    smp::restart();
    if time::wait(|| STARTS.load(SeqCst) != before) { Ok(()) } else { Err("the second vCPU did not start") }
}

/// Pages of the race: a directory and a table, two pages of code, memory that takes the place of the device's registers, and
/// what a string instruction copies.
const DIRECTORY: u64 = ARENA + 0x18_0000;
const TABLE: u64 = DIRECTORY + 0x1000;
const CODES: [u64; 2] = [DIRECTORY + 0x2000, DIRECTORY + 0x3000];
const PLAIN: u64 = DIRECTORY + 0x4000;
const SOURCE: u64 = DIRECTORY + 0x5000;
const RACE_END: u64 = DIRECTORY + 0x6000;
/// The code ends with its page, so the longest instruction from there on reaches into the next.
const CODE_AT: u64 = 0xff8;
/// Linear pages: the code, what follows it, and the operand.
const CODE: u64 = FREE_GIBIBYTE;
const OPERAND: u64 = FREE_GIBIBYTE + 0x2000;
const PRESENT: u64 = 1;
const WRITABLE: u64 = 2;
/// An address with nothing behind it: above the memory and the devices.
const NOWHERE: u64 = 1 << 35;

/// Bytes that the first vCPU has in its registers and in memory. The two halves of each byte are alike. Every instruction of the
/// race moves, sign-extends, or combines bit by bit, and that keeps them alike.
const RAX: u64 = u64::from_ne_bytes([0x11; 8]);
const RDX: u64 = u64::from_ne_bytes([0x44; 8]);
const R8: u64 = u64::from_ne_bytes([0x22; 8]);
const COPIED: u64 = u64::from_ne_bytes([0x88; 8]);

/// Bytes 0 to 3 of the code. Four times NOP and RET follow.
///
/// A processor that executes code while another one changes it may execute a mixture of old and new bytes, unless both
/// synchronize (SDM vol. 3A 8.1.3). So every mixture of these bytes is code that this race may execute:
///
/// - byte 0: NOP, a prefix, or an instruction that is invalid in 64-bit mode;
/// - byte 1: the same, or MOVS or STOS;
/// - byte 2: the opcode of an instruction with a ModRM byte;
/// - byte 3: its ModRM byte. The operands are RAX, RDX, R8 or R10, and memory at RDI.
///
/// Every instruction begins at byte 0, 1 or 2 and ends there, or with byte 3. Each ModRM byte is an invalid instruction. So an
/// exception at byte 3 shows that the hypervisor has stepped over a part of an instruction.
const BYTES: [&[u8]; 4] = [
    // NOP, operands of 16 bits, operands of 64 bits, R8 and R10 as operands, LOCK, PUSH ES.
    &[0x90, 0x90, 0x66, 0x48, 0x44, 0xf0, 0x06],
    // NOP, operands of 64 bits (twice), R8 and R10 as operands, and both; MOVSB, MOVS, STOSB, STOS.
    &[0x90, 0x48, 0x48, 0x44, 0x4c, 0xa4, 0xa5, 0xaa, 0xab],
    // MOV to memory and from it, XCHG, OR, AND, XOR to memory and from it, CMP, TEST, MOVSXD.
    &[0x88, 0x89, 0x89, 0x8a, 0x8b, 0x8b, 0x86, 0x87, 0x87, 0x08, 0x09, 0x0b, 0x21, 0x23, 0x31, 0x33, 0x39, 0x85, 0x63],
    &[0x07, 0x17],
];
const MODRM: u64 = CODE + CODE_AT + 3;

/// Any code of the race, in one word, so that a store replaces all of it.
fn code(random: &mut Random) -> u64 {
    let mut word = [0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0x90, 0xc3];
    for (byte, choices) in word.iter_mut().zip(BYTES) {
        *byte = random.of(choices);
    }
    u64::from_le_bytes(word)
}

/// The second vCPU of `race-decode`.
fn rewrite() -> ! {
    STARTS.fetch_add(1, SeqCst);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let device = SHARED[0].load(SeqCst);
    let both = PRESENT | WRITABLE;
    let code_pages = [CODES[0] | both, CODES[1] | both, CODES[0] | PRESENT, NOWHERE | both, 0];
    let next_pages = [CODES[1] | both, SOURCE | PRESENT, NOWHERE | both, device | both, 0];
    let operands = [device | both, device | both, device | PRESENT, PLAIN | both, PLAIN | PRESENT, NOWHERE | both, 0];
    loop {
        match random.below(8) {
            0 => write64(TABLE, random.of(&code_pages)),
            1 => write64(TABLE + 8, random.of(&next_pages)),
            2 | 3 => write64(TABLE + 16, random.of(&operands)),
            // Mostly mapped, or the first vCPU would see little but page faults.
            4 => {
                write64(TABLE, CODES[0] | both);
                write64(TABLE + 16, device | both);
            }
            _ => write64(random.of(&CODES) + CODE_AT, code(&mut random)),
        }
        DONE.fetch_add(1, SeqCst);
    }
}

/// Executes whatever code is there. Returns RAX, RDX, R8 and R10, or the vector of an exception.
fn execute(operand: u64) -> Result<[u64; 4], u8> {
    let (rax, rdx, r8, r10): (u64, u64, u64, u64);
    // SAFETY: the instructions store at RDI, which is in no Rust object.
    // The registers that they change are named. After a fault the stack pointer is as it was.
    unsafe {
        asm!(
            "lea {t}, [rip + 2f]",
            "mov [rip + {recover}], {t}",
            "mov r12, rsp",
            "call {code}",
            "2:",
            "mov rsp, r12",
            t = out(reg) _,
            code = in(reg) CODE + CODE_AT,
            recover = sym RECOVER,
            inout("rax") RAX => rax,
            inout("rdx") RDX => rdx,
            inout("r8") R8 => r8,
            inout("r10") 0_u64 => r10,
            inout("rdi") operand => _,
            inout("rsi") SOURCE => _,
            out("r12") _,
        );
    }
    attempt::outcome().map(|()| [rax, rdx, r8, r10])
}

/// Whether the race may have stored or loaded a value. A load from nowhere reads as ones, and they are alike too.
fn is_ours(value: u64) -> bool {
    value.to_le_bytes().iter().all(|byte| byte >> 4 == byte & 0xf)
}

/// Executes an instruction on a device's registers, while the second vCPU rewrites it, and the page tables.
pub fn decode(parts: Parts, least: u64) -> Result<(), &'static str> {
    let table = parts.msix_table();
    let (page, offset) = (table & !0xfff, table & 0xfff);
    memory::clear(DIRECTORY, RACE_END - DIRECTORY);
    for at in (0..0x1000).step_by(8) {
        write64(SOURCE + at, COPIED);
    }
    let mut random = Random(0x0123_4567_89ab_cdef);
    for code_page in CODES {
        write64(code_page + CODE_AT, code(&mut random));
    }
    write64(DIRECTORY, TABLE | PRESENT | WRITABLE);
    write64(table, 0);
    memory::set_free_directory(DIRECTORY);
    SHARED[0].store(page, SeqCst);
    DONE.store(0, SeqCst);
    smp::prepare(rewrite);
    start()?;
    let (mut executed, mut faults, mut strange, mut inside) = (0_u64, 0_u64, 0_u64, 0_u64);
    let mut seen = 0;
    let rounds = until_line(least, || {
        for _ in 0..100 {
            [CODE, CODE + 0x1000, OPERAND].into_iter().for_each(cpu::invalidate);
            let registers = match execute(OPERAND + offset) {
                Ok(registers) => {
                    executed += 1;
                    registers
                }
                Err(_) => {
                    faults += 1;
                    inside += u64::from(attempt::address() == MODRM);
                    [0; 4]
                }
            };
            for value in registers.into_iter().chain([read64(table)]).filter(|&value| !is_ours(value)) {
                strange += 1;
                seen = value;
            }
        }
        Ok(executed.min(DONE.load(SeqCst)))
    })?;
    smp::stop();
    // Nothing stores to what is copied, nor in front of the code.
    let stray = (0..0x1000).step_by(8).filter(|at| read64(SOURCE + at) != COPIED).count()
        + CODES.into_iter().flat_map(|page| (page..page + CODE_AT).step_by(8)).filter(|&at| read64(at) != 0).count();
    write64(table, 0);
    say!(
        "\"do\":\"race-decode\",\"rounds\":{},\"executed\":{executed},\"faults\":{faults},\"rewritten\":{},\"strange\":{strange},\
         \"seen\":{seen},\"inside\":{inside},\"stray\":{stray}",
        rounds * 100,
        DONE.load(SeqCst)
    );
    Ok(())
}

/// The second vCPU of `race-reset`.
fn interfere() -> ! {
    STARTS.fetch_add(1, SeqCst);
    let mut random = Random(0x1234_5678_9abc_def1);
    loop {
        let [status, doorbell, is_port, queue] = SHARED.each_ref().map(|word| word.load(SeqCst));
        for _ in 0..random.below(4) {
            if is_port != 0 {
                cpu::out16(doorbell as u16, queue as u16);
            } else {
                memory::write16(doorbell, queue as u16);
            }
            spin(random.below(200));
        }
        memory::write8(status, 0);
        DONE.fetch_add(1, SeqCst);
        spin(random.below(20_000));
    }
}

fn spin(turns: u64) {
    (0..turns).for_each(|_| core::hint::spin_loop());
}

/// Starts a device and offers requests. Returns how many, after a reset that the device has confirmed, changed something in memory.
fn used_and_reset(parts: Parts, queue: u16, buffers: &[Buffer], random: &mut Random) -> Result<u64, &'static str> {
    const QUIET: u64 = 0xa5a5_a5a5_a5a5_a5a5;
    let mut raw = Raw::open(parts, queue, 0)?;
    let is_port = u64::from(parts.io_ports().is_some());
    let status = parts.common + common::DEVICE_STATUS;
    for (word, value) in SHARED.iter().zip([status, raw.doorbell, is_port, queue.into()]) {
        word.store(value, SeqCst);
    }
    raw.chain(0, buffers);
    for _ in 0..1 + random.below(16) {
        raw.offer(0);
        raw.ring();
    }
    spin(random.below(20_000));
    raw::reset(&parts)?;
    let pages = || (ARENA..raw::END).chain(BUFFERS..BUFFERS + 0x1000).step_by(8);
    pages().for_each(|at| write64(at, QUIET));
    spin(2_000);
    Ok(pages().filter(|&at| read64(at) != QUIET).count() as u64)
}

/// Makes one request, of a device that nobody disturbs.
fn request(parts: Parts, queue: u16, buffers: &[Buffer]) -> Result<(), &'static str> {
    let mut raw = Raw::open(parts, queue, 0)?;
    raw.chain(0, buffers);
    raw.offer(0);
    raw.ring();
    raw.finish()
}

/// Makes requests of a network device and of a disk, while the second vCPU notifies and resets them.
pub fn reset(net: Parts, disk: Parts, least: u64) -> Result<(), &'static str> {
    // A frame to this guest itself, which goes nowhere. A read of block 0.
    let frame: [Buffer; 1] = [(BUFFERS, 72, false)];
    let (header, data, status) = (BUFFERS + 0x100, BUFFERS + 0x200, BUFFERS + 0xc00);
    let read: [Buffer; 3] = [(header, 16, false), (data, 2048, true), (status, 1, true)];
    let prepare = || {
        memory::clear(BUFFERS, 0x1000);
        for at in 0..12 {
            memory::write8(BUFFERS + 12 + at, memory::read8(net.device + at % 6));
        }
    };
    prepare();
    // Until the first device is open, the second vCPU resets the network device.
    for (word, value) in SHARED.iter().zip([net.common + common::DEVICE_STATUS, net.doorbell(TX), 0, TX.into()]) {
        word.store(value, SeqCst);
    }
    SHARED[2].store(net.io_ports().is_some().into(), SeqCst);
    DONE.store(0, SeqCst);
    smp::prepare(interfere);
    start()?;
    let (mut random, mut late, mut own) = (Random(0x0fed_cba9_8765_4321), 0, 0);
    let rounds = until_line(least, || {
        prepare();
        late += used_and_reset(net, TX, &frame, &mut random)?;
        prepare();
        late += used_and_reset(disk, 0, &read, &mut random)?;
        own += 2;
        Ok(DONE.load(SeqCst).min(own))
    })?;
    smp::stop();
    prepare();
    request(net, TX, &frame)?;
    request(disk, 0, &read)?;
    say!(
        "\"do\":\"race-reset\",\"rounds\":{rounds},\"resets\":{},\"late\":{late},\"alive\":true",
        DONE.load(SeqCst) + own
    );
    Ok(())
}

/// The second vCPU of `race-startup`.
fn shake() -> ! {
    const VECTOR: u8 = 0x43;
    /// It rewrites a gate after one of so many starts. The hypervisor then waits before it shadows the table again, and a table
    /// that is not shadowed is not moved.
    const REWRITES: u64 = 16;
    trap::load();
    apic::init();
    let rewrites = STARTS.fetch_add(1, SeqCst).is_multiple_of(REWRITES);
    loop {
        abuse::shake_idt(VECTOR, rewrites);
        DONE.fetch_add(1, SeqCst);
    }
}

/// Resets and starts the second vCPU, while that moves and rewrites its IDT.
pub fn startup(least: u64) -> Result<(), &'static str> {
    abuse::prepare_shaking();
    DONE.store(0, SeqCst);
    smp::prepare(shake);
    let (before, mut random) = (STARTS.load(SeqCst), Random(0x5555_aaaa_1234_4321));
    let rounds = until_line(least, || {
        start()?;
        for _ in 0..random.below(3) {
            abuse::take_own()?;
        }
        spin(random.below(50_000));
        Ok((STARTS.load(SeqCst) - before).min(DONE.load(SeqCst)))
    })?;
    smp::stop();
    say!(
        "\"do\":\"race-startup\",\"rounds\":{rounds},\"starts\":{},\"shaken\":{}",
        STARTS.load(SeqCst) - before,
        DONE.load(SeqCst)
    );
    Ok(())
}

/// The second vCPU of `busy`.
fn turn() -> ! {
    STARTS.fetch_add(1, SeqCst);
    loop {
        core::hint::spin_loop();
    }
}

/// Keeps both vCPUs busy without any I/O, to compare a race with.
pub fn busy() -> Result<(), &'static str> {
    smp::prepare(turn);
    start()?;
    let rounds = until_line(0, || {
        spin(10_000);
        Ok(0)
    })?;
    smp::stop();
    say!("\"do\":\"busy\",\"rounds\":{rounds}");
    Ok(())
}
