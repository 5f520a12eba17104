//! The fuzz target for the nvme driver, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::nvme::run);
