//! What the boot loader and the firmware hand over: boot information and ACPI tables of a machine, damaged in any way, with wrong and
//! with right checksums. Nothing is read outside of them and every reading ends. What is not damaged is read as it was written; a
//! table with a wrong checksum is none.

use std::cell::Cell;

use boot::acpi::{
    EcamWindow, Fadt, Memory, Register, Spcr, Tables, cores, dmar, ecam, hpet, io_apics, ivrs, spcr, spmi,
};
use boot::console::{Source, Uart, choose};
use boot::information::{Framebuffer, FramebufferContent, Information, Module};
use boot::ipmi::Interface;
use boot::smbios;
use boot::srat::node_of;
use drivers::generic::{Register as Generic, Space};
use drivers::power::sleep_type_s5;
use drivers::watchdog::Became;
use drivers::wdat::{self, Bus};

use crate::input::Input;
use crate::planted::planted;

/// Where the tables begin in physical memory.
const START: u64 = 0xe_0000;
/// Bytes that may be read of tables in one run, and how often, so that no reading takes long.
const MOST_BYTES: u64 = 8 << 20;
const MOST_READS: u64 = 100_000;

/// Physical memory.
struct Ram {
    bytes: Vec<u8>,
    reads: Cell<u64>,
    given: Cell<u64>,
}

impl Memory for Ram {
    fn bytes(&self, address: u64, len: u64) -> Option<&[u8]> {
        self.reads.set(self.reads.get() + 1);
        let from = usize::try_from(address.checked_sub(START)?).ok()?;
        let bytes = self.bytes.get(from..from.checked_add(usize::try_from(len).ok()?)?)?;
        self.given.set(self.given.get() + len);
        assert!(self.reads.get() < MOST_READS && self.given.get() < MOST_BYTES, "reading ends");
        Some(bytes)
    }
}

/// A watchdog: each register has what was written there last, and nothing at first. Only registers that the table may name are
/// ever reached, as wide as they are.
#[derive(Default)]
struct Watchdog {
    written: Vec<(Generic, u32)>,
    accesses: u32,
}

impl Watchdog {
    fn reach(&mut self, register: Generic) {
        self.accesses += 1;
        let Generic { space, address, bytes, .. } = register;
        assert!(matches!(bytes, 1 | 2 | 4) && address != 0, "{register}");
        match space {
            Space::Memory => assert!(address.is_multiple_of(bytes.into()) && !is_taken(register), "{register}"),
            Space::Ports => assert!((0x100..0xcf8).contains(&address) || address >= 0xd00, "{register}"),
        }
        assert!(self.accesses < 10_000, "programs end");
    }
}

impl Bus for Watchdog {
    fn read(&mut self, register: Generic) -> u32 {
        self.reach(register);
        let last = self.written.iter().rev().find(|(other, _)| other.address == register.address);
        last.map_or(0, |&(_, value)| value)
    }

    fn write(&mut self, register: Generic, value: u32) {
        self.reach(register);
        assert!(u64::from(value) >> (8 * u32::from(register.bytes)) == 0, "{value:#x} at {register}");
        self.written.push((register, value));
    }
}

/// Memory, as the watchdog's table must not name it.
fn is_taken(register: Generic) -> bool {
    register.space == Space::Memory && register.address < 1 << 20
}

/// What a table says of a watchdog: how many of its instructions are used, or nothing if it is not used.
fn watchdog(table: &[u8]) -> Option<usize> {
    let table = match wdat::Table::new(table, is_taken) {
        Ok(table) => table,
        Err(why) => {
            assert!(!why.to_string().is_empty());
            return None;
        }
    };
    let mut bus = Watchdog::default();
    let _ = table.stop(&mut bus);
    if table.arm(&mut bus, 20).is_ok() {
        // What says that it runs says so now.
        assert_ne!(table.stop(&mut Watchdog { accesses: 0, ..bus }), Became::Off);
    }
    Some(table.registers().count())
}

