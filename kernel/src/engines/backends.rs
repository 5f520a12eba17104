//! An engine's back-ends, one for each kind of device. A third kind needs a pair inside the pair.

use crate::{arch::random::RdRand, uplink::any_nic::AnyNic};
use engine::{backend::Backend, pair::Pair};
use entropy::backend::Entropy;
use net::backend::Net;

/// All back-ends of an engine.
pub type Backends = Pair<Net<AnyNic>, Entropy<RdRand>>;

/// What a device's back-end must know of the device. It also names the back-end:
///
/// - `First`: a network device's port.
/// - `Second`: an entropy device's counters.
pub type Config = <Backends as Backend>::Config;
