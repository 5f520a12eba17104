//! Plays a recording.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};

use super::news::{CHUNK, News};
use crate::lines::{Line, Lines};
use crate::record::Player;

/// Starts a thread that plays a recording. `speed`: times faster than it was recorded; 0: without pauses. `until`: seconds
/// of it after which it ends.
///
/// # Errors
/// The file cannot be opened.
pub fn play<T: Send + 'static>(
    path: &Path,
    speed: f64,
    until: Option<f64>,
    news: SyncSender<T>,
    wrap: fn(News) -> T,
) -> Result<()> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    thread::spawn(move || {
        // Nobody listens any more.
        let _ = run(file, speed, until, &|message| news.send(wrap(message)).ok());
    });
    Ok(())
}

fn run(mut file: File, speed: f64, until: Option<f64>, send: &dyn Fn(News) -> Option<()>) -> Option<()> {
    let (mut lines, mut player, begun) = (Lines::new(), Player::new(), Instant::now());
    let mut bytes = vec![0; CHUNK];
    loop {
        let length = file.read(&mut bytes).unwrap_or(0);
        let mut found = Vec::new();
        lines.feed(bytes.get(..length).unwrap_or_default(), |line| found.push(line));
        if length == 0 {
            found.extend(lines.finish());
        }
        for line in found {
            let Line::Text(line) = line else { continue };
            let (at, sent) = player.next(&line);
            if until.is_some_and(|until| at.as_secs_f64() > until) {
                return send(News::Ended);
            }
            if speed > 0.0 {
                let due = Duration::try_from_secs_f64(at.as_secs_f64() / speed).unwrap_or(Duration::MAX);
                thread::sleep(due.saturating_sub(begun.elapsed()));
            }
            send(News::Bytes(format!("{sent}\n").into_bytes(), Some(at)))?;
        }
        if length == 0 {
            return send(News::Ended);
        }
    }
}
