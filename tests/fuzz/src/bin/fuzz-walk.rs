//! The fuzz target for walks of page tables, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::walk::run);
