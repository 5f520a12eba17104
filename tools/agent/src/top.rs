//! `top`: the live picture of COM1 ([`control::Top`]), made here of the counters, once a second.

use std::io::Write;
use std::time::{Duration, Instant};

use control::{AfterKey, Command, Event, LEAVE_TOP, Top, View};

use crate::client::{Broker, Failed};
use crate::input::{Input, Ready};
use crate::key::Key;
use crate::terminal::Raw;

/// Time between two readings of the counters.
const READING: Duration = Duration::from_secs(1);
/// Most keys that are taken at once.
const KEYS: usize = 64;

/// Shows the picture until a person types `q` or Ctrl-C, or the input ends. A bound key's picture has its own guests only.
///
/// # Errors
/// The input is no terminal, the hypervisor does not answer, or the output broke. The terminal is as it was before.
pub fn top(broker: &Broker, key: &Key, input: &mut Input, out: &mut dyn Write) -> Result<(), Failed> {
    let mut client = broker.connect(false)?;
    let _raw = Raw::new(input)?;
    let mut picture = String::new();
    let shown = Top::new(&mut picture).map_err(|_| no_memory()).and_then(|mut top| {
        let mut next = Instant::now();
        while !input.is_over() {
            let now = Instant::now();
            if now >= next {
                next = now + READING;
                let (answer, _) = client.ask(Command::Show(View::Counters))?;
                if let Some(Event::Counters(counters)) = key.sees(answer) {
                    top.read(counters);
                }
                // Writing to a string does not fail.
                let _ = top.refresh(&mut picture);
            }
            out.write_all(std::mem::take(&mut picture).as_bytes()).and_then(|()| out.flush())?;
            if input.wait(None, Some(next.saturating_duration_since(Instant::now())))? != Ready::Input {
                continue;
            }
            for byte in input.read_some(KEYS, Some(b'q'))? {
                match top.feed(byte, &mut picture).unwrap_or(AfterKey::Nothing) {
                    AfterKey::Nothing => {}
                    AfterKey::Refresh => _ = top.refresh(&mut picture),
                    AfterKey::Leave => return Ok(()),
                }
            }
        }
        Ok(())
    });
    out.write_all(LEAVE_TOP.as_bytes()).and_then(|()| out.flush())?;
    shown
}

fn no_memory() -> Failed {
    Failed::Connection(std::io::ErrorKind::OutOfMemory.into())
}

#[cfg(test)]
mod tests;