/// What the tables say.
#[derive(Default)]
struct Machine {
    watchdog: Option<usize>,
    cores: Vec<u32>,
    nodes: Vec<(u32, u32)>,
    windows: Vec<EcamWindow>,
    pm_timer: Option<u16>,
    pm1a: Option<Register>,
    reset: Option<(Register, u8)>,
    sleep: Option<(u8, u8)>,
    console: Option<Spcr>,
}

/// Sets the byte that makes the sum 0.
fn seal(bytes: &mut [u8], at: usize) {
    bytes[at] = 0;
    bytes[at] = bytes.iter().fold(0_u8, |sum, byte| sum.wrapping_sub(*byte));
}

fn table(signature: &[u8; 4], revision: u8, body: &[u8]) -> Vec<u8> {
    let mut table =
        [&signature[..], &(36 + body.len() as u32).to_le_bytes(), &[revision, 0], &[0x20; 26], body].concat();
    seal(&mut table, 9);
    table
}

fn madt(input: &mut Input<'_>, machine: &mut Machine) -> Vec<u8> {
    let mut body = vec![0; 8];
    for _ in 0..input.byte() % 24 {
        let (enabled, id) = (!input.byte().is_multiple_of(4), u32::from(input.byte()));
        let id = match input.byte() % 3 {
            0 => {
                body.extend([0, 8, 1, id as u8, u8::from(enabled), 0, 0, 0]);
                id
            }
            1 => {
                let id = id << 8 | 5;
                body.extend([&[9, 16, 0, 0][..], &id.to_le_bytes(), &[u8::from(enabled), 0, 0, 0], &[0; 4]].concat());
                id
            }
            _ => {
                let len = 2 + input.byte() % 60;
                body.extend([&[1 + input.byte() % 8, len][..], &vec![0x11; usize::from(len) - 2]].concat());
                continue;
            }
        };
        // By 255 all cores are meant.
        if enabled && id != 255 && !machine.cores.contains(&id) {
            machine.cores.push(id);
        }
    }
    table(b"APIC", 5, &body)
}

fn srat(input: &mut Input<'_>, machine: &mut Machine) -> Vec<u8> {
    let mut body = vec![0; 12];
    for &id in &machine.cores {
        let node = u32::from(input.byte());
        body.extend([&[2, 24, 0, 0][..], &node.to_le_bytes(), &id.to_le_bytes(), &[1, 0, 0, 0], &[0; 8]].concat());
        machine.nodes.push((id, node));
    }
    table(b"SRAT", 3, &body)
}

fn mcfg(input: &mut Input<'_>, machine: &mut Machine) -> Vec<u8> {
    let mut body = vec![0; 8];
    for _ in 0..input.byte() % 4 {
        let (base, segment) = (u64::from(input.byte()) << 28, u16::from(input.byte().is_multiple_of(4)));
        let (first, last) = (input.byte(), input.byte());
        body.extend([&base.to_le_bytes()[..], &segment.to_le_bytes(), &[first, last], &[0; 4]].concat());
        // All bases are multiples of 256 MiB, the bytes of all buses. So only windows of the same base can overlap.
        let taken =
            |bus| machine.windows.iter().any(|other| other.base == base && (other.first..=other.last).contains(&bus));
        if first <= last && !(first..=last).any(taken) {
            machine.windows.push(EcamWindow { base, segment, first, last });
        }
    }
    table(b"MCFG", 1, &body)
}

fn console(input: &mut Input<'_>, machine: &mut Machine) -> Vec<u8> {
    let (revision, interface, space) = (1 + input.byte() % 4, input.byte() % 4, input.byte() % 3);
    let (address, code) = (input.wide() >> (input.byte() % 64), input.byte() % 8);
    let mut whole = [0; 90];
    let mut put = |at: usize, bytes: &[u8]| whole[at..at + bytes.len()].copy_from_slice(bytes);
    put(36, &[interface]);
    put(40, &[space, 8, 0, 1]);
    put(44, &address.to_le_bytes());
    put(58, &[code]);
    let rate = match code {
        3 => Some(9_600),
        4 => Some(19_200),
        6 => Some(57_600),
        7 => Some(115_200),
        _ => None,
    };
    machine.console = Some(match (interface, space) {
        _ if address == 0 => Spcr::Off,
        (2.., _) => Spcr::Type(interface),
        (_, 0) => Spcr::InMemory(address),
        (_, 1) if address <= 0xfff8 => Spcr::Uart(Uart { port: address as u16, rate }),
        _ => Spcr::Damaged,
    });
    table(b"SPCR", revision, &whole[36..])
}

