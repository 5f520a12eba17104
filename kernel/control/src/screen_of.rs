//! What a terminal of 80x24 shows after some output. For tests only.

use core::num::NonZero;

/// A terminal that has shown nothing.
pub(crate) fn terminal() -> vt100::Parser {
    vt100::Parser::new(NonZero::new(24).unwrap(), NonZero::new(80).unwrap(), 0)
}

/// The text on the screen of a terminal that has got `output`.
pub(crate) fn screen_of(output: &str) -> String {
    let mut terminal = terminal();
    terminal.process(output.as_bytes());
    terminal.screen().contents()
}
