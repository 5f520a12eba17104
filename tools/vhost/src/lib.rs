//! The I/O engine as a Linux process: the hypervisor's engine crate behind vhost-user sockets. Its guests are QEMU's
//! guests and DPDK's virtio-user ports (the vhost-user protocol is in QEMU's documentation).
//!
//! ```text
//!   front-end (QEMU, DPDK)            this process
//!   ──────────────────────            ────────────────────────────────────────────────────────
//!   messages ── UNIX socket ────────▶ client: a thread for each socket ── control ▶ engine's thread,
//!   memory   ── mapped on both sides: rings and frames ─────────────────────────▶ which polls
//!   kick     ── eventfd ────────────▶ kicks: one thread, for queues that are not polled
//!   call     ◀─ eventfd ───────────── calls: written by the engine's thread
//! ```
//!
//! The clients' threads do what the control core does in the hypervisor: they attach and detach devices by `control`,
//! and never touch a frame. `client` and `map` check what a front-end sends. The engine checks what its driver writes
//! to the rings. An error in either affects that front-end alone.

pub mod backends;
mod calls;
pub mod client;
pub mod clock;
pub mod config;
pub mod control;
mod disk;
mod early;
mod file;
mod inflight;
pub mod kicks;
pub mod map;
pub mod port;
pub mod server;
mod signals;
mod statistics;
#[cfg(test)]
mod tests;
mod tracked;
