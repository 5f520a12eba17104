//! Tests of the whole crate: engine, queue, back-end and storage together with a driver, on split and packed rings.

mod both_paths;
mod config;
mod emulate;
mod flushes;
mod gone;
mod guest_driver;
mod hostile;
mod late;
mod mixed;
mod nvme;
mod overlay;
mod part;
mod ram;
mod shares;
mod support;
mod virtio_disk;
mod watched;
