//! The fuzz target for ELF files, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::elf::run);
