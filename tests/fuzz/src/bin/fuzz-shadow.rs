//! The fuzz target for swapped pages and the shadow IDT, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::shadow::run);
