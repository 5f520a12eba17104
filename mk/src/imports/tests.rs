use std::path::{Path, PathBuf};

use super::{graph_of, shown};

/// The cycles of a crate of these files, of which the first is the root, without their headings.
fn cycles(files: &[(&str, &str)]) -> Vec<String> {
    let source =
        |path: &Path| files.iter().find(|(name, _)| Path::new(name) == path).map(|(_, text)| (*text).to_owned());
    let graph = graph_of(&[PathBuf::from(files[0].0)], &source).unwrap();
    assert_eq!(graph.files.len(), files.len());
    shown(&graph)
        .iter()
        .flat_map(|text| text.lines().skip(1).map(|line| line.trim().to_owned()).collect::<Vec<_>>())
        .collect()
}

const NONE: [&str; 0] = [];

#[test]
fn two_files_that_import_each_other_are_a_cycle_with_the_names_that_tie_it() {
    let found = cycles(&[
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::{X, y as z}; pub struct A;"),
        ("b.rs", "pub struct X; pub fn y() -> super::a::A { crate::c::f(); loop {} }"),
        ("c.rs", "pub fn f() {}"),
    ]);
    assert_eq!(found, ["a.rs -> b.rs: X, y", "b.rs -> a.rs: A"]);
}

#[test]
fn a_cycle_of_three_files_is_found_and_a_chain_is_none() {
    let chain = [
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
        ("b.rs", "use crate::c::C; pub struct B;"),
        ("c.rs", "pub struct C;"),
    ];
    assert_eq!(cycles(&chain), NONE);
    let mut cycle = chain;
    cycle[3].1 = "pub struct C(crate::a::A);";
    assert_eq!(cycles(&cycle), ["a.rs -> b.rs: B", "b.rs -> c.rs: C", "c.rs -> a.rs: A"]);
}

#[test]
fn a_parent_may_declare_and_hand_on_its_children() {
    let found = cycles(&[
        ("lib.rs", "mod a; mod b; pub use a::A; pub use b::*; pub struct Own;"),
        ("a.rs", "use crate::{B, Own}; pub struct A(B, Own);"),
        ("b.rs", "pub struct B;"),
    ]);
    assert_eq!(found, NONE);
}

#[test]
fn a_re_export_is_followed_to_the_definition() {
    let found = cycles(&[
        ("lib.rs", "mod a; mod b; pub use a::A; pub(crate) use b::B as Renamed;"),
        ("a.rs", "use crate::Renamed; pub struct A;"),
        ("b.rs", "use crate::A; pub struct B;"),
    ]);
    assert_eq!(found, ["a.rs -> b.rs: B", "b.rs -> a.rs: A"]);
}

#[test]
fn a_child_that_imports_from_a_parent_that_uses_it_is_a_cycle() {
    let child = ("a/b.rs", "use super::Own; pub fn f(_: Own) {}");
    let found = cycles(&[("lib.rs", "mod a;"), ("a.rs", "mod b; pub struct Own; fn g() { b::f(Own) }"), child]);
    assert_eq!(found, ["a/b.rs -> a.rs: Own", "a.rs -> a/b.rs: f"]);
    // The same by a re-export that the parent's own code names.
    let found =
        cycles(&[("lib.rs", "mod a;"), ("a.rs", "mod b; pub struct Own; pub use b::f; fn g() { f(Own) }"), child]);
    assert_eq!(found, ["a/b.rs -> a.rs: Own", "a.rs -> a/b.rs: f"]);
}

#[test]
fn a_test_file_may_import_its_subject() {
    let found = cycles(&[
        ("lib.rs", "mod a;"),
        ("a/mod.rs", "pub fn f() {} #[cfg(test)] mod tests;"),
        ("a/tests.rs", "use super::*; #[test] fn t() { f(); }"),
    ]);
    assert_eq!(found, NONE);
}

