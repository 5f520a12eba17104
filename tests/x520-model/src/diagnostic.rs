//! Mistakes of a driver: what the data sheet forbids, and what no driver can want.

/// The side of the device that was at work, and its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Receive queue.
    Receive(usize),
    /// Transmit queue.
    Transmit(usize),
}

/// A mistake of the driver.
#[allow(missing_docs, reason = "fields are what their names say; addresses and lengths in bytes")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Diagnostic {
    /// There is no register at this offset that the model knows.
    UnknownRegister { offset: u32, write: bool },
    /// A read-only or counting register was written.
    WriteToReadOnly { register: &'static str },
    /// A register that cannot be read was read.
    ReadOfWriteOnly { register: &'static str },
    /// The device is in reset: only CTRL may be looked at until 1 ms has passed (4.2.1.6).
    AccessDuringReset { register: &'static str },
    /// DMA to memory that was not granted. The queue then stands still until a reset.
    NotGranted { who: Direction, address: u64, len: usize, write: bool },
    /// The tail does not lie within the ring (8.2.3.8, 8.2.3.9).
    TailBeyondRing { who: Direction, tail: u32, descriptors: u32 },
    /// The tail was moved although the queue's enable bit had not been read back as set (4.6.7, 4.6.8).
    TailBeforeEnable { who: Direction },
    /// Base or length was written while the queue was enabled.
    RingMovedWhileEnabled { who: Direction },
    /// A ring's base is not aligned to 128 bytes, or its length is 0 or no multiple of 128 bytes.
    BadRing { who: Direction, base: u64, len: u32 },
    /// The transmit queue was enabled before DMATXCTL.TE (4.6.8).
    QueueBeforeTransmitEnable { queue: usize },
    /// A register changed that may change only while the transmit arbiter is off (RTTDCS.ARBDIS), or only before
    /// RXCTRL.RXEN.
    ChangedWhileRunning { register: &'static str },
    /// SRRCTL names no buffer size, or a descriptor type that does not exist.
    BadBufferSize { queue: usize, srrctl: u32 },
    /// A receive descriptor whose buffer address is 0.
    NullBuffer { queue: usize, index: u32 },
    /// A transmit descriptor of length 0 within a packet.
    ZeroLength { queue: usize, index: u32 },
    /// A transmit descriptor of a type that does not exist, or of another format than the packet's first.
    BadDescriptor { queue: usize, index: u32, what: &'static str },
    /// A packet that cannot be sent as its descriptors ask.
    BadPacket { queue: usize, what: &'static str },
    /// SW_FW_SYNC written without holding SWSM.SWESMBI (10.5.4).
    WithoutSemaphore,
    /// The clock of the two wires to the SFP module was high or low for less than 100 kHz allow (SFF-8431, 4.2).
    ModuleClockTooFast { high: bool, microseconds: u64 },
    /// HLREG0.RXCRCSTRP and RDRXCTL.CRCSTRIP differ while receive is on.
    CrcStripDiffers,
    /// PFVTCTL, MRQC and MTQC do not agree on whether there are pools while receive is on.
    PoolsDiffer,
}