fn wdat(input: &mut Input<'_>, machine: &mut Machine) -> Vec<u8> {
    let mut body = vec![32, 0, 0, 0, 0xff, 0, 0xff, 0xff, 0xff, 0, 0, 0];
    body.extend([600_u32, 0x3ff, 2, 1].map(u32::to_le_bytes).concat());
    let mut lines: Vec<[u8; 24]> = Vec::new();
    let mut line = |action: u8, instruction: u8, port: u16, bit: u8, value: u32| {
        let mut line = [0; 24];
        line[..8].copy_from_slice(&[action, instruction, 0, 0, 1, 32, bit, 3]);
        line[8..10].copy_from_slice(&port.to_le_bytes());
        line[16..20].copy_from_slice(&value.to_le_bytes());
        line[20] = 1;
        lines.push(line);
    };
    let port = 0x400 + u16::from(input.byte());
    // It feeds, says whether it runs, stops, starts and takes a count.
    line(0x01, 2, port + 8, 0, 1);
    line(0x08, 0, port, input.byte() % 32, 1);
    line(0x0b, 0x82, port, 3, 0);
    line(0x09, 0x82, port, 3, 1);
    line(0x06, 0x83, port + 4, 0, 0);
    for _ in 0..input.byte() % 8 {
        let (action, instruction, bit) = (0x10 + input.byte() % 4, input.byte() % 4, input.byte() % 32);
        line(action, instruction, port, bit, u32::from(input.byte()));
    }
    machine.watchdog = Some(lines.iter().filter(|line| line[0] < 0x12).count());
    body.extend((lines.len() as u32).to_le_bytes());
    body.extend(lines.concat());
    table(b"WDAT", 1, &body)
}

fn dsdt(input: &mut Input<'_>, machine: &mut Machine) -> Vec<u8> {
    let mut body: Vec<u8> = (0..input.byte()).collect();
    let (a, b) = (input.byte() % 8, input.byte() % 8);
    if !input.byte().is_multiple_of(4) {
        body.extend([8, b'_', b'S', b'5', b'_', 0x12, 8, 4, 10, a, 10, b, 0, 0]);
        machine.sleep = Some((a, b));
    }
    table(b"DSDT", 2, &body)
}

fn fadt(input: &mut Input<'_>, machine: &mut Machine, dsdt: u64) -> Vec<u8> {
    let revision = 1 + input.byte() % 6;
    let mut whole = vec![0; 244];
    let mut put = |at: usize, bytes: &[u8]| whole[at..at + bytes.len()].copy_from_slice(bytes);
    put(40, &(dsdt as u32).to_le_bytes());
    let (old, new) = (u16::from(input.byte()), u16::from(input.byte()));
    put(64, &u32::from(old).to_le_bytes());
    put(76, &u32::from(old).to_le_bytes());
    let timer = input.flag();
    put(91, &[if timer { 4 } else { 0 }]);
    let can_reset = input.flag();
    put(112, &(u32::from(can_reset) << 10).to_le_bytes());
    let (space, port, value) = (input.byte() % 3, u64::from(input.byte()), input.byte());
    put(116, &[&[space, 8, 0, 1][..], &port.to_le_bytes(), &[value]].concat());
    for at in [172, 208] {
        put(at, &[&[1, 16, 0, 2][..], &u64::from(new).to_le_bytes()].concat());
    }
    put(140, &if input.flag() { dsdt } else { 0 }.to_le_bytes());
    let port_of = if revision >= 2 && new != 0 { new } else { old };
    machine.pm1a = (port_of != 0).then_some(Register::Port(port_of));
    machine.pm_timer = (timer && port_of != 0).then_some(port_of);
    machine.reset = match space {
        _ if !can_reset => None,
        0 => Some((Register::Memory(port), value)),
        1 => Some((Register::Port(port as u16), value)),
        _ => None,
    };
    table(b"FACP", revision, &whole[36..])
}

