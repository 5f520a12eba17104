//! The machine's screen. The emulator reads what it shows: VGA's text memory, or the pixels, which are read by the font's
//! glyphs. A terminal of the same size that got COM1's bytes (the crate `vt100`) is the judge.

use std::num::NonZero;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use control::{Command, Event};
use noto_sans_mono_bitmap::{FontWeight, RasterHeight, RasterizedChar, get_raster};
use serde_json::json;

use crate::boot::{Boot, Check, Shared, alone};
use crate::cases::media::FIRMWARE_MIB;
use crate::guests::{Guest, server, with_entries};
use crate::platform::QEMU;
use crate::scenario::{Context, Scenario, seconds};
use crate::session::Session;
use crate::setup::{Feature, Medium, Setup, Uarts};

/// These scenarios.
pub fn list() -> Vec<Box<dyn Boot>> {
    let scenario = |name, about| Scenario::new(name, about, QEMU);
    vec![
        Box::new(Shared {
            name: "screen",
            about: "a guest, by BIOS; ACPI's SPCR names a UART in memory; port 0x80 is recorded",
            start: |context, _| {
                let mut setup = server("screen", &[Guest::new(1).then("wait")]);
                setup.acpi_table = Some(spcr(MEMORY, 0xfe03_4000, 115_200));
                setup.post_codes = true;
                let mut session = context.boot(&setup)?;
                session.result("a", "up", seconds(240))?;
                Ok(session)
            },
            end: |mut session| session.shut_down().map(drop),
            checks: vec![
                Check::new(
                    scenario("screen-text", "VGA's text shows what a terminal at COM1 shows"),
                    |context, session| shows(context, session, text, (80, 25)),
                ),
                Check::new(
                    scenario(
                        "console-unusable",
                        "an SPCR with a UART in memory: a sentence, and people's console is COM1",
                    ),
                    unusable,
                ),
                Check::new(scenario("post-codes", "each step of the boot has its code at port 0x80"), post_codes),
            ],
        }),
        alone(scenario("screen-panic", "a panic is on the screen, all of it").taking_turns(), panic),
        alone(
            scenario(
                "no-long-mode",
                "a processor without 64-bit mode: a sentence on COM1, on the screen, and a code at port 0x80",
            )
            .taking_turns(),
            no_long_mode,
        ),
        alone(
            scenario("screen-pixels", "by UEFI, the framebuffer shows in its glyphs what a terminal at COM1 shows")
                .taking_turns(),
            by_uefi,
        ),
        alone(
            scenario("screen-24-bits", "by BIOS in a mode of 24 bits a pixel, read by its glyphs as `screen-pixels`")
                .taking_turns(),
            in_24_bits,
        ),
        alone(
            scenario(
                "console-pci",
                "a UART on PCI and none at COM1's port: the report says which `console=` makes it people's, and with that it is",
            )
            .taking_turns(),
            on_pci,
        ),
        alone(
            scenario(
                "console-shared",
                "one UART and `json=com1`: commands in JSON beside a typed line, which stays whole; no guest fakes a line of JSON",
            )
            .taking_turns(),
            shared,
        ),
        alone(
            scenario(
                "console-spcr",
                "an SPCR names COM2 with 57,600 baud: people's console is there, programs' is COM1",
            )
            .taking_turns(),
            by_spcr,
        ),
        alone(
            scenario("console-none", "no serial port is used, or there is none: the guests run all the same, and the screen tells; nor a screen: they run")
                .taking_turns(),
            none,
        ),
    ]
}

/// Address spaces of a register (ACPI 6.5, 5.2.3.2).
const MEMORY: u8 = 0;
const PORTS: u8 = 1;

/// A Serial Port Console Redirection table, revision 4, for a 16550.
fn spcr(space: u8, address: u64, baud: u32) -> Vec<u8> {
    let mut table = vec![0; 90];
    let mut put = |at: usize, bytes: &[u8]| table[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"SPCR");
    put(4, &90_u32.to_le_bytes());
    put(8, &[4]);
    put(10, b"SIDECOTESTSPCR\0\0");
    put(40, &[space, 8, 0, 1]);
    put(44, &address.to_le_bytes());
    put(
        58,
        &[match baud {
            57_600 => 6,
            115_200 => 7,
            _ => 0,
        }],
    );
    put(64, &[0xff; 4]);
    table
}

