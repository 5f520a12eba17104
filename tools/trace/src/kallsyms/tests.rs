//! Tables of both orders, damaged ones, and any bytes.

use proptest::prelude::*;

use super::*;

/// What stands between and around the parts of a table.
#[derive(Clone, Copy, Debug)]
pub enum Order {
    /// Addresses, number, names, markers, tokens: before Linux 6.2.
    AddressesFirst,
    /// The same with sequences between markers and tokens: Linux 6.2 to 6.4.
    Sequences,
    /// Number, names, markers, tokens, addresses, sequences: from Linux 6.5 on.
    AddressesLast,
}

const ORDERS: [Order; 3] = [Order::AddressesFirst, Order::Sequences, Order::AddressesLast];
/// Where x86-64's kernels are linked.
const BASE: u64 = 0xffff_ffff_8100_0000;

fn pad(bytes: &mut Vec<u8>) {
    bytes.resize(bytes.len().next_multiple_of(8), 0);
}

/// Tokens that are more than their own byte.
const LONGER: [(u8, &str); 4] = [(0, "_zero_"), (1, "sy"), (2, "s_"), (255, "__x64_")];

/// The tokens of a name.
fn packed(name: &str) -> Vec<u8> {
    let (mut packed, mut rest) = (Vec::new(), name);
    while let Some(&byte) = rest.as_bytes().first() {
        let token = LONGER.into_iter().find(|(_, text)| rest.starts_with(text)).unwrap_or((byte, &rest[..1]));
        packed.push(token.0);
        rest = &rest[token.1.len()..];
    }
    packed
}

/// A kernel with this table, and with other bytes around it. Symbols are sorted. `absolute`: those below the base are per-CPU
/// offsets.
pub fn kernel(order: Order, symbols: &[(u64, &str)], absolute: bool) -> Vec<u8> {
    // Each byte is a token of itself, but for some.
    let mut tokens: Vec<Vec<u8>> = (0..=255_u8).map(|byte| vec![byte]).collect();
    for (number, text) in LONGER {
        tokens[usize::from(number)] = text.into();
    }
    let (mut names, mut markers, mut offsets) = (Vec::new(), Vec::new(), Vec::new());
    for (number, &(address, name)) in symbols.iter().enumerate() {
        if number % PER_MARKER == 0 {
            markers.extend((names.len() as u32).to_le_bytes());
        }
        let packed = packed(name);
        match packed.len() {
            short @ ..128 => names.push(short as u8),
            long => names.extend([long as u8 & 127 | 128, (long >> 7) as u8]),
        }
        names.extend(packed);
        let number = match absolute {
            true if address < BASE => address as i32,
            true => !((address - BASE) as i32),
            false => (address - BASE) as i32,
        };
        offsets.extend(number.to_le_bytes());
    }
    pad(&mut names);
    pad(&mut markers);
    pad(&mut offsets);
    offsets.extend(BASE.to_le_bytes());
    let (mut table, mut index) = (Vec::new(), Vec::new());
    for token in tokens {
        index.extend((table.len() as u16).to_le_bytes());
        table.extend(token);
        table.push(0);
    }
    pad(&mut table);
    let mut sequences: Vec<u8> = (0..symbols.len() * 3).map(|at| at as u8).collect();
    pad(&mut sequences);
    let number = (symbols.len() as u64).to_le_bytes().to_vec();
    let parts = match order {
        Order::AddressesFirst => [offsets, number, names, markers, table, index].concat(),
        Order::Sequences => [offsets, number, names, markers, sequences, table, index].concat(),
        Order::AddressesLast => [number, names, markers, table, index, offsets, sequences].concat(),
    };
    let around: Vec<u8> = (0..4_096_u32).flat_map(|at| (at.wrapping_mul(0x9e37_79b9) >> 7).to_le_bytes()).collect();
    [b"\x7fELF\x02\x01\x01\0".to_vec(), around.clone(), parts, around].concat()
}

/// Symbols of a kernel: per-CPU ones, then functions, one of them with a name of 300 bytes.
pub fn symbols(count: u64) -> Vec<(u64, String)> {
    let per_cpu = (0..40).map(|at| (at * 8, format!("Acpu_{at}")));
    let long = (BASE + 0x10, format!("t{}", "long_name_".repeat(30)));
    let functions = (1..count).map(|at| (BASE + at * 0x40, format!("T__x64_sys_call_{at}")));
    per_cpu.chain([(BASE, "T_text".to_owned()), long]).chain(functions).collect()
}