/// The machine's memory with its tables, each at the place that the list names, and the RSDP.
fn build(input: &mut Input<'_>, machine: &mut Machine) -> (Vec<u8>, Vec<(usize, usize)>, Vec<u8>) {
    let (mut bytes, mut places) = (Vec::new(), Vec::new());
    let mut add = |table: &[u8]| {
        let at = bytes.len();
        bytes.extend(table);
        bytes.resize(bytes.len().next_multiple_of(16), 0xee);
        places.push((at, table.len()));
        START + at as u64
    };
    let aml = add(&dsdt(input, machine));
    let madt = madt(input, machine);
    let tables = [
        madt,
        srat(input, machine),
        mcfg(input, machine),
        fadt(input, machine, aml),
        console(input, machine),
        wdat(input, machine),
    ];
    let at = tables.map(|table| add(&table));
    let wide = input.flag();
    let root = if wide {
        add(&table(b"XSDT", 1, &at.map(u64::to_le_bytes).concat()))
    } else {
        add(&table(b"RSDT", 1, &at.map(|at| (at as u32).to_le_bytes()).concat()))
    };
    let mut rsdp = [&b"RSD PTR "[..], &[0; 7], &[if wide { 2 } else { 0 }], &(root as u32).to_le_bytes()].concat();
    seal(&mut rsdp, 8);
    if wide {
        rsdp.extend([&36_u32.to_le_bytes()[..], &root.to_le_bytes(), &[0; 4]].concat());
        seal(&mut rsdp, 32);
    }
    (bytes, places, rsdp)
}

/// Damages the tables. Returns whether anything has changed.
fn damage(input: &mut Input<'_>, bytes: &mut [u8], places: &[(usize, usize)]) -> bool {
    let before = bytes.to_vec();
    for _ in 0..(input.byte() % 16).saturating_sub(4) {
        let (at, len) = places[usize::from(input.byte()) % places.len()];
        let end = if input.flag() { len.min(64) } else { len };
        let (offset, value) = (input.within(0, end as u64) as usize, input.wide() >> (input.byte() % 64));
        let count = (len - offset).min(1 + usize::from(input.byte() % 8));
        bytes[at + offset..at + offset + count].copy_from_slice(&value.to_le_bytes()[..count]);
        // Most damaged tables get a right checksum.
        if !input.byte().is_multiple_of(4) {
            seal(&mut bytes[at..at + len], 9);
        }
    }
    before != bytes
}

