//! Draws fixed numbers, and reads the page as XML.

use std::collections::BTreeSet;

use quick_xml::Reader;
use quick_xml::events::Event;
use serde_json::{Value, json};

use super::page::{self, NOT_RUN};
use super::sections;

/// The results of a run of all parts, with names that mean something in XML.
fn results() -> Value {
    let run = |requests: &str, completion: &str, load: &str, by_reason: Value| {
        json!({
            "requests": requests, "completion": completion, "load": load,
            "exits_per_1000_packets_by_reason": by_reason, "interrupts_per_packet": 0.53, "exits_per_second": 70123.4, "microseconds_per_packet": 12.25,
        })
    };
    json!({
        "bench": "paper",
        "exits": { "platform": "qemu", "quick": true, "runs": [
            run("poll", "eli", "probe requests", json!({})),
            run("notify", "inject", "probe requests", json!({ "io-virtio-notify": 501.25, "a<b>&\"c": 3 })),
            run("poll", "eli", "linux stream", json!({ "hlt": 0.04 })),
        ] },
        "scaling": { "platform": "bochs", "quick": false, "rows": [
            { "load": "requests", "scheduling": "fine", "guests": 1, "units_per_busy_turn": 1.02, "least_to_most": 1,
              "total_to_one_guest": 1, "dropped_per_1000": 0, "busy_percent": 12.5, "exits_per_1000": 0, "interrupts_per_unit": 1 },
            { "load": "requests", "scheduling": "per-device", "guests": 2, "units_per_busy_turn": 1.5, "least_to_most": 0.9876,
              "total_to_one_guest": 1.912, "dropped_per_1000": 825.75, "busy_percent": 25, "exits_per_1000": 0.01, "interrupts_per_unit": 0.9 },
        ] },
        "mixed": { "platform": "qemu", "quick": false, "rows": [
            { "scheduling": "fine", "streams": 0, "frames_per_request": 0, "busy_turns_per_request": 4.1, "average_to_alone": 1, "p50_to_alone": 1,
              "p99_to_alone": 1, "stream_to_one": null },
            { "scheduling": "fine", "streams": 1, "frames_per_request": 33.5, "busy_turns_per_request": 9.1, "average_to_alone": 1.75, "p50_to_alone": 1.25,
              "p99_to_alone": 3.5, "stream_to_one": 1 },
        ] },
        "load": { "platform": "qemu", "quick": false, "rows": [
            { "frames": "60 B", "gap_us": 5, "offered_per_second": 200000, "busy_percent": 33.1, "sent_per_second": 190000.5,
              "frames_per_busy_turn": 1.5 },
            { "frames": "60 B", "gap_us": 0, "offered_per_second": null, "busy_percent": 100, "sent_per_second": 555555,
              "frames_per_busy_turn": 64 },
        ] },
    })
}

/// What was read of a page.
#[derive(Default)]
struct Read {
    /// Pictures.
    pictures: usize,
    /// Texts of the cells of tables.
    cells: Vec<String>,
    /// Texts of paragraphs of the class `absent`.
    absent: Vec<String>,
    /// Names of elements.
    names: BTreeSet<String>,
    /// Values of attributes that name something to load.
    loaded: Vec<String>,
}

/// Reads a page. Panics if it is not well-formed.
fn read(page: &str) -> Read {
    let mut reader = Reader::from_str(page);
    reader.config_mut().check_end_names = true;
    let (mut read, mut within, mut text, mut absent) = (Read::default(), Vec::new(), String::new(), false);
    loop {
        let event = reader.read_event().unwrap();
        match &event {
            Event::Start(start) | Event::Empty(start) => {
                let name = String::from_utf8(start.name().as_ref().to_vec()).unwrap();
                for attribute in start.attributes() {
                    let attribute = attribute.unwrap();
                    let value = String::from_utf8(attribute.value.to_vec()).unwrap();
                    match attribute.key.as_ref() {
                        b"src" | b"href" | b"xlink:href" => read.loaded.push(value),
                        b"class" => absent = value == "absent",
                        _ => {}
                    }
                }
                read.pictures += usize::from(name == "svg");
                text.clear();
                if matches!(event, Event::Start(_)) {
                    within.push(name.clone());
                }
                read.names.insert(name);
            }
            Event::End(end) => {
                let name = String::from_utf8(end.name().as_ref().to_vec()).unwrap();
                assert_eq!(within.pop(), Some(name.clone()));
                match name.as_str() {
                    "td" => read.cells.push(std::mem::take(&mut text)),
                    "p" if std::mem::take(&mut absent) => read.absent.push(std::mem::take(&mut text)),
                    _ => {}
                }
            }
            Event::Text(part) => text.push_str(std::str::from_utf8(part.as_ref()).unwrap()),
            Event::Eof => break,
            _ => {}
        }
    }
    assert!(within.is_empty(), "left open: {within:?}");
    read
}

/// All numbers of a value.
fn numbers(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Number(number) => drop(found.insert(number.as_f64().unwrap().to_string())),
        Value::Array(list) => list.iter().for_each(|value| numbers(value, found)),
        Value::Object(map) => map.values().for_each(|value| numbers(value, found)),
        _ => {}
    }
}

fn drawn(results: &Value) -> String {
    page::page(&sections::sections(results)).unwrap()
}

#[test]
fn the_page_is_well_formed_loads_nothing_and_has_no_script() {
    let read = read(&drawn(&results()));
    assert!(read.pictures > 2);
    assert_eq!(read.loaded, [""; 0]);
    for name in ["script", "link", "img", "iframe", "object", "image"] {
        assert!(!read.names.contains(name), "{name}");
    }
    let style = drawn(&results());
    assert!(!style.contains("@import") && !style.contains("url("));
}

#[test]
fn every_number_of_a_table_is_in_the_file() {
    let results = results();
    let read = read(&drawn(&results));
    let mut known = BTreeSet::new();
    numbers(&results, &mut known);
    let shown: Vec<&String> = read.cells.iter().filter(|cell| *cell != NOT_RUN).collect();
    assert!(shown.len() > 8, "{shown:?}");
    for cell in shown {
        assert!(known.contains(cell), "{cell} is not in the file");
    }
    assert!(read.cells.iter().any(|cell| cell == "501.25") && read.cells.iter().any(|cell| cell == NOT_RUN));
}

#[test]
fn what_was_not_run_says_so() {
    let nothing = json!({ "bench": "paper" });
    let empty = read(&drawn(&nothing));
    let charts: usize = sections::sections(&nothing).iter().map(|section| section.charts.len()).sum();
    assert_eq!((empty.pictures, empty.absent.len()), (0, charts));
    assert!(empty.absent.iter().all(|text| text == NOT_RUN));
    let some = read(&drawn(&results()));
    assert_eq!(some.pictures + some.absent.len(), charts);
    assert!(!some.absent.is_empty());
}

#[test]
fn a_picture_has_the_colour_of_the_text_around() {
    let page = drawn(&results());
    assert!(page.contains("\"currentColor\"") && !page.contains("#010203"));
}

#[test]
fn a_file_of_something_else_is_refused() {
    let folder = std::env::temp_dir().join(format!("mk-paper-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("other.json");
    std::fs::write(&file, json!({ "bench": "exits" }).to_string()).unwrap();
    assert!(super::read(&file).is_err());
    super::write(&folder, &results()).unwrap();
    assert_eq!(super::read(&folder.join(super::NUMBERS)).unwrap(), results());
    assert_eq!(std::fs::read_to_string(folder.join(super::PAGE)).unwrap(), drawn(&results()));
    std::fs::remove_dir_all(&folder).unwrap();
}
