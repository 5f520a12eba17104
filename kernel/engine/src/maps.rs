//! Which guests' memory an engine's core maps. The kernel implements this trait. An engine in a process has none: there
//! every core maps everything that the process has.

/// The map of an engine's core. The engine calls it on that core only, when devices come and go.
pub trait Maps: Sync {
    /// Maps the memory of a guest, if it is not mapped for another of its devices. The engine calls it before it touches
    /// that memory for the device.
    fn map(&self, guest: usize);

    /// Takes one call of [`Maps::map`] back. After the last one the memory is not mapped any more, and no translation of it
    /// is cached. The engine calls it when nothing touches the memory for the device any more, and before it answers the
    /// control core that the device is detached.
    fn unmap(&self, guest: usize);
}
