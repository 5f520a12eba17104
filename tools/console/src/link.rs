//! Ways to a machine. A thread opens one, reads it, and opens it again after growing pauses when it breaks.

mod errand;
mod news;
mod open;
mod replay;
mod ssh;

use std::io::{Read, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

pub use errand::{Agent, End, Errand, Got, is_plain};
pub use news::{News, QUEUE, Requests};
pub use open::{Opened, Way};
pub use replay::play;

/// Requests that wait for a connection that takes none. Further ones are dropped.
const REQUESTS: usize = 16;
/// The first pause before another attempt. Each next one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Starts a thread that keeps the way open until nobody listens any more.
pub fn keep_open<T: Send + 'static>(way: Way, news: SyncSender<T>, wrap: fn(News) -> T) {
    thread::spawn(move || {
        let mut pause = FIRST_PAUSE;
        loop {
            let (why, worked) = match way.open() {
                Ok(opened) => read_until_broken(opened, &news, wrap),
                Err(error) => (format!("{error:#}"), false),
            };
            if worked {
                pause = FIRST_PAUSE;
            }
            if news.send(wrap(News::Down(why, pause))).is_err() {
                return;
            }
            thread::sleep(pause);
            pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
        }
    });
}

/// Reads an open way until it breaks. Returns why it broke, and whether any bytes came.
fn read_until_broken<T>(opened: Opened, news: &SyncSender<T>, wrap: fn(News) -> T) -> (String, bool) {
    let Opened { mut input, output, reason } = opened;
    let (sender, requests) = sync_channel(REQUESTS);
    thread::spawn(move || write_requests(output, &requests));
    if news.send(wrap(News::Up(Requests::new(sender)))).is_err() {
        return (String::new(), false);
    }
    let mut bytes = vec![0; news::CHUNK];
    let mut worked = false;
    let error = loop {
        match input.read(&mut bytes) {
            Ok(0) => break "the other end closed the connection".to_owned(),
            Ok(length) => {
                worked = true;
                let read = bytes.get(..length).unwrap_or_default().to_vec();
                if news.send(wrap(News::Bytes(read, None))).is_err() {
                    break String::new();
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => break error.to_string(),
        }
    };
    (reason().unwrap_or(error), worked)
}

/// Writes requests until the program drops the connection or the connection takes no more.
fn write_requests(mut output: Box<dyn Write + Send>, requests: &Receiver<String>) {
    for line in requests {
        if output.write_all(line.as_bytes()).and_then(|()| output.flush()).is_err() {
            return;
        }
    }
}

/// A clock that began when the program did.
#[derive(Clone, Copy, Debug)]
pub struct Clock(Instant);

impl Clock {
    /// Starts it.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Time since then.
    #[must_use]
    pub fn now(self) -> Duration {
        self.0.elapsed()
    }
}
