//! Tests of the whole crate: engine, queue and back-end together with a driver's half, on rings of both forms.

mod hostile;
mod requests;
mod starved;
mod support;
