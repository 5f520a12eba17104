//! Verifies and measures vhost-user disks through libblkio, a front-end that others wrote.
//!
//! | file | what it does |
//! |---|---|
//! | `disk` | a disk through libblkio |
//! | `verify` | writes patterns and reads them back |
//! | `measure` | reads at random, with a number of requests in flight |
//! | `floor` | the bare copy loop behind a vhost-user-blk socket |

pub mod disk;
pub mod floor;
pub mod measure;
pub mod verify;
