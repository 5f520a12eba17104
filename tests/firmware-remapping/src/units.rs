//! Switches IOMMUs on (VT-d 4.1, chapters 9 and 11.4; AMD 48882 revision 3.08, 2.2 and 3.4). The structures in memory are one set,
//! which all units share.

use crate::console::print;
use boot::acpi::{Maker, RemappingUnit};
use core::ptr;

/// Structures that a unit reads. All zeroes mean "not present".
#[repr(align(4096))]
struct Pages<const N: usize>([u64; N]);

/// One page of an Intel unit each: root table, context table, interrupt remapping table, invalidation queue.
static mut ROOT: Pages<512> = Pages([0; 512]);
static mut CONTEXT: Pages<512> = Pages([0; 512]);
static mut INTERRUPTS: Pages<512> = Pages([0; 512]);
static mut QUEUE: Pages<512> = Pages([0; 512]);
/// Where an Intel unit says that it has come to the end of the queue.
static mut QUEUE_STATUS: Pages<512> = Pages([0; 512]);

/// Words of an AMD unit's device table: four for each of the 65,536 devices of a segment.
const DEVICE_TABLE: usize = 4 << 16;
static mut DEVICES: Pages<DEVICE_TABLE> = Pages([0; DEVICE_TABLE]);
/// A page table without entries, a command buffer and an event log of 256 entries each.
static mut NOTHING: Pages<512> = Pages([0; 512]);
static mut COMMANDS: Pages<512> = Pages([0; 512]);
static mut EVENTS: Pages<512> = Pages([0; 512]);

/// Switches a unit on, and writes what it reads back. `identity`: each device reaches all memory; otherwise none does.
pub fn switch_on(unit: RemappingUnit, identity: bool) {
    let registers = Registers(unit.registers);
    match unit.maker {
        Maker::Intel => intel(registers, identity),
        Maker::Amd => {
            assert!(!identity, "`remapping=identity` is for Intel's units");
            amd(registers);
        }
    }
}

/// A unit's registers, at their physical address.
#[derive(Clone, Copy)]
struct Registers(u64);

impl Registers {
    fn read<T>(self, offset: u64) -> T {
        let at = ptr::with_exposed_provenance::<T>((self.0 + offset) as usize);
        // SAFETY: ACPI says that the unit's registers are there. Everything below 4 GiB is mapped, and a register is aligned.
        unsafe { at.read_volatile() }
    }

    fn write<T>(self, offset: u64, value: T) {
        let at = ptr::with_exposed_provenance_mut::<T>((self.0 + offset) as usize);
        // SAFETY: as above.
        unsafe { at.write_volatile(value) };
    }
}

/// The physical address of memory of this program.
fn address<T>(of: *const T) -> u64 {
    of.expose_provenance() as u64
}

