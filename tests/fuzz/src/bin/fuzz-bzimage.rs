//! The fuzz target for Linux kernels, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::bzimage::run);
