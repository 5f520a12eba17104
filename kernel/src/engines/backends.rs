//! An engine's back-ends, one for each kind of device. A further kind is one more half of a pair.

use crate::{arch::random::RdRand, uplink::any_nic::AnyNic};
use engine::{backend::Backend, pair::Pair};
use entropy::backend::Entropy;
use net::backend::Net;

/// All back-ends of an engine.
pub type Backends = Pair<Net<AnyNic>, Entropy<RdRand>>;

/// To which of them a device belongs, with what that one has to know of it: `First` is a network device's port, `Second` an
/// entropy device's counters.
pub type Config = <Backends as Backend>::Config;
