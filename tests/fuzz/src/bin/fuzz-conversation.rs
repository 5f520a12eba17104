//! The fuzz target for conversations over the switch, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::conversation::run);
