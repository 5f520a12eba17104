//! The fuzz target for the igb driver, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::igb::run);
