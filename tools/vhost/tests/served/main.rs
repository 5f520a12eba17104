//! Tests the whole program: front-ends connect, send frames, use disks, go, come back, and misbehave.

mod disks;
mod files;
mod hostile;
mod killed;
mod process;
mod traffic;
