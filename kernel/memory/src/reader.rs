//! Makes physical memory readable during the boot. The boot tables map the first 4 GiB at their physical addresses. ACPI's
//! tables may lie above (ACPI 6.5 5.2.5.3: an XSDT has addresses of 64 bits). A page above is added to the tables in use
//! when something is to be read there.

use core::cell::RefCell;

use crate::tables::{Access, FrameSource, MapError, Tables};

const PAGE: u64 = 4096;
/// End of the lower half of a 48-bit address space. An address at or above it cannot be mapped at itself.
const END: u64 = 1 << 47;

/// The page tables in use, and frames for more of them.
#[derive(Debug)]
pub struct Reader<F>(RefCell<(Tables, F)>);

impl<F: FrameSource> Reader<F> {
    /// Adds pages to these tables, whose leaves are at their physical addresses.
    pub const fn new(tables: Tables, frames: F) -> Self {
        Self(RefCell::new((tables, frames)))
    }

    /// Has all pages of `len` bytes at a physical address mapped at that address. What is mapped already stays as it is. A page
    /// that is added is read-only. It is executable, because the right not to execute is a reserved bit during the boot.
    ///
    /// # Errors
    /// There is no frame for a table, or the range ends beyond the lower half of the address space.
    pub fn map(&self, address: u64, len: u64) -> Result<(), MapError> {
        let end = address.checked_add(len).filter(|end| *end <= END).ok_or(MapError::Misaligned(address))?;
        let (tables, frames) = &mut *self.0.borrow_mut();
        for page in (address & !(PAGE - 1)..end).step_by(PAGE as usize) {
            if tables.lookup(page).is_none() {
                tables.map(page, page, PAGE, Access::RX, frames)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::OutOfMemory;
    use crate::tables::Format;
    use crate::tables::tests::Leaked;
    use boot::acpi::{Memory, Tables as Acpi, cores};

    const GIB: u64 = 1 << 30;

    /// Tables as `start.s` makes them: 4 GiB in pages of 2 MiB.
    fn boot_tables() -> Tables {
        let mut tables = Tables::new(Format::Host, false, &mut Leaked).unwrap();
        tables.map(0, 0, 4 * GIB, Access::RWX, &mut Leaked).unwrap();
        tables
    }

    /// What is mapped at an address: its physical address, and the size of the page.
    fn at<F: FrameSource>(reader: &Reader<F>, address: u64) -> Option<(u64, u64)> {
        reader.0.borrow().0.lookup(address).map(|(to, size, _)| (to, size))
    }

    #[test]
    fn pages_above_4_gib_are_added_and_those_below_stay() {
        let reader = Reader::new(boot_tables(), Leaked);
        assert_eq!(reader.map(0x1234_5678, 0x3000), Ok(()));
        assert_eq!(at(&reader, 0x1234_5678), Some((0x1234_5678, 2 << 20)));
        assert_eq!(at(&reader, 4 * GIB), None);
        // The first page is mapped already, and the range ends with the first byte of a page.
        assert_eq!(reader.map(4 * GIB - 1, 0x1002), Ok(()));
        for (address, page) in [(4 * GIB - 1, 2 << 20), (4 * GIB, 4096), (4 * GIB + 0x1000, 4096)] {
            assert_eq!(at(&reader, address), Some((address, page)));
        }
        assert_eq!(at(&reader, 4 * GIB + 0x2000), None);
        assert_eq!(reader.map(4 * GIB - 1, 0x1002), Ok(()), "a second time");
        let (_, _, entry) = reader.0.borrow().0.lookup(4 * GIB).unwrap();
        assert_eq!(entry & (1 << 63 | 0xfff), 1, "present, read-only, without the bit that is reserved");
        assert_eq!(reader.map(END - 1, 1), Ok(()));
        assert_eq!(at(&reader, END - 1), Some((END - 1, 4096)));
    }

    #[test]
    fn what_cannot_be_mapped_is_refused() {
        let reader = Reader::new(boot_tables(), Leaked);
        for (address, len) in [(END - 1, 2), (END, 1), (u64::MAX, 1), (u64::MAX, 2), (8, u64::MAX)] {
            assert_eq!(reader.map(address, len), Err(MapError::Misaligned(address)));
        }
        struct Empty;
        impl FrameSource for Empty {
            fn frame(&mut self) -> Result<u64, OutOfMemory> {
                Err(OutOfMemory { bytes: 4096, free: 0 })
            }
        }
        let reader = Reader::new(boot_tables(), Empty);
        assert!(matches!(reader.map(4 * GIB, 1), Err(MapError::OutOfMemory(_))));
        assert_eq!(reader.map(4 * GIB - 1, 1), Ok(()), "nothing is needed");
    }

    /// Memory from an address on. It is read through the tables only.
    struct High {
        start: u64,
        bytes: Vec<u8>,
        reader: Reader<Leaked>,
    }

    impl Memory for High {
        fn bytes(&self, address: u64, len: u64) -> Option<&[u8]> {
            self.reader.map(address, len).ok()?;
            for byte in address..address + len {
                assert_eq!(at(&self.reader, byte).map(|(to, _)| to), Some(byte), "read where nothing is mapped");
            }
            let from = usize::try_from(address.checked_sub(self.start)?).ok()?;
            self.bytes.get(from..from + len as usize)
        }
    }

    /// The last byte that makes a sum of 0.
    fn complete(mut table: Vec<u8>, checksum: usize) -> Vec<u8> {
        table[checksum] = table.iter().fold(0_u8, |sum, byte| sum.wrapping_sub(*byte));
        table
    }

    fn table(signature: &[u8; 4], body: &[u8]) -> Vec<u8> {
        let len = (36 + body.len() as u32).to_le_bytes();
        complete([&signature[..], &len, &[1, 0], &[0; 26], body].concat(), 9)
    }

    #[test]
    fn acpi_tables_above_4_gib_are_read() {
        // Each begins at the end of a page of its own, and the last ones are far from the first.
        for start in [4 * GIB + 0xff8, 6 << 40 | 0xff0] {
            let x2apic = |id: u32| [&[9, 16, 0, 0][..], &id.to_le_bytes(), &1_u32.to_le_bytes(), &[0; 4]].concat();
            let all: Vec<u8> = (0..300).flat_map(x2apic).collect();
            let madt = table(b"APIC", &[&[0; 8][..], &all].concat());
            let xsdt_at = start + madt.len() as u64;
            let xsdt = table(b"XSDT", &start.to_le_bytes());
            let rsdp = complete([&b"RSD PTR "[..], &[0; 7], &[2], &[0; 4]].concat(), 8);
            let rsdp = complete([&rsdp[..], &36_u32.to_le_bytes(), &xsdt_at.to_le_bytes(), &[0; 4]].concat(), 32);
            let memory = High { start, bytes: [madt, xsdt].concat(), reader: Reader::new(boot_tables(), Leaked) };
            let tables = Acpi::new(&rsdp, &memory).unwrap();
            assert_eq!(cores(tables.find(*b"APIC").unwrap()).enabled, (0..300).collect::<Vec<_>>());
        }
    }
}
