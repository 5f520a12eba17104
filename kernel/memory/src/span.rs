//! Checked ranges of guest memory that are used many times: a region ([`Span`]), and bytes in it ([`Piece`], [`Prefix`]).
//! Entries of rings are in [`crate::ring`].
//!
//! All of them borrow their [`GuestMemory`], so none outlives its mapping. Every value is read once. A scalar is one
//! load, which the compiler neither repeats nor drops. Longer data goes through the copy routine.

#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]
#![allow(unsafe_code, reason = "checked ranges of guest memory are used through pointers")]

use core::marker::PhantomData;
use core::sync::atomic::{AtomicU8, Ordering};

use crate::copy::Copier;
use crate::guest::GuestMemory;
use crate::host::HostMemory;

/// One region of a guest's memory.
#[derive(Clone, Copy, Debug)]
pub struct Span<'m> {
    gpa: u64,
    size: u64,
    host: *mut u8,
    memory: PhantomData<&'m GuestMemory>,
}

impl<'m> Span<'m> {
    /// Returns `len` bytes at `gpa`, if all of them are in this region.
    #[must_use]
    #[inline(always)]
    pub fn piece(&self, gpa: u64, len: u32) -> Option<Piece<'m>> {
        let offset = gpa.wrapping_sub(self.gpa);
        let room = self.size.checked_sub(offset)?;
        (u64::from(len) <= room).then(|| Piece {
            host: self.host.wrapping_add(offset as usize),
            len,
            memory: PhantomData,
        })
    }
}

/// A region with a maximum length of pieces. One comparison tells whether a piece may begin at an address. At least `N`
/// bytes can be read from that address, even if the piece is shorter.
#[derive(Clone, Copy, Debug)]
pub struct Window<'m, const N: usize> {
    gpa: u64,
    /// Bytes at the start of the region in which a piece may begin.
    places: u64,
    longest: u32,
    host: *mut u8,
    memory: PhantomData<&'m GuestMemory>,
}

impl<'m> Span<'m> {
    /// Returns the window for pieces of up to `longest` bytes. It is empty if the region is smaller than that.
    #[must_use]
    #[inline]
    pub fn window<const N: usize>(&self, longest: u32) -> Window<'m, N> {
        let most = u64::from(longest).max(N as u64);
        let places = self.size.wrapping_add(1).saturating_sub(most);
        Window { gpa: self.gpa, places, longest, host: self.host, memory: PhantomData }
    }
}

impl<'m, const N: usize> Window<'m, N> {
    /// Returns the first `N` bytes from `gpa` on, and the `len` bytes there. The prefix may extend beyond the piece.
    /// Returns `None` if the piece is too long or does not begin in the window.
    #[must_use]
    #[inline(always)]
    pub fn piece(&self, gpa: u64, len: u32) -> Option<(Prefix<'m, N>, Piece<'m>)> {
        let offset = gpa.wrapping_sub(self.gpa);
        // From here to the end of the region there are at least `longest` bytes, and at least `N`.
        (offset < self.places && len <= self.longest).then(|| {
            let host = self.host.wrapping_add(offset as usize);
            (Prefix { host, memory: PhantomData }, Piece { host, len, memory: PhantomData })
        })
    }
}

impl GuestMemory {
    /// Region number `region`, in the order of addition. If there is no such region, an empty one.
    #[must_use]
    #[inline]
    pub fn span(&self, region: usize) -> Span<'_> {
        let (gpa, size, host) =
            self.regions().get(region).map_or((0, 0, core::ptr::null_mut()), |r| (r.gpa, r.size, r.host));
        Span { gpa, size, host, memory: PhantomData }
    }

    /// The number of the region that contains `len` bytes at `gpa`.
    #[must_use]
    pub fn region_of(&self, gpa: u64, len: u32) -> Option<usize> {
        (0..self.regions().len()).find(|&region| self.span(region).piece(gpa, len).is_some())
    }

    /// Whether the two memories have a host byte in common: they belong to one guest, or to guests that share memory.
    #[must_use]
    #[inline]
    pub fn shares_with(&self, other: &GuestMemory) -> bool {
        self.regions().iter().any(|a| {
            let (a, a_size) = (a.host as u64, a.size);
            other
                .regions()
                .iter()
                .any(|b| (b.host as u64).wrapping_sub(a) < a_size || a.wrapping_sub(b.host as u64) < b.size)
        })
    }
}

