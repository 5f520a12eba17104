//! The fuzz target for the x520 driver, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::x520::run);
