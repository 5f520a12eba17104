//! Reports and exports of a trace like a machine's, and of arbitrary records: each is decoded by something else than what
//! wrote it.

mod any;
mod perfetto;
mod report;
mod stacks;
mod wire;