/// What a screen shows: its rows without blanks at their ends, and its columns.
struct Shown {
    rows: Vec<String>,
    columns: usize,
}

/// Compares the screen with the terminal. `least`: columns and rows.
fn shows(
    context: &mut Context<'_>,
    session: &mut Session,
    read: fn(&mut Session) -> Result<Shown>,
    least: (usize, usize),
) -> Result<()> {
    let (shown, same) = compare(session, read)?;
    let figures = &mut context.figures;
    figures.at_least("columns", shown.columns, least.0 as f64)?;
    figures.at_least("rows", shown.rows.len(), least.1 as f64)?;
    figures.at_least(
        "rows with text",
        shown.rows.iter().filter(|row| !row.is_empty()).count(),
        least.1 as f64 / 2.0,
    )?;
    figures.exactly("rows that are as the terminal's", same, shown.rows.len() as f64)?;
    figures.exactly("rows that say that the guest runs", count(&shown, "guest a: running"), 1)?;
    figures.exactly("rows with the first line of the report in short", count(&shown, "in short:"), 1)?;
    figures.exactly("rows that say which guest starts", count(&shown, "guests that start: a"), 1)?;
    figures.exactly("rows with the prompt", count(&shown, "sidecore>"), 1)
}

/// The number of rows with a text.
fn count(shown: &Shown, text: &str) -> usize {
    shown.rows.iter().filter(|row| row.contains(text)).count()
}

fn by_uefi(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = server("screen-pixels", &[Guest::new(1).then("wait")]);
    setup.medium = Medium::CdUefi;
    setup.memory_mib += FIRMWARE_MIB;
    let mut session = context.boot(&setup)?;
    session.result("a", "up", seconds(240))?;
    shows(context, &mut session, pixels, (80, 30))?;
    session.shut_down().map(drop)
}

fn in_24_bits(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = server("screen-24-bits", &[Guest::new(1).then("wait")]);
    setup.graphics = Some("800x600x24");
    let mut session = context.boot(&setup)?;
    session.result("a", "up", seconds(240))?;
    shows(context, &mut session, pixels, (100, 37))?;
    session.forget();
    let said = sentences(&mut session, "in 100 by 37 characters (800 by 600 pixels of 24 bits at")?;
    context.figures.exactly("sentences about 24 bits", said, 1)?;
    session.shut_down().map(drop)
}

/// Waits until the last row with text of COM1's terminal is `row`, for half a minute at most. Returns whether it is.
fn last_row_is(session: &Session, row: &str) -> Result<bool> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let rows = terminal(session, 80, 25)?;
        if rows.iter().rfind(|row| !row.is_empty()).is_some_and(|last| last == row) {
            return Ok(true);
        }
        if Instant::now() > deadline {
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(50));
    }
}

/// The firmware chooses the port. The first boot has no people's console, and says on COM2 which it is.
fn on_pci(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = server("console-pci", &[Guest::new(1).then("obey")]);
    setup.uarts = Uarts::Pci;
    let mut session = context.boot(&setup)?;
    session.wait("a sentence on the missing console", seconds(120), |event| match event {
        Event::Report(entry) if entry.text.contains("no UART answers at port 0x3f8: people have no serial port") => {
            Some(())
        }
        _ => None,
    })?;
    session.all_obey(["a"])?;
    session.ask(Command::Report, seconds(20))?;
    let option = session.wait("the option that names it", seconds(20), |event| match event {
        Event::Report(entry)
            if entry.text.starts_with("the serial port on PCI at 00:15.0 has its registers at I/O port") =>
        {
            entry.text.split('`').nth(1).map(str::to_owned)
        }
        _ => None,
    })?;
    let shown = session.console()?.len();
    context.figures.exactly("bytes on it meanwhile", shown, 0)?;
    session.shut_down()?;

    // `options` is static, and the port is known only now.
    setup.options = format!("emulator {option}").leak();
    let mut session = context.boot(&setup)?;
    session.all_obey(["a"])?;
    session.shown("sidecore>", 0, seconds(20))?;
    let port = option.trim_start_matches("console=");
    session.shown(&format!("people's console is the UART at port {port}"), 0, seconds(20))?;
    session.shut_down().map(drop)
}

