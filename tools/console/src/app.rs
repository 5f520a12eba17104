//! The program: a terminal, a way to a machine, and the loop that brings them together.

mod feed;
mod keys;
mod message;

use std::io::{IsTerminal as _, stdin, stdout};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

pub use feed::{Feed, source, start};
use message::Message;

use crate::link::QUEUE;
use crate::options::Options;
use crate::screen::{self, Head};
use crate::ui::{Action, Ui};

/// Time between two drawings, at least. A screen of 80x24 has 2 kB, which a serial line of 115,200 baud takes 170 ms for.
const DRAW: Duration = Duration::from_millis(100);
/// Time between two drawings where nothing happens but that time passes.
const TICK: Duration = Duration::from_secs(1);

/// Runs the program with its views, until the person quits.
///
/// # Errors
/// There is no terminal, or the file of a recording cannot be used.
pub fn run(options: &Options) -> Result<()> {
    if !stdout().is_terminal() || !stdin().is_terminal() {
        bail!("this is no terminal; --once prints a view as text");
    }
    let (sender, messages) = sync_channel(QUEUE);
    let mut feed = Feed::new(options)?;
    start(options, sender.clone(), Message::News)?;
    keys::read(sender);
    let mut terminal = ratatui::try_init().context("cannot use the terminal")?;
    let ended = views(&mut terminal, options, &mut feed, &messages);
    ratatui::try_restore().context("cannot restore the terminal")?;
    ended
}

fn views(
    terminal: &mut ratatui::DefaultTerminal,
    options: &Options,
    feed: &mut Feed,
    messages: &Receiver<Message>,
) -> Result<()> {
    let colours = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut head = Head { source: source(options), colours, recording: false };
    let mut ui = Ui { view: options.view, detail: options.detail.clone(), ..Ui::default() };
    let (mut drawn, mut changed) = (Instant::now(), true);
    loop {
        if changed && drawn.elapsed() >= DRAW || drawn.elapsed() >= TICK {
            head.recording = feed.is_recording();
            terminal.draw(|frame| screen::draw(frame, &head, &mut ui, feed.state()))?;
            (drawn, changed) = (Instant::now(), false);
        }
        let pause = if changed { DRAW } else { TICK };
        let message = messages.recv_timeout(pause.saturating_sub(drawn.elapsed()).min(feed.pause()));
        feed.tick();
        match message {
            Ok(Message::News(news)) => feed.take(news),
            Ok(Message::Key(key)) => {
                match ui.key(key, feed.state()) {
                    Action::Quit => {
                        let more = |left| messages.recv_timeout(left).ok().map(Message::into_news);
                        feed.end(more);
                        return Ok(());
                    }
                    Action::Watch => feed.watch(),
                    Action::Trace => feed.trace(),
                    Action::Capture => feed.capture(ui.port(feed.state()).as_deref()),
                    Action::None => {}
                }
                // A key is answered at once.
                drawn = drawn.checked_sub(DRAW).unwrap_or(drawn);
            }
            Ok(Message::Resized) => {}
            Ok(Message::Hangup) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout) => continue,
        }
        changed = true;
    }
}
