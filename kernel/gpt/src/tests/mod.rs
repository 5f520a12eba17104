//! Tests against tables that `sgdisk` and `fdisk` made.

mod choice;
mod damage;
mod hostile;
mod image;

use std::string::{String, ToString as _};
use std::vec::Vec;

use crate::Table;
use image::{FDISK_4096, Image, SGDISK_512, both};

#[test]
fn what_sgdisk_and_fdisk_wrote_is_read() {
    let [mut small, mut large] = both();
    let table = small.read().expect("a table of sgdisk");
    assert_eq!(table.disk.to_string(), "11111111-2222-3333-4444-555555555555");
    assert_eq!(table.damage, None);
    let of = |table: &Table| -> Vec<(u32, String, String, u64, u64)> {
        table.partitions.iter().map(|p| (p.number, p.label.clone(), p.guid.to_string(), p.first, p.blocks)).collect()
    };
    let [one, three] = ["aaaaaaaa-0000-4000-8000-000000000001", "aaaaaaaa-0000-4000-8000-000000000003"];
    assert_eq!(of(&table), [(1, "one".into(), one.into(), 2048, 2048), (3, "drei ä".into(), three.into(), 6144, 8)]);
    let table = large.read().expect("a table of fdisk");
    assert_eq!(table.damage, None);
    assert_eq!(
        of(&table),
        [
            (1, "one".into(), "0da60f6f-fcf2-e54a-9e07-a4b08938fa6a".into(), 256, 256),
            (2, "two".into(), "c0da6353-ec10-0d4a-9a20-a2b2136fadf1".into(), 512, 1024)
        ]
    );
}
