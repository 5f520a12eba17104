//! The tokens of frames in a transmit queue, as a ring. It does not check for room: each frame has a descriptor, and the queue
//! checks for room there.

#![allow(unsafe_code, reason = "places that hold no token are not initialized")]

use alloc::boxed::Box;
use core::mem::MaybeUninit;

/// Tokens by the number of their frame, oldest first. Numbers wrap at 2^32.
///
/// Exactly the places of the numbers from `oldest` up to `newest` (exclusive) are initialized. There are never more numbers
/// than places.
pub struct Tokens<T> {
    places: Box<[MaybeUninit<T>]>,
    /// Number of places minus one. The number of places is a power of two.
    mask: u32,
    oldest: u32,
    newest: u32,
}

impl<T> Tokens<T> {
    /// With `count` places, a power of two.
    pub fn new(count: usize) -> Self {
        assert!(count.is_power_of_two());
        let places = (0..count).map(|_| MaybeUninit::uninit()).collect();
        Self { places, mask: count.saturating_sub(1) as u32, oldest: 0, newest: 0 }
    }

    /// How many there are.
    pub fn len(&self) -> u32 {
        self.newest.wrapping_sub(self.oldest)
    }

    /// The number of the next token.
    #[inline(always)]
    pub fn newest(&self) -> u32 {
        self.newest
    }

    #[inline(always)]
    fn place(&mut self, number: u32) -> &mut MaybeUninit<T> {
        // SAFETY: there are as many places as numbers under the mask.
        unsafe { self.places.get_unchecked_mut((number & self.mask) as usize) }
    }

    /// Adds one.
    ///
    /// # Safety
    /// There are fewer than places.
    #[inline(always)]
    pub unsafe fn push(&mut self, token: T) {
        debug_assert!((self.len() as usize) < self.places.len());
        self.place(self.newest).write(token);
        self.newest = self.newest.wrapping_add(1);
    }

    /// The places of the next tokens: `most` of them, fewer at the end of the ring. The caller knows how many of them are free.
    #[inline(always)]
    pub fn vacant(&mut self, most: u32) -> &mut [MaybeUninit<T>] {
        let at = (self.newest & self.mask) as usize;
        let row = self.places.get_mut(at..).unwrap_or_default();
        let most = row.len().min(most as usize);
        row.get_mut(..most).unwrap_or_default()
    }

    /// Adds those that were written to the first `count` places of [`Tokens::vacant`].
    ///
    /// # Safety
    /// Those places were written, and held no tokens before.
    #[inline(always)]
    pub unsafe fn advance(&mut self, count: u32) {
        debug_assert!(self.len().saturating_add(count) as usize <= self.places.len());
        self.newest = self.newest.wrapping_add(count);
    }

    /// Takes out the tokens with numbers before `end`, in order. Returns how many.
    #[inline(always)]
    pub fn take_until(&mut self, end: u32, mut done: impl FnMut(T)) -> u32 {
        let count = end.wrapping_sub(self.oldest);
        assert!(count <= self.len(), "only what is there");
        let first = (self.oldest & self.mask) as usize;
        // Set first, so that no token comes out twice even if `done` panics.
        self.oldest = end;
        let (start, row) = self.places.split_at(first);
        let wrapped = (count as usize).saturating_sub(row.len());
        for places in [row.get(..count as usize).unwrap_or(row), start.get(..wrapped).unwrap_or(start)] {
            for place in places {
                // SAFETY: its number was between `oldest` and `newest`, so it was initialized. `oldest` has moved past it.
                done(unsafe { place.assume_init_read() });
            }
        }
        count
    }
}

impl<T> Drop for Tokens<T> {
    fn drop(&mut self) {
        self.take_until(self.newest, drop);
    }
}

#[cfg(test)]
mod tests {
    use super::Tokens;
    use std::rc::Rc;

    #[test]
    fn each_token_comes_out_once_in_order_and_those_left_are_dropped() {
        let all: Vec<Rc<u32>> = (0..100).map(Rc::new).collect();
        let mut tokens = Tokens::new(8);
        tokens.oldest = u32::MAX - 20;
        tokens.newest = tokens.oldest;
        let (mut next, mut out) = (0, Vec::new());
        while next < 95 {
            let row = tokens.vacant(3);
            assert!((1..=3).contains(&row.len()));
            let count = row.len();
            for place in row {
                place.write(all[next].clone());
                next += 1;
            }
            // SAFETY: these were written, and three were left at most.
            unsafe { tokens.advance(count as u32) };
            for _ in count..5 {
                // SAFETY: there are seven at most.
                unsafe { tokens.push(all[next].clone()) };
                next += 1;
            }
            let end = tokens.newest().wrapping_sub(next as u32 % 4);
            tokens.take_until(end, |token| out.push(*token));
        }
        assert_eq!(out, (0..95 - tokens.len()).collect::<Vec<_>>());
        assert_eq!(tokens.len(), 3);
        drop(tokens);
        assert!(all.iter().all(|token| Rc::strong_count(token) == 1));
    }

    #[test]
    #[should_panic(expected = "only what is there")]
    fn a_number_that_does_not_exist_is_refused() {
        Tokens::<u32>::new(8).take_until(1, drop);
    }
}
