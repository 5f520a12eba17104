use super::{Cores, Fadt, Memory, NoTables, Register, Spcr, Tables, cores, io_apics, spcr, sum};
use crate::uart::Uart;

/// Memory from address 0x1000 on.
struct Bytes(Vec<u8>);

const START: u64 = 0x1000;

impl Memory for Bytes {
    fn bytes(&self, address: u64, len: u64) -> Option<&[u8]> {
        let from = usize::try_from(address.checked_sub(START)?).ok()?;
        self.0.get(from..from.checked_add(usize::try_from(len).ok()?)?)
    }
}

fn table(signature: &[u8; 4], revision: u8, body: &[u8]) -> Vec<u8> {
    let mut table = [&signature[..], &(36 + body.len() as u32).to_le_bytes(), &[revision, 0], &[0; 26], body].concat();
    table[9] = sum(&table).wrapping_neg();
    table
}

fn rsdp(revision: u8, rsdt: u32, xsdt: u64) -> Vec<u8> {
    let mut rsdp = [&b"RSD PTR "[..], &[0; 7], &[revision], &rsdt.to_le_bytes()].concat();
    rsdp[8] = sum(&rsdp).wrapping_neg();
    rsdp.extend([&36_u32.to_le_bytes()[..], &xsdt.to_le_bytes(), &[0; 4]].concat());
    rsdp[32] = sum(&rsdp).wrapping_neg();
    rsdp
}

/// A MADT, an MCFG, and their RSDT and XSDT, one after another. Returns the addresses of the last two.
fn machine() -> (Bytes, u32, u64) {
    let (madt, mcfg) = (table(b"APIC", 4, &[0; 8]), table(b"MCFG", 1, &[0; 8]));
    let second = START + madt.len() as u64;
    let rsdt_at = second + mcfg.len() as u64;
    let rsdt = table(b"RSDT", 1, &[START as u32, second as u32].map(u32::to_le_bytes).concat());
    let xsdt_at = rsdt_at + rsdt.len() as u64;
    let xsdt = table(b"XSDT", 1, &[0, START, second].map(u64::to_le_bytes).concat());
    (Bytes([madt, mcfg, rsdt, xsdt].concat()), rsdt_at as u32, xsdt_at)
}

#[test]
fn tables_are_found_by_either_root() {
    let (memory, rsdt, xsdt) = machine();
    for rsdp in [rsdp(0, rsdt, 0), rsdp(2, 0, xsdt), rsdp(2, rsdt, 0), rsdp(0, rsdt, 0)[..20].to_vec()] {
        let tables = Tables::new(&rsdp, &memory).unwrap();
        assert!(tables.find(*b"APIC").unwrap().starts_with(b"APIC"));
        assert_eq!(tables.find(*b"MCFG").map(<[u8]>::len), Some(44));
        assert_eq!(tables.find(*b"FACP"), None);
    }
}

#[test]
fn what_is_damaged_is_none() {
    let (mut memory, rsdt, xsdt) = machine();
    let error = |rsdp: &[u8], memory| Tables::new(rsdp, memory).err();
    assert_eq!(error(b"RSD PTR", &memory), Some(NoTables::NoRsdp));
    let mut wrong = rsdp(2, rsdt, xsdt);
    wrong[33] ^= 1;
    assert_eq!(error(&wrong, &memory), Some(NoTables::RsdpChecksum));
    wrong[10] ^= 1;
    assert_eq!(error(&wrong, &memory), Some(NoTables::RsdpChecksum));
    let mut long = rsdp(2, rsdt, xsdt);
    long[20] = 200;
    assert_eq!(error(&long, &memory), Some(NoTables::NoRsdp), "longer than the copy");
    assert_eq!(error(&rsdp(0, 0x10, 0), &memory), Some(NoTables::NoRoot(0x10)));
    // A table that is shorter than its header, and one whose sum is wrong.
    memory.0[4] = 8;
    assert_eq!(Tables::new(&rsdp(2, 0, xsdt), &memory).unwrap().find(*b"APIC"), None);
    memory.0[4 + 44] ^= 1;
    assert_eq!(Tables::new(&rsdp(2, 0, xsdt), &memory).unwrap().find(*b"MCFG"), None);
}