/// Bytes of a guest's memory.
#[derive(Clone, Copy, Debug)]
pub struct Piece<'m> {
    host: *mut u8,
    len: u32,
    memory: PhantomData<&'m GuestMemory>,
}

impl<'m> Piece<'m> {
    /// No bytes.
    pub const EMPTY: Self = Self { host: core::ptr::null_mut(), len: 0, memory: PhantomData };

    /// The length in bytes.
    #[must_use]
    #[inline(always)]
    pub const fn len(self) -> u32 {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    #[inline(always)]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// Returns all but the first `n` bytes; `None` if there are fewer.
    #[must_use]
    #[inline(always)]
    pub fn skip(self, n: u32) -> Option<Self> {
        let len = self.len.checked_sub(n)?;
        Some(Self { host: self.host.wrapping_add(n as usize), len, memory: PhantomData })
    }

    /// Returns the first `len` bytes; `None` if there are fewer.
    #[must_use]
    #[inline(always)]
    pub fn begin(self, len: u32) -> Option<Self> {
        (len <= self.len).then_some(Self { len, ..self })
    }

    /// The first `N` bytes.
    #[must_use]
    #[inline(always)]
    pub fn first<const N: usize>(self) -> Option<Prefix<'m, N>> {
        (self.len as usize >= N).then_some(Prefix { host: self.host, memory: PhantomData })
    }

    /// Returns the first `N` bytes, and the piece without its first `AT` bytes.
    #[must_use]
    #[inline(always)]
    pub fn first_and_from<const N: usize, const AT: usize>(self) -> Option<(Prefix<'m, N>, Self)> {
        const { assert!(AT <= N) };
        let first = self.first::<N>()?;
        // No underflow: there are at least `N` bytes.
        let len = self.len.wrapping_sub(AT as u32);
        Some((first, Self { host: self.host.wrapping_add(AT), len, memory: PhantomData }))
    }

    /// Its entries of 16 bytes, such as the descriptors of an indirect table. A rest at its end does not count.
    #[must_use]
    #[inline(always)]
    pub const fn pairs(self) -> Pairs<'m> {
        Pairs { host: self.host, count: self.len / PAIR, memory: PhantomData }
    }

    /// Fills the start of this piece with `from`. Returns false, and copies nothing, if `from` is longer.
    #[inline(always)]
    pub fn copy_from_host(self, copier: Copier, from: HostMemory) -> bool {
        if from.len() > self.len as usize {
            return false;
        }
        // SAFETY: as in `write`. The source is atomic memory of this length.
        unsafe { copier.copy(self.host, from.pointer(), from.len()) };
        true
    }

    /// Fills `into` with the start of this piece. Returns false, and copies nothing, if this piece is shorter.
    #[inline(always)]
    pub fn copy_to_host(self, copier: Copier, into: HostMemory) -> bool {
        if into.len() > self.len as usize {
            return false;
        }
        // SAFETY: as in `read`. The destination is atomic memory of this length, so no unique reference to it exists.
        unsafe { copier.copy(into.pointer(), self.host, into.len()) };
        true
    }

    /// The host address of its first byte, for a device that reads it.
    #[must_use]
    #[inline(always)]
    pub fn address(self) -> usize {
        self.host.expose_provenance()
    }

    /// Copies into the host's own memory, as many bytes as both have. Returns how many.
    #[inline(always)]
    pub fn read(self, copier: Copier, into: &mut [u8]) -> usize {
        let len = into.len().min(self.len as usize);
        // SAFETY: the bytes were checked to be the guest's when this was made. The destination is a live slice of the
        // host's own memory, which no guest region overlaps. The copier's maker vouched for the cores that use it.
        unsafe { copier.copy(into.as_mut_ptr(), self.host, len) };
        len
    }

    /// Copies all of `from`, the host's own memory, to the start of this piece. Returns false, and copies nothing, if
    /// `from` is longer.
    #[inline(always)]
    pub fn write(self, copier: Copier, from: &[u8]) -> bool {
        if from.len() > self.len as usize {
            return false;
        }
        // SAFETY: as in `read`, in the other direction.
        unsafe { copier.copy(self.host, from.as_ptr(), from.len()) };
        true
    }

    /// Copies all of `from` to the start of this piece. Returns false, and copies nothing, if `from` is longer. If the
    /// ranges overlap, the result is a mixture of old and new bytes.
    #[inline(always)]
    pub fn copy_from(self, copier: Copier, from: Piece<'_>) -> bool {
        if from.len > self.len {
            return false;
        }
        // SAFETY: both ranges were checked to be their guest's. No reference to either exists. The routine tolerates
        // overlap and other writers.
        unsafe { copier.copy(self.host, from.host, from.len as usize) };
        true
    }

    /// Copies `head`, the host's own memory, to the start of this piece. After it, copies the bytes of `from` without
    /// the first `head.len()`. Also prefetches, for writing, the first cache lines of `next`, as many as `from` has.
    /// Returns false, and does nothing, if `from` is shorter than `head` or longer than this piece.
    #[inline(always)]
    pub fn copy_behind(self, copier: Copier, head: &[u8], from: Piece<'_>, next: Piece<'_>) -> bool {
        let len = from.len as usize;
        if len < head.len() || from.len > self.len {
            return false;
        }
        // SAFETY: as in `copy_from` and `write`. Any `next` is allowed.
        unsafe { copier.copy_behind(self.host, from.host, len, head.as_ptr(), head.len(), next.host) };
        true
    }
}

