//! Tests the whole program: front-ends connect, send frames, go, come back, and misbehave.

mod hostile;
mod process;
mod traffic;