#[test]
fn enabled_cores_are_listed_once_until_an_entry_makes_no_sense() {
    let local = |id: u8, flags: u8| [0, 8, 0, id, flags, 0, 0, 0].to_vec();
    let x2 = |id: u32| [&[9, 16, 0, 0][..], &id.to_le_bytes(), &1_u32.to_le_bytes(), &[0; 4]].concat();
    let body = [vec![0; 8], local(3, 1), local(4, 0), vec![1, 12], vec![0; 10], x2(300), local(3, 1)].concat();
    assert_eq!(cores(&table(b"APIC", 4, &body)).enabled, [3, 300]);
    for length in [0, 1, 255] {
        let mut wrong = table(b"APIC", 4, &body);
        wrong[44 + 8 + 1] = length;
        assert_eq!(cores(&wrong).enabled, [3], "an entry of {length} bytes");
    }
    assert_eq!(cores(&[]), Cores::default());
}

#[test]
fn cores_may_have_any_id_be_offline_or_be_listed_twice() {
    let local = |id: u8, flags: u8| [0, 8, 0, id, flags, 0, 0, 0].to_vec();
    let x2 = |id: u32, flags: u32| [&[9, 16, 0, 0][..], &id.to_le_bytes(), &flags.to_le_bytes(), &[0; 4]].concat();
    let body = [
        vec![0; 8],
        // As firmware fills what it does not need.
        local(0xff, 0),
        local(0xff, 1),
        x2(u32::MAX, 1),
        x2(0xffff_fffe, 1),
        x2(0x8000_0000, 1),
        // An ID of 255 fits in an x2APIC's entry only.
        x2(255, 1),
        local(254, 1),
        // Offline, can be added, and listed as enabled elsewhere.
        local(7, 0),
        x2(256, 2),
        x2(0x8000_0000, 2),
        // The same core as both.
        x2(254, 1),
    ];
    let found = cores(&table(b"APIC", 4, &body.concat()));
    assert_eq!(found.enabled, [0xffff_fffe, 0x8000_0000, 255, 254]);
    assert_eq!((found.offline, found.addable), (vec![7, 256], 1));
}

#[test]
fn io_apics_are_listed_once_until_an_entry_makes_no_sense() {
    let io_apic = |address: u32| [&[1, 12, 0, 0][..], &address.to_le_bytes(), &[0; 4]].concat();
    let first = [vec![0; 8], io_apic(0xfec0_0000), vec![0, 8, 0, 0, 1, 0, 0, 0], io_apic(0xfec0_1000)].concat();
    let body = [&first[..], &io_apic(0xfec0_0000), &[1, 6, 0, 0, 0, 0], &[1, 12, 0, 0]].concat();
    assert_eq!(io_apics(&table(b"APIC", 4, &body)), [0xfec0_0000, 0xfec0_1000], "one twice, one short, one cut off");
    assert_eq!(io_apics(&[]), []);
}

#[test]
fn a_thousand_cores_are_listed() {
    let entry = |id: u32| [&[9, 16, 0, 0][..], &(id << 2 | 1 << 31).to_le_bytes(), &[1, 0, 0, 0, 0, 0, 0, 0]].concat();
    let body: Vec<u8> = [0; 8].into_iter().chain((0..1024).rev().flat_map(entry)).collect();
    let found = cores(&table(b"APIC", 4, &body)).enabled;
    assert!(found.iter().copied().eq((0..1024).rev().map(|id| id << 2 | 1 << 31)), "in the order of the table");
}

