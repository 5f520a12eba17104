//! The fuzz target for the management guest's agent, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::agent::run);