fn borrowed(symbols: &[(u64, String)]) -> Vec<(u64, &str)> {
    symbols.iter().map(|(address, name)| (*address, name.as_str())).collect()
}

fn read(kernel: &[u8]) -> Vec<(u64, String)> {
    let all = of(kernel).unwrap();
    all.into_iter().map(|symbol| (symbol.address, format!("{}{}", char::from(symbol.kind), symbol.name))).collect()
}

#[test]
fn all_symbols_are_found_in_each_order_of_the_parts() {
    let symbols = symbols(1_000);
    for order in ORDERS {
        assert_eq!(read(&kernel(order, &borrowed(&symbols), true)), symbols, "{order:?}");
    }
}

#[test]
fn a_table_without_absolute_addresses_is_read_as_differences() {
    let symbols = &symbols(1_000)[40..];
    for order in ORDERS {
        assert_eq!(read(&kernel(order, &borrowed(symbols), false)), symbols, "{order:?}");
    }
}

#[test]
fn numbers_of_symbols_at_the_edges_of_markers_and_padding_are_found() {
    for count in [FEWEST, FEWEST + 1, 767, 768, 769, 770] {
        let symbols = symbols(count as u64 - 41);
        assert_eq!(symbols.len(), count);
        for order in ORDERS {
            assert_eq!(read(&kernel(order, &borrowed(&symbols), true)).len(), count, "{order:?}");
        }
    }
}

#[test]
fn a_file_without_a_table_is_refused_with_what_is_missing() {
    let missing = |bytes: &[u8]| of(bytes).unwrap_err().to_string();
    assert!(missing(b"").contains("its tokens"));
    assert!(missing(&[0; 100_000]).contains("its tokens"));
    let symbols = symbols(1_000);
    let mut whole = kernel(Order::AddressesLast, &borrowed(&symbols), true);
    let number = 8 + 4 * 4_096;
    whole[number] ^= 1;
    assert!(missing(&whole).contains("its names"), "one symbol more or less than there are");
    whole[number] ^= 1;
    // The base is in the lower half.
    let base = whole.windows(8).rposition(|bytes| bytes == BASE.to_le_bytes()).unwrap();
    whole[base + 7] = 0x7f;
    assert!(missing(&whole).contains("its addresses"));
}

#[test]
fn names_that_would_grow_without_bound_are_refused() {
    let name = format!("T{}", "__x64_".repeat(LONGEST_NAME / 6 + 1));
    let mut symbols = symbols(1_000);
    symbols[500].1 = name;
    assert!(of(&kernel(Order::AddressesLast, &borrowed(&symbols), true)).unwrap_err().to_string().contains("too long"));
}

#[test]
fn many_beginnings_that_look_right_cost_a_bounded_time() {
    // Each eight bytes are a count, and a name of seven bytes. The second marker is wrong.
    let symbols = symbols(1_000);
    let whole = kernel(Order::AddressesLast, &borrowed(&symbols), true);
    let tokens = (0..whole.len()).step_by(8).find_map(|at| Tokens::with_index_at(&whole, at)).unwrap();
    let mut file = Vec::new();
    for _ in 0..50_000 {
        file.extend(0x207_u64.to_le_bytes());
    }
    file.extend([0; 16]);
    file.extend(&whole[tokens.place.clone()]);
    let mut work = file.len() * WORK;
    let tokens = (0..file.len()).step_by(8).find_map(|at| Tokens::with_index_at(&file, at)).unwrap();
    assert_eq!(names_before(&file, &tokens, &mut work), None);
    assert_eq!(work, 0, "it would have looked at 13 million names");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_damaged_table_never_panics(order in 0..3_usize, damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8)) {
        let symbols = symbols(600);
        let mut file = kernel(ORDERS[order], &borrowed(&symbols), true);
        for (at, byte) in damage {
            // The random bytes around the table are no use.
            let from = 4 * 4_096;
            let length = file.len() - 2 * from;
            file[from + at.index(length)] = byte;
        }
        if let Ok(found) = of(&file) {
            prop_assert_eq!(found.len(), symbols.len());
        }
    }

    #[test]
    fn a_table_that_is_cut_off_never_panics(order in 0..3_usize, cut: prop::sample::Index) {
        let symbols = symbols(600);
        let mut file = kernel(ORDERS[order], &borrowed(&symbols), true);
        file.truncate(cut.index(file.len()));
        drop(of(&file));
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(0..4_u8, 0..4_000)) {
        drop(of(&bytes));
    }
}
