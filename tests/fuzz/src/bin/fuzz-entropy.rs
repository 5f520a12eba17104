//! The fuzz target for conversations with an entropy device, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::entropy::run);
