//! Tests of the whole crate: engine, queue and back-end together with a driver, on split and packed rings.

mod hostile;
mod limited;
mod requests;
mod starved;
mod support;
