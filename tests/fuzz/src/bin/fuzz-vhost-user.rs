//! The fuzz target for messages of vhost-user front-ends, as a program.

#![cfg_attr(feature = "libfuzzer", no_main)]

fuzz::program!(fuzz::vhost_user::run);
