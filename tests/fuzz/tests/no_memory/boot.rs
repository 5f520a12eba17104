//! Parsers that run once, before there are guests, and the making of a guest's machine.

use config::{Config, MAX_APPLIED, MAX_FILE, Machine as Available, Topology};
use machine::elf::image::Image;
use machine::linux::{self, Linux};
use machine::machine::testing::{self, kernel};
use machine::machine::{MAX_HEAP, Machine, Settings};
use machine::pvh::{self, Pvh};
use machine::testing::device;
use machine::vcpu::Interrupts;
use machine::virtio_pci::NotifyBar;
use memory::guest::testing::memory;
use proptest::prelude::*;

use super::{failing, needed};

#[path = "../../../../kernel/gpt/src/tests/image.rs"]
#[allow(dead_code, missing_docs, reason = "what the crate's own tests need")]
mod gpt_image;

/// Reads a file and plans what it says, as the hypervisor does.
fn settings(text: &str) {
    let topology = Topology::one_thread_each(8);
    let names = ["vmlinuz", "initrd"];
    let ((), bytes) = needed(|| {
        let config::Parsed { mut config, mut mistakes, .. } = config::parse("sidecore.toml", text);
        mistakes.extend(config::check_modules(&mut config, &names));
        mistakes.extend(config::check_hashes(&mut config, |_| None));
        mistakes.extend(config::check_disks(&mut config, &[], None));
        mistakes.extend(config::check_memory(&mut config, 1 << 30));
        mistakes.extend(config::check_completion(&mut config, |_| None));
        let (plan, more) = config::plan(&mut config, &topology);
        mistakes.extend(more);
        // The report of them begins while they are all there.
        let lines: Vec<String> = mistakes.iter().map(ToString::to_string).take(1).collect();
        drop((plan, lines));
    });
    assert!(bytes <= config::heap(text.len()), "{bytes} bytes for a file of {}: {:.200}", text.len(), text);
}

/// Fills a file of so many bytes with a line.
fn fill(head: &str, line: impl Fn(usize) -> String, bytes: usize) -> String {
    let mut text = String::from(head);
    for n in 0.. {
        let line = line(n);
        if text.len() + line.len() > bytes {
            return text;
        }
        text.push_str(&line);
    }
    text
}

#[test]
fn a_file_of_any_kind_needs_no_more_than_is_known_before() {
    type Line = fn(usize) -> String;
    let kinds: [(&str, Line); 24] = [
        ("", |_| "\n".into()),
        ("", |_| "#\n".into()),
        ("", |n| format!("{n:x}=1\n")),
        ("", |n| format!("{n:x}.a=1\n")),
        ("", |n| format!("[{n:x}]\n")),
        ("", |n| format!("[[{n:x}]]\n")),
        ("", |n| format!("[a.{n:x}]\n")),
        ("", |_| "[[a]]\n".into()),
        ("", |_| "[[guest]]\n".into()),
        ("", |_| "[[guest]]\n[[guest.net]]\n".into()),
        ("", |_| "[[engine]]\n".into()),
        ("", |_| "[[port]]\n".into()),
        ("", |_| "[[module]]\n".into()),
        ("", |_| "[[stage]]\n".into()),
        ("", |n| format!("[[stage]]\nname='{n:x}'\n")),
        ("", |n| format!("[[module]]\nname='{n:x}'\nsha256='{}'\n", "0".repeat(64))),
        ("[[guest]]\nname='a'\n", |_| "[[guest.net]]\n".into()),
        ("[[guest]]\nname='a'\n", |n| format!("{n:x}=1\n")),
        ("a=[", |_| "1,".into()),
        ("a=[", |_| "[],".into()),
        ("a=[", |_| "{},".into()),
        ("a=[", |_| "{a=1},".into()),
        ("a='", |_| "x".into()),
        ("a=\"", |_| "\\n".into()),
    ];
    let endings = [";", "", "]", "'", "\"", "\n="];
    for (bytes, endings) in [(512, &endings[..]), (MAX_FILE, &endings[1..2])] {
        for (head, line) in kinds {
            let text = fill(head, line, bytes - 4);
            endings.iter().for_each(|end| settings(&format!("{text}{end}")));
        }
        for nested in ["[", "{a=", "a.", "[["] {
            settings(&format!("a={}", nested.repeat(bytes / nested.len() - 2)));
        }
    }
}

/// Applies a file to what runs, as the hypervisor does.
fn apply(runs: &Config, text: &str) {
    let ((), bytes) = needed(|| {
        let machine = Available { modules: &["vmlinuz", "initrd"][..], hash_of: |_: &str| None, refusal: |_| None };
        match config::difference(runs, "f", text.as_bytes(), machine) {
            Ok(changes) => {
                let after = config::after(runs, &changes);
                // Both are kept for the way back.
                let before = runs.clone();
                drop((config::way_back(&after, &before), changes, after, before));
            }
            Err(mistakes) => drop(mistakes.iter().map(ToString::to_string).collect::<Vec<_>>()),
        }
    });
    assert!(bytes <= config::apply_heap(text.len()), "{bytes} bytes for a file of {}: {:.200}", text.len(), text);
}

