//! `--once`: prints one view and ends.

use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::app::{Feed, start};
use crate::link::{News, QUEUE};
use crate::options::Options;
use crate::sheet::{json, text};
use crate::state::{Link, State};
use crate::views::View;

/// Columns of the text.
const WIDTH: usize = 80;
/// Readings that rates need.
const READINGS: u64 = 2;

/// Waits for two readings of the counters, or for the end of a recording. Returns the view.
///
/// # Errors
/// No counters came in time.
pub fn run(options: &Options) -> Result<String> {
    let (sender, messages) = sync_channel(QUEUE);
    let mut feed = Feed::new(options)?;
    start(options, sender, |news: News| news)?;
    let deadline = Instant::now().checked_add(Duration::from_secs_f64(options.wait));
    let left = || deadline.map_or(Duration::ZERO, |deadline| deadline.saturating_duration_since(Instant::now()));
    while feed.is_waiting() || !is_enough(feed.state(), options.replay.is_some()) {
        match messages.recv_timeout(left().min(feed.pause())) {
            Ok(news) => feed.take(news),
            Err(RecvTimeoutError::Timeout) if !left().is_zero() => {}
            Err(_) => break,
        }
        feed.tick();
    }
    feed.end(|left| messages.recv_timeout(left).ok().map(Some));
    let state = feed.state();
    if state.readings == 0 && options.view != View::Log {
        match &state.link {
            Link::Down { why, .. } => bail!("no connection: {why}"),
            Link::Ended => bail!("the recording has no counters"),
            Link::Opening | Link::Up => bail!("no counters came in {} s", options.wait),
        }
    }
    let sheet = options.view.sheet(state, options.detail.as_deref());
    Ok(if options.json { format!("{}\n", json::whole(&sheet)) } else { text::whole(&sheet, None, WIDTH) })
}

fn is_enough(state: &State, is_recording: bool) -> bool {
    state.link == Link::Ended || (!is_recording && state.readings >= READINGS)
}
