//! Volatile write caches of controllers that were given up and came back. A disk that was taken out has lost what its cache had,
//! and says nothing of it. So the first FLUSH of each namespace after the return fails, and with it what
//! [`Flushes`](crate::flushes) keeps of the writes before.

use alloc::boxed::Box;
use alloc::vec::Vec;

use nvme::MAX_NAMESPACES;

/// What is known of the cache of a controller.
struct Cache {
    /// The controller was given up.
    lost: bool,
    /// Namespaces whose FLUSH has failed since.
    told: Vec<u32>,
}

/// What is known of the caches of an engine's controllers, by queue.
pub struct Caches(Box<[Cache]>);

impl Caches {
    /// For so many queues, of which no controller was given up.
    pub fn new(queues: usize) -> Self {
        Self((0..queues).map(|_| Cache { lost: false, told: Vec::with_capacity(MAX_NAMESPACES) }).collect())
    }

    /// The controller of this queue was given up.
    #[cold]
    pub fn lose(&mut self, queue: usize) {
        if let Some(cache) = self.0.get_mut(queue) {
            cache.lost = true;
            cache.told.clear();
        }
    }

    /// Whether a FLUSH of namespace `id` has to fail, because writes in its volatile cache may be lost. Returns true once after
    /// each time that the controller of this queue was given up.
    pub fn have_lost(&mut self, queue: usize, id: u32) -> bool {
        let Some(cache) = self.0.get_mut(queue) else { return false };
        let lost = cache.lost && !cache.told.contains(&id);
        if lost && cache.told.len() < MAX_NAMESPACES {
            cache.told.push(id);
        }
        lost
    }
}
