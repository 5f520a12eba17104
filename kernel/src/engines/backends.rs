//! An engine's back-ends, one for each kind of device. Of three kinds, two are a pair inside the pair.

use crate::{arch::random::Random, disks, uplink::any_nic::AnyNic};
use block::{backend::Block, pair, ram::Ram};
use engine::{backend::Backend, pair::Pair};
use entropy::backend::Entropy;
use net::backend::Net;
use virtio_console::backend::Console;

/// What is beneath an engine's block devices: RAM disks, and the machine's disks.
pub type Storages = pair::Pair<Ram, disks::Storage>;

/// All back-ends of an engine.
pub type Backends = Pair<Net<AnyNic>, Pair<Block<Storages>, Pair<Entropy<Random>, Console>>>;

/// What a device's back-end must know of the device. It also names the back-end:
///
/// - `First`: a network device's port.
/// - `Second(First)`: a block device's disk.
/// - `Second(Second(First))`: an entropy device's counters.
/// - `Second(Second(Second))`: a console device's ports.
pub type Config = <Backends as Backend>::Config;