fn read_tables(input: &mut Input<'_>) {
    let mut machine = Machine::default();
    let (mut bytes, places, mut rsdp) = build(input, &mut machine);
    let mut damaged = damage(input, &mut bytes, &places);
    if input.byte().is_multiple_of(8) {
        let (at, value) = (input.within(0, rsdp.len() as u64) as usize, input.byte());
        damaged |= rsdp[at] != value;
        rsdp[at] = value;
        if input.flag() {
            seal(&mut rsdp[..20], 8);
        }
    }
    if input.byte().is_multiple_of(16) {
        damaged = true;
        bytes.truncate(input.within(0, bytes.len() as u64) as usize);
    }
    let memory = Ram { bytes, reads: Cell::new(0), given: Cell::new(0) };
    let tables = match Tables::new(&rsdp, &memory) {
        Ok(tables) => tables,
        Err(why) => {
            assert!(damaged && !why.to_string().is_empty(), "{why}");
            return;
        }
    };
    let signatures = [b"APIC", b"SRAT", b"MCFG", b"FACP", b"SPCR", b"WDAT"];
    let found = signatures.map(|signature| tables.find(*signature));
    for table in found.iter().flatten() {
        assert_eq!(table.iter().fold(0_u8, |sum, byte| sum.wrapping_add(*byte)), 0, "a wrong checksum");
    }
    assert!(damaged || found.iter().all(Option::is_some), "a table is missing");
    let has_console = found[4].is_some();
    let [madt, srat, mcfg, fadt, console, wdat] = found.map(Option::unwrap_or_default);
    let listed = cores(madt);
    assert!(listed.addable <= listed.offline.len() && listed.offline.iter().all(|id| !listed.enabled.contains(id)));
    let ids = listed.enabled;
    let others = io_apics(madt);
    assert!((1..others.len()).all(|n| !others[..n].contains(&others[n])), "an I/O APIC is there once");
    assert!((1..ids.len()).all(|n| !ids[..n].contains(&ids[n])), "a core is there once");
    let nodes: Vec<_> = ids.iter().filter_map(|&id| Some((id, node_of(srat, id)?))).collect();
    let windows = ecam(mcfg);
    for &EcamWindow { base, first, last, .. } in &windows {
        assert!(first <= last && base.checked_add((u64::from(last) + 1) << 20).is_some(), "a window");
    }
    let watched = watchdog(wdat);
    // Tables of other kinds are as good as any bytes for these.
    for table in [madt, srat, mcfg] {
        assert!(hpet(table).is_none_or(|at| at != 0 && at.is_multiple_of(8)));
        for interface in [spmi(table), smbios::ipmi(table.get(36..).unwrap_or_default())].into_iter().flatten() {
            let wrong = |data, status| data < 0x100 || status <= data;
            assert!(!matches!(interface, Interface::Kcs { data, status } if wrong(data, status)), "{interface}");
        }
        for units in [dmar(table), ivrs(table)] {
            let registers: Vec<_> = units.iter().map(|unit| unit.registers).collect();
            assert!(registers.iter().all(|at| *at != 0 && at.is_multiple_of(4096)), "{registers:x?}");
            assert!((1..registers.len()).all(|n| !registers[..n].contains(&registers[n])), "a unit is there once");
        }
    }
    let fadt = Fadt::new(fadt);
    let sleep = tables.dsdt(&fadt).and_then(sleep_type_s5);
    let _ = (fadt.pm1b_control().and_then(Register::port), fadt.enable(), fadt.is_hardware_reduced());
    let console = has_console.then(|| spcr(console));
    let ports = choose("", console);
    assert!(
        ports.people.is_some_and(|uart| uart.port <= 0xfff8 && Some(uart.port) != ports.programs.map(|uart| uart.port))
    );
    assert_eq!(ports.source == Source::Spcr, matches!(console, Some(Spcr::Uart(_))));
    let read = (ids, nodes, windows, fadt.pm_timer(), fadt.pm1a_control(), fadt.reset(), sleep, console, watched);
    if planted() {
        machine.cores.push(1);
    }
    let Machine { watchdog, cores, nodes, windows, pm_timer, pm1a, reset, sleep, console } = machine;
    assert!(
        damaged || read == (cores, nodes, windows, pm_timer, pm1a, reset, sleep, console, watchdog),
        "what is not damaged is read: {read:?}"
    );
}

