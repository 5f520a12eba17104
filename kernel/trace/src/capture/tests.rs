//! Tests of the two forms of a captured frame: words in a ring, and bytes in a saved trace.

use proptest::prelude::*;

use super::*;

#[test]
fn the_layout_in_bytes_is_as_documented() {
    let captured = Captured {
        number: 0x1211_100f_0e0d_0c0b,
        dropped: Some(9),
        guest: 7,
        one_of: 0x0304,
        ..Captured::new(0x0807_0605_0403_0201, 0x0102, Way::Out, 0x0a0b_0c0d)
    }
    .with_bytes(&[1, 2, 3]);
    let bytes = captured.to_bytes();
    assert_eq!(bytes[..8], [1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(bytes[8..16], [11, 12, 13, 14, 15, 16, 17, 18]);
    assert_eq!(bytes[16..32], [2, 1, 3, 9, 7, 3, 4, 3, 13, 12, 11, 10, 0, 0, 0, 0]);
    assert_eq!(bytes[32..40], [1, 2, 3, 0, 0, 0, 0, 0]);
    assert_eq!((captured.stored(), captured.bytes()), (40, &[1, 2, 3][..]));
}

#[test]
fn no_more_is_kept_than_the_frame_has() {
    let kept = |len: u32, there: usize| Captured::new(0, 0, Way::In, len).with_bytes(&vec![7; there]).bytes().len();
    assert_eq!([kept(60, 64), kept(1514, 1514), kept(1514, 64), kept(0, 5)], [60, 128, 64, 0]);
}

#[test]
fn what_is_cut_off_or_too_long_is_no_frame() {
    let bytes = Captured::new(0, 0, Way::In, 100).with_bytes(&[7; 100]).to_bytes();
    assert_eq!(Captured::read(&bytes).map(|(_, len)| len), Some(32 + 104));
    assert_eq!((Captured::read(&bytes[..32 + 103]), Captured::read(&bytes[..31])), (None, None));
    let mut long = [0; 400];
    long[21] = 129;
    assert_eq!(Captured::read(&long), None);
}

proptest! {
    #[test]
    fn a_frame_comes_back_from_words_and_bytes(
        (tsc, number, slot, out) in any::<(u64, u64, u16, bool)>(),
        (dropped, guest, one_of, len) in any::<(Option<u8>, u8, u16, u32)>(),
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let way = if out { Way::Out } else { Way::In };
        let captured = Captured { number, dropped, guest, one_of, ..Captured::new(tsc, slot, way, len) }.with_bytes(&bytes);
        prop_assert_eq!(Captured::from_words(&captured.to_words()), captured);
        let stored = captured.stored();
        let all = captured.to_bytes();
        prop_assert!(all[stored..].iter().all(|byte| *byte == 0));
        prop_assert_eq!(Captured::read(&all[..stored]), Some((captured, stored)));
    }

    #[test]
    fn any_words_and_any_bytes_are_read(words: [u64; WORDS], bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let captured = Captured::from_words(&words);
        prop_assert!(captured.bytes().len() <= MOST_BYTES);
        if let Some((captured, len)) = Captured::read(&bytes) {
            prop_assert!(len <= bytes.len() && captured.bytes().len() <= MOST_BYTES);
        }
    }
}
