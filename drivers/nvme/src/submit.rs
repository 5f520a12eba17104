//! Takes requests: checks them, splits them into commands and describes their data.

#![allow(unsafe_code, reason = "gives pages back without copying")]

use crate::bounce::{Bounce, NONE};
use crate::command::{Command, io};
use crate::config::Config;
use crate::dma::{Dma, DmaBuffer, PAGE, Segment};
use crate::prp::{Cursor, LIST_ENTRIES, chunks};
use crate::queue::{Ending, IoQueue, Pending, Place};
use crate::registers::Registers;
use crate::request::{Operation, Refused, Request, Status};
use crate::table::{CACHE, DEALLOCATE, Known, WRITE_ZEROES};

/// The PRP entries of a command while they are made.
struct Entries<'a, D> {
    dma: &'a D,
    bounce: &'a mut Bounce,
    lists: &'a DmaBuffer,
    /// The first page of the command's list, and the number of its pages.
    page: usize,
    pages: usize,
    write: bool,
    /// Bounce pages taken.
    taken: u32,
    /// Entries so far.
    count: usize,
    first: u64,
    second: u64,
    /// The entry that stands where the address of the list's next page goes if a further entry comes.
    held: u64,
}

impl<D> Entries<'_, D> {
    /// Bus address of a page of the list.
    const fn address(&self, page: usize) -> u64 {
        self.lists.bus() + ((self.page + page) * PAGE) as u64
    }

    fn store(&self, page: usize, entry: usize, value: u64) {
        self.lists.store((self.page + page) * LIST_ENTRIES + entry, value);
    }

    /// Adds an entry. Returns false if the list is full.
    #[inline(always)]
    fn add(&mut self, address: u64) -> bool {
        self.count += 1;
        match self.count {
            1 => {
                self.first = address;
                true
            }
            2 => {
                self.second = address;
                true
            }
            3 => self.list(0, self.second) && self.list(1, address),
            n => self.list(n - 2, address),
        }
    }

    /// Writes the entry number `n` of the list.
    fn list(&mut self, n: usize, address: u64) -> bool {
        const LINK: usize = LIST_ENTRIES - 1;
        let (page, entry) = (n / LINK, n % LINK);
        if let Some(before) = page.checked_sub(1) {
            if entry == 0 {
                // It may be the last entry of all. Then it stands where otherwise the next page's address is.
                self.held = address;
                self.store(before, LINK, address);
                return before < self.pages;
            }
            if entry == 1 && page < self.pages {
                self.store(before, LINK, self.address(page));
                self.store(page, 0, self.held);
            }
        }
        self.store(page, entry, address);
        page < self.pages
    }

    /// PRP1 and PRP2.
    const fn prp(&self) -> (u64, u64) {
        match self.count {
            0 | 1 => (self.first, 0),
            2 => (self.first, self.second),
            _ => (self.first, self.address(0)),
        }
    }
}

impl<R: Registers, D: Dma> IoQueue<R, D> {
    /// Takes a request. [`IoQueue::notify`] gives it to the device, with all others that were taken before. `now`: in
    /// microseconds, of the clock of [`IoQueue::poll`].
    ///
    /// # Errors
    /// The request was not taken.
    #[inline]
    pub fn submit(&mut self, request: &Request, segments: &[Segment], now: u64) -> Result<(), Refused> {
        if !self.is_open() {
            return Err(if self.is_closed() { Refused::Gone } else { Refused::Busy });
        }
        let known = self.table.get(request.namespace).ok_or(Refused::Namespace)?;
        match request.operation {
            Operation::Read => self.submit_data(request, segments, known, (io::READ, false), now),
            Operation::Write { fua } => self.submit_data(request, segments, known, (io::WRITE, fua), now),
            _ if !segments.is_empty() => Err(Refused::Length),
            Operation::Flush => self.submit_flush(request, now),
            Operation::Deallocate => self.submit_deallocate(request, known, now),
            Operation::WriteZeroes { deallocate, fua } => self.submit_zeroes(request, known, (deallocate, fua), now),
        }
    }

