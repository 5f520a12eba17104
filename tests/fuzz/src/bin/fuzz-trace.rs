//! The fuzz target for saved traces, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::trace::run);
