//! The messages of vhost-user that set a queue up.

use anyhow::Result;
use vhost::vhost_user::Frontend;
use vhost::{VhostBackend as _, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

/// Sets queue `n` up, with its first request at the beginning of the ring. `rings`: descriptors, driver area, device area, as
/// addresses in this process. `events`: the kick and the call.
pub fn set_ring(
    frontend: &mut Frontend,
    n: usize,
    size: u16,
    packed: bool,
    [desc, avail, used]: [u64; 3],
    (kick, call): (&EventFd, &EventFd),
) -> Result<()> {
    frontend.set_vring_num(n, size)?;
    // The start position. For a packed ring it includes the wrap counter.
    frontend.set_vring_base(n, if packed { 1 << 15 } else { 0 })?;
    frontend.set_vring_addr(
        n,
        &VringConfigData {
            queue_max_size: size,
            queue_size: size,
            flags: 0,
            desc_table_addr: desc,
            used_ring_addr: used,
            avail_ring_addr: avail,
            log_addr: None,
        },
    )?;
    frontend.set_vring_call(n, call)?;
    frontend.set_vring_kick(n, kick)?;
    Ok(())
}