    /// Tells the device of the requests that were taken.
    #[inline(always)]
    pub fn notify(&mut self) {
        if self.is_open() {
            self.ring.notify(&self.registers);
        }
    }

    #[inline]
    fn submit_data(
        &mut self,
        request: &Request,
        segments: &[Segment],
        known: Known,
        (opcode, fua): (u8, bool),
        now: u64,
    ) -> Result<(), Refused> {
        let bytes = self.check(request, known)?;
        if bytes > u64::from(self.config.max_bytes) || segments.len() > self.config.max_segments as usize {
            return Err(Refused::TooLong);
        }
        if segments.iter().map(|s| u64::from(s.len())).sum::<u64>() != bytes {
            return Err(Refused::Length);
        }
        let most = self.blocks_of_command(known.shift);
        let commands = self.room(request.blocks, most)?;
        let owner = self.open_request(request.id, commands)?;
        let (mut cursor, mut first, mut left) = (Cursor::new(segments), request.first, request.blocks);
        // The commands' slots are the last ones of the free list. They are taken from it once all are described.
        for n in 0..commands {
            let blocks = left.min(most);
            let command = Command::new(opcode, request.namespace).with_blocks(first, blocks, fua, false);
            let bytes = u64::from(blocks) << known.shift;
            if !self.describe(n, owner, command, cursor, bytes) {
                self.withdraw(n, owner);
                return Err(Refused::Busy);
            }
            first += u64::from(blocks);
            left -= blocks;
            if left != 0 {
                cursor.skip(bytes);
            }
        }
        self.issue_prepared(commands, now);
        Ok(())
    }

    /// Checks the range of blocks. Returns their bytes.
    #[inline(always)]
    fn check(&self, request: &Request, known: Known) -> Result<u64, Refused> {
        let blocks = u64::from(request.blocks);
        let end = request.first.checked_add(blocks);
        if blocks == 0 || end.is_none_or(|end| end > known.blocks) {
            return Err(Refused::Range);
        }
        Ok(blocks << known.shift)
    }

    /// The number of commands for some blocks, if there is room for them.
    #[inline(always)]
    fn room(&self, blocks: u32, most: u32) -> Result<u16, Refused> {
        let commands = if blocks <= most { 1 } else { blocks.div_ceil(most.max(1)) };
        if commands > Config::most_commands(self.ring.entries()) {
            return Err(Refused::TooLong);
        }
        if commands as usize > self.free.len() { Err(Refused::Busy) } else { Ok(commands as u16) }
    }

    #[inline(always)]
    fn open_request(&mut self, id: u32, commands: u16) -> Result<u16, Refused> {
        let owner = self.free_requests.pop().ok_or(Refused::Busy)?;
        if let Some(place) = self.requests.get_mut(usize::from(owner)) {
            *place = Pending { id, left: commands, status: Status::Ok };
        }
        Ok(owner)
    }

    /// The slot that the command number `n` of a request will have.
    #[inline(always)]
    fn slot_of(&self, n: u16) -> Option<u16> {
        self.free.len().checked_sub(1 + usize::from(n)).and_then(|at| self.free.get(at)).copied()
    }

    /// Prepares the command number `n` of a request, with `bytes` bytes of data, 0 for none. Returns false if there are
    /// not enough bounce pages.
    #[inline(always)]
    fn describe(&mut self, n: u16, owner: u16, command: Command, cursor: Cursor<'_>, bytes: u64) -> bool {
        let Some(index) = self.slot_of(n) else { return false };
        let Some(slot) = self.slots.get_mut(usize::from(index)) else { return false };
        let write = command.words(0)[0] as u8 == io::WRITE;
        let pages = usize::from(self.config.list_pages);
        let mut entries = Entries {
            dma: &self.dma,
            bounce: &mut self.bounce,
            lists: &self.lists,
            page: usize::from(index) * pages,
            pages,
            write,
            taken: NONE,
            count: 0,
            first: 0,
            second: 0,
            held: 0,
        };
        let good = chunks(
            cursor,
            bytes,
            &mut entries,
            |e, at, len, offset| e.bounce.take(e.dma, at, (len, offset), e.write, &mut e.taken),
            Entries::add,
        );
        let (prp1, prp2) = entries.prp();
        slot.bounce = entries.taken;
        slot.command = if bytes == 0 { command } else { command.with_data(prp1, prp2) };
        slot.request = owner;
        slot.reads = bytes != 0 && !write;
        slot.ending = Ending::No;
        slot.abort_wanted = false;
        slot.retries = 0;
        good
    }