/// Bytes of an entry of [`Pairs`].
const PAIR: u32 = 16;

/// Entries of two 64-bit numbers, such as descriptors, at any alignment.
#[derive(Clone, Copy, Debug)]
pub struct Pairs<'m> {
    pub(crate) host: *mut u8,
    pub(crate) count: u32,
    pub(crate) memory: PhantomData<&'m GuestMemory>,
}

impl Pairs<'_> {
    /// The number of entries.
    #[must_use]
    #[inline(always)]
    pub const fn len(&self) -> u32 {
        self.count
    }

    /// Whether there is none.
    #[must_use]
    #[inline(always)]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Reads the two little-endian numbers of entry `index`, each once. Returns `None` if there is no such entry.
    #[must_use]
    #[inline(always)]
    pub fn get(&self, index: u32) -> Option<[u64; 2]> {
        if index >= self.count {
            return None;
        }
        let entry = Prefix::<{ PAIR as usize }> {
            host: self.host.wrapping_add((index as usize).wrapping_mul(PAIR as usize)),
            memory: PhantomData,
        };
        Some([entry.load_u64::<0>(), entry.load_u64::<8>()])
    }
}

/// A [`Piece`] with a label that its user has set. It is no larger than the piece alone.
#[derive(Clone, Copy, Debug)]
pub struct LabeledPiece<'m> {
    host: *mut u8,
    len: u32,
    label: u32,
    memory: PhantomData<&'m GuestMemory>,
}

impl<'m> LabeledPiece<'m> {
    /// No bytes, label 0.
    pub const EMPTY: Self = Self::new(Piece::EMPTY, 0);

    /// A piece with a label.
    #[must_use]
    #[inline(always)]
    pub const fn new(piece: Piece<'m>, label: u32) -> Self {
        Self { host: piece.host, len: piece.len, label, memory: PhantomData }
    }

    /// The bytes.
    #[must_use]
    #[inline(always)]
    pub const fn piece(&self) -> Piece<'m> {
        Piece { host: self.host, len: self.len, memory: PhantomData }
    }

    /// The label.
    #[must_use]
    #[inline(always)]
    pub const fn label(&self) -> u32 {
        self.label
    }
}

/// The first `N` bytes of a [`Piece`]. If the piece was found in a [`Window`], they may extend beyond the piece, into
/// other bytes of the same guest.
#[derive(Clone, Copy, Debug)]
pub struct Prefix<'m, const N: usize> {
    host: *mut u8,
    memory: PhantomData<&'m GuestMemory>,
}

