//! The fuzz target for conversations with a console device, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::console::run);
