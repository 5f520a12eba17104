//! The program as its users meet it: front-ends connect, send frames, go, come back, and misbehave.

mod hostile;
mod process;
mod traffic;