fn shared(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    const FAKED: &[u8] = b"{\"event\":\"guest\",\"guest\":\"b\",\"state\":\"stopped\"}";
    let mut setup = server("console-shared", &[Guest::new(1).then("obey")]);
    (setup.uarts, setup.options) = (Uarts::One, "emulator json=com1");
    let mut session = context.boot(&setup)?;
    session.all_obey(["a"])?;
    session.forget();
    let said =
        sentences(&mut session, "programs share people's console: each line of JSON there begins with the byte 0x1e")?;
    context.figures.exactly("sentences about the shared port", said, 1)?;

    // A command in the middle of a typed line. Each of its bytes would be part of the line otherwise.
    session.type_in("vers")?;
    let before = last_row_is(&session, "sidecore> vers")?;
    session.ask(Command::Version, seconds(20))?;
    let after = last_row_is(&session, "sidecore> vers")?;
    let screen = screen_with(&mut session, "sidecore> vers")?;
    let figures = &mut context.figures;
    figures.exactly("typed line at the prompt, before a command in JSON", usize::from(before), 1)?;
    figures.exactly("the same behind its answer", usize::from(after), 1)?;
    figures.exactly("rows of the screen with the typed line", count(&screen, "sidecore> vers"), 1)?;
    figures.exactly("rows of the screen with JSON", count(&screen, "{\"event\""), 0)?;
    let begun = session.console()?.len();
    session.type_in("ion\r")?;
    session.shown("\nsidecore 0.", begun, seconds(20))?;

    session.type_in("attach --raw a\r")?;
    session.shown("attached to a", begun, seconds(20))?;
    session.act("a", "escapes", seconds(60))?;
    session.shown("escapes end", begun, seconds(60))?;
    let bytes = session.file("com1")?;
    let places: Vec<usize> =
        bytes.windows(FAKED.len()).enumerate().filter(|(_, part)| *part == FAKED).map(|(at, _)| at).collect();
    let marked = places.iter().filter(|&&at| at > 0 && bytes[at - 1] == control::RECORD).count();
    let figures = &mut context.figures;
    figures.at_least("times that COM1 has what the guest wrote as an event", places.len(), 1)?;
    figures.exactly("times with the mark of a line of JSON", marked, 0)?;
    let is_faked = |event: &&Event| matches!(event, Event::Guest { guest, .. } if guest == "b");
    let faked = session.unread().iter().filter(is_faked).count();
    context.figures.exactly("events of a guest that does not exist", faked, 0)?;
    session.type_until("\x1d", "left a", seconds(20))?;
    session.shut_down().map(drop)
}

/// Reads VGA's text until a row has `text`, for half a minute at most.
fn screen_with(session: &mut Session, wanted: &str) -> Result<Shown> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let shown = text(session)?;
        if count(&shown, wanted) > 0 || Instant::now() > deadline {
            return Ok(shown);
        }
        thread::sleep(Duration::from_millis(100));
    }
}

fn panic(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = server("screen-panic", &[]);
    // Without the word `emulator` the machine stays.
    setup.options = "selftest=panic";
    let mut session = context.boot(&setup)?;
    let (message, ..) = session.panicked(seconds(60))?;
    let (shown, same) = compare(&mut session, text)?;
    let figures = &mut context.figures;
    figures.exactly("rows with the message", count(&shown, &format!("panic on {message}")), 1)?;
    let names = shown.rows.iter().filter(|row| row.starts_with("  from ") && row.contains("::")).count();
    figures.at_least("rows of the backtrace with names", names, 2)?;
    figures.exactly("rows that are as the terminal's", same, shown.rows.len() as f64)
}

