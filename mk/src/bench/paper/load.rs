//! VPE 5.1: the busy part of the engine's time, against the load that is offered.

use anyhow::Result;
use control::Command;
use scenarios::launch::Launch as _;
use scenarios::platform::Platform;
use scenarios::probes::{self, Probe};
use scenarios::scenario::seconds;
use scenarios::session::Session;
use serde_json::{Value, json};

use super::window::{Length, Unit, Window, Worker, ratio};
use crate::emulator::Emulator;
use crate::ui;

/// Microseconds from one frame to the next. 0: as fast as the queue takes them.
const GAPS: [u64; 10] = [2000, 1000, 500, 200, 100, 50, 20, 10, 5, 0];
/// The probe's actions, and what they send.
const ACTIONS: [(&str, &str); 2] =
    [("paced", "60 B, forwarded nowhere"), ("paced-full", "1,514 B, copied to another guest")];

/// Offers frames at rising rates.
pub fn run(platform: Platform, quick: bool) -> Result<Value> {
    let guests = [Probe::new(1, "eli", "obey").peer(2), Probe::new(2, "eli", "serve")];
    let mut session = Emulator::new(platform).launch(&probes::server("bench-paper-load", &guests))?;
    session.result("p2", "serve", seconds(60))?;
    session.result("p1", "obey", seconds(60))?;
    let worker = Worker { name: "p1".to_owned(), unit: Unit::Sent };
    let mut rows = Vec::new();
    for (action, what) in ACTIONS {
        for gap in GAPS {
            ui::step("bench", &format!("{what}, every {gap} us"));
            session.tell("p1", &format!("{action}:{gap}"))?;
            session.result("p1", "begins", seconds(60))?;
            // At the lowest rates a window has few frames.
            let length = Length { units: 20, ..Length::of(platform, quick) };
            let window = Window::pass(&mut session, std::slice::from_ref(&worker), length)?;
            end(&mut session, action)?;
            let frames = window.units(&worker)? as f64;
            let offered = (gap > 0).then(|| ratio(1e6, gap as f64));
            rows.push(json!({
                "frames": what,
                "gap_us": gap,
                "offered_per_second": offered,
                "seconds": ratio(window.seconds(), 1.0),
                "sent": frames,
                "sent_per_second": ratio(frames, window.seconds()),
                "dropped": window.dropped()?,
                "busy_turns": window.busy_turns()?,
                "frames_per_busy_turn": ratio(frames, window.busy_turns()? as f64),
                "busy_percent": window.busy_percent()?,
            }));
        }
    }
    Ok(json!({ "rows": rows }))
}

/// Ends an action of the probe.
fn end(session: &mut Session, action: &str) -> Result<()> {
    let line = Command::Input { guest: "p1".to_owned(), text: "\n".to_owned() };
    session.ask(line, seconds(20))?;
    session.result("p1", action, seconds(60)).map(drop)
}
