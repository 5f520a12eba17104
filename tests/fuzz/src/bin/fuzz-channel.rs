//! The fuzz target for the control channel of the management guest, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::channel::run);