fn no_long_mode(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    const SAID: &str = "sidecore: this CPU has no 64-bit mode; an x86_64 server is needed.";
    let mut setup = server("no-long-mode", &[]);
    (setup.lacks, setup.post_codes) = (Some(Feature::LongMode), true);
    let mut session = context.boot(&setup)?;
    session.shown(SAID, 0, seconds(60))?;
    let shown = text(&mut session)?;
    let figures = &mut context.figures;
    figures.exactly(
        "first rows with the sentence",
        shown.rows.iter().take(1).filter(|row| row.contains(SAID)).count(),
        1,
    )?;
    let codes = session.file("post")?;
    figures.exactly("codes at the end", usize::from(codes.ends_with(&[0xa0, 0xa1])), 1)
}

/// Counts the sentences of the report with this text.
fn sentences(session: &mut Session, text: &str) -> Result<usize> {
    session.ask(Command::Report, seconds(20))?;
    let is = |event: &Event| matches!(event, Event::Report(entry) if entry.text.contains(text));
    let said = session.unread().iter().filter(|event| is(event)).count();
    session.forget();
    Ok(said)
}

fn unusable(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    session.forget();
    let said = sentences(session, "names a UART in memory at 0xfe034000, which is not supported")?;
    context.figures.exactly("sentences about the UART in memory", said, 1)?;
    let said = sentences(session, "people's console is the UART at port 0x3f8 with 115200 baud")?;
    context.figures.exactly("sentences about COM1", said, 1)
}

/// The codes of a boot in their order.
const CODES: [u8; 18] =
    [0xa0, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xab, 0xac, 0xad, 0xae, 0xaf, 0xb0, 0xb1, 0xb2];

fn post_codes(context: &mut Context<'_>, session: &mut Session) -> Result<()> {
    let codes = session.file("post")?;
    // The firmware's and GRUB's come before.
    let last = codes.get(codes.len().saturating_sub(CODES.len())..).unwrap_or_default();
    let right = last.iter().zip(CODES).filter(|(code, expected)| **code == *expected).count();
    context.figures.exactly("codes in their order at the end", right, CODES.len() as f64)?;
    let console = session.console()?;
    // The first three come before the consoles.
    let lines = CODES[3..].iter().filter(|code| console.contains(&format!("step {code:02X}: "))).count();
    context.figures.exactly("lines of steps on COM1", lines, CODES.len() as f64 - 3.0)
}

fn by_spcr(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = server("console-spcr", &[Guest::new(1).then("wait")]);
    setup.acpi_table = Some(spcr(PORTS, 0x2f8, 57_600));
    setup.uarts = Uarts::Swapped;
    let mut session = context.boot(&setup)?;
    session.booted(seconds(60))?;
    session.result("a", "up", seconds(240))?;
    session.forget();
    let said =
        sentences(&mut session, "people's console is the UART at port 0x2f8 with 57600 baud, as ACPI's SPCR says")?;
    context.figures.exactly("sentences about people's console", said, 1)?;
    let said = sentences(&mut session, "programs' console is the UART at port 0x3f8")?;
    context.figures.exactly("sentences about programs' console", said, 1)?;
    let shown = session.console()?.matches("guest a: running").count();
    context.figures.exactly("times that COM2 says that the guest runs", shown, 1)?;
    // The divisor latch is behind bit 7 of the line control register.
    session.monitor("stop", &json!({}))?;
    session.monitor_text("o/b 0x2fb 0x83")?;
    let divisor = session.monitor_text("i/b 0x2f8")?;
    session.monitor_text("o/b 0x2fb 0x03")?;
    session.monitor("cont", &json!({}))?;
    let (_, divisor) = divisor.trim().rsplit_once("0x").with_context(|| format!("QEMU says {divisor}"))?;
    context.figures.exactly("divisor of COM2", u64::from_str_radix(divisor, 16)?, 2)?;
    session.shut_down().map(drop)
}

