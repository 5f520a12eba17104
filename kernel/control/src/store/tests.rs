//! Modules come whole or not at all, and no two of them share memory.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn sum(bytes: &[u8]) -> Sha256 {
    Sha256(sha2::Sha256::digest(bytes).into())
}

fn unused(_: &str) -> bool {
    false
}

/// Puts a module at once.
fn put(store: &mut Store<'_>, name: &str, bytes: &[u8]) -> Result<Sha256, Text> {
    store.begin(0, name, bytes.len() as u64, sum(bytes), unused)?;
    store.add(0, name, 0, bytes)?;
    store.end(name, unused)
}

#[test]
fn a_module_is_there_when_all_of_it_is() {
    let mut memory = [0; 256];
    let mut store = Store::new(&mut memory);
    store.begin(0, "k", 6, sum(b"abcdef"), unused).unwrap();
    store.add(1, "k", 0, b"abc").unwrap();
    assert_eq!((store.get("k"), store.is_taking()), (None, true));
    store.add(2, "k", 3, b"def").unwrap();
    assert_eq!(store.get("k"), None);
    assert_eq!(store.end("k", unused), Ok(sum(b"abcdef")));
    assert_eq!((store.get("k"), store.is_taking()), (Some(&b"abcdef"[..]), false));
    assert_eq!(store.modules().collect::<Vec<_>>(), [("k", 6, sum(b"abcdef"))]);
}

#[test]
fn what_breaks_off_leaves_nothing_and_the_module_of_the_same_name_stays() {
    let mut memory = [0; 256];
    let mut store = Store::new(&mut memory);
    put(&mut store, "k", b"old").unwrap();
    let broken: [fn(&mut Store<'_>) -> Text; 6] = [
        |store| store.end("k", unused).unwrap_err(),
        |store| store.add(0, "k", 1, b"ew").unwrap_err(),
        |store| store.add(0, "k", 0, b"new!").unwrap_err(),
        |store| store.add(0, "k", u64::MAX, b"new").unwrap_err(),
        |store| {
            store.add(0, "k", 0, b"nwe").unwrap();
            store.end("k", unused).unwrap_err()
        },
        |store| {
            store.add(0, "k", 0, b"new").unwrap();
            store.end("k", |name| name == "k").unwrap_err()
        },
    ];
    let expected = [
        "0 bytes of 3 have come",
        "2 bytes at 1 are not the next ones: 0 of 3 are there",
        "4 bytes at 0",
        "are not the next ones",
        "the SHA-256 is ",
        "a guest uses the module `k`",
    ];
    for (break_off, words) in broken.into_iter().zip(expected) {
        store.begin(0, "k", 3, sum(b"new"), unused).unwrap();
        let said = break_off(&mut store);
        assert!(said.contains(words), "{said}");
        assert_eq!((store.get("k"), store.is_taking()), (Some(&b"old"[..]), false));
        assert!(store.add(0, "k", 0, b"n").unwrap_err().contains("no module `k` is being put"));
    }
    store.begin(0, "k", 3, sum(b"new"), unused).unwrap();
    assert_eq!(store.give_up().as_deref(), Some("k"));
    assert_eq!(store.give_up(), None);
    assert_eq!(put(&mut store, "k", b"new"), Ok(sum(b"new")));
    assert_eq!(store.get("k"), Some(&b"new"[..]));
}

#[test]
fn one_comes_at_a_time_until_it_is_late() {
    let mut memory = [0; 256];
    let mut store = Store::new(&mut memory);
    store.begin(0, "a", 4, sum(b"aaaa"), unused).unwrap();
    store.add(1000, "a", 0, b"aa").unwrap();
    let said = store.begin(1000 + PATIENCE - 1, "b", 1, sum(b"b"), unused).unwrap_err();
    assert!(said.contains("`a` is being put"), "{said}");
    assert!(store.add(0, "b", 0, b"b").is_err() && store.is_taking(), "a piece of another name changes nothing");
    store.begin(1000 + PATIENCE, "b", 1, sum(b"b"), unused).unwrap();
    assert!(store.add(0, "a", 2, b"aa").is_err());
    store.add(0, "b", 0, b"b").unwrap();
    store.end("b", unused).unwrap();
    assert_eq!((store.get("a"), store.get("b")), (None, Some(&b"b"[..])));
}

#[test]
fn what_is_used_is_neither_replaced_nor_forgotten() {
    let mut memory = [0; 256];
    let mut store = Store::new(&mut memory);
    put(&mut store, "k", b"old").unwrap();
    let is_used = |name: &str| name == "k";
    assert!(store.begin(0, "k", 3, sum(b"new"), is_used).unwrap_err().contains("a guest uses"));
    assert!(store.forget("k", is_used).unwrap_err().contains("a guest uses"));
    assert!(store.forget("j", is_used).unwrap_err().contains("no module `j`"));
    assert_eq!(store.get("k"), Some(&b"old"[..]));
    store.forget("k", unused).unwrap();
    assert_eq!(store.get("k"), None);
}

#[test]
fn limits_are_told() {
    let mut memory = [0; 4096];
    let mut store = Store::new(&mut memory);
    for (bytes, words) in [(0, "no room for 0 bytes"), (4097, "the largest free piece has 4096"), (u64::MAX, "no room")]
    {
        let said = store.begin(0, "k", bytes, sum(b""), unused).unwrap_err();
        assert!(said.contains(words), "{said}");
    }
    for name in ["", "a b", "../x", &"n".repeat(33)] {
        assert!(store.begin(0, name, 1, sum(b""), unused).unwrap_err().contains("the name of a module"), "{name}");
    }
    for n in 0..MAX_PUT_MODULES {
        put(&mut store, &format!("m{n}"), b"x").unwrap();
    }
    assert!(put(&mut store, "more", b"x").unwrap_err().contains("there are 32 modules already"));
    assert!(put(&mut store, "m3", b"y").is_ok(), "it takes the place of another");
    let said = Store::new(&mut []).begin(0, "k", 1, sum(b""), unused).unwrap_err();
    assert!(said.contains("no memory is kept"), "{said}");
}

proptest! {
    /// Whatever is put, broken off and forgotten, each module that is there has its own bytes.
    #[test]
    fn modules_keep_their_bytes(
        steps in proptest::collection::vec((0_u8..6, 0_u8..4, 0_usize..400, any::<u8>()), 1..80),
    ) {
        let mut memory = vec![0; 1024];
        let mut store = Store::new(&mut memory);
        let mut expected: BTreeMap<String<32>, Vec<u8>> = BTreeMap::new();
        for (step, name, len, fill) in steps {
            let name = String::try_from(["a", "b", "c", "d"][usize::from(name)]).unwrap();
            let bytes = vec![fill; len];
            match step {
                0 => {
                    let known = expected.remove(&name).is_some();
                    prop_assert_eq!(store.forget(&name, unused).is_ok(), known);
                }
                1 => {
                    // It breaks off.
                    if store.begin(0, &name, len as u64, sum(&bytes), unused).is_ok() {
                        let _ = store.add(0, &name, 0, &bytes[..len / 2]);
                        store.give_up();
                    }
                }
                _ => {
                    let largest = store.largest_gap();
                    let result = put(&mut store, &name, &bytes);
                    prop_assert_eq!(result.is_ok(), (1..=largest).contains(&len), "{:?}", result);
                    if result.is_ok() {
                        expected.insert(name, bytes);
                    }
                }
            }
            prop_assert_eq!(store.modules().count(), expected.len());
            for (name, bytes) in &expected {
                prop_assert_eq!(store.get(name), Some(&bytes[..]));
            }
        }
    }
}
