//! The fuzz target for what one boot finds of the boots before, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::records::run);
