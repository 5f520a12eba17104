use super::*;
use proptest::{collection::vec, prelude::*};

/// A screen's memory, and the number of writes to it.
#[derive(Default)]
struct Ram {
    bytes: Vec<u8>,
    writes: usize,
    /// Writes that were not wholly inside.
    outside: usize,
}

impl Memory for &mut Ram {
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        self.writes += 1;
        match self.bytes.get_mut(offset..offset + bytes.len()) {
            Some(place) => place.copy_from_slice(bytes),
            None => self.outside += 1,
        }
    }
}

fn cells() -> &'static mut Cells {
    let cells: Box<Cells> = vec![Cell::BLANK; MOST_CELLS].into_boxed_slice().try_into().unwrap();
    Box::leak(cells)
}

fn screen(kind: Kind, ram: &mut Ram) -> Screen<'static, &mut Ram> {
    ram.bytes.resize(kind.bytes(), 0xee);
    Screen::new(kind, ram, cells(), cells()).unwrap()
}

const SMALL: Kind = Kind::Text { columns: 10, rows: 3 };

/// What VGA's memory shows, rows without spaces at their ends.
fn rows(ram: &Ram, columns: usize) -> Vec<String> {
    let row = |row: &[u8]| row.iter().step_by(2).map(|byte| char::from(*byte)).collect::<String>();
    ram.bytes.chunks(2 * columns).map(|bytes| row(bytes).trim_end().to_owned()).collect()
}

/// What a screen of ten columns and three rows shows after these bytes.
fn shown(bytes: &[u8]) -> Vec<String> {
    let mut ram = Ram::default();
    let mut screen = screen(SMALL, &mut ram);
    screen.feed(bytes);
    assert!(screen.draw(usize::MAX));
    rows(&ram, 10)
}

#[test]
fn lines_wrap_and_scroll() {
    assert_eq!(shown(b"one\r\ntwo"), ["one", "two", ""]);
    assert_eq!(shown(b"0123456789"), ["0123456789", "", ""], "the last column does not scroll");
    assert_eq!(shown(b"0123456789\r\nx"), ["0123456789", "x", ""], "and no empty line follows it");
    assert_eq!(shown(b"0123456789ab"), ["0123456789", "ab", ""]);
    assert_eq!(shown(b"1\r\n2\r\n3\r\n4\r\n5"), ["3", "4", "5"]);
    assert_eq!(shown(b"1\n2"), ["1", " 2", ""], "a line feed alone keeps the column");
}

#[test]
fn tabs_backspaces_and_returns_move_the_cursor() {
    assert_eq!(shown(b"a\tb\tc"), ["a       bc", "", ""], "no stop is behind the last column");
    assert_eq!(shown(b"abc\x08 \x08d"), ["abd", "", ""]);
    assert_eq!(shown(b"\x08\x08a"), ["a", "", ""]);
    assert_eq!(shown(b"abc\rx"), ["xbc", "", ""]);
    assert_eq!(shown("a\u{e9}\u{1f600}b\x07".as_bytes()), ["a??b", "", ""]);
}

#[test]
fn the_sequences_of_the_operators_console_work() {
    assert_eq!(shown(b"sidecore> x\r\x1b[Klog"), ["sidecore>", "log", ""]);
    assert_eq!(shown(b"prompt\r\x1b[Klog"), ["log", "", ""]);
    assert_eq!(shown(b"one\r\ntwo\x1b[1;2Hx\x1b[3;9Hy\x1b[99;99Hz"), ["oxe", "two", "        yz"]);
    assert_eq!(shown(b"one\r\ntwo\x1b[2J\x1b[Hx"), ["x", "", ""]);
    assert_eq!(shown(b"abcdef\x1b[3D\x1b[1Kx"), ["   xef", "", ""]);
    assert_eq!(shown(b"abc\x1b[?1049htop\x1b[?1049lback"), ["back", "", ""]);
    assert_eq!(shown(b"a\x1b]0;title\x07b\x1b[38;5;7mc\x1b(Bd"), ["abcd", "", ""], "what has no effect is not shown");
}

