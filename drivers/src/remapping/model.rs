//! Models of remapping units for the tests. Offsets and bits are written here again, from the manuals. A model notes what the
//! manual forbids.

pub mod amd;
pub mod vtd;
