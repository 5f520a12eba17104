//! A copy-on-write overlay: its bound, what gives blocks back, and that the base stays as it is.

use super::support::{DISCARD, IN, IOERR, OK, OUT, SPLIT, WRITE_ZEROES, base, overlay_disk, range, with_disk};

#[test]
fn a_full_overlay_refuses_new_blocks_and_serves_everything_else() {
    let contents = base(16 * 4096);
    let disk = overlay_disk(contents, 4);
    let overlay = disk.overlay().unwrap();
    let (mut guest, mut bench) = with_disk(disk, SPLIT);
    let mut ask = |kind, sector, data: Result<&[u8], usize>| {
        let sent = guest.send(kind, sector, Some(data));
        let (status, _) = bench.ask(&mut guest, &sent);
        (status, guest.bytes(sent.at[1], 512))
    };
    for block in 0..4 {
        assert_eq!(ask(OUT, 8 * block, Ok(&[7; 512])).0, OK);
        assert_eq!(u64::from(overlay.used()), block + 1);
    }
    assert_eq!(ask(OUT, 32, Ok(&[7; 512])).0, IOERR);
    assert_eq!(ask(WRITE_ZEROES, 0, Ok(&range(32, 1, 0))).0, IOERR, "a part of a block needs memory");
    assert_eq!((overlay.used(), overlay.blocks(), overlay.full()), (4, 4, 2));
    assert_eq!(ask(OUT, 9, Ok(&[8; 512])).0, OK, "an overwrite");
    assert_eq!(ask(IN, 32, Err(512)), (OK, contents[4 * 4096..][..512].to_vec()));
    assert_eq!(ask(IN, 8, Err(512)), (OK, vec![7; 512]));
    assert_eq!(ask(IN, 10, Err(512)), (OK, contents[10 * 512..][..512].to_vec()), "the rest of a written block");
    // A whole block of zeroes needs no memory, and gives its block back.
    assert_eq!(ask(WRITE_ZEROES, 0, Ok(&range(40, 8, 1))).0, OK);
    assert_eq!(ask(IN, 40, Err(512)), (OK, vec![0; 512]));
    assert_eq!(ask(DISCARD, 0, Ok(&range(0, 16, 0))).0, OK);
    assert_eq!((overlay.used(), overlay.most_used()), (2, 4));
    assert_eq!(ask(IN, 0, Err(512)), (OK, vec![0; 512]));
    for sector in [32, 48] {
        assert_eq!(ask(OUT, sector, Ok(&[6; 512])).0, OK, "blocks that were given back");
    }
    assert_eq!(ask(IN, 33, Err(512)), (OK, contents[33 * 512..][..512].to_vec()), "nothing of their former contents");
    assert_eq!(ask(OUT, 56, Ok(&[6; 512])).0, IOERR);
    assert_eq!(contents, base(16 * 4096));
}

#[test]
fn overlays_of_one_base_do_not_see_each_other() {
    let contents = base(8192);
    let (mut a, mut bench_a) = with_disk(overlay_disk(contents, 2), SPLIT);
    let (mut b, mut bench_b) = with_disk(overlay_disk(contents, 2), SPLIT);
    let sent = a.send(OUT, 3, Some(Ok(&[1; 512])));
    assert_eq!(bench_a.ask(&mut a, &sent), (OK, 1));
    let sent = b.send(IN, 3, Some(Err(512)));
    assert_eq!(bench_b.ask(&mut b, &sent), (OK, 513));
    assert_eq!(b.bytes(sent.at[1], 512), &contents[3 * 512..][..512]);
}

#[test]
fn a_base_that_ends_within_a_block_is_followed_by_zeroes() {
    let contents = base(4096 + 700);
    let disk = overlay_disk(contents, 2);
    let (mut guest, mut bench) = with_disk(disk, SPLIT);
    let sent = guest.send(OUT, 8, Some(Ok(&[3; 512])));
    assert_eq!(bench.ask(&mut guest, &sent), (OK, 1));
    let sent = guest.send(IN, 8, Some(Err(1024)));
    assert_eq!(bench.ask(&mut guest, &sent), (OK, 1025));
    let expected = [vec![3; 512], contents[4096 + 512..].to_vec(), vec![0; 324]].concat();
    assert_eq!(guest.bytes(sent.at[1], 1024), expected);
    let sent = guest.send(DISCARD, 0, Some(Ok(&range(8, 2, 0))));
    assert_eq!(bench.ask(&mut guest, &sent), (OK, 1));
    assert_eq!(disk.overlay().unwrap().used(), 0, "that is all of the last block");
    let sent = guest.send(IN, 8, Some(Err(1024)));
    assert_eq!((bench.ask(&mut guest, &sent), guest.bytes(sent.at[1], 1024)), ((OK, 1025), vec![0; 1024]));
    let sent = guest.send(IN, 10, Some(Err(512)));
    assert_eq!(bench.ask(&mut guest, &sent).0, IOERR, "the disk ends there");
}
