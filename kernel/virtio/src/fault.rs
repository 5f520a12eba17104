//! The rules of a virtqueue that a driver can break (virtio 1.3 ch. 2.7, 2.8). A guest that breaks one loses the device
//! until it resets the device (DEVICE_NEEDS_RESET). Nobody else is affected.

macro_rules! faults {
    ($($(#[doc = $doc:literal])* $name:ident => $text:literal,)*) => {
        /// A broken rule.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Fault {
            $($(#[doc = $doc])* $name,)*
        }

        impl Fault {
            /// All faults, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// A sentence for reports.
            #[must_use]
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }

            /// A name for scripts.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }
        }
    };
}

faults! {
    /// The driver set DRIVER_OK with features that were not offered or without VERSION_1.
    Features => "features that were not offered, or no VERSION_1",
    /// The queue size is zero, or above the offered size, or not a power of two in a split ring (2.7, 4.1.4.3.2).
    QueueSize => "queue size not a power of two up to the size offered",
    /// A ring that is misaligned or not in the guest's memory (2.7).
    RingAddress => "a ring that is misaligned or outside the guest's memory",
    /// The available index moved back, or more than a queue ahead (2.7.6), or a saved position is not valid.
    AvailIndex => "the available index moved back or more than a queue ahead",
    /// The available ring names a descriptor beyond the table.
    Head => "the available ring names a descriptor beyond the table",
    /// The available ring offers a chain that the device still holds.
    HeadOutstanding => "a chain offered again while the device holds it",
    /// A descriptor's next field points beyond the table.
    Next => "a descriptor's next field points beyond the table",
    /// More descriptors than the queue has (2.7.5.2, 2.7.5.3.1): a loop, or a chain that is too long. Or more than the
    /// device takes ([`Queue::limit_chains`](crate::queue::Queue::limit_chains)).
    ChainTooLong => "a descriptor chain that loops or is longer than the queue, or than the device takes",
    /// The lengths of a chain add up to more than 32 bits (2.7.5.2).
    LengthWraps => "descriptor lengths that add up to 4 GiB or more",
    /// A buffer of no bytes.
    ZeroLength => "a descriptor of length zero",
    /// A buffer that is not in the guest's memory.
    Buffer => "a buffer outside the guest's memory",
    /// A device-readable descriptor after a device-writable one (2.7.4.2).
    Order => "a device-readable descriptor after a device-writable one",
    /// INDIRECT without the feature.
    IndirectNotNegotiated => "an indirect descriptor without the feature",
    /// An indirect descriptor in an indirect table (2.7.5.3.1).
    IndirectNested => "an indirect descriptor inside an indirect table",
    /// INDIRECT and NEXT in one descriptor (2.7.5.3.1).
    IndirectNext => "an indirect descriptor that has a next one",
    /// An indirect table whose length is zero or not a multiple of 16.
    IndirectLength => "an indirect table whose length is no multiple of 16",
    /// An indirect table that is not in the guest's memory.
    IndirectTable => "an indirect table outside the guest's memory",
    /// Device-writable buffers on a queue that the device only reads, or the other way round.
    Direction => "a buffer of the wrong direction for its queue",
    /// A request that is too short for its header, or has no byte for its status.
    Request => "a request without room for its header or its status",
}

impl Fault {
    /// The number of faults.
    pub const COUNT: usize = Self::ALL.len();
}

impl core::fmt::Display for Fault {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.text())
    }
}