#[test]
fn an_inline_test_counts_for_its_file() {
    let found = cycles(&[
        ("lib.rs", "mod a; mod b;"),
        (
            "a.rs",
            "pub fn f() {} #[cfg(test)] mod tests { use super::*; use crate::b::g; #[test] fn t() { f(); g(); } }",
        ),
        ("b.rs", "pub fn g() { crate::a::f() }"),
    ]);
    assert_eq!(found, ["a.rs -> b.rs: g", "b.rs -> a.rs: f"]);
}

#[test]
fn a_glob_import_counts_by_the_names_that_come_through_it() {
    let found = cycles(&[
        ("lib.rs", "mod a; mod b; mod prelude; mod only_methods;"),
        ("prelude.rs", "pub use crate::a::{A, Kind}; pub use crate::b::B;"),
        ("a.rs", "use crate::prelude::*; use crate::only_methods::*; pub struct A(B); pub enum Kind { One }"),
        ("b.rs", "use crate::a::Kind::*; pub struct B; fn f(_: One) {}"),
        ("only_methods.rs", "use crate::a::A; pub trait Ext { fn f(&self); }"),
    ]);
    assert_eq!(
        found,
        ["a.rs -> b.rs: B", "a.rs -> only_methods.rs: *", "b.rs -> a.rs: Kind", "only_methods.rs -> a.rs: A"]
    );
}

#[test]
fn a_glob_gives_no_private_names_except_to_children() {
    let found = cycles(&[
        ("lib.rs", "mod a; mod b; mod c;"),
        ("a.rs", "use crate::b::*; use crate::c::*; pub fn used(_: B) { helper(); }"),
        ("b.rs", "fn helper() {} pub struct B;"),
        ("c.rs", "pub fn helper() { crate::a::used() }"),
    ]);
    assert_eq!(found, ["a.rs -> c.rs: helper", "c.rs -> a.rs: used"]);
}

#[test]
fn modules_in_files_that_a_path_attribute_names_are_read() {
    let found = cycles(&[
        ("src/lib.rs", "#[path = \"../common/x.rs\"] mod a; mod inline { #[path = \"b.rs\"] mod b; mod c; }"),
        ("common/x.rs", "mod beside; pub use beside::f;"),
        ("common/beside.rs", "pub fn f() {}"),
        ("src/inline/b.rs", "use super::c; pub fn f() { c::g(); crate::a::f(); }"),
        ("src/inline/c.rs", "pub fn g() { super::b::f() }"),
    ]);
    assert_eq!(found, ["src/inline/b.rs -> src/inline/c.rs: g", "src/inline/c.rs -> src/inline/b.rs: f"]);
}

#[test]
fn macros_count_by_their_tokens_and_by_their_names() {
    let found = cycles(&[
        ("lib.rs", "#[macro_use] mod a; mod b;"),
        ("a.rs", "macro_rules! make { ($x:expr) => { $crate::b::Made($x.field, $y) } }"),
        ("b.rs", "pub struct Made(u8); fn f() { make!(1); }"),
    ]);
    assert_eq!(found, ["a.rs -> b.rs: Made", "b.rs -> a.rs: make"]);
    let found = cycles(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "fields! { WIDTH: u8 = 1 } fn f() { assert_eq!(super::b::g(), 1); }"),
        ("b.rs", "use crate::a::WIDTH; pub fn g() -> u8 { WIDTH }"),
    ]);
    assert_eq!(found, ["a.rs -> b.rs: g", "b.rs -> a.rs: WIDTH"]);
}

#[test]
fn names_of_other_crates_and_local_names_are_no_imports() {
    let found = cycles(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use std::fmt::Debug; use ::b::X; pub fn f(b: u8) -> impl Debug { u8::MAX - b }"),
        ("b.rs", "pub(in crate::a) fn g() { crate::a::f(1); }"),
    ]);
    assert_eq!(found, NONE);
}

#[test]
fn a_parent_may_hand_on_names_of_other_crates() {
    let found = cycles(&[
        ("lib.rs", "mod a; use core::sync::atomic::AtomicU8; fn f() -> AtomicU8 { a::g() }"),
        ("a.rs", "use super::AtomicU8; pub fn g() -> AtomicU8 { loop {} }"),
    ]);
    assert_eq!(found, NONE);
}
