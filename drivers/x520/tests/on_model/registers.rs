//! Compares the driver's register table with the model's. The model's was written independently.

use x520::registers::{Access, TABLE};
use x520_model::registers as model;

#[test]
fn each_register_of_the_driver_is_one_of_the_device() {
    assert!(TABLE.len() > 60);
    for row in TABLE {
        let Some(other) = model::TABLE.iter().find(|r| r.name == row.name) else { panic!("no {}", row.name) };
        let bank = other.banks[0];
        assert_eq!((row.offset, row.stride), (bank.offset, bank.stride), "{}", row.name);
        assert!(row.count <= bank.count, "{}", row.name);
        assert_eq!(row.section, other.section, "{}", row.name);
        let access = match other.access {
            model::Access::ReadWrite => Access::ReadWrite,
            model::Access::ReadOnly => Access::ReadOnly,
            model::Access::WriteOnly => Access::WriteOnly,
            model::Access::ReadClear => Access::ReadClear,
        };
        assert_eq!(row.access, access, "{}", row.name);
    }
}
