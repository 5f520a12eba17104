//! A vhost-user front end: hands a guest's memory and rings to a switch.

use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use vhost::vhost_user::{Frontend, VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::EventFd;

use crate::driver::{MEMORY, Memory, Ring, SIZE};

const PROTOCOL_FEATURES: u64 = 1 << 30;

/// A connection that lasts as long as this value.
pub struct Front {
    /// Features that both sides have.
    pub features: u64,
    _frontend: Frontend,
    _events: Vec<EventFd>,
}

impl Front {
    /// Waits for the socket, negotiates what it can of `wanted`, and starts the rings.
    ///
    /// # Errors
    /// Nobody listens within 20 s, or a request is refused.
    pub fn connect(path: &Path, memory: &Memory, rings: &[&Ring], wanted: u64) -> anyhow::Result<Self> {
        let start = Instant::now();
        let mut frontend = loop {
            match std::os::unix::net::UnixStream::connect(path) {
                Ok(stream) => break Frontend::from_stream(stream, rings.len() as u64),
                Err(error) if start.elapsed() > Duration::from_secs(20) => bail!("{}: {error}", path.display()),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        };
        frontend.set_owner()?;
        let offered = frontend.get_features()?;
        let features = offered & (wanted | PROTOCOL_FEATURES);
        frontend.set_features(features)?;
        if features & PROTOCOL_FEATURES != 0 {
            let protocol = frontend.get_protocol_features()?;
            frontend.set_protocol_features(protocol & VhostUserProtocolFeatures::REPLY_ACK)?;
        }
        frontend.set_features(features)?;
        let user = memory.start as u64;
        frontend.set_mem_table(&[VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: MEMORY as u64,
            userspace_addr: user,
            mmap_offset: 0,
            mmap_handle: memory.file.as_raw_fd(),
        }])?;
        let mut events = Vec::new();
        for (index, ring) in rings.iter().enumerate() {
            let [desc, avail, used] = ring.parts().map(|at| user + at as u64);
            let (kick, call) = (EventFd::new(libc_nonblock())?, EventFd::new(libc_nonblock())?);
            frontend.set_vring_call(index, &call)?;
            frontend.set_vring_num(index, SIZE)?;
            frontend.set_vring_base(index, 0)?;
            let config = VringConfigData {
                queue_max_size: SIZE,
                queue_size: SIZE,
                flags: 0,
                desc_table_addr: desc,
                used_ring_addr: used,
                avail_ring_addr: avail,
                log_addr: None,
            };
            frontend.set_vring_addr(index, &config)?;
            frontend.set_vring_kick(index, &kick)?;
            events.extend([kick, call]);
        }
        if features & PROTOCOL_FEATURES != 0 {
            for index in 0..rings.len() {
                frontend.set_vring_enable(index, true).context("enabling a ring")?;
            }
        }
        Ok(Self { features: features & !PROTOCOL_FEATURES, _frontend: frontend, _events: events })
    }
}

/// EFD_NONBLOCK, the same as O_NONBLOCK.
const fn libc_nonblock() -> i32 {
    0o4000
}
