//! The fuzz target for the PCI bus of the guest, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::pci::run);