/// Boot information, and what was put into it.
fn read_information(input: &mut Input<'_>) {
    let mut tags = Vec::new();
    let mut add = |kind: u32, body: &[u8]| {
        tags.extend([kind, 8 + body.len() as u32].map(u32::to_le_bytes).concat());
        tags.extend(body);
        tags.resize(tags.len().next_multiple_of(8), 0);
    };
    let (mut usable, mut modules, mut line) = (Vec::new(), Vec::new(), None);
    let (mut has_map, mut screen) = (false, None);
    for number in 0..input.byte() % 12 {
        match input.byte() % 7 {
            0 | 1 => {
                let (start, len) = (u32::from(input.byte()) << 12, u32::from(input.byte()));
                let name = ["vmlinuz", "initrd", "a", ""][usize::from(number % 4)];
                add(
                    3,
                    &[&[start, start + len].map(u32::to_le_bytes).concat()[..], name.as_bytes(), b" more\0"].concat(),
                );
                modules.push((name, u64::from(start), u64::from(start + len)));
            }
            2 if !has_map => {
                has_map = true;
                let longer = 8 * usize::from(input.byte() % 3);
                let mut body = [24 + longer as u32, 0].map(u32::to_le_bytes).concat();
                for _ in 0..input.byte() % 8 {
                    let (start, len, kind) =
                        (u64::from(input.byte()) << 20, u64::from(input.byte()) << 12, input.byte() % 3);
                    body.extend([start, len, kind.into()].map(u64::to_le_bytes).concat());
                    body.extend(vec![0; longer]);
                    if kind == 1 {
                        usable.push((start, start + len));
                    }
                }
                add(6, &body);
            }
            3 if line.is_none() => {
                line = Some("emulator boot=1");
                add(1, b"emulator boot=1\0");
            }
            4 => {
                let sections: Vec<u8> = (0..input.byte()).map(|_| input.byte()).collect();
                add(9, &[&[u32::from(input.byte() % 4), 64, 0].map(u32::to_le_bytes).concat()[..], &sections].concat());
            }
            5 if screen.is_none() => {
                let numbers = [(); 3].map(|()| u32::from(input.byte()));
                let (address, kind) = (input.wide(), input.byte() % 4);
                let rgb = [(); 3].map(|()| (input.byte(), input.byte()));
                let head =
                    [&address.to_le_bytes()[..], &numbers.map(u32::to_le_bytes).concat(), &[32, kind, 0, 0]].concat();
                add(8, &[head, rgb.into_iter().flat_map(|(at, bits)| [at, bits]).collect()].concat());
                screen = Some((address, numbers, kind, rgb));
            }
            _ => add(20 + u32::from(number), &[number; 5]),
        }
    }
    add(0, &[]);
    let mut bytes = [&[8 + tags.len() as u32, 0].map(u32::to_le_bytes).concat()[..], &tags].concat();
    let before = bytes.clone();
    for _ in 0..(input.byte() % 8).saturating_sub(4) {
        let (at, value) = (input.within(0, bytes.len() as u64) as usize, input.wide() >> (input.byte() % 64));
        let count = (bytes.len() - at).min(1 + usize::from(input.byte() % 8));
        bytes[at..at + count].copy_from_slice(&value.to_le_bytes()[..count]);
    }
    let damaged = before != bytes;
    let Some(information) = Information::new(&bytes) else {
        assert!(damaged, "good information");
        return;
    };
    assert!(information.len() <= bytes.len() as u64);
    for section in information.symbols().into_iter().flatten() {
        assert!(section.address != 0 && section.end() >= section.address);
    }
    let found: Vec<_> = information.modules().map(|Module { name, start, end }| (name, start, end)).collect();
    assert!(found.iter().all(|(_, start, end)| start <= end));
    let areas: Vec<_> = information.usable().collect();
    assert!(areas.iter().all(|(start, end)| start <= end));
    // The name is the first word of the line, and there is none before " more".
    let modules: Vec<_> = modules
        .into_iter()
        .map(|(name, start, end)| (if name.is_empty() { "more" } else { name }, start, end))
        .collect();
    assert!(
        damaged || (found, areas, information.command_line()) == (modules, usable, line),
        "what is not damaged is read"
    );
    let framebuffer = information.framebuffer().map(|found| {
        let Framebuffer { address, pitch, width, height, content, .. } = found;
        (address, [pitch, width, height], content)
    });
    let screen = screen.map(|(address, numbers, kind, rgb)| match kind {
        1 => (address, numbers, FramebufferContent::Rgb(rgb)),
        2 => (address, numbers, FramebufferContent::Text),
        other => (address, numbers, FramebufferContent::Other(other)),
    });
    assert!(damaged || framebuffer == screen, "the screen is read");
    let _ = information.rsdp();
}

/// The target.
///
/// # Panics
/// Something is read wrongly.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    if input.byte().is_multiple_of(4) {
        read_information(&mut input);
    } else {
        read_tables(&mut input);
    }
}

crate::planted::tests!(what_firmware_says_is_read_as_it_is_or_not_at_all, 1024, 1..600);