impl<'m, const N: usize> Prefix<'m, N> {
    /// Returns all but the first `AT` bytes.
    #[must_use]
    #[inline(always)]
    pub fn rest<const AT: usize>(self) -> Piece<'m> {
        const { assert!(AT <= N) };
        Piece { host: self.host.wrapping_add(AT), len: const { (N - AT) as u32 }, memory: PhantomData }
    }

    /// Reads the little-endian number at byte `AT`, once.
    #[must_use]
    #[inline(always)]
    pub fn load_u64<const AT: usize>(self) -> u64 {
        const { assert!(AT + 8 <= N) };
        #[cfg(not(miri))]
        // SAFETY: `N` bytes were checked to be the guest's, and these are among them. It is one load, aligned or not.
        // It is assembly because others may write there at any time.
        unsafe {
            let value: u64;
            core::arch::asm!("mov {}, qword ptr [{} + {}]", out(reg) value, in(reg) self.host, const AT,
                options(nostack, preserves_flags, readonly));
            value
        }
        #[cfg(miri)]
        {
            let mut bytes = [0; 8];
            // SAFETY: as above.
            unsafe { crate::copy::copy(bytes.as_mut_ptr(), self.host.add(AT), 8) };
            u64::from_le_bytes(bytes)
        }
    }

    /// Copies all of it into the host's own memory. If `N` is a multiple of eight, each byte is read once. Otherwise
    /// some bytes are read twice.
    #[inline(always)]
    pub fn read(self, into: &mut [u8; N]) {
        const { assert!(N >= 8) };
        let mut at = 0;
        while at < N {
            at = at.min(const { N - 8 });
            let value: u64;
            #[cfg(not(miri))]
            // SAFETY: as in `load_u64`.
            unsafe {
                core::arch::asm!("mov {}, qword ptr [{}]", out(reg) value, in(reg) self.host.add(at),
                    options(nostack, preserves_flags, readonly));
            }
            #[cfg(miri)]
            {
                let mut bytes = [0; 8];
                // SAFETY: as in `load_u64`.
                unsafe { crate::copy::copy(bytes.as_mut_ptr(), self.host.add(at), 8) };
                value = u64::from_le_bytes(bytes);
            }
            if let Some(eight) = into.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
                *eight = value.to_le_bytes();
            }
            at = at.wrapping_add(8);
        }
    }

    /// Reads the little-endian number at byte `AT`, once.
    #[must_use]
    #[inline(always)]
    pub fn load_u32<const AT: usize>(self) -> u32 {
        const { assert!(AT + 4 <= N) };
        #[cfg(not(miri))]
        // SAFETY: as in `load_u64`.
        unsafe {
            let value: u32;
            core::arch::asm!("mov {:e}, dword ptr [{} + {}]", out(reg) value, in(reg) self.host, const AT,
                options(nostack, preserves_flags, readonly));
            value
        }
        #[cfg(miri)]
        {
            let mut bytes = [0; 4];
            // SAFETY: as in `load_u64`.
            unsafe { crate::copy::copy(bytes.as_mut_ptr(), self.host.add(AT), 4) };
            u32::from_le_bytes(bytes)
        }
    }
}

