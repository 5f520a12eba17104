//! Counters that one core writes and any core may read at any time, and the counters that every kind of device has.

use core::sync::atomic::{AtomicU64, Ordering};

/// A count that grows, or with [`Counter::set`] a value that is taken from elsewhere. Reading is always allowed and never
/// synchronises.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// A counter at zero.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Adds `n`, with a plain load and store and no locked instruction. Only the counter's one writer may call it.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Stores a value that was counted elsewhere. Only the counter's one writer may call it.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// Adds `n` atomically, for a counter that several cores write.
    #[inline]
    pub fn add_shared(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    /// The count now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Defines a group of [`Counter`]s: a struct with one field for each counter, and an iterator over names and values.
#[macro_export]
macro_rules! counters {
    ($(#[$outer:meta])* $name:ident { $($(#[$inner:meta])* $field:ident,)* }) => {
        $(#[$outer])*
        #[derive(Debug, Default)]
        pub struct $name {
            $($(#[$inner])* pub $field: $crate::counters::Counter,)*
        }

        impl $name {
            /// All at zero.
            #[must_use]
            pub const fn new() -> Self {
                Self { $($field: $crate::counters::Counter::new(),)* }
            }

            /// Every counter with its name, for a report.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
                [$((stringify!($field), &self.$field),)*].into_iter().map(|(name, counter)| (name, counter.get()))
            }

            /// The number of a counter of this group, in the order of `iter`. `None`: it is not one of them.
            pub fn position(&self, counter: &$crate::counters::Counter) -> Option<usize> {
                [$(&self.$field,)*].into_iter().position(|own| core::ptr::eq(own, counter))
            }
        }
    };
}

counters! {
    /// Events between one device and its driver, whatever the device's kind.
    ///
    /// The engine's core writes all of them except `kicks`, which the guest's cores add to.
    DeviceCounters {
        /// Interrupts sent.
        interrupts,
        /// Interrupts that the guest had suppressed.
        interrupts_suppressed,
        /// Interrupts that became pending because the MSI-X entry was masked.
        interrupts_masked,
        /// MSI-X messages that no device may send, or that no vCPU receives.
        interrupts_refused,
        /// Notifications by the driver. Each costs an exit.
        kicks,
        /// Times a queue was armed: the engine waits for the driver's notification.
        arms,
        /// Times an adaptive queue became a polled one.
        polls,
        /// Times the device was activated.
        activations,
        /// Times the device was reset.
        resets,
        /// Times a single queue was reset while the device ran.
        queue_resets,
        /// Times the guest broke a rule of the ring and lost its device.
        faults,
        /// Completions with a token that a reset had cancelled.
        stale_tokens,
        /// Ticks of the engine's clock spent in visits to the device's queues that found something.
        engine_cycles,
    }
}

#[cfg(test)]
mod tests {
    use super::DeviceCounters;

    #[test]
    fn counters_report_under_their_own_names() {
        let c = DeviceCounters::new();
        c.arms.add(60);
        c.kicks.add_shared(2);
        c.interrupts.set(7);
        c.interrupts.set(5);
        let all: Vec<_> = c.iter().filter(|&(_, n)| n != 0).collect();
        assert_eq!(all, [("interrupts", 5), ("kicks", 2), ("arms", 60)]);
    }

    #[test]
    fn a_counter_has_the_number_of_its_name() {
        let c = DeviceCounters::new();
        for (number, (name, _)) in c.iter().enumerate() {
            let counter = match name {
                "interrupts" => &c.interrupts,
                "kicks" => &c.kicks,
                "engine_cycles" => &c.engine_cycles,
                _ => continue,
            };
            assert_eq!(c.position(counter), Some(number), "{name}");
        }
        assert_eq!(c.position(&DeviceCounters::new().kicks), None, "another device's");
    }
}
