//! The fuzz target for boot information and ACPI tables, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::firmware::run);
