//! The fuzz target for emulated instructions, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::emulate::run);
