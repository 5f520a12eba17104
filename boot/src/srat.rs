//! Finds the NUMA node of each core in the System Resource Affinity Table (ACPI 6.5 5.2.16).

use crate::acpi::structures::entries;

/// Offset of the entries: they follow the table's header (36 bytes), a reserved word and eight reserved bytes.
const ENTRIES: usize = 48;
/// Entry of a core with an 8-bit APIC ID (5.2.16.1), and its length in bytes.
const LOCAL_APIC: (u16, usize) = (0, 16);
/// Entry of a core with a 32-bit x2APIC ID (5.2.16.3), and its length in bytes.
const X2APIC: (u16, usize) = (2, 24);
/// Flag of an entry: it is in use.
const ENABLED: u32 = 1;

/// Returns the NUMA node (proximity domain) of the core with this APIC ID. Returns `None` if the table does not name
/// the core. `table` is the whole table with its header.
///
/// Entries are read until one is cut off or is shorter than 2 bytes. What follows such an entry is ignored.
#[must_use]
pub fn node_of(table: &[u8], apic_id: u32) -> Option<u32> {
    entries(table, ENTRIES).find_map(|(kind, entry)| {
        let word = |at: usize| Some(u32::from_le_bytes(*entry.get(at..)?.first_chunk()?));
        let (id, node) = match (kind, entry.len()) {
            LOCAL_APIC if word(4)? & ENABLED != 0 => {
                // The node's lowest byte is not next to the three others.
                let [_, high @ ..] = word(8)?.to_le_bytes();
                (entry[3].into(), u32::from_le_bytes([entry[2], high[0], high[1], high[2]]))
            }
            X2APIC if word(12)? & ENABLED != 0 => (word(8)?, word(4)?),
            _ => return None,
        };
        (id == apic_id).then_some(node)
    })
}

#[cfg(test)]
mod tests {
    use super::node_of;

    fn table(entries: &[&[u8]]) -> Vec<u8> {
        [&[0; 48][..], &entries.concat()].concat()
    }

    fn local(id: u8, node: u32, flags: u32) -> Vec<u8> {
        let [low, high @ ..] = node.to_le_bytes();
        // Flags, the local SAPIC EID, then the three higher bytes of the node, then the clock domain.
        [&[0, 16, low, id][..], &flags.to_le_bytes(), &[0], &high, &[0; 4]].concat()
    }

    fn x2(id: u32, node: u32, flags: u32) -> Vec<u8> {
        [&[2, 24, 0, 0][..], &node.to_le_bytes(), &id.to_le_bytes(), &flags.to_le_bytes(), &[0; 8]].concat()
    }

    #[test]
    fn cores_are_found_by_either_kind_of_entry() {
        let memory = [&[1, 40][..], &[0; 38]].concat();
        let table = table(&[&local(3, 0x0102_0304, 1), &memory, &x2(300, 7, 1), &local(5, 9, 0)]);
        assert_eq!(node_of(&table, 3), Some(0x0102_0304));
        assert_eq!(node_of(&table, 300), Some(7));
        assert_eq!(node_of(&table, 5), None, "not enabled");
        assert_eq!(node_of(&table, 4), None);
    }

    #[test]
    fn a_table_that_is_cut_off_or_lies_about_lengths_ends_the_search() {
        let whole = table(&[&x2(1, 2, 1), &x2(3, 4, 1)]);
        for len in 0..whole.len() {
            assert_eq!(node_of(&whole[..len], 3), None, "{len} bytes");
        }
        for length in [0, 1, 255] {
            let mut wrong = whole.clone();
            wrong[49] = length;
            assert_eq!(node_of(&wrong, 3), None);
        }
        let mut short = whole;
        short[49] = 20;
        assert_eq!(node_of(&short, 1), None, "an x2APIC entry of 20 bytes is none");
    }
}
