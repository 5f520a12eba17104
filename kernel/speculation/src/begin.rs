//! What a core does when it gets a guest.

use crate::plan::{Branches, IBPB, Msrs, PRED_CMD, Plan, SPEC_CTRL};
use crate::switch::overwrite_returns;

const EFER: u32 = 0xc000_0080;
/// EFER: Automatic IBRS (APM vol. 2 3.1.7).
const AIBRSE: u64 = 1 << 21;
/// AMD's BP_CFG.
const BP_CFG: u32 = 0xc001_102e;
/// BP_CFG: BpSpecReduce.
const REDUCE: u64 = 1 << 4;

impl Plan {
    /// Prepares this core for a guest. Call it on a core that gets a guest, before the guest's first entry. Nothing that
    /// the core's former guest has left in the predictors is used after it.
    pub fn begin(&self, msrs: &mut impl Msrs) {
        if self.branches == Branches::AutoIbrs {
            let efer = msrs.read(EFER);
            msrs.write(EFER, efer | AIBRSE);
        }
        if self.reduce {
            let value = msrs.read(BP_CFG);
            msrs.write(BP_CFG, value | REDUCE);
        }
        if self.host_spec_ctrl() != 0 {
            msrs.write(SPEC_CTRL, self.host_spec_ctrl());
        }
        if self.ibpb_between_guests {
            msrs.write(PRED_CMD, IBPB);
        }
        if self.returns_between_guests {
            overwrite_returns();
        }
    }
}