#[test]
fn styles_and_the_cursor_are_attributes() {
    let mut ram = Ram::default();
    let mut screen = screen(SMALL, &mut ram);
    screen.feed(b"a\x1b[0;1mb\x1b[0;7mc\x1b[0m\x1b[38;5;7md\x1b[me");
    screen.draw(usize::MAX);
    screen.feed(b"\x1b[?25l");
    screen.draw(usize::MAX);
    assert_eq!(ram.bytes[..12], *b"a\x07b\x0fc\x70d\x07e\x07 \x07");
    let mut ram = Ram::default();
    let mut screen = self::screen(SMALL, &mut ram);
    screen.feed(b"a");
    screen.draw(usize::MAX);
    screen.feed(b"b");
    screen.draw(usize::MAX);
    assert_eq!(ram.bytes[..8], *b"a\x07b\x07 \x70 \x07", "the cursor is where the next character goes, and only there");
}

#[test]
fn only_what_changed_is_drawn_and_no_more_than_the_budget() {
    let mut ram = Ram::default();
    let mut screen = screen(SMALL, &mut ram);
    assert!(!screen.draw(29), "30 cells are unknown");
    assert!(screen.draw(1));
    assert_eq!(screen.memory.writes, 30);
    assert!(screen.draw(0), "nothing is left");
    screen.feed(b"abc");
    assert!(!screen.draw(3));
    assert!(screen.draw(1), "three characters and the cursor");
    screen.memory.writes = 0;
    screen.feed(b"\r\nabc\r\nabc\r\nabd\r\n");
    screen.draw(usize::MAX);
    assert_eq!(rows(screen.memory, 10), ["abc", "abd", ""]);
    assert_eq!(screen.memory.writes, 3 + 2, "the first row is as it was");
    assert_eq!(screen.memory.outside, 0);
    screen.feed(b"x\r\ny\r\nz");
    screen.draw(1);
    assert_eq!(rows(screen.memory, 10), ["abc", "abd", "z"], "the newest text comes first");
}

fn channel(position: u8, size: u8) -> Channel {
    Channel { position, size }
}

/// Red, green, blue of usual pixels: blue is the first byte.
const RGB: [Channel; 3] =
    [Channel { position: 16, size: 8 }, Channel { position: 8, size: 8 }, Channel { position: 0, size: 8 }];

#[test]
fn framebuffers_that_make_no_sense_are_refused() {
    let size = |width, height, pitch, bits| Pixels::new(width, height, pitch, bits, RGB).err();
    assert_eq!(size(1280, 800, 5120, 32), None);
    assert_eq!(size(1280, 800, 3840, 24), None);
    assert_eq!(size(1280, 800, 5120, 16), Some(Unusable::Bits(16)));
    assert_eq!(size(1280, 800, 5119, 32), Some(Unusable::Size));
    assert_eq!(size(u32::MAX, u32::MAX, u32::MAX, 32), Some(Unusable::Size));
    assert_eq!(size(1280, u32::MAX, 5120, 32), Some(Unusable::Size));
    assert_eq!(size(7, 800, 5120, 32), Some(Unusable::Size));
    let colours = |red| Pixels::new(1280, 800, 5120, 24, [red, RGB[1], RGB[2]]).err();
    for wrong in [channel(17, 8), channel(0, 0), channel(255, 255)] {
        assert_eq!(colours(wrong), Some(Unusable::Colours), "{wrong:?}");
    }
    assert_eq!(colours(channel(16, 8)), None);
}

/// Draws text on a framebuffer of 80 by 35 pixels and reads it by the font's glyphs.
fn read(bits: u8, pitch: u32, colours: [Channel; 3], text: &[u8]) -> (Vec<String>, Vec<u8>) {
    let pixels = Pixels::new(83, 35, pitch, bits, colours).unwrap();
    let mut ram = Ram::default();
    let mut screen = screen(Kind::Pixels(pixels), &mut ram);
    screen.feed(text);
    screen.feed(b"\x1b[?25l");
    assert!(screen.draw(usize::MAX));
    assert_eq!(ram.outside, 0);
    let bytes = usize::from(bits / 8);
    // The ink of a pixel, 0 to 255, by its green.
    let ink = |x: usize, y: usize| {
        let at = y * pitch as usize + x * bytes;
        let pixel = ram.bytes[at..at + bytes].iter().rev().fold(0_u32, |pixel, byte| pixel << 8 | u32::from(*byte));
        let most = (1 << colours[1].size) - 1;
        (pixel >> colours[1].position & most) * 255 / most * 255 / 190
    };
    // The nearest glyph.
    let glyph = |column: usize, row: usize| {
        let distance = |byte: &u8| {
            let glyph = noto_sans_mono_bitmap::get_raster(
                char::from(*byte),
                noto_sans_mono_bitmap::FontWeight::Regular,
                noto_sans_mono_bitmap::RasterHeight::Size16,
            );
            let difference =
                |x, y| ink(8 * column + x, 16 * row + y).abs_diff(glyph.unwrap().pixel(x, y).unwrap().into());
            (0..16).flat_map(|y| (0..7).map(move |x| (x, y))).map(|(x, y)| difference(x, y)).sum::<u32>()
        };
        (b' '..=b'~').min_by_key(distance).filter(|byte| distance(byte) < 112 * 10).map_or('\u{fffd}', char::from)
    };
    let rows = (0..2).map(|row| (0..10).map(|column| glyph(column, row)).collect::<String>()).collect();
    (rows, ram.bytes)
}

