//! The fuzz target for commands, keys and guests' output, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::commands::run);