#[test]
fn the_fadt_names_registers_by_wide_fields_unless_these_are_absent() {
    let mut body = vec![0; 208];
    let mut put = |at: usize, bytes: &[u8]| body[at - 36..at - 36 + bytes.len()].copy_from_slice(bytes);
    put(40, &0x7000_u32.to_le_bytes());
    put(48, &0xb2_u32.to_le_bytes());
    put(52, &[0xa0]);
    put(64, &0x604_u32.to_le_bytes());
    put(76, &0x608_u32.to_le_bytes());
    put(91, &[4]);
    put(112, &(1_u32 << 10).to_le_bytes());
    put(116, &[1, 8, 0, 1, 0xf9, 0xc, 0, 0, 0, 0, 0, 0, 6]);
    put(140, &0x8000_u64.to_le_bytes());
    put(172, &[1, 16, 0, 2, 4, 7, 0, 0, 0, 0, 0, 0]);
    let new = table(b"FACP", 3, &body);
    let fadt = Fadt::new(&new);
    assert_eq!((fadt.dsdt(), fadt.pm1a_control()), (Some(0x8000), Some(Register::Port(0x704))));
    assert_eq!((fadt.pm1b_control(), fadt.pm_timer()), (None, Some(0x608)));
    assert_eq!((fadt.enable(), fadt.reset()), (Some((0xb2, 0xa0)), Some((Register::Port(0xcf9), 6))));
    assert!(!fadt.is_hardware_reduced());
    let old = table(b"FACP", 1, &body[..80]);
    let fadt = Fadt::new(&old);
    assert_eq!((fadt.dsdt(), fadt.pm1a_control()), (Some(0x7000), Some(Register::Port(0x604))));
    assert_eq!(fadt.reset(), None, "cut off");
    assert_eq!(Fadt::new(&[]).pm_timer(), None);
}

/// The body of a Serial Port Console Redirection table, revision 4.
fn spcr_body(interface: u8, address: [u8; 4], at: u64, rate: u8) -> Vec<u8> {
    let mut body = vec![0; 54];
    let mut put = |offset: usize, bytes: &[u8]| body[offset - 36..offset - 36 + bytes.len()].copy_from_slice(bytes);
    put(36, &[interface]);
    put(40, &address);
    put(44, &at.to_le_bytes());
    put(58, &[rate]);
    put(64, &[0xff; 4]);
    body
}

#[test]
fn the_firmwares_console_is_a_16550_at_ports_or_a_reason_why_not() {
    const PORTS: [u8; 4] = [1, 8, 0, 1];
    let read = |body: &[u8]| spcr(&table(b"SPCR", 4, body));
    let found = |port, rate| Spcr::Uart(Uart { port, rate });
    assert_eq!(read(&spcr_body(0, PORTS, 0x2f8, 6)), found(0x2f8, Some(57_600)));
    assert_eq!(read(&spcr_body(0x12, [1, 8, 0, 0], 0x3f8, 7)), found(0x3f8, Some(115_200)));
    assert_eq!(read(&spcr_body(1, PORTS, 0x3f8, 3)), found(0x3f8, Some(9_600)));
    assert_eq!(read(&spcr_body(0, PORTS, 0x3f8, 0)), found(0x3f8, None), "as the firmware has set it");
    let with = |clock: u32, rate: u32| {
        let mut body = spcr_body(0, PORTS, 0x3f8, 7);
        body[40..48].copy_from_slice(&[clock, rate].map(u32::to_le_bytes).concat());
        body
    };
    assert_eq!(read(&with(0, 38_400)), found(0x3f8, Some(38_400)), "the rate in baud");
    assert_eq!(read(&with(0, 77_777)), found(0x3f8, None));
    assert_eq!(read(&with(48_000_000, 115_200)), found(0x3f8, None), "another clock");
    assert_eq!(
        spcr(&table(b"SPCR", 2, &with(48_000_000, 0))),
        found(0x3f8, Some(115_200)),
        "an older table has no clock"
    );
    assert_eq!(read(&spcr_body(0, [0, 8, 0, 1], 0xfe03_4000, 7)), Spcr::InMemory(0xfe03_4000));
    assert_eq!(read(&spcr_body(3, [0, 32, 0, 3], 0x900_0000, 7)), Spcr::Type(3), "a PL011");
    assert_eq!(read(&spcr_body(0, PORTS, 0, 7)), Spcr::Off);
    for wrong in [
        spcr_body(0, PORTS, 0xfff9, 7),
        spcr_body(0, PORTS, 0x1_03f8, 7),
        spcr_body(0, [1, 32, 0, 3], 0x3f8, 7),
        spcr_body(0, [2, 8, 0, 1], 0x3f8, 7),
        spcr_body(0, PORTS, 0x3f8, 7)[..22].to_vec(),
        Vec::new(),
    ] {
        assert_eq!(read(&wrong), Spcr::Damaged, "{wrong:?}");
    }
}
