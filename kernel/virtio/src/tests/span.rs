//! Runs of bytes over a chain's buffers, compared with a plain list of bytes.

use proptest::prelude::*;

use crate::chain::{Segment, Span};
use crate::testing::BUFFER_STRIDE;

proptest! {
    #[test]
    fn a_run_reads_and_writes_the_bytes_that_a_plain_list_has(
        lens in proptest::collection::vec(1..40_u32, 0..8),
        cut in 0..200_u32,
        second in 0..200_u32,
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let memory = memory::guest::testing::memory(0, 0x1_0000);
        let buffers: Vec<Segment> =
            (0..).zip(&lens).map(|(n, &len)| Segment { gpa: n * BUFFER_STRIDE + 3, len }).collect();
        let places: Vec<u64> = buffers.iter().flat_map(|b| b.gpa..b.gpa + u64::from(b.len)).collect();
        places.iter().enumerate().for_each(|(n, &at)| memory.write(at, &[n as u8 ^ 0x55]).unwrap());
        let whole = Span::new(&buffers, places.len() as u32);
        let Some((head, tail)) = whole.split_at(cut) else {
            prop_assert!(cut as usize > places.len());
            return Ok(());
        };
        let Some((middle, end)) = tail.split_at(second) else {
            prop_assert!((cut + second) as usize > places.len());
            return Ok(());
        };
        prop_assert_eq!(head.len() + middle.len() + end.len(), whole.len());
        let (from, to) = (cut as usize, (cut + second) as usize);
        for (span, range) in [(head, 0..from), (middle, from..to), (end, to..places.len())] {
            let mut read = vec![0; 300];
            prop_assert_eq!(span.read(&memory, &mut read).unwrap() as usize, range.len());
            let expected: Vec<u8> = range.clone().map(|n| n as u8 ^ 0x55).collect();
            prop_assert_eq!(&read[..range.len()], &expected[..]);
            let places: Vec<u64> =
                span.segments().flat_map(|s| { assert_ne!(s.len, 0); s.gpa..s.gpa + u64::from(s.len) }).collect();
            prop_assert_eq!(places.len(), range.len());
        }
        let written = middle.write(&memory, &bytes).unwrap() as usize;
        prop_assert_eq!(written, bytes.len().min(to - from));
        for (n, &at) in places.iter().enumerate() {
            let expected = if (from..from + written).contains(&n) { bytes[n - from] } else { n as u8 ^ 0x55 };
            prop_assert_eq!(memory.read_u8(at).unwrap(), expected);
        }
    }
}
