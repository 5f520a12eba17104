//! A core that has a ring, as the control core reads it.

use super::{CaptureRing, Ring};
use crate::arch::CoreIndex;
use ::trace::{published::Published, ring::Cursor, stream::KernelAddresses};
use alloc::string::String;

/// A core that has a ring.
pub(super) struct Traced {
    pub(super) core: CoreIndex,
    pub(super) role: Role,
    /// The name of the guest, or of the role.
    pub(super) user: String,
    pub(super) ring: &'static Ring,
    pub(super) kernel: &'static Published,
    /// What the present saving has of it: `since`, `lstar` and `page_fault`.
    pub(super) told: Option<[u64; 3]>,
    pub(super) cursor: Cursor,
    pub(super) captures: Option<&'static CaptureRing>,
    pub(super) captured: Cursor,
    /// Records written and dropped before `trace on`.
    pub(super) before: u64,
}

/// What a core is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Control,
    Engine,
    /// It runs a vCPU of this guest.
    Guest(u8),
}

impl Role {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Engine => "engine",
            Self::Guest(_) => "guest",
        }
    }
}

impl Traced {
    /// Makes a block of where the guest's kernel is, if that has changed. Returns its length in bytes; 0 if there is nothing to
    /// tell.
    pub(super) fn kernel(&mut self, buffer: &mut [u8]) -> usize {
        let Role::Guest(guest) = self.role else { return 0 };
        // While it is being written, the next call has it.
        let Some([since, read, lstar, page_fault]) = self.kernel.read() else { return 0 };
        if self.told == Some([since, lstar, page_fault]) {
            return 0;
        }
        self.told = Some([since, lstar, page_fault]);
        let addresses = KernelAddresses { core: self.core as u32, guest: guest.into(), since, read, lstar, page_fault };
        // The buffer is larger.
        addresses.write(buffer).map_or(0, <[u8]>::len)
    }

    pub(super) fn all(&self) -> u64 {
        self.ring.written().wrapping_add(self.ring.dropped())
    }
}
