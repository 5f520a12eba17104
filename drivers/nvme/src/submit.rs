//! Takes requests: checks them, splits them into commands and describes their data.

#![allow(unsafe_code, reason = "gives pages back without copying")]

use crate::bounce::{Bounce, NONE};
use crate::command::{Command, io};
use crate::config::Config;
use crate::dma::{Dma, DmaBuffer, PAGE, Segment};
use crate::prp::{Cursor, LIST_ENTRIES, PAGE_BYTES, chunks};
use crate::queue::{ALONE, END, IoQueue, Pending, Place, Prepared, State};
use crate::registers::Registers;
use crate::request::{Operation, Refused, Request, Status};
use crate::table::{CACHE, DEALLOCATE, Known, WRITE_ZEROES};

/// log2 of the bytes of the shortest block (NVM Command Set 1.0, 4.1.5.1).
const LEAST_SHIFT: u32 = 9;

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
        self.lists.page_bus(self.page.saturating_add(page))
    }

    fn store(&self, page: usize, entry: usize, value: u64) {
        let first = self.page.saturating_add(page).saturating_mul(LIST_ENTRIES);
        self.lists.store(first.saturating_add(entry), value);
    }

    /// Adds an entry. Returns false if the list is full.
    #[inline(always)]
    fn add(&mut self, address: u64) -> bool {
        self.count = self.count.saturating_add(1);
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
            n => self.list(n.saturating_sub(2), address),
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

/// Opcode and FUA of a request with data.
#[inline(always)]
const fn kind(operation: Operation) -> Option<(u8, bool)> {
    match operation {
        Operation::Read => Some((io::READ, false)),
        Operation::Write { fua } => Some((io::WRITE, fua)),
        _ => None,
    }
}

impl<R: Registers, D: Dma> IoQueue<R, D> {
    /// Takes a request. [`IoQueue::notify`] gives it to the device, with all others that were taken before. `now`: in
    /// microseconds, of the clock of [`IoQueue::poll`].
    ///
    /// # Errors
    /// The request was not taken.
    #[inline(always)]
    pub fn submit(&mut self, request: &Request, segments: &[Segment], now: u64) -> Result<(), Refused> {
        let page = match segments {
            [segment] => self.submit_page(request, *segment, now),
            _ => None,
        };
        match page {
            Some(()) => Ok(()),
            // A copy, so that the caller's need not be in memory.
            None => self.submit_any(&Request { ..*request }, segments, now),
        }
    }

    /// Tells the device of the requests that were taken.
    #[inline(always)]
    pub fn notify(&mut self) {
        // What is known of the namespace is as old as the batch.
        self.prepared.forget();
        if self.is_open() {
            self.ring.notify(&self.registers);
        }
    }

    /// Takes a read or a write of one segment that begins a page and ends in it: the form of most requests. Returns `None`
    /// if the request has another form, or cannot be taken. Then nothing has changed.
    /// [`IoQueue::submit`] takes it, or says why not.
    #[inline(always)]
    pub fn submit_page(&mut self, request: &Request, segment: Segment, now: u64) -> Option<()> {
        let kind = kind(request.operation)?;
        if self.prepared.namespace != request.namespace {
            self.prepare(request.namespace);
        }
        // Without a namespace a page has no blocks. An identifier of 0 is refused by that.
        let Prepared { head, shift, page_blocks, page_firsts, .. } = self.prepared;
        // 0 blocks become too many.
        let blocks_less_1 = request.blocks.wrapping_sub(1);
        // The last blocks of the namespace, less than a page, are left to `submit_pages`.
        if blocks_less_1 >= page_blocks || request.first >= page_firsts {
            return None;
        }
        let bytes = u64::from(request.blocks) << shift;
        if u64::from(segment.len()) != bytes || !segment.address().is_multiple_of(PAGE_BYTES) {
            return None;
        }
        self.give(kind, head, (request.first, blocks_less_1), [segment.address(), 0], (request.id, now))
    }

    /// The same for one segment that PRP1 and PRP2 name where it lies.
    fn submit_pages(&mut self, request: &Request, segments: &[Segment], now: u64) -> Option<()> {
        let &[segment] = segments else { return None };
        let kind = kind(request.operation)?;
        if self.prepared.namespace != request.namespace {
            return None;
        }
        let Prepared { head, shift, blocks, .. } = self.prepared;
        let blocks_less_1 = request.blocks.checked_sub(1)?;
        let last = request.first.checked_add(blocks_less_1.into())?;
        let (address, bytes) = (segment.address(), u64::from(request.blocks) << shift);
        // 1 or 2 pages: `prepare` has checked that one command can have them.
        let end = (address % PAGE_BYTES).saturating_add(bytes);
        if last >= blocks || u64::from(segment.len()) != bytes || end > 2 * PAGE_BYTES || !address.is_multiple_of(4) {
            return None;
        }
        let second = if end > PAGE_BYTES { (address | (PAGE_BYTES - 1)).wrapping_add(1) } else { 0 };
        self.give(kind, head, (request.first, blocks_less_1), [address, second], (request.id, now))
    }

    /// Gives the only command of a request to the device, without bounce pages. Returns `None` if there is no free slot.
    #[inline(always)]
    fn give(
        &mut self,
        kind: (u8, bool),
        head: u64,
        range: (u64, u32),
        data: [u64; 2],
        (id, now): (u32, u64),
    ) -> Option<()> {
        let (_, slot) = self.take_slot()?;
        let command = Command::transfer(kind, head, &slot.command, range, data);
        slot.command = command;
        slot.since = now;
        slot.state = State::ALONE;
        slot.id = id;
        self.ring.push(&command);
        Some(())
    }

    /// Looks up a namespace for the requests until [`IoQueue::notify`]. It is not prepared if the queue is closed, there
    /// is no such namespace, or a command of it cannot have two pages.
    #[inline(never)]
    fn prepare(&mut self, namespace: u32) {
        self.prepared.forget();
        let least = self.table.transfer().min(self.config.max_bytes);
        if let Some(known) = self.table.get(namespace)
            && self.is_open()
            && least / 2 >= PAGE as u32
            && known.shift >= LEAST_SHIFT
        {
            let Known { shift, blocks, .. } = known;
            let page_blocks = PAGE as u32 >> shift;
            self.prepared = Prepared {
                namespace,
                head: u64::from(namespace) << 32,
                shift,
                blocks,
                page_blocks,
                page_firsts: blocks.saturating_add(1).saturating_sub(page_blocks.into()),
            };
        }
    }

    /// Takes a request of any form, or refuses it.
    #[inline(never)]
    fn submit_any(&mut self, request: &Request, segments: &[Segment], now: u64) -> Result<(), Refused> {
        if self.submit_pages(request, segments, now).is_some() {
            return Ok(());
        }
        // A caller that is refused may not call `notify`.
        self.prepared.forget();
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
        // The commands get the first free slots. They are taken once all are described.
        let mut index = self.free;
        for n in 1..=commands {
            let blocks = left.min(most);
            let command = Command::new(opcode, request.namespace).with_blocks(first, blocks, fua, false);
            let bytes = u64::from(blocks) << known.shift;
            if !self.describe(index, (owner, request.id), command, cursor, bytes) {
                self.withdraw(n, owner);
                return Err(Refused::Busy);
            }
            first = first.saturating_add(blocks.into());
            left = left.saturating_sub(blocks);
            if left != 0 {
                cursor.skip(bytes);
            }
            index = self.free_after(index);
        }
        self.issue_prepared(commands, owner, now);
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
        if commands > (self.slots.len() as u32).saturating_sub(self.used_slots()) {
            Err(Refused::Busy)
        } else {
            Ok(commands as u16)
        }
    }

    /// Returns a place for a request of several commands, or [`ALONE`].
    fn open_request(&mut self, id: u32, commands: u16) -> Result<u16, Refused> {
        if commands == 1 {
            return Ok(ALONE);
        }
        let owner = self.free_requests.pop().ok_or(Refused::Busy)?;
        if let Some(place) = self.requests.get_mut(usize::from(owner)) {
            *place = Pending { id, left: commands, status: Status::Ok };
        }
        Ok(owner)
    }

    /// The free slot after a free slot.
    fn free_after(&self, index: u16) -> u16 {
        self.slots.get(usize::from(index)).map_or(END, |slot| slot.state.next)
    }

    /// Prepares the command of a free slot, with `bytes` bytes of data, 0 for none. Returns false if there are not enough
    /// bounce pages. `owner`: its request, and that one's identifier.
    fn describe(
        &mut self,
        index: u16,
        (owner, id): (u16, u32),
        command: Command,
        cursor: Cursor<'_>,
        bytes: u64,
    ) -> bool {
        let Some(slot) = self.slots.get_mut(usize::from(index)) else { return false };
        let write = !command.is_read();
        let pages = usize::from(self.config.list_pages);
        let mut entries = Entries {
            dma: &self.dma,
            bounce: &mut self.bounce,
            lists: &self.lists,
            page: usize::from(index).saturating_mul(pages),
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
        let command = if bytes == 0 { command } else { command.with_data(prp1, prp2) };
        slot.command = command.with_cid(slot.command.cid());
        slot.state = State::new(owner, Place::Nowhere, slot.state.next);
        slot.id = id;
        good
    }

    /// Takes a request back of whose commands the first `prepared` were prepared.
    fn withdraw(&mut self, prepared: u16, owner: u16) {
        let mut index = self.free;
        for _ in 0..prepared {
            let Some(slot) = self.slots.get_mut(usize::from(index)) else { break };
            let list = core::mem::replace(&mut slot.bounce, NONE);
            index = slot.state.next;
            // SAFETY: nothing is copied.
            unsafe { self.bounce.release(&self.dma, list, false) };
        }
        if let Some(place) = self.requests.get_mut(usize::from(owner)) {
            place.left = 0;
            self.free_requests.push(owner);
        }
    }

    /// Gives the prepared commands of a request to the device.
    fn issue_prepared(&mut self, commands: u16, owner: u16, now: u64) {
        for _ in 0..commands {
            let Some((index, _)) = self.take_slot() else { return };
            self.shared_slots = self.shared_slots.saturating_add(u32::from(owner != ALONE));
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
        let index = self.free;
        if index == END {
            return Err(Refused::Busy);
        }
        // The range lies in the page that a PRP list would take.
        let page = usize::from(index).saturating_mul(self.config.list_pages.into());
        let word = page.saturating_mul(LIST_ENTRIES);
        self.lists.store(word, u64::from(request.blocks) << 32);
        self.lists.store(word.saturating_add(1), request.first);
        let list = self.lists.page_bus(page);
        self.submit_single(request.id, Command::deallocate(request.namespace, list), now)
    }

    fn submit_single(&mut self, id: u32, command: Command, now: u64) -> Result<(), Refused> {
        self.room(1, 1)?;
        self.describe(self.free, (ALONE, id), command, Cursor::new(&[]), 0);
        self.issue_prepared(1, ALONE, now);
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
        let mut index = self.free;
        for _ in 0..commands {
            let blocks = left.min(most);
            let command = Command::new(io::WRITE_ZEROES, request.namespace).with_blocks(first, blocks, fua, deallocate);
            self.describe(index, (owner, request.id), command, Cursor::new(&[]), 0);
            index = self.free_after(index);
            first = first.saturating_add(blocks.into());
            left = left.saturating_sub(blocks);
        }
        self.issue_prepared(commands, owner, now);
        Ok(())
    }
}
