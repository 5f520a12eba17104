//! The fuzz target for conversations with a disk, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::block::run);