fn none(context: &mut Context<'_>, (): &mut ()) -> Result<()> {
    let mut setup = server("console-none", &[Guest::new(1).then("wait"), Guest::new(2).then("poweroff")]);
    setup.options = "emulator console=none json=none";
    told_by_the_screen(context, &setup)?;
    // The machine has no UART, for GRUB neither.
    (setup.uarts, setup.options) = (Uarts::None, "emulator");
    told_by_the_screen(context, &setup)?;
    // Nor a screen. Only its end, which is ACPI's S5, tells that both guests have run.
    let guests = [Guest::new(1).then("poweroff"), Guest::new(2).then("poweroff")];
    setup = with_entries(server("console-none", &guests), "[control]\nend_when_guests_stop = true\n\n");
    (setup.uarts, setup.no_screen, setup.reboots, setup.options) = (Uarts::None, true, true, "");
    let mut session = context.boot(&setup)?;
    session.monitor("set-action", &json!({ "shutdown": "pause" }))?;
    session.off(seconds(240))
}

fn told_by_the_screen(context: &mut Context<'_>, setup: &Setup) -> Result<()> {
    // The second guest switches itself off, which only a guest that works can.
    let mut session = context.boot(setup)?;
    let deadline = Instant::now() + seconds(120);
    let shown = loop {
        let shown = text(&mut session)?;
        if count(&shown, "guest b: stopped: power-off") > 0 || Instant::now() > deadline {
            break shown;
        }
        thread::sleep(Duration::from_millis(500));
    };
    let figures = &mut context.figures;
    figures.exactly("rows that say that a guest runs", count(&shown, "guest a: running"), 1)?;
    figures.exactly(
        "rows that say that the other one has switched itself off",
        count(&shown, "guest b: stopped: power-off"),
        1,
    )?;
    figures.exactly("times that COM1 has a step of the boot", session.console()?.matches("step A").count(), 0)?;
    figures.exactly("bytes on COM2", session.file("com2")?.len(), 0)
}

/// Reads the screen until it shows what the terminal shows, for half a minute at most. Returns it, and how many of its rows are
/// the terminal's.
fn compare(session: &mut Session, read: fn(&mut Session) -> Result<Shown>) -> Result<(Shown, usize)> {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let shown = read(session)?;
        let expected = terminal(session, shown.columns, shown.rows.len())?;
        let pairs = || expected.iter().zip(&shown.rows);
        let same = pairs().filter(|(expected, shown)| expected == shown).count();
        if same == shown.rows.len() {
            return Ok((shown, same));
        }
        if Instant::now() > deadline {
            let wrong = pairs().filter(|(expected, shown)| expected != shown);
            let wrong: Vec<String> = wrong.map(|(expected, shown)| format!("{expected}\nis {shown}")).collect();
            bail!("the screen has {} rows, {same} as they should be\n{}", shown.rows.len(), wrong.join("\n"));
        }
        thread::sleep(Duration::from_millis(500));
    }
}

/// The rows of a terminal of this size that got COM1's bytes from sidecore's first line on.
fn terminal(session: &Session, columns: usize, rows: usize) -> Result<Vec<String>> {
    let size = |count: usize| u16::try_from(count).ok().and_then(NonZero::new).context("no size for a terminal");
    let bytes = session.file("com1")?;
    let first = format!("\r\nsidecore {}\r\n", env!("CARGO_PKG_VERSION"));
    let begin =
        bytes.windows(first.len()).position(|part| part == first.as_bytes()).context("COM1 has no first line")?;
    let mut terminal = vt100::Parser::new(size(rows)?, size(columns)?, 0);
    terminal.process(&bytes[begin..]);
    let ascii = |row: String| row.chars().map(|c| if c > '~' { '?' } else { c }).collect::<String>();
    let rows = terminal.screen().rows(0, size(columns)?.get());
    Ok(rows.map(|row| ascii(row).trim_end().to_owned()).collect())
}

/// Reads VGA's text memory.
fn text(session: &mut Session) -> Result<Shown> {
    const COLUMNS: usize = 80;
    const ROWS: usize = 25;
    let said = session.monitor_text(&format!("xp /{}hx 0xb8000", COLUMNS * ROWS))?;
    let mut cells = Vec::new();
    for word in said.lines().filter_map(|line| line.split_once(':')).flat_map(|(_, words)| words.split_whitespace()) {
        cells.push(u16::from_str_radix(word.trim_start_matches("0x"), 16)?);
    }
    ensure!(cells.len() == COLUMNS * ROWS, "QEMU reads {} words of {}", cells.len(), COLUMNS * ROWS);
    let row = |row: &[u16]| row.iter().map(|cell| char::from(*cell as u8)).collect::<String>().trim_end().to_owned();
    Ok(Shown { rows: cells.chunks(COLUMNS).map(row).collect(), columns: COLUMNS })
}

