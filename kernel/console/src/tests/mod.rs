//! Tests of the whole crate: engine, queues and back-end together with a driver, on split and packed rings.

mod control;
mod hostile;
mod input;
mod lives;
mod output;
mod support;
