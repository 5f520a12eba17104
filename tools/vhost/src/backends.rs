//! The engine's back-ends: the switch's ports, and disks. Each device belongs to one of them.

use block::backend::Block;
use block::pair::Pair as Storages;
use block::ram::Ram;
use engine::backend::Backend;
use engine::control::Control as EngineControl;
use engine::engine::Engine;
use engine::pair::Pair;
use engine::schedule::Chosen;
use net::backend::Net;

use crate::calls::Calls;
use crate::file::Files;
use crate::tracked::InOrder;

/// The back-ends.
pub type Backends = Pair<Net, InOrder<Block<Storages<Ram, Files>>>>;
/// What they must know of a device. `First`: a port of the switch. `Second`: a disk.
pub type Config = <Backends as Backend>::Config;
/// What the engine shares with the threads of the front-ends.
pub type Control = EngineControl<Config>;
/// The engine.
pub type IoEngine = Engine<Backends, Chosen, Calls>;