/// Reads a picture of the screen by the font's glyphs.
fn pixels(session: &mut Session) -> Result<Shown> {
    let file = std::env::temp_dir().join(format!("sidecore-{}-screen.ppm", std::process::id()));
    session.monitor("screendump", &json!({ "filename": file }))?;
    let picture = std::fs::read(&file)?;
    std::fs::remove_file(&file)?;
    let picture = Picture::read(&picture)?;
    let glyphs: Vec<(char, RasterizedChar)> = (' '..='~')
        .filter_map(|c| get_raster(c, FontWeight::Regular, RasterHeight::Size16).map(|glyph| (c, glyph)))
        .collect();
    let (columns, rows) = (picture.width / CELL.0, picture.height / CELL.1);
    let row = |row: usize| {
        let row: String = (0..columns).map(|column| picture.character(column, row, &glyphs)).collect();
        row.trim_end().to_owned()
    };
    Ok(Shown { rows: (0..rows).map(row).collect(), columns })
}

/// Pixels of a character, across and down.
const CELL: (usize, usize) = (8, 16);
/// Pixels of a glyph across. Behind them a cell has its background.
const GLYPH: usize = 7;

/// A picture of the screen: a PPM file of the kind P6.
struct Picture<'a> {
    width: usize,
    height: usize,
    /// Three bytes a pixel.
    bytes: &'a [u8],
}

impl<'a> Picture<'a> {
    fn read(file: &'a [u8]) -> Result<Self> {
        let mut rest = file;
        let mut word = || {
            let end = rest.iter().position(u8::is_ascii_whitespace).context("the picture has no head")?;
            let word = std::str::from_utf8(&rest[..end])?;
            rest = &rest[end + 1..];
            Ok::<_, anyhow::Error>(word)
        };
        ensure!(word()? == "P6", "the picture is no PPM file");
        let (width, height) = (word()?.parse()?, word()?.parse()?);
        ensure!(word()? == "255", "the picture has other colours");
        ensure!(rest.len() == 3 * width * height, "a picture of {width} by {height} has {} bytes", rest.len());
        Ok(Self { width, height, bytes: rest })
    }

    fn green(&self, x: usize, y: usize) -> u8 {
        self.bytes[3 * (y * self.width + x) + 1]
    }

    /// The character whose glyph is nearest to a cell.
    fn character(&self, column: usize, row: usize, glyphs: &[(char, RasterizedChar)]) -> char {
        let (x, y) = (column * CELL.0, row * CELL.1);
        let ground = self.green(x + GLYPH, y);
        // From the background to the brightest or darkest pixel.
        let ink = |at: usize, line: usize| self.green(x + at, y + line).abs_diff(ground);
        let places = || (0..CELL.1).flat_map(|line| (0..GLYPH).map(move |at| (at, line)));
        let most = places().map(|(at, line)| ink(at, line)).max().unwrap_or_default();
        if most == 0 {
            return ' ';
        }
        let distance = |glyph: &RasterizedChar| {
            let difference = |(at, line)| {
                let ink = u32::from(ink(at, line)) * 255 / u32::from(ground.max(255 - ground).min(190).max(most));
                ink.abs_diff(glyph.pixel(at, line).unwrap_or_default().into())
            };
            places().map(difference).sum::<u32>()
        };
        glyphs.iter().min_by_key(|(_, glyph)| distance(glyph)).map_or('\u{fffd}', |(c, _)| *c)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_with_another_head_or_length_is_refused() {
        let picture = Picture::read(b"P6\n2 1\n255\nabcdef").unwrap();
        assert_eq!((picture.width, picture.height, picture.green(1, 0)), (2, 1, b'e'));
        for wrong in [&b"P5\n2 1\n255\nabcdef"[..], b"P6\n2 1\n255\nabcde", b"P6\n2 1\n65535\nabcdef", b"P6"] {
            assert!(Picture::read(wrong).is_err());
        }
    }
}