    /// Takes a request back whose commands up to number `last` were prepared.
    fn withdraw(&mut self, last: u16, owner: u16) {
        for n in 0..=last {
            let index = self.slot_of(n);
            let Some(slot) = index.and_then(|index| self.slots.get_mut(usize::from(index))) else { continue };
            let list = core::mem::replace(&mut slot.bounce, NONE);
            // SAFETY: nothing is copied.
            unsafe { self.bounce.release(&self.dma, list, false) };
        }
        if let Some(place) = self.requests.get_mut(usize::from(owner)) {
            place.left = 0;
        }
        self.free_requests.push(owner);
    }

    /// Gives the prepared commands of a request to the device.
    #[inline(always)]
    fn issue_prepared(&mut self, commands: u16, now: u64) {
        for _ in 0..commands {
            let Some(index) = self.free.pop() else { return };
            debug_assert!(self.slots.get(usize::from(index)).is_some_and(|slot| slot.place == Place::Nowhere));
            self.issue(index, now);
        }
    }

    fn submit_flush(&mut self, request: &Request, now: u64) -> Result<(), Refused> {
        if !self.table.has(CACHE) {
            // Every write that was answered is durable. The answer needs no command, but there is room for few.
            if self.finished.len() >= self.slots.len() {
                return Err(Refused::Busy);
            }
            self.finished.push_back((request.id, Status::Ok));
            return Ok(());
        }
        self.submit_single(request.id, Command::new(io::FLUSH, request.namespace), now)
    }

    fn submit_deallocate(&mut self, request: &Request, known: Known, now: u64) -> Result<(), Refused> {
        if !self.table.has(DEALLOCATE) {
            return Err(Refused::Unsupported);
        }
        self.check(request, known)?;
        let index = self.slot_of(0).ok_or(Refused::Busy)?;
        // The range lies in the page that a PRP list would take.
        let page = usize::from(index) * usize::from(self.config.list_pages);
        self.lists.store(page * LIST_ENTRIES, u64::from(request.blocks) << 32);
        self.lists.store(page * LIST_ENTRIES + 1, request.first);
        let list = self.lists.bus() + (page * PAGE) as u64;
        self.submit_single(request.id, Command::deallocate(request.namespace, list), now)
    }

    fn submit_single(&mut self, id: u32, command: Command, now: u64) -> Result<(), Refused> {
        self.room(1, 1)?;
        let owner = self.open_request(id, 1)?;
        self.describe(0, owner, command, Cursor::new(&[]), 0);
        self.issue_prepared(1, now);
        Ok(())
    }

    fn submit_zeroes(
        &mut self,
        request: &Request,
        known: Known,
        (deallocate, fua): (bool, bool),
        now: u64,
    ) -> Result<(), Refused> {
        if !self.table.has(WRITE_ZEROES) {
            return Err(Refused::Unsupported);
        }
        self.check(request, known)?;
        let most = self.blocks_of_command(known.shift);
        let commands = self.room(request.blocks, most)?;
        let owner = self.open_request(request.id, commands)?;
        let (mut first, mut left) = (request.first, request.blocks);
        for n in 0..commands {
            let blocks = left.min(most);
            let command = Command::new(io::WRITE_ZEROES, request.namespace).with_blocks(first, blocks, fua, deallocate);
            self.describe(n, owner, command, Cursor::new(&[]), 0);
            first += u64::from(blocks);
            left -= blocks;
        }
        self.issue_prepared(commands, now);
        Ok(())
    }
}
