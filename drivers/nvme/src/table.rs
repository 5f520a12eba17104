//! What the controller tells its I/O queues: the namespaces and the limits of commands. The controller writes it, the
//! queues of other cores read it.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Most namespaces of a controller that can be used.
pub const MAX_NAMESPACES: usize = 32;

/// A namespace, for a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Known {
    /// log2 of the bytes of a block.
    pub shift: u32,
    /// Number of blocks.
    pub blocks: u64,
    /// It is write protected.
    pub read_only: bool,
}

#[derive(Debug)]
struct Place {
    /// Namespace identifier. 0: none. Written once.
    namespace: AtomicU32,
    /// log2 of the bytes of a block, and [`READ_ONLY`]. 0: it cannot be used.
    shift: AtomicU32,
    blocks: AtomicU64,
}

/// What all parts of a driver share.
#[derive(Debug)]
pub(crate) struct Table {
    places: [Place; MAX_NAMESPACES],
    /// Most bytes of a command's data, a multiple of the page size.
    transfer: AtomicU32,
    flags: AtomicU32,
    /// Changes of namespaces.
    changes: AtomicU32,
}

/// Bit of a place's `shift`: the namespace is write protected.
const READ_ONLY: u32 = 1 << 8;

/// The device has a volatile write cache: flushes are sent.
pub(crate) const CACHE: u32 = 1;
/// It supports Dataset Management.
pub(crate) const DEALLOCATE: u32 = 2;
/// It supports Write Zeroes.
pub(crate) const WRITE_ZEROES: u32 = 4;

impl Table {
    pub(crate) const fn new() -> Self {
        Self {
            places: [const { Place { namespace: AtomicU32::new(0), shift: AtomicU32::new(0), blocks: AtomicU64::new(0) } };
                MAX_NAMESPACES],
            transfer: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            changes: AtomicU32::new(0),
        }
    }

    /// Sets the limits of commands.
    pub(crate) fn set_limits(&self, transfer: u32, flags: u32) {
        self.transfer.store(transfer, Ordering::Relaxed);
        self.flags.store(flags, Ordering::Relaxed);
    }

    /// Most bytes of a command's data.
    #[inline(always)]
    pub(crate) fn transfer(&self) -> u32 {
        self.transfer.load(Ordering::Relaxed)
    }

    /// Whether the device has one of these.
    #[inline(always)]
    pub(crate) fn has(&self, flag: u32) -> bool {
        self.flags.load(Ordering::Relaxed) & flag != 0
    }

    /// Adds or changes a namespace. `None`: it cannot be used. Returns false if there is no place.
    pub(crate) fn set(&self, namespace: u32, known: Option<Known>) -> bool {
        let is = |place: &&Place, id| place.namespace.load(Ordering::Relaxed) == id;
        let own = self.places.iter().find(|place| is(place, namespace));
        let Some(place) = own.or_else(|| self.places.iter().find(|place| is(place, 0))) else { return false };
        let Known { shift, blocks, read_only } = known.unwrap_or(Known { shift: 0, blocks: 0, read_only: false });
        // A reader that sees a new number of blocks with an old block size, or the reverse, gets an error from the
        // device at worst, because the device checks the range too.
        place.shift.store(shift | if read_only { READ_ONLY } else { 0 }, Ordering::Relaxed);
        place.blocks.store(blocks, Ordering::Relaxed);
        place.namespace.store(namespace, Ordering::Release);
        self.changes.fetch_add(1, Ordering::Release);
        true
    }

    /// Grows when a namespace is added or changed. It may grow without a change.
    #[inline(always)]
    pub(crate) fn changes(&self) -> u32 {
        self.changes.load(Ordering::Acquire)
    }

    /// A namespace. `None`: there is no such namespace, or it cannot be used.
    #[inline(always)]
    pub(crate) fn get(&self, namespace: u32) -> Option<Known> {
        let place =
            self.places.iter().find(|place| place.namespace.load(Ordering::Acquire) == namespace && namespace != 0)?;
        let shift = place.shift.load(Ordering::Relaxed);
        let blocks = place.blocks.load(Ordering::Relaxed);
        (shift != 0).then_some(Known { shift: shift & !READ_ONLY, blocks, read_only: shift & READ_ONLY != 0 })
    }
}