fn intel(unit: Registers, identity: bool) {
    const CAP: u64 = 0x08;
    const ECAP: u64 = 0x10;
    const GCMD: u64 = 0x18;
    const GSTS: u64 = 0x1c;
    const RTADDR: u64 = 0x20;
    const PMEN: u64 = 0x64;
    const IQT: u64 = 0x88;
    const IQA: u64 = 0x90;
    const IRTA: u64 = 0xb8;
    /// Bits of the global command and status registers.
    const TRANSLATION: u32 = 1 << 31;
    const ROOT_TABLE: u32 = 1 << 30;
    const QUEUED: u32 = 1 << 26;
    const REMAPPING: u32 = 1 << 25;
    const INTERRUPT_TABLE: u32 = 1 << 24;
    /// In ECAP: queued invalidation, interrupt remapping, pass-through.
    const QI: u64 = 1 << 1;
    const IR: u64 = 1 << 3;
    const PT: u64 = 1 << 6;

    let extended: u64 = unit.read(ECAP);
    assert_eq!(extended & (QI | IR | PT), QI | IR | PT, "the unit lacks something: ECAP is {extended:#x}");
    if identity {
        // Each bus has the same context table, and each entry of that passes requests through (translation type 2), with
        // the address width of 39 bits (1).
        let context = address(&raw const CONTEXT);
        for word in (0..512).step_by(2) {
            // SAFETY: the tables are this program's, and no unit reads them yet.
            unsafe {
                (&raw mut ROOT.0[word]).write(context | 1);
                (&raw mut CONTEXT.0[word]).write(2 << 2 | 1);
                (&raw mut CONTEXT.0[word + 1]).write(1 << 8 | 1);
            }
        }
    }
    let command = |lasting: u32, more: u32| {
        unit.write(GCMD, lasting | more);
        while unit.read::<u32>(GSTS) & more == 0 {}
    };
    unit.write(RTADDR, address(&raw const ROOT));
    command(0, ROOT_TABLE);
    unit.write(IQT, 0_u64);
    unit.write(IQA, address(&raw const QUEUE));
    command(0, QUEUED);
    // 256 entries.
    unit.write(IRTA, address(&raw const INTERRUPTS) | 7);
    command(QUEUED, INTERRUPT_TABLE);
    invalidate(unit);
    command(QUEUED, REMAPPING);
    command(QUEUED | REMAPPING, TRANSLATION);
    let capabilities: u64 = unit.read(CAP);
    // A unit without protected regions ignores it.
    unit.write(PMEN, 1_u32 << 31);
    print(format_args!(
        "firmware: Intel's IOMMU at {:#x} is on: GSTS {:#x}, PMEN {:#x}, CAP {capabilities:#x}\n",
        unit.0,
        unit.read::<u32>(GSTS),
        unit.read::<u32>(PMEN),
    ));
}

/// Has an Intel unit forget what it has read before, as the manual demands for new tables (6.5.2): contexts, translations, interrupt
/// entries. The last descriptor is a wait, and the queue is empty afterwards.
fn invalidate(unit: Registers) {
    const IQT: u64 = 0x88;
    /// What the unit writes when it is done.
    const DONE: u64 = 0x600d;
    // SAFETY: the address is within the page.
    let status = unsafe { &raw mut QUEUE_STATUS.0[0] };
    // Each has a type in bits 3:0. The first three are for everything. The wait has a status to write.
    let descriptors = [[1 | 1 << 4, 0], [2 | 1 << 4, 0], [4, 0], [5 | 1 << 5 | DONE << 32, address(status)]];
    for (word, value) in descriptors.iter().flatten().enumerate() {
        // SAFETY: the queue is this program's, and the unit reads up to its tail only, which is 0.
        unsafe { (&raw mut QUEUE.0[word]).write_volatile(*value) };
    }
    unit.write(IQT, size_of_val(&descriptors) as u64);
    // SAFETY: only the unit writes there.
    while unsafe { status.read_volatile() } != DONE {}
}

fn amd(unit: Registers) {
    const DEVICE_TABLE_BASE: u64 = 0x00;
    const COMMAND_BASE: u64 = 0x08;
    const EVENT_BASE: u64 = 0x10;
    const CONTROL: u64 = 0x18;
    const STATUS: u64 = 0x2020;
    /// Valid, translation valid, four levels of page tables, reads and writes allowed.
    const ENTRY: u64 = 1 | 1 << 1 | 4 << 9 | 1 << 61 | 1 << 62;
    /// IommuEn, EventLogEn, CmdBufEn.
    const ON: u64 = 1 | 1 << 2 | 1 << 12;
    /// 256 entries.
    const ENTRIES: u64 = 8 << 56;

    let nothing = address(&raw const NOTHING);
    for word in (0..DEVICE_TABLE).step_by(4) {
        // SAFETY: the table is this program's, and no unit reads it yet.
        unsafe { (&raw mut DEVICES.0[word]).write(nothing | ENTRY) };
    }
    // The size in pages, less one: all of 2 MiB.
    unit.write(DEVICE_TABLE_BASE, address(&raw const DEVICES) | 0x1ff);
    unit.write(COMMAND_BASE, address(&raw const COMMANDS) | ENTRIES);
    unit.write(EVENT_BASE, address(&raw const EVENTS) | ENTRIES);
    unit.write(CONTROL, ON);
    print(format_args!(
        "firmware: AMD's IOMMU at {:#x} is on: control {:#x}, status {:#x}\n",
        unit.0,
        unit.read::<u64>(CONTROL),
        unit.read::<u64>(STATUS),
    ));
}
