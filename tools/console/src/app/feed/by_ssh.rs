//! The trace and captured frames where the agent of the management guest is at the other end of ssh: another ssh brings them.
//!
//! What is the machine's own is ended by a command on the control channel, so that its end comes too. Without that channel, ssh is
//! ended, and the agent ends the rest.

use std::sync::mpsc::sync_channel;
use std::time::Duration;

use control::{Command, TraceStep};
use sidecore_pcapng::filter;
use sidecore_trace::record::Capture as Wanted;

use super::brought::{Brought, What};
use super::{CLASSES, Feed, LOOK};
use crate::clean::{LINE, clean};
use crate::link::{Agent, End, Errand, Got, News, is_plain};
use crate::sheet::Tone;

/// Most pieces that are taken before the program looks at keys again: at most 1 MiB.
const AT_ONCE: usize = 16;

/// Time for the end of what is brought, after it was asked for.
const END: Duration = Duration::from_secs(5);

impl Feed {
    /// Whether a trace was asked for, and nothing of it has come.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.is_traced_by_ssh() && self.brought.as_ref().is_some_and(|brought| !brought.came)
    }

    pub(super) fn is_traced_by_ssh(&self) -> bool {
        self.brought.as_ref().is_some_and(|brought| brought.what == What::Trace)
    }

    pub(super) fn is_captured_by_ssh(&self) -> bool {
        self.brought.as_ref().is_some_and(|brought| brought.what == What::Frames)
    }

    /// Begins the trace.
    pub(super) fn trace_by_ssh(&mut self, agent: &Agent) {
        if self.is_captured_by_ssh() {
            return self.state.say("trace", Tone::Warning, "frames are captured; `c` ends that");
        }
        let words = format!("trace save {CLASSES}");
        let off = Command::Trace { step: TraceStep::Off, stop: false, classes: String::new() };
        let errand = Errand::trace(agent, &words);
        self.begin(What::Trace, errand, agent, &words, off);
        self.traced = true;
    }

    /// Begins a capture.
    pub(super) fn capture_by_ssh(&mut self, agent: &Agent, wanted: Wanted, target: &str) {
        let Wanted { guest, filter } = wanted;
        if !is_plain(&guest) || !(filter.is_empty() || is_plain(&filter)) {
            let wanted = format!("{guest} {filter}");
            let text = format!("`{}` has characters that a shell at the other end could obey", wanted.trim_end());
            return self.state.say("capture", Tone::Warning, &clean(&text, LINE));
        }
        let words = format!("capture {guest} {filter}");
        let (closed, reader) = sync_channel(1);
        let errand = Errand::capture(agent, words.trim_end(), target, closed);
        self.reader = Some(reader);
        let off = Command::Capture { guest, filter: filter::off(&filter) };
        self.begin(What::Frames, errand, agent, words.trim_end(), off);
        self.state.say("capture", Tone::Plain, &clean(&format!("frames go to {target}; `c` ends that"), LINE));
    }

    fn begin(&mut self, what: What, errand: Errand, agent: &Agent, words: &str, off: Command) {
        let (host, line) = (agent.host.clone(), agent.line(words));
        let text = format!("another ssh asks {host} for `{line}`");
        self.state.say(what.words().0, Tone::Plain, &clean(&text, LINE));
        self.brought = Some(Brought { what, errand, host, line, off, came: false, ending: None });
    }

    /// Asks for the end of what is brought. What was asked for already, or has not begun, is ended at once.
    pub(super) fn end_brought(&mut self) {
        let now = self.clock.now();
        let Some(brought) = &mut self.brought else { return };
        let (kind, _) = brought.what.words();
        if brought.came && brought.ending.is_none() && self.requests.is_some() {
            brought.ending = Some(now);
            let off = brought.off.clone();
            self.ask_off(off);
            return self.state.say(kind, Tone::Plain, "its end was asked for");
        }
        self.drop_brought();
        self.state.say(kind, Tone::Plain, "ssh was ended, so the agent ends it");
    }

    fn ask_off(&mut self, off: Command) {
        self.state.awaited = self.requests.is_some().then_some(self.next_id);
        self.ask(off);
    }

    fn drop_brought(&mut self) {
        if self.brought.take().is_some_and(|brought| brought.what == What::Trace) {
            self.traced = false;
            self.state.traced.bytes(&[], true);
        }
    }

    /// Takes what has come.
    pub(super) fn check_brought(&mut self) {
        let now = self.clock.now();
        for _ in 0..AT_ONCE {
            let Some(brought) = &mut self.brought else { return };
            let (kind, key) = brought.what.words();
            let got = brought.errand.next();
            let is_first = matches!(&got, Some(Got::Bytes(_) | Got::Frames)) && !brought.came;
            brought.came |= is_first;
            if is_first {
                self.state.say(kind, Tone::Plain, &format!("it comes; `{key}` ends it"));
            }
            match got {
                Some(Got::Bytes(bytes)) => self.state.traced.bytes(&bytes, false),
                Some(Got::Frames) => {}
                Some(Got::End(end)) => return self.has_ended(&end),
                None => break,
            }
        }
        // Nothing of it comes, and it does not end.
        let asked = self.brought.as_ref().and_then(|brought| brought.ending);
        if asked.is_some_and(|asked| now.saturating_sub(asked) > END) {
            self.end_brought();
        }
    }

    fn has_ended(&mut self, end: &End) {
        let Some(brought) = &self.brought else { return };
        let (kind, key) = brought.what.words();
        let is_done = matches!(end, End::Ssh { code: Some(0), .. }) && brought.came;
        let (tone, text) = match (is_done, brought.ending) {
            (true, Some(_)) => (Tone::Plain, "it has ended".to_owned()),
            (true, None) => (Tone::Warning, format!("somebody else has ended it; `{key}` begins again")),
            (false, _) => (Tone::Warning, brought.why(end)),
        };
        let off = (!is_done && brought.came && brought.ending.is_none()).then(|| brought.off.clone());
        self.drop_brought();
        if let Some(off) = off {
            self.ask_off(off);
        }
        self.state.say(kind, tone, &clean(&text, LINE));
    }

    /// Ends what is brought, and waits for its end, and until the machine has ended it.
    pub(super) fn end_by_ssh(&mut self, more: &mut impl FnMut(Duration) -> Option<Option<News>>) {
        if self.brought.as_ref().is_some_and(|brought| brought.ending.is_none()) {
            self.end_brought();
        }
        let since = self.clock.now();
        let is_over = |feed: &Self| feed.brought.is_none() && feed.state.awaited.is_none();
        while !is_over(self) && self.clock.now().saturating_sub(since) < END {
            if let Some(Some(news)) = more(LOOK) {
                self.take(news);
            }
            self.check_brought();
        }
        if self.brought.is_some() {
            self.end_brought();
        }
    }
}
