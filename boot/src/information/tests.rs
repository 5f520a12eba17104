use super::{Framebuffer, FramebufferContent, Information, Module, Section};

fn tag(kind: u32, body: &[u8]) -> Vec<u8> {
    let mut tag = [&kind.to_le_bytes()[..], &(8 + body.len() as u32).to_le_bytes(), body].concat();
    tag.resize(tag.len().next_multiple_of(8), 0xee);
    tag
}

fn information(tags: &[Vec<u8>]) -> Vec<u8> {
    let tags = tags.concat();
    [&(8 + tags.len() as u32).to_le_bytes()[..], &[0; 4], &tags].concat()
}

fn area(start: u64, len: u64, kind: u32) -> Vec<u8> {
    [&start.to_le_bytes()[..], &len.to_le_bytes(), &kind.to_le_bytes(), &[0; 4]].concat()
}

fn map(size: u32, areas: &[Vec<u8>]) -> Vec<u8> {
    tag(6, &[&size.to_le_bytes()[..], &[0; 4], &areas.concat()].concat())
}

fn module(start: u32, end: u32, line: &[u8]) -> Vec<u8> {
    tag(3, &[&start.to_le_bytes()[..], &end.to_le_bytes(), line].concat())
}

#[test]
fn each_tag_is_found_wherever_it_is() {
    let bytes = information(&[
        tag(1, b"emulator boot=x\0"),
        module(0x1000, 0x1003, b"vmlinuz more\0"),
        tag(14, b"old"),
        map(24, &[area(0, 0x9_f000, 1), area(0x9_f000, 0x1000, 2), area(0x10_0000, 0x100, 1)]),
        module(0x2000, 0x2000, b"\0"),
        tag(15, b"new!"),
        tag(0, &[]),
        tag(1, b"behind the end\0"),
    ]);
    let information = Information::new(&bytes).unwrap();
    assert_eq!(information.command_line(), Some("emulator boot=x"));
    assert_eq!(information.usable().collect::<Vec<_>>(), [(0, 0x9_f000), (0x10_0000, 0x10_0100)]);
    let first = Module { name: "vmlinuz", start: 0x1000, end: 0x1003 };
    let second = Module { name: "", start: 0x2000, end: 0x2000 };
    assert_eq!(information.modules().collect::<Vec<_>>(), [first, second]);
    assert_eq!(information.rsdp(), Some(&b"new!"[..]));
    assert_eq!(information.symbols(), None);
}

#[test]
fn entries_of_the_memory_map_may_be_longer_but_not_shorter() {
    let long = [area(0x1000, 1, 1), vec![7; 8]].concat();
    let bytes = information(&[map(32, &[long.clone(), long])]);
    assert_eq!(Information::new(&bytes).unwrap().usable().count(), 2);
    for size in [0, 1, 23] {
        let bytes = information(&[map(size, &[area(0x1000, 1, 1)])]);
        assert_eq!(Information::new(&bytes).unwrap().usable().count(), 0, "entries of {size} bytes");
    }
}

#[test]
fn what_makes_no_sense_is_left_out() {
    let endless = [&1_u32.to_le_bytes()[..], &0_u32.to_le_bytes()].concat();
    let bytes = information(&[module(9, 8, b"a\0"), map(24, &[area(u64::MAX, 2, 1)]), endless, tag(1, b"x\0")]);
    let information = Information::new(&bytes).unwrap();
    assert_eq!((information.modules().count(), information.usable().count()), (0, 0));
    assert_eq!(information.command_line(), None, "a tag without its own head ends the tags");
    assert!(Information::new(&bytes[..bytes.len() - 1]).is_none(), "cut off");
    assert!(Information::new(&[8, 0, 0]).is_none());
    assert!(Information::new(&[4, 0, 0, 0, 0, 0, 0, 0]).is_none(), "shorter than its head");
}

#[test]
fn the_symbol_table_is_found_with_its_strings() {
    let header = |kind: u32, address: u64, size: u64, link: u32| {
        let [kind, link] = [kind, link].map(u32::to_le_bytes);
        let numbers = [0, address, 0, size].map(u64::to_le_bytes).concat();
        [&[0; 4][..], &kind, &numbers, &link, &[0; 20]].concat()
    };
    let sections = |count: u32, headers: &[Vec<u8>]| {
        information(&[tag(9, &[&[count, 64, 0].map(u32::to_le_bytes).concat()[..], &headers.concat()].concat())])
    };
    let headers = [header(0, 0, 0, 0), header(2, 0x8000, 48, 2), header(3, 0x9001, 7, 0)];
    let both = [Section { address: 0x8000, size: 48 }, Section { address: 0x9001, size: 7 }];
    assert_eq!(Information::new(&sections(3, &headers)).unwrap().symbols(), Some(both));
    assert_eq!(both[1].end(), 0x9008);
    for (count, headers) in [
        (4, headers.to_vec()),
        (2, headers.to_vec()),
        (3, vec![header(0, 0, 0, 0), header(2, 0x8001, 48, 2), header(3, 0x9001, 7, 0)]),
        (2, vec![header(2, 0x8000, u64::MAX, 1), header(3, 0x9001, 7, 0)]),
        (1, vec![header(2, 0x8000, 48, 7)]),
    ] {
        assert_eq!(Information::new(&sections(count, &headers)).unwrap().symbols(), None);
    }
}

#[test]
fn the_screen_is_text_or_pixels() {
    let screen = |address: u64, numbers: [u32; 3], rest: &[u8]| {
        tag(8, &[&address.to_le_bytes()[..], &numbers.map(u32::to_le_bytes).concat(), rest].concat())
    };
    let read = |tag: Vec<u8>| Information::new(&information(&[tag])).unwrap().framebuffer();
    let found = |address, [pitch, width, height]: [u32; 3], bits, content| {
        Some(Framebuffer { address, pitch, width, height, bits, content })
    };
    let text = [160, 80, 25];
    assert_eq!(read(screen(0xb_8000, text, &[16, 2, 0, 0])), found(0xb_8000, text, 16, FramebufferContent::Text));
    let (large, high) = ([5120, 1280, 800], 0x80_0000_0000);
    let rgb = FramebufferContent::Rgb([(16, 8), (8, 8), (0, 7)]);
    assert_eq!(read(screen(high, large, &[32, 1, 0, 0, 16, 8, 8, 8, 0, 7])), found(high, large, 32, rgb));
    assert_eq!(read(screen(high, large, &[32, 1, 0, 0, 16, 8, 8, 8, 0])), None, "cut off");
    assert_eq!(read(screen(high, large, &[8, 0, 0, 0])), found(high, large, 8, FramebufferContent::Other(0)));
    assert_eq!(read(tag(8, &[0; 20])), None);
    assert_eq!(read(tag(1, b"x\0")), None);
}