impl Prefix<'_, 1> {
    /// Writes the byte once.
    #[inline(always)]
    pub fn store(self, value: u8) {
        // SAFETY: the byte was checked to be the guest's. All host access to guest memory is atomic or by the copy
        // routine.
        unsafe { AtomicU8::from_ptr(self.host) }.store(value, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::{AtomicU8, Ordering};

    use super::Piece;
    use crate::copy::Copier;
    use crate::guest::testing::{memory, regions};
    use crate::guest::{GuestMemory, Region};
    use crate::host::HostMemory;

    #[test]
    fn a_piece_that_leaves_the_region_by_one_byte_is_refused() {
        let m = memory(0x1000, 0x2000);
        let span = m.span(0);
        assert_eq!(span.piece(0x2ff8, 8).map(Piece::len), Some(8));
        for (gpa, len) in [(0x2ff9, 8), (0xfff, 2), (u64::MAX, 2), (0x1000, u32::MAX), (0x3000, 1), (0xfff, u32::MAX)] {
            assert!(span.piece(gpa, len).is_none(), "{gpa:#x}+{len:#x}");
            assert_eq!(m.region_of(gpa, len), None);
        }
        assert!(m.span(1).piece(0, 1).is_none(), "there is no second region");
    }

    #[test]
    fn in_a_window_pieces_up_to_the_longest_are_in_the_region_and_no_others() {
        let m = memory(0x1000, 0x1000);
        let window = m.span(0).window::<16>(100);
        for (gpa, len, found) in [
            (0x1000, 100, true),
            (0x1000, 101, false),
            (0x1000, 0, true),
            (0x1f9c, 100, true),
            (0x1f9d, 1, false),
            (0xfff, 1, false),
            (u64::MAX, 1, false),
        ] {
            let piece = window.piece(gpa, len);
            assert_eq!(piece.map(|(first, piece)| (first.rest::<6>().len(), piece.len())), found.then_some((10, len)));
            let held = m.span(0).piece(gpa, len.max(16)).map(|piece| piece.address());
            assert!(!found || piece.map(|(_, piece)| piece.address()) == held, "{gpa:#x}+{len}");
        }
        let short = m.span(0).window::<16>(4);
        assert!(short.piece(0x1ff0, 4).is_some() && short.piece(0x1ff1, 4).is_none(), "16 bytes can be read");
        assert!(m.span(0).window::<16>(0x1000).piece(0x1000, 0x1000).is_some());
        assert!(
            m.span(0).window::<16>(0x1001).piece(0x1000, 1).is_none()
                && m.span(1).window::<16>(0).piece(0, 0).is_none()
        );
    }

    #[test]
    fn numbers_are_read_and_written_where_they_stand_and_none_beyond_the_region() {
        let m = memory(0x1000, 0x1000);
        m.write_u16(0x1ffe, 0xa1b2).unwrap();
        let last = m.word(0x1ffe).unwrap();
        assert_eq!((last.load(), last.load_acquire()), (0xa1b2, 0xa1b2));
        last.store_release(0xc3d4);
        assert_eq!(m.read_u16(0x1ffe), Ok(0xc3d4));
        for gpa in [0x2000, 0xffe, 0x1001, u64::MAX - 1] {
            assert!(m.word(gpa).is_none(), "{gpa:#x}");
        }
        // As the flags of 16 descriptors at the end of the region.
        let flags = m.words::<16>(0x1f0e, 16).unwrap();
        for i in 0..16 {
            flags.get(i).unwrap().store_release(i);
            assert_eq!(m.read_u16(0x1f0e + 16 * u64::from(i)), Ok(i));
        }
        assert!(flags.get(16).is_none() && flags.get(u16::MAX).is_none());
        assert!(m.words::<16>(0x1f0e, 17).is_none() && m.words::<16>(0x1f0e, 0).is_none());
        assert!(m.words::<16>(0x1f0f, 1).is_none() && m.words::<16>(0x1f0e, u16::MAX).is_none());
    }

    #[test]
    fn a_region_is_found_by_its_number() {
        let mut m = memory(0x10000, 0x4000);
        let other = memory(0, 0x1000);
        let host = other.regions()[0].host;
        // SAFETY: backed by the leaked memory of `other`.
        unsafe { m.add(Region { gpa: 0x100_0000, size: 0x1000, host }) }.unwrap();
        assert_eq!((m.region_of(0x10ff0, 16), m.region_of(0x100_0000, 0x1000)), (Some(0), Some(1)));
        assert_eq!(m.region_of(0x13fff, 2), None);
        assert!(m.shares_with(&other) && other.shares_with(&m) && m.shares_with(&m));
        assert!(!memory(0, 0x1000).shares_with(&other) && !GuestMemory::new().shares_with(&m));
    }

    #[test]
    fn bytes_across_the_border_of_two_regions_are_in_neither() {
        let m = regions(&[(0x2000, 0x1000), (0x1000, 0x1000), (0x3000, 0x1000)]);
        for (gpa, len, region) in [
            (0x1fff, 1, Some(1)),
            (0x1fff, 2, None),
            (0x2000, 0x1000, Some(0)),
            (0x2000, 0x1001, None),
            (0x2fff, 2, None),
            (0x3fff, 1, Some(2)),
            (0x3fff, 2, None),
        ] {
            assert_eq!(m.region_of(gpa, len), region, "{gpa:#x}+{len:#x}");
        }
    }

    #[test]
    fn what_is_written_by_pieces_is_what_the_guest_reads() {
        let m = memory(0, 0x1000);
        let piece = m.span(0).piece(0x101, 26).unwrap();
        assert!(piece.write(Copier::PLAIN, &[7; 26]));
        assert!(!piece.write(Copier::PLAIN, &[8; 27]));
        let first = piece.first::<26>().unwrap();
        assert!(piece.first::<27>().is_none());
        assert_eq!((piece.begin(26).map(Piece::len), piece.begin(27).map(Piece::len)), (Some(26), None));
        assert_eq!(piece.first_and_from::<26, 25>().map(|(_, rest)| rest.len()), Some(1));
        assert!(piece.first_and_from::<27, 2>().is_none());
        assert!(piece.skip(1).unwrap().write(Copier::PLAIN, &[1, 2, 3, 4, 5, 6, 7, 8]));
        assert!(piece.skip(22).unwrap().write(Copier::PLAIN, &[0xa1, 0xb2, 0xc3, 0xd4]));
        assert_eq!((first.rest::<25>().len(), first.rest::<26>().is_empty()), (1, true));
        assert_eq!((first.load_u64::<18>(), first.load_u32::<20>()), (0xd4c3_b2a1_0707_0707, 0xb2a1_0707));
        let mut back = [0; 40];
        assert_eq!(piece.read(Copier::PLAIN, &mut back), 26);
        let mut wanted = [7; 26];
        wanted[1..9].copy_from_slice(&[1, 2, 3, 4, 5, 6, 7, 8]);
        wanted[22..].copy_from_slice(&[0xa1, 0xb2, 0xc3, 0xd4]);
        assert_eq!(back[..26], wanted);
        let copy = m.span(0).piece(0x201, 30).unwrap().skip(3).unwrap();
        assert!(copy.copy_from(Copier::PLAIN, piece));
        assert!(!copy.skip(2).unwrap().copy_from(Copier::PLAIN, piece), "25 bytes have no room for 26");
        m.read(0x204, &mut back[..26]).unwrap();
        assert_eq!(back[..26], wanted);
        assert!(copy.skip(28).is_none());
    }

    #[test]
    fn pairs_are_read_at_any_alignment_and_end_with_their_piece() {
        let m = memory(0, 0x1000);
        for at in [0x100, 0x201, 0x30c] {
            for n in 0..4 {
                m.write_u64(at + 8 * n, at << 32 | n).unwrap();
            }
            let pairs = m.span(0).piece(at, 47).unwrap().pairs();
            assert_eq!((pairs.len(), pairs.is_empty()), (2, false));
            assert_eq!(pairs.get(0), Some([at << 32, at << 32 | 1]));
            assert_eq!((pairs.get(1), pairs.get(2)), (Some([at << 32 | 2, at << 32 | 3]), None));
            assert_eq!(pairs.get(u32::MAX), None);
        }
        assert!(Piece::EMPTY.pairs().is_empty() && Piece::EMPTY.pairs().get(0).is_none());
        let ring = m.slots::<[u64; 2]>(0x100, 2).unwrap().pairs();
        assert_eq!((ring.len(), ring.get(1), ring.get(2)), (2, Some([0x100 << 32 | 2, 0x100 << 32 | 3]), None));
    }

    #[test]
    fn one_byte_is_written_alone() {
        let m = memory(0, 0x1000);
        m.span(0).piece(0xfff, 1).unwrap().first::<1>().unwrap().store(7);
        m.span(0).piece(0x800, 2).unwrap().first::<1>().unwrap().store(9);
        assert!(m.span(0).piece(0x900, 0).unwrap().first::<1>().is_none() && Piece::EMPTY.first::<1>().is_none());
        assert_eq!((m.read_u8(0xfff), m.read_u16(0x800)), (Ok(7), Ok(9)));
    }

    #[test]
    fn a_piece_and_the_hosts_memory_are_copied_if_the_destination_is_long_enough() {
        let m = memory(0, 0x1000);
        let bytes: &[AtomicU8] = (0..100).map(AtomicU8::new).collect::<Vec<_>>().leak();
        let host = HostMemory::new(bytes);
        let piece = m.span(0).piece(0x101, 50).unwrap();
        assert!(piece.copy_from_host(Copier::PLAIN, host.part(10, 49).unwrap()));
        assert!(!piece.copy_from_host(Copier::PLAIN, host.part(10, 51).unwrap()));
        assert_eq!((m.read_u8(0x100), m.read_u8(0x101), m.read_u8(0x131)), (Ok(0), Ok(10), Ok(58)));
        assert_eq!(m.read_u8(0x132), Ok(0));
        assert!(piece.copy_to_host(Copier::PLAIN, host.part(0, 50).unwrap()));
        assert!(!piece.copy_to_host(Copier::PLAIN, host.part(0, 51).unwrap()));
        let value = |n: usize| bytes[n].load(Ordering::Relaxed);
        assert_eq!((value(0), value(48), value(49), value(50)), (10, 58, 0, 50));
    }
}