#[test]
fn glyphs_are_read_from_pixels_of_any_layout() {
    let text = b"Ag0{}#%~ \r\n@W.,iljq|";
    for (bits, pitch, colours) in [
        (32, 83 * 4, RGB),
        (32, 400, [RGB[2], RGB[1], RGB[0]]),
        (24, 83 * 3, RGB),
        (24, 251, RGB),
        (32, 332, [channel(20, 10), channel(10, 10), channel(0, 10)]),
        (24, 249, [channel(11, 5), channel(5, 6), channel(0, 5)]),
    ] {
        let (rows, bytes) = read(bits, pitch, colours, text);
        assert_eq!(rows, ["Ag0{}#%~  ", "@W.,iljq| "], "{bits} bits, pitch {pitch}, {colours:?}");
        let line = 83 * usize::from(bits / 8);
        for row in bytes.chunks(pitch as usize) {
            assert!(row[line..].iter().all(|byte| *byte == 0xee), "nothing is written behind a line's pixels");
        }
        assert!(bytes[32 * pitch as usize..][..line].iter().all(|byte| *byte == 0), "below the last row it is black");
    }
}

#[test]
fn a_screen_that_is_larger_than_the_grid_shows_text_in_its_corner() {
    let kind = Kind::Pixels(Pixels::new(3840, 2160, 15360, 32, RGB).unwrap());
    assert_eq!(kind.size(), (MOST_COLUMNS, MOST_ROWS));
    assert_eq!(Kind::Text { columns: 80, rows: 25 }.size(), (80, 25));
    let mut ram = Ram::default();
    assert!(Screen::new(Kind::Text { columns: 80, rows: 0 }, &mut ram, cells(), cells()).is_none());
}

#[test]
fn after_a_new_beginning_text_is_text() {
    let mut ram = Ram::default();
    let mut screen = screen(SMALL, &mut ram);
    screen.feed(b"a\x1b[1;");
    screen.begin_anew();
    screen.feed(b"2Jb");
    screen.draw(usize::MAX);
    assert_eq!(rows(&ram, 10), ["a2Jb", "", ""]);
}

/// Text with sequences, or any bytes.
fn output() -> impl Strategy<Value = Vec<u8>> {
    let pieces = prop_oneof![
        any::<u8>().prop_map(|byte| vec![byte]),
        "[ -~]{1,12}".prop_map(String::into_bytes),
        Just(b"\r\n".to_vec()),
        ("[?]?", vec(0_u16..2000, 0..4), "[A-HJKXdfhlm]").prop_map(|(mark, numbers, end)| {
            let numbers: Vec<_> = numbers.iter().map(u16::to_string).collect();
            format!("\x1b[{mark}{}{end}", numbers.join(";")).into_bytes()
        }),
    ];
    vec(pieces, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn drawing_in_steps_shows_what_drawing_at_once_shows(
        outputs in vec((output(), 0_usize..20), 1..8),
        columns in 1_usize..12,
        rows in 1_usize..5,
    ) {
        let kind = Kind::Text { columns, rows };
        let (mut steps, mut once) = (Ram::default(), Ram::default());
        let (mut first, mut second) = (screen(kind, &mut steps), screen(kind, &mut once));
        for (bytes, budget) in &outputs {
            let before = first.memory.writes;
            first.feed(bytes);
            first.draw(*budget);
            prop_assert!(first.memory.writes - before <= *budget);
            second.feed(bytes);
        }
        prop_assert!(first.draw(usize::MAX) && second.draw(usize::MAX));
        prop_assert_eq!(&steps.bytes, &once.bytes);
        prop_assert_eq!(steps.outside + once.outside, 0);
        prop_assert!(steps.bytes.iter().step_by(2).all(|byte| (b' '..=b'~').contains(byte)));
    }
}
