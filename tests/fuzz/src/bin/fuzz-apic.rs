//! The fuzz target for the local APIC and the IOAPIC, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::apic::run);
