//! The fuzz target for the operator's console, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::console_tool::run);
