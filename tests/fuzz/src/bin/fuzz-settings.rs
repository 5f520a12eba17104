//! The fuzz target for the configuration, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::settings::run);
