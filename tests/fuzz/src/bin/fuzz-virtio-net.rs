//! The fuzz target for the virtio-net driver, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::virtio_net::run);
