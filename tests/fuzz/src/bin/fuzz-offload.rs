//! The fuzz target for offloads in software, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::offload::run);