#[test]
fn a_file_that_is_applied_needs_no_more_than_is_known_before() {
    let guest =
        |n: usize, rest: &str| format!("[[guest]]\nname='g{n}'\nmemory='64M'\n{rest}\n{}", "[[guest.net]]\n".repeat(8));
    let all = |rest: &str| (0..32).map(|n| guest(n, rest)).collect::<String>();
    let (kernel, spare, long) =
        ("kernel='vmlinuz'", "spare=true", format!("kernel='initrd'\ncmdline='{}'", "x".repeat(250)));
    let runs = |text: &str| {
        let parsed = config::parse("f", text);
        assert_eq!(parsed.mistakes, []);
        let mut config = parsed.config;
        config::check_completion(&mut config, |_| None);
        config.written()
    };
    for (from, to) in
        [(kernel, spare), (spare, kernel), (kernel, &*long), (spare, &*long), (&*long, "weight=0"), (kernel, "")]
    {
        assert!(all(to).len() <= MAX_APPLIED, "{} bytes", all(to).len());
        apply(&runs(&all(from)), &all(to));
    }
    for line in ["[[guest]]\n", "[[guest]]\n[[guest.net]]\n", "[[stage]]\n", "a=1\n", "\n"] {
        apply(&runs(&all(kernel)), &fill("", |_| line.into(), MAX_APPLIED));
    }
}

#[test]
fn a_file_that_is_too_large_is_refused_with_its_size_and_the_limit() {
    let text = " ".repeat(MAX_FILE + 1);
    let (parsed, bytes) = needed(|| config::parse("sidecore.toml", &text));
    assert_eq!(
        parsed.explain(),
        [
            "sidecore.toml:0:0: 65537 bytes: the file is too large, so that no guest is known: expected at most 65536 bytes"
        ]
    );
    assert!(bytes < 4096, "{bytes}");
}

/// Pieces of files.
const PIECES: [&str; 40] = [
    "\n",
    "\n",
    "\n",
    "=",
    "=",
    "[",
    "]",
    "{",
    "}",
    ",",
    ".",
    "'",
    "\"",
    "'''\n",
    "#",
    "a",
    "b",
    "name",
    "'x'",
    "1",
    "1.5",
    "true",
    "1979-05-27",
    "\n[[guest]]\n",
    "\n[[guest.net]]\n",
    "\n[[guest.block]]\n",
    "\n[[port]]\n",
    "\n[[stage]]\n",
    "\n[[module]]\n",
    "name='a'\n",
    "name='b'\n",
    "memory='64M'\n",
    "kernel='vmlinuz'\n",
    "disk='ram'\n",
    "size='1M'\n",
    "rx=['a','b']\n",
    "deny=true\n",
    "mac='02:00:00:00:00:01'\n",
    "vlans=[1,2,3]\n",
    "cmdline='quiet'\n",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_file_of_any_pieces_needs_no_more_than_is_known_before(
        pieces in proptest::collection::vec(proptest::sample::select(&PIECES[..]), 0..200),
    ) {
        settings(&pieces.concat());
    }
}

#[test]
fn kernels_are_loaded_without_memory() {
    let guest = memory(0, 4 << 20);
    let (bzimage, elf) = (kernel(), Image::new(true, 0x10_0008).bytes());
    for (file, good) in [(&bzimage[..], true), (&bzimage[..600], false)] {
        let linux = Linux { kernel: file, initrd: Some(b"initrd"), command_line: "quiet" };
        let (loaded, failed) = failing(1, || linux::load(&guest, &linux, 0xe_0000).is_ok());
        assert!(loaded == good && !failed);
    }
    for (file, good) in [(&elf[..], true), (&elf[..80], false)] {
        let pvh = Pvh { file, initrd: Some(b"initrd"), command_line: "quiet" };
        let (loaded, failed) = failing(1, || pvh::load(&guest, &pvh).is_ok());
        assert!(loaded == good && !failed);
    }
}

/// Makes the largest machine that a configuration can ask for. Returns the memory that it took.
fn machine(interrupts: Interrupts, kernel: &[u8], firmware: bool) -> usize {
    let devices: Vec<_> = (0..config::MAX_DEVICES).map(|_| device()).collect();
    let usual = testing::settings();
    let (made, bytes) = needed(|| {
        Machine::new(Settings {
            name: "a-name-of-32-bytes-is-the-longest".into(),
            vcpus: config::MAX_VCPUS as usize,
            kernel,
            firmware,
            notify: NotifyBar::Memory,
            devices,
            interrupts,
            watched: true,
            ..usual
        })
        .map(Box::new)
        .is_ok()
    });
    assert!(made);
    bytes
}

#[test]
fn the_largest_machine_needs_no_more_than_is_known_before() {
    let (bzimage, elf) = (kernel(), Image::new(true, 0x10_0008).bytes());
    for interrupts in [Interrupts::Emulated, Interrupts::Virtualized, Interrupts::Owned] {
        for (file, firmware) in [(&bzimage, false), (&elf, true)] {
            let bytes = machine(interrupts, file, firmware);
            assert!(bytes <= MAX_HEAP / 2, "{interrupts:?}: {bytes}");
        }
    }
}

#[test]
fn the_largest_partition_table_needs_no_more_than_is_known_before() {
    for mut image in gpt_image::both() {
        let usual = needed(|| image.read().is_ok());
        assert!(usual.0);
        for number in 0..128 {
            // Used, and with a name of 36 characters that have three bytes each.
            image.change_entry(number, |entry| {
                entry[..16].fill(1);
                entry[16] = number as u8;
                entry[56..].as_chunks_mut::<2>().0.iter_mut().for_each(|unit| *unit = [0xac, 0x20]);
            });
        }
        let (_, bytes) = needed(|| image.read().is_ok());
        assert!(bytes > 2 * 128 * 108, "all names were read: {bytes}");
        // A table may have eight times as many entries.
        assert!(8 * bytes <= gpt::HEAP, "{bytes}");
    }
}
