//! The fuzz target for partition tables, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::partitions::run);
